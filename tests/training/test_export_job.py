"""A real job's model, exported and used where trimtab is not: the scores are those of the job's own evaluation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

ROWS = 6000
# No trimtab and no keras_rs: what is left is what any user of the model has.
ALONE = """
import sys, runpy
class Away:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("trimtab", "keras_rs"):
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Away())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LOADED = """
import sys, numpy as np, keras
model = keras.models.load_model(sys.argv[1])
given = dict(np.load(sys.argv[2]))
np.save(sys.argv[3], model.predict(given, verbose=0))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Path, Path]:
    """Rows, a job's directory and the directory of its exported model."""
    import trimtab
    from trimtab.core.data.sample import write_sample

    folder = tmp_path_factory.mktemp("export")
    write_sample(str(folder / "rows.parquet"), ROWS, seed=3)
    spec = trimtab.JobSpec(
        data=str(folder / "rows.parquet"), batch_size=512, embedding_dim=4, workers=1, ps=1, mode=trimtab.Mode.FIXED
    )
    result = trimtab.train(spec)
    assert result.state == "finished", result.error
    moved = Path(result.job_dir).rename(folder / "moved")
    command = [sys.executable, "-m", "trimtab.core.cli", "export", str(moved), "--out", str(folder / "out"), "--json"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    (folder / "said.json").write_text(found.stdout)
    return folder / "rows.parquet", moved, folder / "out"


def held_out(job: Path) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and scores of the rows that the job was evaluated on."""
    from trimtab.core.data.numbering import numbering_of
    from trimtab.core.domain.job import JobSpec
    from trimtab.core.wire.encode import read_json

    numbering = numbering_of(read_json(JobSpec, job / "spec.json"), ROWS)
    rows = np.concatenate([numbering.evaluation_rows_of(number) for number in range(numbering.evaluation_batches)])
    with np.load(job / "scores.npz") as scored:
        return rows, scored["scores"]


def alone(*arguments: object, given: str | None = None) -> str:
    command = [sys.executable, "-c", ALONE, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, input=given, timeout=300)
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


def test_the_written_files_and_their_signature(finished):
    _, job, out = finished
    assert sorted(path.name for path in out.iterdir()) == ["model.keras", "predict.py", "signature.json"]
    page = json.loads((out / "signature.json").read_text())
    assert page["run_id"] == json.loads((job / "result.json").read_text())["run_id"]
    assert [one["name"] for one in page["inputs"]] == [f"I{n}" for n in range(1, 14)] + [f"C{n}" for n in range(1, 27)]
    assert page["inputs"][0] == {
        "name": "I1", "column": "I1", "dtype": "float64", "shape": [-1, 1], "kind": "dense", "transform": "log1p",
    }  # fmt: skip
    assert page["outputs"] == [{"name": "score", "dtype": "float32", "shape": [-1, 1]}]


def test_keras_alone_gives_the_scores_of_the_jobs_evaluation(finished, tmp_path):
    from trimtab.core.data.dataset import Dataset
    from trimtab.core.data.prepare import prepare

    rows, job, out = finished
    numbers, scores = held_out(job)
    dataset = Dataset.open(prepare(str(rows), None, tmp_path / "cache"))
    keys = dataset.read(numbers).keys
    table = pq.read_table(rows).take(numbers)
    given = {name: np.array(table[name].to_pylist(), np.float64) for name in (f"I{n}" for n in range(1, 14))}
    given |= {column.name: keys[:, at] for at, column in enumerate(dataset.columns.single)}
    np.savez(tmp_path / "given.npz", **given)
    (tmp_path / "loaded.py").write_text(LOADED)
    alone(tmp_path / "loaded.py", out / "model.keras", tmp_path / "given.npz", tmp_path / "found.npy")
    found = np.load(tmp_path / "found.npy").ravel()
    assert len(found) == len(scores) == ROWS / 10
    assert np.abs(found - scores).max() < 1e-6
    assert np.std(scores) > 1e-3


def test_the_example_scores_rows_as_they_stand_in_the_data(finished):
    rows, job, out = finished
    numbers, scores = held_out(job)
    lines = [json.dumps(row) for row in pq.read_table(rows).take(numbers[:200]).to_pylist()]
    found = np.array([float(line) for line in alone(out / "predict.py", given="\n".join(lines)).split()])
    assert np.abs(found - scores[:200]).max() < 1e-6


def test_the_command_says_what_it_wrote(finished):
    _, job, out = finished
    answer = json.loads((out.parent / "said.json").read_text())
    assert Path(answer["model"]) == out / "model.keras" and Path(answer["model"]).is_file()
    assert answer["run_id"] == json.loads((job / "result.json").read_text())["run_id"]
    assert len(answer["rows"]) == 26 and all(count > 0 for count in answer["rows"].values())
    assert answer["mlflow"] or "not in the history" in answer["note"]
