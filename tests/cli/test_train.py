"""`trimtab train` around the controller: exit codes, one JSON object, and signals. The controller is a stand-in here;
tests/integration runs the real one."""

import json
import os
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trimtab.core import cli
from trimtab.core.controller import signals
from trimtab.core.controller.progress import Progress
from trimtab.core.controller.result import _KEYS
from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Decision
from trimtab.core.errors import Interrupted, JobFailed, ModelError

PLAN = Plan(RolePlan(1, 0.5, 2**30), RolePlan(2, 0.75, 2**30))
RUNNING = Progress(1, 10, 100.0, 0.5, PLAN, "training", "")


@pytest.fixture
def train(monkeypatch, capsys):
    """Runs `trimtab train` with `body(spec, progress, stop)` as the controller: (exit code, stdout, stderr)."""

    def run(body, *arguments):
        monkeypatch.setattr(
            "trimtab.core.controller.run.train",
            lambda spec, progress, stop, metrics_port: body(spec, progress, stop),
        )
        with pytest.raises(SystemExit) as ended:
            cli.main(["train", "--data", "rows.csv", *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def ended(state, error=None, problem=None):
    found = {"run_id": "train-1", "state": state.value, "batches_applied": 3, "error": error}
    return SimpleNamespace(state=state, error=error, history_problem=problem, as_dict=lambda: found)


@pytest.mark.parametrize(
    ("state", "code"), [(JobState.FINISHED, 0), (JobState.FAILED, 1), (JobState.STOPPED, 130)], ids=str
)
def test_the_state_decides_the_exit_code(train, state, code):
    found, out, _ = train(lambda *_: ended(state))
    assert found == code
    assert out.startswith(f"train-1: {state}\n")


def test_json_is_one_object_and_all_else_is_on_stderr(train):
    def body(spec, progress, stop):
        progress(RUNNING)
        return ended(JobState.FAILED, "worker 1 ended: out of memory")

    code, out, err = train(body, "--json")
    assert code == 1
    reason = "worker 1 ended: out of memory"
    assert json.loads(out) == {"run_id": "train-1", "state": "failed", "batches_applied": 3, "error": reason}
    assert out.count("\n") == 1
    assert "1 of 10 batches" in err and "trimtab: worker 1 ended: out of memory" in err


@pytest.mark.parametrize(
    ("error", "code", "state"),
    [
        (ModelError("--model", "m:f", "return a compiled functional Keras model"), 2, "failed"),
        (JobFailed("parameter server 0 ended with code 1"), 1, "failed"),
        (Interrupted("stopped before training began"), 130, "stopped"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_have_their_codes_and_one_line(train, error, code, state):
    def body(spec, progress, stop):
        raise error

    assert train(body)[0] == code
    found, out, err = train(body, "--json")
    assert found == code
    answer = json.loads(out)
    assert set(answer) == set(_KEYS)
    assert (answer["state"], answer["batches_applied"], answer["run_id"]) == (state, None, None)
    assert answer["error"] and answer["error"] in err
    assert (answer["bad_input"] is not None) == (code == 2)
    assert err.splitlines()[-1].startswith("trimtab: ")


def test_a_fault_of_ours_keeps_its_traceback_and_json_stays_json(train, capsys):
    def body(spec, progress, stop):
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        train(body, "--json")
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == set(_KEYS)
    assert (answer["state"], answer["error"]) == ("failed", "ZeroDivisionError: a bug")


def test_a_stopped_job_still_tells_what_it_had_done(train):
    def body(spec, progress, stop):
        error = Interrupted("stopped")
        error.outcome = {"run_id": "train-1", "state": "stopped", "batches_applied": 7, "job_dir": "/jobs/train-1"}
        raise error

    code, out, err = train(body, "--json")
    assert code == 130
    assert json.loads(out)["batches_applied"] == 7
    said = "stopped; its record is in /jobs/train-1, and `trimtab resume /jobs/train-1` goes on"
    assert err.splitlines()[-1] == f"trimtab: {said}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_training_asks_the_controller_to_stop(train, number):
    def body(spec, progress, stop):
        progress(RUNNING)
        os.kill(os.getpid(), number)
        assert stop.wait(30)
        return ended(JobState.STOPPED)

    before = signal.getsignal(number)
    assert train(body)[0] == 130
    assert signal.getsignal(number) is before, "handlers are put back"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_anything_runs_interrupts_at_once(train, number):
    def body(spec, progress, stop):
        os.kill(os.getpid(), number)
        threading.Event().wait(30)
        raise AssertionError("was not interrupted")

    assert train(body)[0] == 130


def test_a_second_signal_interrupts(train, monkeypatch):
    monkeypatch.setattr(signals, "ONE_WISH_SECONDS", -1.0)

    def body(spec, progress, stop):
        progress(RUNNING)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(30)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(30)
        raise AssertionError("was not interrupted")

    assert train(body)[0] == 130


def test_decisions_stand_above_the_progress_line_once_each(train):
    first = Decision(0.0, "start", PLAN, "Cold start.", number=1, action="Start with 2 × 0.75 + 1 × 0.5")
    second = Decision(41.0, "grow", PLAN, "It pays.", number=2, action="Add 1 worker: 1 → 2", before=PLAN)

    def body(spec, progress, stop):
        for decisions in ((first,), (first,), (first, second), (first, second)):
            progress(replace(RUNNING, decisions=decisions))
        return ended(JobState.FINISHED)

    _, out, err = train(body)
    assert [line for line in err.splitlines() if line[:2] == "0:"] == [
        "0:00 Start with 2 × 0.75 + 1 × 0.5. Cold start.", "0:41 Add 1 worker: 1 → 2. It pays.",
    ]  # fmt: skip
    assert "Add 1 worker" not in out


def test_a_history_that_is_away_is_said_and_changes_no_exit_code(train):
    code, out, err = train(lambda *_: ended(JobState.FINISHED, problem="MLflow does not answer"))
    assert code == 0 and "MLflow does not answer" in err and "MLflow does not answer" not in out
