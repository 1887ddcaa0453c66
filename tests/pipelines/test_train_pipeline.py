"""The Kubeflow pipeline: it compiles, nothing of it is cached, and run twice on this machine it trains twice."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROWS = 6000


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    from kfp import compiler

    from trimtab.pipelines.train_pipeline import train_pipeline

    path = tmp_path_factory.mktemp("kfp") / "pipeline.yaml"
    compiler.Compiler().compile(train_pipeline, str(path))
    return next(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def test_rows_go_from_the_first_step_to_the_second(compiled):
    tasks = compiled["root"]["dag"]["tasks"]
    assert set(tasks) == {"sample-rows", "train-dlrm"}
    rows = tasks["train-dlrm"]["inputs"]["artifacts"]["rows"]["taskOutputArtifact"]
    assert rows == {"outputArtifactKey": "rows", "producerTask": "sample-rows"}
    assert tasks["train-dlrm"]["dependentTasks"] == ["sample-rows"]


def test_training_is_never_cached(compiled):
    """Caching is on unless a task says otherwise (case 45)."""
    for name, task in compiled["root"]["dag"]["tasks"].items():
        assert task["cachingOptions"].get("enableCache", False) is False, name


def test_outputs_are_typed(compiled):
    outputs = compiled["components"]["comp-train-dlrm"]["outputDefinitions"]
    kinds = {name: one["artifactType"]["schemaTitle"] for name, one in outputs["artifacts"].items()}
    assert kinds == {"trained_model": "system.Model", "metrics": "system.Metrics", "report": "system.HTML"}
    parameters = {name: one["parameterType"] for name, one in outputs["parameters"].items()}
    assert parameters == {
        "run_id": "STRING", "state": "STRING", "complete": "BOOLEAN", "warm_from": "LIST", "note": "STRING",
        "plan": "STRUCT",
    }  # fmt: skip


def test_bodies_install_nothing_and_import_only_the_package(compiled):
    for name, executor in compiled["deploymentSpec"]["executors"].items():
        words = " ".join([*executor["container"]["command"], *executor["container"]["args"]])
        assert "pip install" not in words, name
        assert executor["container"]["image"] == "trimtab:0.1.0"


def test_loading_the_pipeline_loads_nothing_heavy():
    code = "import sys, trimtab.pipelines.train_pipeline; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) & {"tensorflow", "keras", "mlflow", "airflow", "numba", "pyarrow"} == set()


@pytest.mark.slow
def test_the_shown_program_trains_a_model_in_each_of_two_runs(repository, tmp_path, monkeypatch):
    """The program of docs/kfp.md."""
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    page = (repository / "docs" / "kfp.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "run_pipeline.py").write_text(program)
    command = [sys.executable, "run_pipeline.py"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    jobs = {path.name for path in (tmp_path / "home" / "jobs").iterdir()}
    runs = [line for line in found.stdout.splitlines() if line in jobs]
    results = [json.loads((tmp_path / "home" / "jobs" / run / "result.json").read_text()) for run in runs]
    assert len(set(runs)) == 2
    for run, result in zip(runs, results, strict=True):
        assert result["state"] == "finished"
        assert result["batches_applied"] == result["batches_expected"] > 0
        assert result["rows_applied"] == ROWS * 9 // 10
        (folder,) = [place for place in (tmp_path / "pipeline_runs").glob("*/train-dlrm") if _run_of(place) == run]
        model, said = folder / "trained_model", _said(folder)
        assert sorted(path.name for path in model.iterdir()) == ["model.keras", "predict.py", "signature.json"]
        assert (folder / "report.html").stat().st_size > 0
        outputs = json.loads(said)
        assert outputs["parameterValues"]["complete"] is True
        assert outputs["artifacts"]["metrics"]["artifacts"][0]["metadata"]["auc"] == result["auc"]
    _check_warm_start(runs, results)


def _said(folder: Path) -> str:
    return (folder / "executor_output.json").read_text(encoding="utf-8")


def _run_of(folder: Path) -> str:
    return json.loads(_said(folder))["parameterValues"]["run_id"]


def _check_warm_start(runs, results):
    """The first run is cold, the second starts from the first, with the plan that it ended with."""
    cold, warm = (result["warm_start"] for result in results)
    assert cold["runs"] == []
    assert [run["run_id"] for run in warm["runs"]] == runs[:1]
    assert results[1]["plans"][0]["plan"] == results[0]["plans"][-1]["plan"]
