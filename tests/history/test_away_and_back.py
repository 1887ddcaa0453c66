"""MLflow away while a job ends, and back for the next one: the recorder, the outbox and real stores together."""

import sqlite3
import threading
from dataclasses import replace

from conftest import free_port
from history_records import full
from test_mlflow_store import points_of, run_of

from trimtab.core.clock import SystemClock
from trimtab.core.domain.job import JobState
from trimtab.core.history.mlflow.store import MlflowHistory
from trimtab.core.history.outbox import Delivered, deliver_waiting, waiting
from trimtab.core.history.outline import outline
from trimtab.core.history.past import PastRuns
from trimtab.core.history.recorder import Recorder

CLOCK = SystemClock()


def ended():
    """Wait until no recorder is at work."""
    for thread in threading.enumerate():
        if thread.name == "history-recorder":
            thread.join(60)
            assert not thread.is_alive()


def job_in(folder):
    folder.mkdir()
    (folder / "report.html").write_text("<p>")
    return full(job_dir=str(folder)), {"report.html": folder / "report.html"}


def test_a_server_away_and_back(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "away-and-back")
    nowhere = f"http://127.0.0.1:{free_port()}"
    record, artifacts = job_in(tmp_path / "job")
    recorder = Recorder(lambda: MlflowHistory(nowhere, tmp_path), tmp_path / "outbox", CLOCK)
    recorder.update(replace(record, state=JobState.RUNNING, ended_at=None))
    delivery = recorder.finish(record, artifacts, 2.0)
    assert delivery.link == ""
    away = f"MLflow at {nowhere} does not answer (Connection refused)"
    assert delivery.error == recorder.problem() == f"{away}: the record is kept and delivered later"
    ended()
    assert deliver_waiting(lambda: MlflowHistory(nowhere, tmp_path), tmp_path / "outbox") == Delivered(0, 1, away)

    def back():
        return MlflowHistory(server, tmp_path)

    past = PastRuns(back, tmp_path / "outbox", CLOCK).fetch({"model": "dlrm"}, 5, 60.0)
    assert (past.records, past.problem) == ((outline(record),), "")
    assert waiting(tmp_path / "outbox") == ()
    assert back().link(record.run_id).startswith(f"{server}/#/experiments/")


def test_a_database_that_is_locked_delays_nobody(home, tmp_path):
    record, artifacts = job_in(tmp_path / "job")
    history = MlflowHistory(None, home)
    history.prepare()
    recorder = Recorder(lambda: history, tmp_path / "outbox", CLOCK)
    holder = sqlite3.connect(home / "mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    delivery = recorder.finish(record, artifacts, 0.5)
    holder.execute("ROLLBACK")
    holder.close()
    assert delivery.error == "the store did not take it within 0.5 s: the record is kept and delivered later"
    ended()  # what hung came through, or was left for the next one
    deliver_waiting(lambda: history, tmp_path / "outbox")
    assert waiting(tmp_path / "outbox") == ()
    assert history.get(record.run_id) == record
    points = points_of(history, run_of(history, record.run_id))
    assert {len(values) for values in points.values()} == {1}


def test_two_jobs_deliver_what_waits_at_once(home, tmp_path):
    """Both find the same entries; every record is written once."""
    outbox = tmp_path / "outbox"
    away = Recorder(lambda: MlflowHistory(f"http://127.0.0.1:{free_port()}", tmp_path), outbox, CLOCK)
    assert away.finish(full(), {}, 1.0).error
    ended()
    looks = [PastRuns(lambda: MlflowHistory(None, home), outbox, CLOCK) for _ in range(2)]
    for look in looks:
        look.fetch({}, 5, 60.0)
    assert waiting(outbox) == ()
    history = MlflowHistory(None, home)
    assert history.fetch({}, 5) == (full(),)
    run_of(history, full().run_id)  # fails if there are two runs
