"""The five built-in models: each computes what plain Keras computes, picks its ids by hand, and learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from training_world import COLUMNS, DIM, TinyPs, bundles, check_against_keras, make_batch

from trimtab.core.data.columns import MISSING_KEY, CategoricalColumn, Columns, DenseColumn
from trimtab.core.domain.job import BUILT_IN_MODELS
from trimtab.core.errors import ModelError


@pytest.mark.parametrize("name", BUILT_IN_MODELS)
def test_one_step_is_keras_own_step_and_training_learns(name, keras, make_step, spec):
    from trimtab.core.training.load import load_model

    model = load_model(name, COLUMNS, spec)
    batch = make_batch(8, number=1)
    step, ps, _, _ = check_against_keras(keras, make_step, model, batch, bundles(batch))
    assert step._direct is not None, "a built-in model's ids need no TensorFlow"

    ps = TinyPs(ps.elastic, seed=1)
    batches = [make_batch(8, number) for number in range(4)]
    losses = [ps.train(step, batches[turn % 4], 0.3) for turn in range(60)]
    assert np.mean(losses[-4:]) < 0.8 * np.mean(losses[:4])
    scores = np.concatenate([ps.scores(step, batch) for batch in batches])
    labels = np.concatenate([batch.label for batch in batches])
    assert ((scores >= 0) & (scores <= 1)).all()
    assert np.mean((scores > 0.5) == (labels > 0.5)) > 0.75


@pytest.mark.parametrize("name", BUILT_IN_MODELS)
def test_any_columns_will_do_as_long_as_there_is_something_to_embed(name, keras, spec):
    from trimtab.core.training.elastic import ElasticModel
    from trimtab.core.training.load import load_model

    columns = Columns("y", categorical=(CategoricalColumn("a/b ü"),))
    model = ElasticModel(load_model(name, columns, spec), columns, 4)
    assert {table.kind for table in model.tables} == {"embedding", "dense"}
    with pytest.raises(ModelError, match="needs at least one categorical column"):
        load_model(name, Columns("y", dense=(DenseColumn("x"),)), spec)


def test_a_multi_hot_column_may_be_the_only_thing_to_embed(keras, make_step, spec):
    from trimtab.core.training.load import load_model

    columns = Columns("y", dense=(DenseColumn("x"),), categorical=(CategoricalColumn("my tags", length=2),))
    step, ps = make_step(load_model("dlrm", columns, spec), 4, columns)
    result, gradients = ps.gradients(step, make_batch(4, columns=columns))
    assert result.finite and any(gradient.any() for gradient in gradients.values())


def test_padding_of_a_multi_hot_column_counts_for_nothing(keras, make_step, spec):
    from trimtab.core.training.load import load_model

    step, ps = make_step(load_model("dcn", COLUMNS, spec))
    padded = make_batch(8)
    padded.multi["tags"][:, 1:] = MISSING_KEY
    whole = replace(padded, multi={"tags": np.repeat(padded.multi["tags"][:, :1], 3, axis=1)})
    np.testing.assert_allclose(ps.scores(step, padded), ps.scores(step, whole), atol=1e-6)
    _, gradients = ps.gradients(step, padded)
    table = [table.name for table in ps.elastic.tables].index("embedding_tags")
    assert not gradients[table, MISSING_KEY].any()


def test_tables_are_called_after_their_columns_and_sorted_by_width(keras, make_step, spec):
    from trimtab.core.training.load import load_model

    _, ps = make_step(load_model("deepfm", COLUMNS, spec))
    names = ["user", "item", "shop", "tags"]
    found = [(table.name, table.dim) for table in ps.elastic.tables]
    assert sorted(found[:4]) == sorted((f"first_{name}", 1) for name in names)
    assert sorted(found[4:8]) == sorted((f"embedding_{name}", DIM) for name in names)
    assert [table.kind for table in ps.elastic.tables[8:]] == ["dense"]
    assert [(group.dim, group.tables, group.positions) for group in ps.elastic.groups] == [
        (1, (0, 1, 2, 3), 8 * 6), (DIM, (4, 5, 6, 7), 8 * 6),
    ]  # fmt: skip
    for group in ps.elastic.groups:
        lookups = [ps.elastic.lookups[at] for at in group.lookups]
        assert [lookup.offset for lookup in lookups] == list(np.cumsum([0, *(one.length for one in lookups[:-1])]))
        assert [lookup.table for lookup in lookups] == list(group.tables)
