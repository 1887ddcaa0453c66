"""An exported model in MLflow: described without TensorFlow, loaded by MLflow's own flavours."""

import subprocess
import sys

import pytest
from history_records import job
from test_mlflow_store import run_of

from trimtab.core.history.mlflow.store import MlflowHistory

SIGNATURE = {
    "inputs": [
        {"name": "age", "dtype": "float64", "shape": [-1], "kind": "dense"},
        {"name": "item", "dtype": "int64", "shape": [None, 3], "kind": "multi_hot"},
    ],
    "outputs": {"score": {"dtype": "float32", "shape": [-1, 1]}},
}  # fmt: skip
LOAD = """
import sys
import numpy as np
import keras
age = keras.Input((1,), dtype="float32", name="age")
item = keras.Input((3,), dtype="float32", name="item")
model = keras.Model({"age": age, "item": item}, keras.layers.Dense(1)(keras.layers.Concatenate()([age, item])))
model.save(sys.argv[1] + "/model.keras")
rows = {"age": np.ones((4, 1), np.float32), "item": np.ones((4, 3), np.float32)}
wanted = model.predict(rows, verbose=0)
from pathlib import Path
from trimtab.core.history.mlflow.store import MlflowHistory
sides = {name: {"dtype": "float32", "shape": [-1, width]} for name, width in (("age", 1), ("item", 3))}
history = MlflowHistory(None, Path(sys.argv[2]))
signature = {"inputs": sides, "outputs": {"score": {"dtype": "float32", "shape": [-1, 1]}}}
link = history.log_model("a", Path(sys.argv[1]), signature)
import mlflow
mlflow.set_tracking_uri(history.place.uri)
assert np.array_equal(mlflow.keras.load_model(link).predict(rows, verbose=0), wanted)
assert np.array_equal(mlflow.pyfunc.load_model(link).predict(rows), wanted)
print("equal")
"""


def test_the_description_is_mlflow_s(history, tmp_path):
    from mlflow.models import Model

    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "model.keras").write_bytes(b"weights")
    (exported / "signature.json").write_text("{}")
    history.record(job("a"))
    assert history.log_model("a", exported, SIGNATURE).endswith("/model")
    folder = history.place.artifacts / run_of(history, "a").info.run_id / "artifacts" / "model"
    found = Model.load(str(folder))
    assert [(one.name, one.type.name, one.shape) for one in found.signature.inputs.inputs] == [
        ("age", "float64", (-1,)), ("item", "int64", (-1, 3)),
    ]  # fmt: skip
    assert [one.name for one in found.signature.outputs.inputs] == ["score"]
    assert {"keras", "python_function"} <= set(found.flavors)
    assert (folder / "data" / "model.keras").read_bytes() == b"weights"
    assert not (folder / "data" / "model.keras").is_symlink()
    assert (folder / "exported" / "signature.json").read_text() == "{}"
    assert "keras==" in (folder / "requirements.txt").read_text()


def test_describing_a_model_loads_no_tensorflow(home, tmp_path):
    (tmp_path / "model.keras").write_bytes(b"weights")
    MlflowHistory(None, home).record(job("a"))
    code = (
        "import sys; from pathlib import Path; from trimtab.core.history.open import open_history;"
        f"signature = {SIGNATURE!r};"
        "open_history(Path(sys.argv[1])).log_model('a', Path(sys.argv[2]), signature);"
        "print(sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code, str(home), str(tmp_path)], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


@pytest.mark.slow
def test_mlflow_loads_what_was_logged(home, tmp_path):
    (tmp_path / "exported").mkdir()
    MlflowHistory(None, home).record(job("a"))
    command = [sys.executable, "-c", LOAD, str(tmp_path / "exported"), str(home)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.stdout.endswith("equal\n"), found.stderr[-3000:]
