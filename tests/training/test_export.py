"""A trained model as a plain Keras model: the same scores, stock layers only, and a clear line for what cannot be."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_world import COLUMNS, TinyPs, make_batch

from trimtab.core.data.columns import CategoricalColumn, Columns, DenseColumn
from trimtab.core.domain.job import JobSpec
from trimtab.core.errors import BadInput, CorruptCopy, JobFailed, ModelError
from trimtab.core.training import export_client
from trimtab.core.training.apart import run_apart
from trimtab.core.training.export_client import Answer, export_job, read_job
from trimtab.core.wire.encode import to_json

# Every transform, a slash, and names that layers of the written model have, too.
ALL = Columns(
    label="y",
    dense=(DenseColumn("price"), DenseColumn("a/b", "standard"), DenseColumn("score", "none")),
    categorical=(CategoricalColumn("prepare"), CategoricalColumn("item"), CategoricalColumn("tags", length=3)),
)
STANDARD = {"a/b": (1.7e9, 1.7e9 + 10, 5.0)}


def raw_of(batch: Any, columns: Columns) -> dict[str, np.ndarray]:
    """The raw columns whose transformed values are the batch's."""
    found = {}
    for at, column in enumerate(columns.dense):
        values = batch.dense[:, at].astype(np.float64)
        _, mean, deviation = STANDARD.get(column.name, (0.0, 0.0, 1.0))
        back = {"log1p": np.expm1, "standard": lambda one, m=mean, d=deviation: one * d + m, "none": lambda one: one}
        found[column.name.replace("/", "_")] = back[column.transform](values)
    found |= {column.name: batch.keys[:, at] for at, column in enumerate(columns.single)}
    return found | dict(batch.multi)


def rows_of(server: TinyPs) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What `read_rows` would read after the server's training."""
    found = {}
    blocks = {"dense": server.dense, "state": server.state}
    for place, table in enumerate(server.elastic.tables):
        if table.kind == "embedding":
            keys = sorted(key for of, key in server.values if of == place)
            values = np.array([server.values[place, key] for key in keys], np.float32).reshape(len(keys), table.dim)
            found[table.name] = (np.array(keys, np.int64), values)
        else:
            found[table.name] = (np.arange(table.rows), blocks[table.kind].reshape(table.rows, table.dim))
    return found


def exported(elastic: Any, server: TinyPs, columns: Columns, folder: Path) -> Any:
    import keras

    from trimtab.core.training.export_graph import plain_model, set_weights

    rows = rows_of(server)
    set_weights(elastic, rows)
    plain_model(elastic, rows, columns, STANDARD).save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


@pytest.mark.parametrize("name", ["dlrm", "wide_deep", "deepfm", "xdeepfm", "dcn"])
def test_a_built_in_model_scores_as_in_training(keras, make_step, tmp_path, name):
    from trimtab.core.training.load import load_model

    model = load_model(name, ALL, JobSpec(data="x", model=name, embedding_dim=4))
    step, server = make_step(model, columns=ALL)
    batch = make_batch(8, 1, columns=ALL)
    batch.dense[:, 0] = np.abs(batch.dense[:, 0])  # log1p gives nothing below 0
    batch.multi["tags"][:, 2] = -(2**63)  # a missing id
    server.train(step, batch, 0.1)
    expected = server.scores(step, batch)
    loaded = exported(step.model, server, ALL, tmp_path)
    found = np.asarray(loaded(raw_of(batch, ALL)))
    assert found.shape == (8, 1) and found.dtype == np.float32
    assert np.abs(found.ravel() - expected).max() < 1e-6
    assert np.std(expected) > 1e-4, "scores that do not differ would prove nothing"
    kinds = {type(layer).__module__.partition(".")[0] for layer in loaded._flatten_layers()}
    assert kinds == {"keras"}


def test_ids_never_trained_and_missing_values_are_as_in_evaluation(keras, make_step, tmp_path):
    from trimtab.core.training.load import load_model

    columns = replace(ALL, dense=ALL.dense[:2])
    step, server = make_step(load_model("dlrm", columns, JobSpec(data="x", embedding_dim=4)), columns=columns)
    batch = make_batch(8, 1, columns=columns)
    server.train(step, batch, 0.1)
    loaded = exported(step.model, server, columns, tmp_path)
    for place, table in enumerate(step.model.tables):  # evaluation gives unknown ids the default row
        if table.kind == "embedding":
            server.values |= {(place, key): np.zeros(table.dim, np.float32) for key in (777, -1, 2**62)}
    batch.keys[:3] = [[777, -1], [2**62, 777], [-1, -1]]
    batch.multi["tags"][:] = 777
    batch.dense[:4] = 0.0  # what a missing value becomes
    raw = raw_of(batch, columns)
    for name in ("price", "a_b"):
        raw[name][:4] = [np.nan, np.inf, -np.inf, np.nan]
    raw["price"][4:], batch.dense[4:, 0] = -3.0, 0.0  # log1p: a negative value becomes 0
    assert np.abs(np.asarray(loaded(raw)).ravel() - server.scores(step, batch)).max() < 1e-6


def test_the_model_takes_any_number_of_rows_and_predict_works(keras, make_step, tmp_path):
    from trimtab.core.training.load import load_model

    step, server = make_step(load_model("dlrm", COLUMNS, JobSpec(data="x", embedding_dim=4)))
    batch = make_batch(8, 1)
    batch.dense[:] = np.abs(batch.dense)
    expected = server.scores(step, batch)
    loaded = exported(step.model, server, COLUMNS, tmp_path)
    raw = {name: values[:5] for name, values in raw_of(batch, COLUMNS).items()}
    assert np.abs(loaded.predict(raw, verbose=0).ravel() - expected[:5]).max() < 1e-6


def own(keras, build):
    user = keras.Input((), name="user", dtype="int64")
    tags = keras.Input((3,), name="tags", dtype="int64")
    model = keras.Model([user, tags], keras.layers.Dense(1, name="last")(build(user, tags)))
    model.compile("adagrad", "mse")
    return model


def test_a_model_of_ones_own_with_state_and_a_shared_table(keras, make_step, tmp_path):
    """The loss is not on logits, so the score is the output; one layer is called twice; averages have moved."""
    from trimtab.core.training.embedding import open_embeddings

    with open_embeddings():
        shared = keras.layers.Embedding(10**9, 4, name="dense")  # the name of a table of blocks

        def build(user, tags):
            mean = keras.ops.mean(shared(tags % 7), axis=1)
            return keras.layers.BatchNormalization()(keras.layers.Concatenate()([shared(user), mean]))

        model = own(keras, build)
    step, server = make_step(model)
    for number in range(3):
        server.train(step, make_batch(8, number), 0.1)
    batch = make_batch(8, 2)
    loaded = exported(step.model, server, COLUMNS, tmp_path)
    found = np.asarray(loaded(raw_of(batch, COLUMNS))).ravel()
    assert np.abs(found - server.scores(step, batch)).max() < 1e-6
    assert np.abs(server.state[:8]).max() > 0


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("mask", "an embedding with mask_zero can't be exported yet"),
        ("lambda", "a Lambda can't be loaded without its code"),
        ("own", "only Keras' own layers can be exported yet"),
        ("inner", "an embedding of an inner model can't be exported yet"),
    ],
)
def test_what_cannot_be_exported_yet_says_so(keras, make_step, tmp_path, kind, words):
    from trimtab.core.training.embedding import open_embeddings

    class Own(keras.layers.Layer):
        def call(self, inputs):
            return inputs

    def build(user, tags):
        rows = keras.layers.Embedding(10**9, 4, name="users", mask_zero=kind == "mask")
        if kind == "inner":
            ids = keras.Input((), dtype="int64")
            return keras.Model(ids, rows(ids))(user)
        after = {"lambda": keras.layers.Lambda(lambda x: x), "own": Own()}.get(kind)
        return rows(user) if after is None else after(rows(user))

    with open_embeddings():
        model = own(keras, build)
    step, server = make_step(model)
    server.train(step, make_batch(8), 0.1)
    with pytest.raises(ModelError, match=words):
        exported(step.model, server, COLUMNS, tmp_path)


def test_blocks_that_are_missing_are_not_zeros(keras, make_step):
    from trimtab.core.training.export_graph import set_weights
    from trimtab.core.training.load import load_model

    step, server = make_step(load_model("dlrm", COLUMNS, JobSpec(data="x", embedding_dim=4)))
    keys, values = rows_of(server)["dense"]
    with pytest.raises(CorruptCopy, match="table 'dense' has 0 blocks of"):
        set_weights(step.model, {"dense": (keys[:0], values[:0])})


# ---- the asking side, without TensorFlow


@pytest.fixture
def job(tmp_path) -> Path:
    """A finished job's directory, as far as the asking side looks at it."""
    path = tmp_path / "job"
    (path / "pods").mkdir(parents=True)
    (path / "spec.json").write_bytes(to_json(JobSpec(data="rows.csv")))
    result = {"run_id": "r1", "state": "finished", "model": "/gone/manifest-1.json"}
    (path / "result.json").write_text(json.dumps(result))
    (path / "metadata.json").write_text(json.dumps({"columns": {"label": "y"}, "standard": {}, "rows": 3}))
    return path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_job_that_moved_is_found_beside_itself(job):
    assert read_job(job).manifest == str(job / "checkpoints" / "manifest-1.json")


@pytest.mark.parametrize("state", ["running", "stopped", "failed"])
def test_only_a_finished_job_has_a_model(job, tmp_path, state):
    (job / "result.json").write_text(json.dumps({"run_id": "r1", "state": state, "model": "m"}))
    with pytest.raises(BadInput, match=f"the job is {state}; only a finished job"):
        export_job(job, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"run_id": 1}'])
def test_a_directory_that_is_no_job_says_so(job, tmp_path, text):
    (job / "result.json").unlink()
    if text is not None:
        (job / "result.json").write_text(text)
    with pytest.raises(BadInput, match=r"RUN: .*job.*: (it holds no finished job|its files cannot be read)"):
        export_job(job, tmp_path / "out", tmp_path)


def test_a_used_directory_is_not_written_to(job, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(BadInput, match=r"--out: .* is already used"):
        export_job(job, tmp_path / "out", tmp_path)
    with pytest.raises(BadInput, match=r"--out: .* is no directory"):
        export_job(job, tmp_path / "out" / "mine", tmp_path)
    assert files(tmp_path / "out") == ["mine"]


def answers(monkeypatch, answer: Answer | None, code: int | None = 0, said: str = "last words"):
    def run(request, log, deadline):
        log.write_text(f"first\n{said}\n\n")
        if answer is not None:
            (request.parent / "answer.json").write_bytes(to_json(answer))
        return code

    monkeypatch.setattr(export_client, "_run", run)


@pytest.mark.parametrize(
    ("answer", "code", "error", "words"),
    [
        (None, -9, JobFailed, "ended by signal 9 after saying: last words"),
        (None, 1, JobFailed, "ended with exit code 1 after saying: last words"),
        (None, None, JobFailed, "was not ready after 900 s after saying: last words"),
        (Answer({}, "ModelError", "--model", "m:f", "change it"), 0, ModelError, "--model: 'm:f': change it"),
        (Answer({}, "CorruptCopy", remedy="copy is short"), 0, CorruptCopy, "copy is short"),
    ],
)
def test_whatever_goes_wrong_nothing_is_left(job, tmp_path, monkeypatch, answer, code, error, words):
    answers(monkeypatch, answer, code)
    with pytest.raises(error, match=words):
        export_job(job, tmp_path / "new" / "out", tmp_path)
    assert not (tmp_path / "new" / "out").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(error):
        export_job(job, tmp_path / "there", tmp_path)
    assert files(tmp_path / "there") == []


def test_a_process_apart_is_ended_at_its_deadline(tmp_path):
    """A module that would never end: the server of the standard library, on any free port."""
    assert run_apart("http.server", Path("0"), tmp_path / "log", 0.5) is None
    assert run_apart("no.such.module", Path("x"), tmp_path / "log", 30) == 1
    assert "No module named" in (tmp_path / "log").read_text()


def test_how_the_data_was_read_is_found_also_when_the_cache_is_gone(job, tmp_path):
    """The job's own page, else its entry in the cache, else the rows themselves."""
    from trimtab.core.data.prepare import prepare

    find = export_client._data_of
    assert find(read_job(job), tmp_path, print).columns == {"label": "y"}
    (job / "metadata.json").unlink()
    rows = tmp_path / "rows.csv"
    rows.write_text("y,price,user\n" + "".join(f"{at % 2},{at / 4 - 3},u{at % 5}\n" for at in range(40)))
    (job / "spec.json").write_bytes(to_json(JobSpec(data=str(rows))))
    cached = prepare(str(rows), None, tmp_path / "cache")
    (job / "pods" / "worker-0.json").write_text(json.dumps({"pod": "worker-0", "dataset": str(cached)}))
    found = find(read_job(job), tmp_path / "other", print)
    assert [one["name"] for one in found.columns["dense"]] == ["price"] and set(found.standard) == {"price"}
    assert not (tmp_path / "other").exists()
    shutil.rmtree(cached)
    assert find(read_job(job), tmp_path / "other", lambda message: None) == found
    rows.unlink()
    shutil.rmtree(tmp_path / "other")
    with pytest.raises(BadInput, match=r"rows\.csv"):
        find(read_job(job), tmp_path / "other", lambda message: None)
