"""The probe process: its answer as a spec or as the very error, and nothing left behind whatever happens."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_world import COLUMNS

from trimtab.core.data.prepare import prepare
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.errors import ModelError
from trimtab.core.training import probe_client
from trimtab.core.wire.encode import read_json

THEIRS = """
import keras

def make():
    print("a word of the user's")
    user = keras.Input((), name="user", dtype="int64")
    x = keras.layers.BatchNormalization()(keras.layers.Embedding(10**9, 4, name="users")(user))
    model = keras.Model(user, keras.layers.Dense(1)(x))
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mse", keras.metrics.AUC(name="area")])
    return model
"""  # noqa: E501


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    lines = ["y,price,user"] + [f"{number % 2},{number},{number % 5}" for number in range(20)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "columns.yaml").write_text("label: y\ndense: [price]\ncategorical: [user]\n")
    return prepare(str(folder / "rows.csv"), str(folder / "columns.yaml"), folder / "cache")


@pytest.fixture
def theirs(tmp_path, monkeypatch) -> Path:
    (tmp_path / "their_probed.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def children() -> set[int]:
    """Living child processes of this one."""
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}


def test_a_good_model_becomes_a_spec(theirs, dataset, spec):
    before = children()
    out = theirs / "out"
    name = "their_probed:make"
    found = probe_client.probe(replace(spec, model=name), dataset, out)
    assert children() <= before
    assert found == read_json(ModelSpec, out / "model.json")
    assert (found.name, found.dense_parameters, found.metrics) == (name, 13, ("mse", "area"))
    assert [(table.name, table.dim, table.kind, table.optimizer.kind) for table in found.tables] == [
        ("users", 4, "embedding", "adam"), ("dense", 256, "dense", "adam"), ("state", 256, "state", "add"),
    ]  # fmt: skip
    with np.load(found.initial_blocks, allow_pickle=False) as blocks:
        assert {key: blocks[key].shape for key in blocks} == {"dense": (1, 256), "state": (1, 256)}
        assert blocks["state"][0, :8].tolist() == [0.0] * 4 + [1.0] * 4
    assert "a word of the user's" in (out / "probe.log").read_text()
    assert sorted(path.name for path in out.iterdir()) == ["initial_blocks.npz", "model.json", "probe.log"]


def test_an_interpreter_that_dies_is_told_with_its_last_words(theirs, dataset, spec, monkeypatch):
    def dies(request, log, deadline):
        log.write_text("first\nlast words\n\n")
        return -11

    monkeypatch.setattr(probe_client, "_run", dies)
    with pytest.raises(ModelError, match=r"ended by signal 11 after saying: last words; see .*probe\.log"):
        probe_client.probe(replace(spec, model="their_probed:make"), dataset, theirs / "out")
    assert [path.name for path in (theirs / "out").iterdir()] == ["probe.log"]


def test_a_deadline_ends_the_process(theirs, dataset, spec):
    before = children()
    with pytest.raises(ModelError, match=r"was not ready after 0\.05 s"):
        probe_client.probe(replace(spec, model="their_probed:make"), dataset, theirs / "out", deadline_seconds=0.05)
    assert children() <= before


def test_ctrl_c_ends_the_process(theirs, dataset, spec, monkeypatch):
    before = children()
    wait = subprocess.Popen.wait
    interrupted = []

    def interrupt_once(self, timeout=None):
        if not interrupted:
            interrupted.append(self.pid)
            raise KeyboardInterrupt
        return wait(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        probe_client.probe(replace(spec, model="their_probed:make"), dataset, theirs / "out")
    assert interrupted and children() <= before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no function 'f'"),
        ("def f(): raise ValueError('wrong')", r"the function fails at their_mistake.py:1: ValueError: wrong"),
        ("def f(): return 3", "returned int"),
    ],
)
def test_an_error_comes_back_as_it_was_raised(text, message, keras, theirs, dataset, spec, monkeypatch):
    """The process' own code, run in this one: starting TensorFlow again for each mistake would take minutes."""
    from trimtab.core.training import probe

    (theirs / "their_mistake.py").write_text(text)

    def run(request, log, deadline):
        return probe.main([str(request)])

    monkeypatch.setattr(probe_client, "_run", run)
    monkeypatch.setattr(probe.signal, "alarm", lambda seconds: None)
    monkeypatch.delitem(probe.sys.modules, "their_mistake", raising=False)
    with pytest.raises(ModelError, match=message) as caught:
        probe_client.probe(replace(spec, model="their_mistake:f"), dataset, theirs / "out")
    assert (caught.value.field, caught.value.value) == ("--model", "their_mistake:f")


def test_metrics_and_layers_are_tried_on_rows_of_the_datas_shape(keras, make_step, spec):
    from trimtab.core.training.elastic import ElasticModel
    from trimtab.core.training.load import load_model
    from trimtab.core.training.probe import ROWS, try_out

    elastic = ElasticModel(load_model("xdeepfm", COLUMNS, spec), COLUMNS, ROWS)
    assert try_out(elastic, COLUMNS) == ("auc",)

    def broken(labels, output):
        raise RuntimeError("no metric")

    price = keras.Input((1,), name="price")
    model = keras.Model(price, keras.layers.Dense(1)(price))
    model.compile("sgd", "mse", metrics=[broken])
    with pytest.raises(ModelError, match=r"its metrics fail at test_probe.py:\d+: RuntimeError: no metric"):
        try_out(ElasticModel(model, COLUMNS, ROWS), COLUMNS)
