"""MLflow itself: what its pages are given, and what goes wrong between it and us."""

import json
import math
import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import free_port
from history_records import full, job, sample

from trimtab.core.clock import ManualClock
from trimtab.core.domain.job import JobState
from trimtab.core.errors import BadInput
from trimtab.core.history.base import HistoryAway
from trimtab.core.history.mlflow import store
from trimtab.core.history.mlflow.opening import place_of_store
from trimtab.core.history.mlflow.store import MlflowHistory
from trimtab.core.history.open import open_history
from trimtab.core.history.outline import Outlines, outline

PROCESSES = 16
FORKS = """
import os, sys
from pathlib import Path
import mlflow.store.tracking.sqlalchemy_store, mlflow.tracking
from trimtab.core.history.open import open_history
from trimtab.core.history.record_file import decode_record
import dataclasses
home, record = Path(sys.argv[1]), decode_record(sys.stdin.buffer.read(), "x")
children = []
for number in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            open_history(home).record(dataclasses.replace(record, run_id=f"run-{number:02d}"))
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    children.append(child)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def client_of(history):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=history.place.uri)


def run_of(history, run_id):
    client = client_of(history)
    experiment = client.get_experiment_by_name("trimtab").experiment_id
    (run,) = client.search_runs([experiment], f"tags.`trimtab.run_id` = '{run_id}'")
    return run


def points_of(history, run):
    """Every point of a run: (metric, step) → values."""
    client, found = client_of(history), {}
    for key in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, key):
            found.setdefault((key, metric.step), []).append(metric.value)
    return found


def test_a_run_in_mlflow_s_words(history):
    record = full()
    history.record(record)
    run = run_of(history, record.run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", record.run_id)
    assert run.info.start_time == int(record.started_at * 1000)
    assert run.info.end_time == int(record.ended_at * 1000)
    assert {"model", "batch_size", "trimtab.state", "mlflow.note.content"} <= set(run.data.tags)
    metrics = run.data.metrics
    assert metrics["plan/workers"] == 2 and metrics["auc"] == 0.75 and metrics["nonfinite_dropped"] == 0
    points = points_of(history, run)
    assert [points["plan/workers", step] for step in (0, 9, 10, 19)] == [[1], [1], [2], [2]]
    assert {step for key, step in points if key == "worker-1/cpu"} == set(range(11, 20))
    assert {step for key, step in points if key == "predicted_throughput"} == set(range(11, 20))


@pytest.mark.parametrize("state, status", [("running", "RUNNING"), ("stopped", "KILLED"), ("failed", "FAILED")])
def test_states_are_mlflow_s(history, state, status):
    record = full(state=JobState(state), ended_at=None if state == "running" else 1_790_000_020.0)
    history.record(record)
    assert run_of(history, record.run_id).info.status == status
    history.record(replace(record, state=JobState.RUNNING, ended_at=None))
    assert run_of(history, record.run_id).info.status == "RUNNING"


def test_tables_can_be_read_by_mlflow(history):
    from mlflow.artifacts import load_dict

    history.record(full())
    run = run_of(history, full().run_id)
    shown = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    names = ("plans.json", "decisions.json", "candidates.json")
    assert shown == [{"path": name, "type": "table"} for name in names]
    for table in shown:
        found = load_dict(f"{run.info.artifact_uri}/{table['path']}")
        assert len(found["data"]) == 2
        assert all(len(row) == len(found["columns"]) for row in found["data"])


def test_nothing_that_is_not_finite_and_a_count_of_it(history):
    figures = {"auc": 0.7, "log_loss": math.nan, "gap": math.inf, "loss": -math.inf}
    history.record(job("a", figures=figures, samples=(sample(1.0, math.nan),)))
    run = run_of(history, "a")
    assert run.data.metrics["nonfinite_dropped"] == 4
    assert not {"log_loss", "gap", "loss", "throughput"} & set(run.data.metrics)
    assert run.data.tags["trimtab.nonfinite_dropped"] == "4"
    with sqlite3.connect(history.place.database) as database:
        assert database.execute("select count(*) from metrics where is_nan or abs(value) > 1e300").fetchone() == (0,)


def test_a_request_that_timed_out_is_repeated_without_doubles(history, monkeypatch):
    """Carried out, but never answered: each kind of request, one after the other."""
    from mlflow.tracking import MlflowClient

    record = full(seconds=200)
    calls = []

    def unanswered(name, done):
        def carried_out(self, *given, **named):
            found = done(self, *given, **named)
            calls.append(name)
            if calls.count(name) in (1, 3):
                raise TimeoutError("read timed out")
            return found

        return carried_out

    for name in ("create_run", "log_batch", "log_text", "set_terminated"):
        monkeypatch.setattr(MlflowClient, name, unanswered(name, getattr(MlflowClient, name)))
    tries = 0
    while history.get(record.run_id) != record or run_of(history, record.run_id).info.status != "FINISHED":
        tries += 1
        assert tries < 20
        try:
            history.record(record)
        except HistoryAway as error:
            assert "read timed out" in str(error)
    assert tries > 4
    points = points_of(history, run_of(history, record.run_id))  # fails if there were two runs
    assert {len(values) for values in points.values()} == {1}
    assert len([key for key, _ in points if key == "throughput"]) == 200


def test_another_process_goes_on_where_one_stopped(home):
    record = full(seconds=30)
    MlflowHistory(None, home).record(replace(record, state=JobState.RUNNING, samples=record.samples[:10]))
    second = MlflowHistory(None, home)
    second.record(record)
    points = points_of(second, run_of(second, record.run_id))
    assert sorted(step for key, step in points if key == "batches_done") == list(range(30))
    assert {len(values) for values in points.values()} == {1}


def test_what_is_foreign_cut_or_newer_is_passed_over(history):
    client = client_of(history)
    history.record(job("good"))
    experiment = client.get_experiment_by_name("trimtab").experiment_id
    client.create_run(experiment)  # of somebody else
    changes = {"cut": lambda text: text[:99], "newer": lambda text: text.replace('"format":1', '"format":2')}
    for run_id, change in changes.items():
        history.record(job(run_id))
        run = run_of(history, run_id).info
        text = (history.place.artifacts / run.run_id / "artifacts" / "record.json").read_text()
        client.log_text(run.run_id, change(text), "record.json")
    assert [found.run_id for found in history.fetch({}, 10)] == ["good"]
    assert history.skipped == 3
    assert history.get("cut") is None
    history.record(job("cut"))  # whole again
    assert history.get("cut") == job("cut")


def test_outlines_need_no_file_and_runs_of_older_versions_do(history, monkeypatch):
    from mlflow.tracking import MlflowClient

    for run_id in ("new", "old", "cut"):
        history.record(full(run_id))
    client = client_of(history)
    client.delete_tag(run_of(history, "old").info.run_id, "trimtab.outline")
    client.set_tag(run_of(history, "cut").info.run_id, "trimtab.outline", "eNq")
    assert {one.run_id for one in history.outlines({}, 5).records} == {"new", "old", "cut"}
    asked = []
    monkeypatch.setattr(MlflowClient, "download_artifacts", lambda self, run, *given: asked.append(run) or "/nowhere")
    found = history.outlines({}, 5)
    assert found == Outlines((outline(full("new")),), 2)
    assert set(asked) == {run_of(history, run_id).info.run_id for run_id in ("old", "cut")}


def test_runs_of_somebody_else_with_the_same_tags_are_counted(history):
    client = client_of(history)
    history.record(job("good", {"model": "dlrm"}))
    experiment = client.get_experiment_by_name("trimtab").experiment_id
    for name in ("dlrm", "dlrm", "dcn"):
        client.create_run(experiment, tags={"model": name})
    client.create_run(experiment, tags={"model": "dlrm", "trimtab.run_id": "half"})  # just being made
    found = history.outlines({"model": "dlrm"}, 5)
    assert ([one.run_id for one in found.records], found.unread) == (["good"], 2)


def test_what_somebody_else_keeps_there_is_not_read_to_its_end(history, monkeypatch):
    monkeypatch.setattr(store, "_PAGE", 4)
    monkeypatch.setattr(store, "_MOST_UNREAD", 3)
    client = client_of(history)
    history.record(job("good", started_at=1.0))
    experiment = client.get_experiment_by_name("trimtab").experiment_id
    for _ in range(9):
        client.create_run(experiment)
    assert history.outlines({}, 5) == Outlines((), 3)
    assert [one.run_id for one in history.fetch({}, 5)] == ["good"] and history.skipped == 3


def test_more_runs_than_a_page_holds(history, monkeypatch):
    monkeypatch.setattr(store, "_PAGE", 2)
    for number in range(7):
        history.record(job(f"run-{number}", {"model": "rare" if number == 1 else "dlrm"}))
    assert [found.run_id for found in history.fetch({"model": "rare"}, 5)] == ["run-1"]
    found = history.fetch({"model": "dlrm"}, 5)
    assert [one.run_id for one in found] == [f"run-{number}" for number in (6, 5, 4, 3, 2)]


def test_a_deleted_run_is_gone_and_a_deleted_experiment_comes_back_with_the_next_record(history, home):
    client = client_of(history)
    history.record(job("a"))
    history.record(job("b"))
    client.delete_run(run_of(history, "a").info.run_id)
    fresh = MlflowHistory(None, home)
    assert [found.run_id for found in fresh.fetch({}, 5)] == ["b"]
    client.delete_experiment(client.get_experiment_by_name("trimtab").experiment_id)
    fresh = MlflowHistory(None, home)
    assert fresh.fetch({}, 5) == ()
    fresh.record(job("c"))
    assert "c" in [found.run_id for found in fresh.fetch({}, 5)]


def test_a_clock_that_goes_back_does_not_change_the_order_of_one_writer(home):
    clock = ManualClock()
    history = MlflowHistory(None, home, clock)
    history.record(job("a"))
    clock.advance(-3600)
    history.record(job("b"))
    assert [found.run_id for found in history.fetch({}, 5)] == ["b", "a"]


def test_attached_files_lie_under_their_names(history, tmp_path):
    (tmp_path / "x.png").write_bytes(b"1")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "a.txt").write_text("a")
    history.record(job("a"))
    history.attach("a", {"report.png": tmp_path / "x.png", "deep/y.png": tmp_path / "x.png", "page": tmp_path / "page"})
    (tmp_path / "x.png").write_bytes(b"2")
    history.attach("a", {"report.png": tmp_path / "x.png"})
    folder = history.place.artifacts / run_of(history, "a").info.run_id / "artifacts"
    assert (folder / "report.png").read_bytes() == b"2"
    assert (folder / "deep" / "y.png").read_bytes() == b"1"
    assert (folder / "page" / "a.txt").read_text() == "a"


def test_sixteen_processes_make_one_fresh_store(tmp_path):
    from trimtab.core.history.record_file import encode_record

    command = [sys.executable, "-c", FORKS, str(tmp_path), str(PROCESSES)]
    found = subprocess.run(command, input=encode_record(full()), capture_output=True, timeout=240)
    assert found.stdout.split() == [b"0"] * PROCESSES, found.stderr.decode()[-3000:]
    assert b"INFO" not in found.stderr
    history = open_history(tmp_path)
    assert {one.run_id for one in history.fetch({}, 50)} == {f"run-{number:02d}" for number in range(PROCESSES)}
    for number in (0, PROCESSES - 1):
        points = points_of(history, run_of(history, f"run-{number:02d}"))
        assert {len(values) for values in points.values()} == {1}
        assert len([key for key, _ in points if key == "throughput"]) == 20


def test_a_question_to_a_new_store_makes_nothing(tmp_path):
    history = open_history(tmp_path)
    assert (history.fetch({}, 5), history.get("a"), history.link("a")) == ((), None, "")
    assert list(tmp_path.iterdir()) == []


def test_where_the_store_is(tmp_path, monkeypatch):
    assert place_of_store(None, tmp_path).database == tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@host:5000/x")
    place = place_of_store(None, tmp_path)
    assert (place.server, place.database, place.shown) == (True, None, "https://host:5000/x")
    assert place_of_store(f"sqlite:///{tmp_path}/other.db", tmp_path).artifacts == tmp_path / "mlartifacts"
    assert place_of_store("postgresql://me:secret@host/x", tmp_path).shown == "postgresql://host/x"


def test_a_server_that_is_not_there_is_said_at_once(tmp_path):
    address = f"http://me:secret@127.0.0.1:{free_port()}"
    history = MlflowHistory(address, tmp_path)
    for call in (lambda: history.record(job("a")), lambda: history.fetch({}, 1), lambda: history.link("a"),
                 lambda: history.prepare()):  # fmt: skip
        with pytest.raises(HistoryAway, match=r"MLflow at http://127\S+ does not answer \(Connection refused\)"):
            call()


class Busy(BaseHTTPRequestHandler):
    """Alive, and of no use: every question is answered with 400."""

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200 if self.path == "/health" else 400)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *given):
        pass


def test_a_server_that_refuses_is_said(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        history = MlflowHistory(f"http://127.0.0.1:{server.server_port}", tmp_path)
        with pytest.raises(HistoryAway, match="was not written to"):
            history.record(job("a"))
        server.shutdown()


def test_a_store_that_cannot_be_written_is_said(home, tmp_path):
    history = MlflowHistory(None, home)
    history.record(job("a"))
    (tmp_path / "mlflow.db").write_bytes(b"no database at all, but long enough to be looked at" * 99)
    with pytest.raises(HistoryAway, match=r"mlflow\.db was not written to"):
        history.record(job("b"))
    (tmp_path / "elsewhere").write_text("a file where a folder should be")
    with pytest.raises(HistoryAway, match=r"cannot be opened|was not written to"):
        open_history(tmp_path / "elsewhere").record(job("a"))


def test_our_settings_change_nothing_for_others(history):
    """MLflow in a notebook or an Airflow worker belongs to somebody else, but for telemetry."""
    import mlflow

    before = mlflow.get_tracking_uri()
    names = {name for name in os.environ if name.startswith("MLFLOW_")}
    history.record(full())
    assert mlflow.get_tracking_uri() == before
    assert {name for name in os.environ if name.startswith("MLFLOW_")} == names
    assert names <= {"MLFLOW_DISABLE_TELEMETRY"}


def test_a_signature_that_cannot_be_read_is_refused(history, tmp_path):
    (tmp_path / "model.keras").write_bytes(b"x")
    history.record(job("a"))
    good = [{"name": "x", "dtype": "float32", "shape": [-1]}]
    for bad in ({}, {"inputs": good}, {"inputs": good, "outputs": []}, {"inputs": ["x"], "outputs": good},
                {"inputs": [{"name": "x", "dtype": "nonsense", "shape": [1]}], "outputs": good}):  # fmt: skip
        with pytest.raises(BadInput, match="signature"):
            history.log_model("a", tmp_path, bad)
