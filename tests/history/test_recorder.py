"""The live line to a store: latest wins, nothing is lost, nobody waits, nothing is raised."""

import threading
from dataclasses import replace

import pytest
from history_records import full

from trimtab.core.clock import SystemClock
from trimtab.core.domain.job import JobState
from trimtab.core.history.base import HistoryAway
from trimtab.core.history.memory import InMemoryHistory
from trimtab.core.history.outbox import deliver_waiting, waiting
from trimtab.core.history.outline import Outlines, outline
from trimtab.core.history.past import PastRuns
from trimtab.core.history.recorder import SHORTEST_PAUSE_SECONDS, Delivery, Recorder

END = full()
RUNNING = replace(END, state=JobState.RUNNING, ended_at=None, figures={})


class FastClock(SystemClock):
    """A thousand seconds pass in one."""

    def __init__(self):
        self.waits = []

    def now(self):
        return super().now() * 1000

    def wait(self, event, seconds):
        self.waits.append(seconds)
        return super().wait(event, seconds / 1000)


class Store(InMemoryHistory):
    """Counts what it is given, waits where a test says so, and may be broken."""

    def __init__(self):
        super().__init__()
        self.given = []
        self.recorders = []
        self.arrived = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.broken = None

    def record(self, job):
        self.arrived.release()
        assert self.gate.wait(30)
        if self.broken is not None:
            raise self.broken
        self.given.append(job)
        return super().record(job)

    def link(self, run_id):
        return f"http://x/{run_id}"


@pytest.fixture
def store():
    store = Store()
    yield store
    store.gate.set()
    store.broken = None
    for recorder in store.recorders:
        recorder.close()
    until(lambda: not any(thread.name == "history-recorder" for thread in threading.enumerate()))


@pytest.fixture
def clock():
    return FastClock()


def recorder_of(store, tmp_path, clock, opened=None):
    recorder = Recorder(opened or (lambda: store), tmp_path / "outbox", clock)
    store.recorders.append(recorder)
    return recorder


def until(condition):
    """Wait for something that another thread brings about."""
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def test_a_job_from_first_record_to_last(store, tmp_path, clock):
    (tmp_path / "report.html").write_text("<p>")
    recorder = recorder_of(store, tmp_path, clock)
    recorder.update(RUNNING)
    until(lambda: store.get(END.run_id) == RUNNING)
    assert recorder.problem() == ""
    found = recorder.finish(END, {"report.html": tmp_path / "report.html"}, 1e6)
    assert found == Delivery(f"http://x/{END.run_id}", "")
    assert store.get(END.run_id) == END
    assert store.attached(END.run_id) == {"report.html": tmp_path / "report.html"}
    assert waiting(tmp_path / "outbox") == ()


def test_the_last_record_alone_is_enough(store, tmp_path, clock):
    assert recorder_of(store, tmp_path, clock).finish(END, {}, 1e6).error == ""
    assert store.given == [END]


def test_a_busy_store_gets_the_latest_and_nobody_waits_for_it(store, tmp_path, clock):
    store.gate.clear()
    recorder = recorder_of(store, tmp_path, clock)
    recorder.update(RUNNING)
    assert store.arrived.acquire(timeout=30)
    records = [replace(RUNNING, started_at=float(at)) for at in range(1, 100)]
    for record in records:
        recorder.update(record)  # would never return if it waited
    store.gate.set()
    until(lambda: len(store.given) == 2)
    assert store.given == [RUNNING, records[-1]]


def test_a_store_that_does_not_answer_is_said_while_it_does_not(store, tmp_path, clock):
    store.gate.clear()
    recorder = recorder_of(store, tmp_path, clock)
    assert recorder.problem() == ""
    recorder.update(RUNNING)
    until(recorder.problem)
    assert recorder.problem() == "the store has not answered for 60 s: the record is kept and delivered later"
    store.gate.set()
    until(lambda: recorder.problem() == "")


def test_records_are_paced(store, tmp_path, clock):
    recorder = recorder_of(store, tmp_path, clock)
    recorder.update(RUNNING)
    until(lambda: clock.waits)
    assert clock.waits[0] >= SHORTEST_PAUSE_SECONDS


@pytest.mark.parametrize(
    "error", [HistoryAway("MLflow at x does not answer (refused)."), RuntimeError(""), OSError(28, "full")]
)
def test_a_broken_store_is_said_and_comes_back(store, tmp_path, clock, error):
    store.broken = error
    recorder = recorder_of(store, tmp_path, clock)
    recorder.update(RUNNING)
    until(recorder.problem)
    said = str(error).rstrip(".") or "RuntimeError"
    assert recorder.problem() == f"{said}: the record is kept and delivered later"
    store.broken = None
    until(lambda: store.given == [RUNNING])
    until(lambda: recorder.problem() == "")
    assert recorder.finish(END, {}, 1e6).error == ""


def test_a_store_that_cannot_be_opened_is_tried_again(store, tmp_path, clock):
    tries = []

    def opened():
        tries.append(1)
        if len(tries) < 3:
            raise HistoryAway("MLflow at x cannot be opened (locked)")
        return store

    recorder = recorder_of(store, tmp_path, clock, opened)
    recorder.update(RUNNING)
    until(lambda: store.given == [RUNNING])
    assert len(tries) == 3


def test_a_store_that_is_away_at_the_end_gets_it_later(store, tmp_path, clock):
    store.broken = HistoryAway("MLflow at x does not answer (refused)")
    folder = tmp_path / "job"
    folder.mkdir()
    end = replace(END, job_dir=str(folder))
    recorder = recorder_of(store, tmp_path, clock)
    recorder.update(RUNNING)
    found = recorder.finish(end, {}, 300)
    assert found == Delivery("", "MLflow at x does not answer (refused): the record is kept and delivered later")
    later = InMemoryHistory()
    until(lambda: deliver_waiting(lambda: later, tmp_path / "outbox").count == 1)
    assert later.get(END.run_id) == end
    assert waiting(tmp_path / "outbox") == ()


def test_a_store_that_hangs_at_the_end_delays_nobody(store, tmp_path, clock):
    store.gate.clear()
    found = recorder_of(store, tmp_path, clock).finish(END, {}, 300)
    assert found.link == ""
    assert found.error == "the store did not take it within 300 s: the record is kept and delivered later"
    assert len(waiting(tmp_path / "outbox")) == 1
    store.gate.set()
    until(lambda: waiting(tmp_path / "outbox") == ())  # what hung comes through after all
    assert store.get(END.run_id) == END


def test_a_record_that_cannot_be_kept_is_said(store, tmp_path, clock):
    (tmp_path / "outbox").write_text("a file in its place")
    store.broken = HistoryAway("away")
    assert recorder_of(store, tmp_path, clock).finish(END, {}, 100).error == "away: the record could not be kept either"
    store.broken = None
    assert recorder_of(store, tmp_path, clock).finish(END, {}, 1e6).error == ""


def test_after_the_last_record_nothing_more_is_taken(store, tmp_path, clock):
    recorder = recorder_of(store, tmp_path, clock)
    recorder.finish(END, {}, 1e6)
    recorder.update(RUNNING)
    assert store.get(END.run_id) == END


def test_past_runs_are_those_of_the_store_and_of_the_outbox(store, tmp_path, clock):
    store.broken = HistoryAway("away")
    assert recorder_of(store, tmp_path, clock).finish(END, {}, 50).error
    until(lambda: not any(thread.name == "history-recorder" for thread in threading.enumerate()))
    later = InMemoryHistory()
    later.record(replace(END, run_id="other", tags={"model": "dcn"}))
    past = PastRuns(lambda: later, tmp_path / "outbox", clock)
    assert past.fetch({"model": "dlrm"}, 5, 1e6).records == (outline(END),)


def test_an_empty_store_answers_and_is_made_ready(tmp_path, clock):
    ready = threading.Event()

    class New(InMemoryHistory):
        def prepare(self):
            assert ready.wait(30)

    past = PastRuns(New, tmp_path / "outbox", clock)
    found = past.fetch({}, 5, 1e6)  # would not come before the store is ready if it waited for that
    ready.set()
    assert (found.records, found.problem) == ((), "")


def test_past_runs_that_take_too_long_are_done_without(tmp_path, clock):
    gate = threading.Event()

    class Slow(InMemoryHistory):
        def outlines(self, tags, limit):
            assert gate.wait(30)
            return Outlines()

    found = PastRuns(Slow, tmp_path / "outbox", clock).fetch({}, 5, 100)
    gate.set()
    assert found.records == ()
    assert found.problem == "past runs could not be read within 100 s"


def test_runs_that_could_not_be_read_are_counted(tmp_path, clock):
    class Cut(InMemoryHistory):
        def outlines(self, tags, limit):
            return Outlines((), 2)

    found = PastRuns(Cut, tmp_path / "outbox", clock).fetch({}, 5, 1e6)
    assert (found.records, found.problem, found.unread) == ((), "", 2)


def test_past_runs_of_a_broken_store_are_done_without(tmp_path, clock):
    def away():
        raise HistoryAway("MLflow at x does not answer (refused)")

    found = PastRuns(away, tmp_path / "outbox", clock).fetch({}, 5, 1e6)
    assert found.problem == "past runs could not be read (MLflow at x does not answer (refused))"
    PastRuns(away, tmp_path / "outbox", clock).close()
