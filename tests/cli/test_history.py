"""`trimtab history` and `trimtab ui`: the table, the store that is away, the server that ends with its command."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.core import cli, cli_history
from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import JobRecord, PastRun, WarmStart
from trimtab.core.history.base import HistoryAway
from trimtab.core.history.memory import InMemoryHistory
from trimtab.core.history.outbox import Delivered, put
from trimtab.core.history.record_file import write_record

SMALL = Plan(RolePlan(1, 0.25, 2**29), RolePlan(1, 0.75, 2**30))
LARGE = Plan(RolePlan(1, 0.5, 2**29), RolePlan(2, 0.75, 2**30))
FIRST = JobRecord(
    "20261130-201758-a1b2c3", "daily", JobState.FINISHED, {"job_name": "daily"},
    (PlanChange(0.0, SMALL, "cold"), PlanChange(10.0, LARGE, "grow")), (), (),
    {"auc": 0.78123, "samples_per_second": 51234.5, "wall_seconds": 3725.0}, started_at=1_790_000_000.0,
    ended_at=1_790_003_725.0, warm_start=WarmStart(note="no run to start from"),
)  # fmt: skip
SECOND = JobRecord(
    "20261201-080000-d4e5f6", "other", JobState.RUNNING, {"job_name": "other"}, (PlanChange(0.0, LARGE, "warm"),), (),
    (), {}, warm_start=WarmStart((PastRun(FIRST.run_id, 60.0, 1.0, 1.0, LARGE),), LARGE),
)  # fmt: skip


class Store(InMemoryHistory):
    """The store that the command opens here; may be away."""

    skipped = 0
    away = False

    def fetch(self, tags, limit):
        if self.away:
            raise HistoryAway("MLflow at x does not answer (refused)")
        return super().fetch(tags, limit)

    def record(self, job):
        if self.away:
            raise HistoryAway("MLflow at x does not answer (refused)")
        return super().record(job)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def store(home, monkeypatch):
    store = Store()
    monkeypatch.setattr("trimtab.core.history.open.open_history", lambda home: store)
    return store


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        cli.main(list(arguments))
    return (left.value.code, *capsys.readouterr())


def test_the_table_has_a_line_per_run(store, capsys):
    store.record(FIRST)
    store.record(SECOND)
    code, out, err = run(capsys, "history")
    assert (code, err) == (0, "")
    heads, second, first = (re.split(r" {2,}", line) for line in out.splitlines())
    assert heads == list(cli_history._HEADS)
    when = cli_history._when(FIRST.started_at)
    assert first == [
        FIRST.run_id, "daily", "finished", when, "1:02:05", "51,234", "1", f"{SMALL} → {LARGE}", "0.7812", "cold",
    ]  # fmt: skip
    assert second == [SECOND.run_id, "other", "running", "–", "–", "–", "0", str(LARGE), "–", FIRST.run_id]


def test_a_family_and_a_limit(store, capsys):
    for number in range(5):
        store.record(replace(FIRST, run_id=f"run-{number}"))
    store.record(SECOND)
    assert run(capsys, "history", "--job-name", "daily", "--limit", "2")[1].split("\n")[1].startswith("run-4")
    found = json.loads(run(capsys, "history", "--job-name", "daily", "--limit", "2", "--json")[1])
    assert [one["run_id"] for one in found["runs"]] == ["run-4", "run-3"]
    assert run(capsys, "history", "--job-name", "nobody") == (0, "no runs of nobody yet\n", "")


def test_json_is_one_object_with_every_key(store, capsys):
    store.record(FIRST)
    store.record(SECOND)
    code, out, _ = run(capsys, "history", "--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert code == 0
    assert (found["error"], found["delivered"], found["waiting"]) == (None, 0, 0)
    second, first = found["runs"]
    assert set(first) == set(second)
    assert (first["wall_seconds"], first["changes"], first["auc"]) == (3725.0, 1, 0.78123)
    assert first["last_plan"] == LARGE.as_dict()
    assert (second["wall_seconds"], second["auc"], second["warm_from"]) == (None, None, [FIRST.run_id])


def test_a_run_that_looked_for_no_other_is_not_cold(store, capsys):
    store.record(replace(FIRST, warm_start=None))
    assert run(capsys, "history")[1].rstrip().endswith("0.7812  –")


def test_nothing_yet(store, capsys):
    assert run(capsys, "history") == (0, "no runs yet\n", "")


def test_a_limit_below_one_is_refused(store, capsys):
    code, _, err = run(capsys, "history", "--limit", "0")
    assert code == 2
    assert "--limit" in err


def test_what_waited_is_delivered_and_said(store, home, capsys):
    put(home / "outbox", FIRST, {}).close()
    code, out, err = run(capsys, "history")
    assert (code, err) == (0, "1 run that waited was delivered\n")
    assert FIRST.run_id in out
    assert run(capsys, "history")[2] == ""


def test_a_store_that_is_away_shows_this_machine_s_runs(store, home, capsys):
    for record in (FIRST, SECOND):
        folder = home / "jobs" / record.run_id
        folder.mkdir(parents=True)
        write_record(folder / "record.json", record)
    (home / "jobs" / "broken").mkdir()
    (home / "jobs" / "broken" / "record.json").write_text("{")
    put(home / "outbox", FIRST, {}).close()
    store.away = True
    code, out, err = run(capsys, "history")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [SECOND.run_id, FIRST.run_id]
    problem = f"MLflow at x does not answer (refused); shown are the runs under {home / 'jobs'}"
    assert err.splitlines() == [problem, "1 run still waits for the store"]
    found = json.loads(run(capsys, "history", "--json", "--job-name", "daily")[1])
    assert (found["error"], found["waiting"]) == (problem, 1)
    assert [one["run_id"] for one in found["runs"]] == [FIRST.run_id]


def test_runs_that_cannot_be_read_are_counted(store, capsys):
    store.record(FIRST)
    store.skipped = 2
    assert run(capsys, "history")[2] == "2 runs of the store could not be read and are left out\n"


@pytest.mark.parametrize(
    "delivered, line",
    [
        (Delivered(0, 0), ""),
        (Delivered(2, 0), "2 runs that waited were delivered"),
        (Delivered(1, 2, "x"), "1 run that waited was delivered; 2 runs still wait for the store"),
    ],
)
def test_the_line_about_what_waits(delivered, line):
    assert cli_history.waiting_line(delivered) == line


def test_a_first_look_opens_no_mlflow(home):
    code = (
        "import sys\nfrom trimtab.core import cli\ntry:\n    cli.main(['history'])\nexcept SystemExit:\n    pass\n"
        "print('mlflow' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert found.stdout == "no runs yet\nFalse\n", found.stderr
    assert list(home.iterdir()) == []


def test_the_rooms_of_a_run_load_no_mlflow():
    code = (
        "import sys, trimtab.core.controller.run, trimtab.core.cli_history, trimtab.core.history.recorder,"
        "trimtab.core.history.past, trimtab.core.history.identity, trimtab.core.history.open,"
        "trimtab.core.history.mlflow.store, trimtab.core.history.mlflow.server; print('mlflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_ui_says_where_one_s_own_server_is(home, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    code, _, err = run(capsys, "ui")
    assert code == 1
    assert "MLflow at http://127.0.0.1:1 does not answer" in err


def test_ui_at_a_port_that_is_taken(home, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        def answer():
            connection, _ = taken.accept()
            connection.sendall(b"SSH-2.0-something else\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        code, _, err = run(capsys, "ui", "--port", str(port))
    assert code == 2
    assert f"--port: {port}: another program answers at 127.0.0.1:{port}; give a free port" in err
    assert list(home.iterdir()) == []


def test_ui_ends_everything_it_started(home):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "trimtab.core.cli", "ui", "--port", port]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    pause = threading.Event()
    try:
        for _ in range(600):
            if servers(port):
                break
            assert process.poll() is None, process.stderr.read()
            pause.wait(0.1)
        assert servers(port)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert servers(port) == []
    assert "Traceback" not in err


def servers(port):
    """Processes of MLflow at `port`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "mlflow" in words and port in words:
            found.append(entry.parent.name)
    return found
