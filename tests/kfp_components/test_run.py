"""The components' work without KFP: options to a job, what is handed on, and what becomes of a job that fails."""

import inspect
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from trimtab.core.controller.progress import Progress
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Limits, Plan, RolePlan
from trimtab.core.errors import BadInput, JobFailed, ModelError
from trimtab.kfp_components import run
from trimtab.kfp_components.run import make_sample, run_job, spec_of

PLAN = Plan(RolePlan(1, 0.5, 2**30), RolePlan(2, 0.75, 2**30))


def test_the_components_defaults_are_the_jobs():
    from trimtab.kfp_components.train import train_dlrm

    inputs = inspect.signature(train_dlrm.python_func).parameters
    given = {name: one.default for name, one in inputs.items() if one.default is not inspect.Parameter.empty}
    del given["rows"]
    assert spec_of({**given, "data": "rows.csv"}) == JobSpec(data="rows.csv")
    given |= {"deadline_seconds": given.pop("deadline")}
    for name in ("core_hour_price", "gib_hour_price", "currency"):
        del given[name]
    names = set(inspect.signature(JobSpec).parameters) | {"max_cpu", "max_memory", "max_workers", "max_ps"}
    assert names - set(given) == {"limits", "job_dir", "prices", "orphan_grace_seconds"}


def test_inputs_become_a_job():
    spec = spec_of({
        "data": "rows.csv", "max_cpu": "1500m", "max_memory": "4Gi", "max_workers": 3, "workers": 2, "ps": 0,
        "validation": "0.25", "learning_rate": 0.0, "seed": 0, "columns": "", "mode": "fixed",
    })  # fmt: skip
    limits = Limits(cpu=1.5, memory_bytes=4 * 2**30, workers=3, ps=None)
    assert spec == JobSpec(data="rows.csv", limits=limits, workers=2, validation=0.25, mode="fixed")
    assert spec_of({"data": "x", "validation": "other.csv"}).validation == "other.csv"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": ""}, "data: '': give rows"),
        ({}, "data: '': give rows"),
        ({"data": "x", "max_cpu": "many"}, "--max-cpu: 'many'"),
        ({"data": "x", "batch_size": 0}, "--batch-size: 0"),
        ({"data": "x", "workers": -1}, "--workers: -1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name(options, words):
    with pytest.raises(BadInput, match=words):
        spec_of(options)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """`run_job` with a stand-in for training and export; returns what went to each of them."""
    seen = {}

    def finished(state="finished", error=None, report="<p>a report</p>", exports=None):
        job_dir = tmp_path / "job"
        job_dir.mkdir(exist_ok=True)
        if report is not None:
            (job_dir / "report.html").write_text(report)
        result = {"run_id": "r1", "state": state, "error": error, "job_dir": str(job_dir), "model": "m.json"}

        def train(spec, progress):
            seen["spec"] = spec
            progress(Progress(1, 10, 0.0, None, PLAN, "training", "training 10 batches"))
            return type("Result", (), {"as_dict": lambda self: result})()

        def export_job(path, out, cache, tell):
            if exports is not None:
                raise exports
            out.mkdir(parents=True)
            (out / "model.keras").write_text("weights")
            seen["exported"] = path

        monkeypatch.setattr("trimtab.core.controller.run.train", train)
        monkeypatch.setattr("trimtab.core.training.export_client.export_job", export_job)
        return run_job({"data": "rows.csv"}, tmp_path / "model", tmp_path / "out" / "report.html"), seen

    return finished


def test_a_finished_job_hands_on_model_and_report(job, tmp_path):
    result, seen = job()
    assert result["run_id"] == "r1" and seen["spec"] == JobSpec(data="rows.csv")
    assert seen["exported"] == tmp_path / "job"
    assert (tmp_path / "model" / "model.keras").is_file()
    assert (tmp_path / "out" / "report.html").read_text() == "<p>a report</p>"


def test_a_model_that_cannot_be_exported_is_no_failure(job, tmp_path):
    job(exports=ModelError("--model", "m:f", "only Keras' own layers can be exported yet"))
    page = json.loads((tmp_path / "model" / "not_exported.json").read_text())
    assert page["not_exported"].endswith("only Keras' own layers can be exported yet")
    assert Path(page["job_dir"]) == tmp_path / "job"


@pytest.mark.parametrize("report", ["<p>why</p>", None])
def test_a_job_that_failed_fails_the_step_and_keeps_its_report(job, tmp_path, report):
    with pytest.raises(JobFailed, match="run r1 failed: worker 1 <ended>"):
        job(state="failed", error="worker 1 <ended>", report=report)
    assert not (tmp_path / "model").exists()
    words = (tmp_path / "out" / "report.html").read_text()
    assert words == report if report else "run r1: failed; no report was written" in words


def test_sample_rows_are_written_where_the_artifact_lies(tmp_path):
    make_sample(50, 1, tmp_path / "new" / "rows.parquet")
    assert pq.read_table(tmp_path / "new" / "rows.parquet").num_rows == 50


def test_a_log_gets_few_lines():
    said = []
    show = run._lines(said.append)
    for done in range(1001):
        show(Progress(done, 1000, 5000.0, 0.5, PLAN, "training", ""))
    assert 10 <= len(said) <= 12
    show(Progress(1000, 1000, 0.0, None, PLAN, "over", "finished"))
    assert said[-1] == "over: finished (1000 of 1000 batches, plan 2 × 0.75 + 1 × 0.5)"
