"""The second run starts where the first one ended, and a store that is away costs nothing but a sentence."""

import json
import os
import subprocess
import sys
import threading

import pytest
from jobs import pods_of

from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.history.outbox import FOLDER, deliver_waiting, waiting
from trimtab.core.history.record_file import FILE, read_record

SECONDS = 240  # of a command: only a fault takes that long


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without any history."""
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRIMTAB_HISTORY", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "home"


def spec(sample, **more):
    return JobSpec(str(sample), epochs=2, batch_size=256, seed=3, workers=1, ps=1, **more)


def command(*words, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "trimtab.core.cli", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=dict(os.environ), **more,
    )  # fmt: skip


def test_a_store_that_is_away_gets_the_record_when_it_is_back(sample, home, monkeypatch):
    """Nothing listens at the address; training, record and result do not care, and the next command delivers."""
    from trimtab.core.history.open import open_history

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    result = train(spec(sample))
    assert result.state is JobState.FINISHED, result.error
    assert result.mlflow is None and "delivered later" in (result.history_problem or "")
    record = read_record(home / "jobs" / result.run_id / FILE)
    assert record.state is JobState.FINISHED and record.decisions[0].kind == "start"
    assert "past runs could not be read" in record.decisions[0].reason, "the cold start says why it is one"
    assert len(waiting(home / FOLDER)) == 1
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    pause = threading.Event()
    for _ in range(600):  # the job's own last try may still be under way; until it has ended, it holds the record
        delivered = deliver_waiting(lambda: open_history(home), home / FOLDER)
        if delivered.count:
            break
        pause.wait(0.1)
    assert (delivered.count, delivered.left, delivered.error) == (1, 0, "")
    found = open_history(home).get(result.run_id)
    assert found is not None
    assert found.figures["auc"] == record.figures["auc"]
    assert (found.plans, found.decisions) == (record.plans, record.decisions)


def test_two_jobs_at_once_on_a_fresh_store_are_both_remembered_and_the_next_starts_from_them(sample, home):
    words = ("train", "--data", str(sample), "--epochs", "2", "--batch-size", "256", "--workers", "1", "--ps", "1",
             "--max-cpu", "1", "--json")  # fmt: skip
    jobs = [command(*words) for _ in range(2)]
    results = []
    for job in jobs:
        out, err = job.communicate(timeout=SECONDS)
        assert job.returncode == 0, err
        results.append(json.loads(out))
    assert all(result["state"] == "finished" and result["history_problem"] is None for result in results)
    assert all(result["warm_start"]["runs"] == [] for result in results)
    listed = command("history", "--json")
    out, err = listed.communicate(timeout=SECONDS)
    assert listed.returncode == 0, err
    for result in results:
        assert result["run_id"] in out
    third = train(spec(sample))
    assert third.state is JobState.FINISHED, third.error
    assert {run["run_id"] for run in third.warm_start["runs"]} == {result["run_id"] for result in results}
    reason = third.decisions[0]["reason"]
    assert all(result["run_id"] in reason for result in results)
    assert (home / "jobs" / third.run_id / "report.html").stat().st_size > 10_000
    assert (home / "jobs" / third.run_id / "report.png").read_bytes()[:4] == b"\x89PNG"
    assert pods_of("trimtab.core") == []
