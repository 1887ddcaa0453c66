"""What a step computes beyond plain models: padding, state, random draws, shared and pooled embeddings, metrics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from training_world import VOCABULARY, by_column, check_against_keras, make_batch, plain_twin

from trimtab.core.data.columns import MISSING_KEY


def small_model(keras, middle=(), loss="binary_crossentropy", optimizer="adagrad", **compiled):
    """price and user, some layers in the middle, one probability."""
    price, user = keras.Input((1,), name="price"), keras.Input((), name="user", dtype="int64")
    x = keras.layers.Concatenate()([price, keras.layers.Embedding(VOCABULARY, 4, name="users")(user)])
    for layer in [keras.layers.Dense(6), *middle]:
        x = layer(x)
    model = keras.Model([price, user], keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile(optimizer, loss, **compiled)
    return model


def inputs_of(model, batch):
    return {tensor.name: by_column(batch)[tensor.name] for tensor in model.inputs}


def test_a_padded_batch_is_the_mean_over_its_real_rows(keras, make_step):
    for loss in ("binary_crossentropy", keras.losses.MeanSquaredError(reduction="sum"),
                 keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")):  # fmt: skip
        model, batch = small_model(keras, loss=loss), make_batch(8, rows=5)
        assert not batch.weight[5:].any()
        check_against_keras(keras, make_step, model, batch, inputs_of(model, batch))


def test_regularizers_and_a_users_own_loss_are_part_of_the_loss(keras, make_step):
    def squared(labels, output):
        return keras.ops.square(labels - output)

    layer = keras.layers.Dense(5, kernel_regularizer=keras.regularizers.L2(0.3), bias_regularizer="l1")
    model, batch = small_model(keras, [layer], loss=squared), make_batch(8)
    check_against_keras(keras, make_step, model, batch, inputs_of(model, batch))


def test_moving_averages_are_pushed_as_deltas(keras, make_step):
    model, batch = small_model(keras, [keras.layers.BatchNormalization(momentum=0.7)]), make_batch(8)
    start = model.non_trainable_variables[0].numpy(), model.non_trainable_variables[1].numpy()
    step, ps, result, plain = check_against_keras(keras, make_step, model, batch, inputs_of(model, batch))
    table = ps.elastic.tables[-1]
    assert (table.name, table.kind, table.rows, table.optimizer.kind) == ("state", "state", 1, "add")
    expected = np.concatenate([
        variable.numpy() - old for variable, old in zip(plain.non_trainable_variables, start, strict=True)
    ])  # fmt: skip
    np.testing.assert_allclose(result.state_delta[: len(expected)], expected, atol=1e-6)
    assert not result.state_delta[len(expected) :].any()
    before = ps.scores(step, batch)
    ps.state = ps.state + result.state_delta
    assert not np.allclose(before, ps.scores(step, batch)), "evaluation uses the averages it is given"


def test_every_random_draw_follows_from_seed_and_batch_number(keras, make_step):
    model = small_model(keras, [keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.5)])
    step, ps = make_step(model, seed=1)
    batch = make_batch(8)

    def loss(of, number):
        return ps.gradients(of, replace(batch, number=number))[0].loss

    assert loss(step, 7) == loss(step, 7)
    assert loss(step, 7) != loss(step, 8)
    again, _ = make_step(model, seed=1)
    other, _ = make_step(model, seed=2)
    assert loss(again, 7) == loss(step, 7) != loss(other, 7)
    np.testing.assert_array_equal(ps.scores(step, batch), ps.scores(other, batch))


def test_a_shared_embedding_is_one_table_with_several_lookups(keras, make_step):
    user, item = (keras.Input((1,), name=name, dtype="int64") for name in ("user", "item"))
    tags = keras.Input((3,), name="tags", dtype="int64")
    shared, wide = keras.layers.Embedding(VOCABULARY, 4, name="shared"), keras.layers.Embedding(VOCABULARY, 2)
    parts = [keras.layers.Flatten()(layer(one)) for layer, one in
             ((shared, user), (wide, item), (shared, item), (shared, tags))]  # fmt: skip
    model = keras.Model([user, item, tags], keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    batch = make_batch(8)
    _, ps, _, _ = check_against_keras(keras, make_step, model, batch, inputs_of(model, batch))
    assert [table.dim for table in ps.elastic.tables] == [2, 4, 256]
    assert sorted(lookup.length for lookup in ps.elastic.lookups if lookup.group == 1) == [8, 8, 24]
    assert {lookup.table for lookup in ps.elastic.lookups if lookup.group == 1} == {1}


def test_masks_hide_id_zero_as_in_keras_and_the_padding_of_multi_hot_columns(keras, make_step):
    from trimtab.core.training.embedding import open_embeddings

    tags = keras.Input((3,), name="tags", dtype="int64")
    with open_embeddings():
        rows = keras.layers.Embedding(VOCABULARY, 4, mask_zero=True, name="tags_rows")(tags)
        pooled = keras.layers.GlobalAveragePooling1D()(rows)
    model = keras.Model(tags, keras.layers.Dense(1)(pooled))
    model.compile("sgd", "mse")
    batch = make_batch(8)
    batch.multi["tags"][:, 0] += batch.multi["tags"][:, 0] == 0
    batch.multi["tags"][:, 1] = 0
    step, ps, _, _ = check_against_keras(keras, make_step, model, batch, inputs_of(model, batch))
    padded = replace(batch, multi={"tags": np.where(batch.multi["tags"] == 0, MISSING_KEY, batch.multi["tags"])})
    np.testing.assert_allclose(ps.scores(step, padded), ps.scores(step, batch), atol=1e-6)


def test_an_embedding_inside_a_nested_model_is_found(keras, make_step):
    one = keras.Input((), name="id", dtype="int64")
    inner = keras.Model(one, keras.layers.Dense(3)(keras.layers.Embedding(VOCABULARY, 4, name="deep")(one)))
    user, item = (keras.Input((), name=name, dtype="int64") for name in ("user", "item"))
    model = keras.Model([user, item], keras.layers.Dense(1)(keras.layers.Multiply()([inner(user), inner(item)])))
    model.compile("sgd", "mse")
    batch = make_batch(8)
    step, ps, _, _ = check_against_keras(keras, make_step, model, batch, inputs_of(model, batch))
    assert [table.name for table in ps.elastic.tables] == ["deep", "dense"]
    assert len(ps.elastic.lookups) == 2
    assert step._direct is not None


def test_ids_that_are_computed_come_from_the_graph(keras, make_step):
    ids = keras.Input((3,), name="categorical", dtype="int64")
    folded = keras.layers.Embedding(VOCABULARY, 4, name="folded")(ids[:, 1] % 7)
    flat = keras.ops.reshape(ids[:, 1:], (-1,))
    crossed = keras.layers.Embedding(VOCABULARY, 4, name="crossed")(flat)
    both = keras.layers.Concatenate()([folded, keras.ops.reshape(crossed, (-1, 8))])
    model = keras.Model(ids, keras.layers.Dense(1)(both))
    model.compile("sgd", "mse")
    batch = make_batch(8)
    step, ps, _, _ = check_against_keras(keras, make_step, model, batch, {"categorical": batch.keys})
    assert step._direct is None
    names = {ps.elastic.tables[lookup.table].name: lookup for lookup in ps.elastic.lookups}
    (found,) = step.ids(batch)
    at = names["folded"].offset
    np.testing.assert_array_equal(found[at : at + 8], batch.keys[:, 1] % 7)
    at = names["crossed"].offset
    np.testing.assert_array_equal(found[at : at + 16], batch.keys[:, 1:].ravel())


def test_ids_picked_by_hand_equal_those_of_the_graph(keras, make_step):
    inputs = [keras.Input((1,), name=name, dtype="int64") for name in ("shop", "user", "item")]
    inputs.append(keras.Input((3,), name="tags", dtype="int64"))
    parts = [keras.layers.Flatten()(keras.layers.Embedding(VOCABULARY, 4)(one)) for one in inputs]
    parts.append(keras.layers.Embedding(VOCABULARY, 4)(inputs[3][:, 2]))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    model.compile("sgd", "mse")
    step, _ = make_step(model)
    batch = make_batch(8)
    by_hand = step.ids(batch)
    by_graph = [np.asarray(ids) for ids in step.model.recording.ids(batch.dense, batch.keys, batch.multi["tags"])]
    assert step._direct is not None
    np.testing.assert_array_equal(by_hand, by_graph)


def test_adapted_layers_keep_their_constants_and_bad_numbers_are_told(keras, make_step):
    normal = keras.layers.Normalization()
    normal.adapt(np.arange(20.0).reshape(-1, 1) * 3)
    price = keras.Input((1,), name="price")
    model = keras.Model(price, keras.layers.Dense(1)(normal(price)))
    model.compile("sgd", "mse")
    batch = make_batch(8)
    step, ps, _, _ = check_against_keras(keras, make_step, model, batch, inputs_of(model, batch))
    assert [table.name for table in ps.elastic.tables] == ["dense"]
    assert step.ids(batch) == []
    batch.dense[2, 0] = np.nan
    result = step.train(batch, [], [], ps.dense)
    assert not result.finite


def test_arrays_that_tensorflow_cannot_share_are_copied(keras, make_step):
    step, ps = make_step(small_model(keras))
    batch = make_batch(8)
    rows, places, _ = ps.pull(step, batch)
    expected = step.train(batch, rows, places, ps.dense)
    odd = np.empty(rows[0].nbytes + 4, np.uint8)[4:].view(np.float32).reshape(rows[0].shape)
    odd[:] = rows[0]
    dense = ps.dense.copy()
    dense.flags.writeable = False
    found = step.train(batch, [odd], places, dense)
    np.testing.assert_array_equal(found.row_gradients[0], expected.row_gradients[0])
    np.testing.assert_array_equal(found.dense_gradient, expected.dense_gradient)


def test_results_outlive_the_next_step(keras, make_step):
    step, ps = make_step(small_model(keras))
    first, _ = ps.gradients(step, make_batch(8, 1))
    kept = first.dense_gradient.copy(), first.row_gradients[0].copy()
    ps.gradients(step, make_batch(8, 2))
    np.testing.assert_array_equal(first.dense_gradient, kept[0])
    np.testing.assert_array_equal(first.row_gradients[0], kept[1])


def test_learning_rates_follow_the_batch_number(keras, make_step):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([10], [0.5, 0.25])
    step, _ = make_step(small_model(keras, optimizer=keras.optimizers.SGD(schedule)))
    assert [step.learning_rate(number) for number in (0, 10, 11)] == [0.5, 0.5, 0.25]
    step, _ = make_step(small_model(keras, optimizer=keras.optimizers.Adam(0.125)))
    assert step.learning_rate(5) == 0.125


def test_compiled_metrics_see_what_they_would_see_in_keras(keras, make_step):
    def spread(labels, output):
        return keras.ops.max(output) + 0 * keras.ops.mean(labels)

    labels = np.array([0, 1, 1, 0], np.float32)
    weights = np.array([1, 1, 2, 1], np.float32)
    step, _ = make_step(small_model(keras, metrics=["accuracy", spread], weighted_metrics=["mse"]))
    scores = np.array([0.25, 0.75, 0.5, 0.75], np.float32)
    assert step.metric_names(scores, labels, weights) == ["accuracy", "spread", "mse"]
    found = step.metrics(scores, labels, weights)
    assert found["accuracy"] == pytest.approx(0.5)
    assert found["spread"] == pytest.approx(0.75)
    logits = keras.losses.BinaryCrossentropy(from_logits=True)
    step, _ = make_step(small_model(keras, loss=logits, metrics=[spread]))
    assert step.metrics(scores, labels, weights)["spread"] == pytest.approx(np.log(3), abs=1e-5)


def test_a_step_is_made_for_one_batch_size(keras, make_step):
    from trimtab.core.training.step import TrainStep

    step, _ = make_step(small_model(keras))
    with pytest.raises(ValueError, match="batches of 8 rows, not 9"):
        TrainStep(step.model, 9, 0)


def test_an_input_that_only_evaluation_reads_is_given_to_it(keras, make_step):
    class OnlyWhenScoring(keras.layers.Layer):
        """Adds the id itself, but not in training: the training step has no use for that input."""

        def call(self, pair, training=False):
            values, ids = pair
            return values if training else values + keras.ops.cast(ids, "float32")[:, None]

    price, user = keras.Input((1,), name="price"), keras.Input((), name="user", dtype="int64")
    rows = keras.layers.Embedding(VOCABULARY, 4, name="users")(user)
    logit = keras.layers.Dense(1, name="logit")(keras.layers.Concatenate()([price, rows]))
    model = keras.Model([price, user], OnlyWhenScoring()([logit, user]))
    model.compile("sgd", "mse")
    batch = make_batch(8)
    step, ps = make_step(model, 8)
    untrained = plain_twin(keras, model)
    untrained.get_layer("users").set_weights([np.stack([ps.row(0, key) for key in range(VOCABULARY)])])
    expected = np.asarray(untrained(inputs_of(model, batch), training=False)).reshape(-1)
    assert by_column(batch)["user"].max() > 1
    np.testing.assert_allclose(ps.scores(step, batch), expected, rtol=1e-5)
