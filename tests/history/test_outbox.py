"""Records that wait for a store: kept whole, delivered once, never by two at a time."""

import subprocess
import sys

import pytest
from history_records import full, job

from trimtab.core.history.base import HistoryAway
from trimtab.core.history.memory import InMemoryHistory
from trimtab.core.history.outbox import Delivered, deliver_waiting, put, waiting
from trimtab.core.history.record_file import encode_record


class Away(InMemoryHistory):
    """A store that does not answer."""

    def record(self, job):
        raise HistoryAway("MLflow at x does not answer (refused)")


def never():
    raise AssertionError("the store is not to be opened")


def keep(outbox, record, artifacts=None):
    put(outbox, record, artifacts or {}).close()


@pytest.fixture
def outbox(tmp_path):
    return tmp_path / "home" / "outbox"


def test_an_empty_outbox_opens_no_store(outbox):
    assert deliver_waiting(never, outbox) == Delivered(0, 0)
    outbox.mkdir(parents=True)
    assert deliver_waiting(never, outbox) == Delivered(0, 0)


def test_what_waits_is_delivered_once_with_its_artifacts(outbox, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "report.html").write_text("<p>")
    record = full(job_dir=str(folder))
    keep(outbox, record, {"report.html": folder / "report.html", "report.png": folder / "report.png"})
    keep(outbox, job("b"))
    store = InMemoryHistory()
    assert deliver_waiting(lambda: store, outbox) == Delivered(2, 0)
    assert store.get(record.run_id) == record
    assert store.attached(record.run_id) == {"report.html": folder / "report.html"}
    assert store.get("b") == job("b")
    assert (folder / "record.json").is_file()
    assert list(outbox.iterdir()) == []
    assert deliver_waiting(never, outbox) == Delivered(0, 0)


def test_a_store_that_is_away_keeps_everything_waiting(outbox):
    for run_id in "ab":
        keep(outbox, job(run_id))
    found = deliver_waiting(Away, outbox)
    assert found == Delivered(0, 2, "MLflow at x does not answer (refused)")

    def closed():
        raise HistoryAway("MLflow at x cannot be opened (locked)")

    assert deliver_waiting(closed, outbox) == Delivered(0, 2, "MLflow at x cannot be opened (locked)")
    assert deliver_waiting(InMemoryHistory, outbox) == Delivered(2, 0)


def test_an_entry_that_is_being_delivered_is_left_alone(outbox):
    entry = put(outbox, job("a"), {})
    store = InMemoryHistory()
    assert deliver_waiting(lambda: store, outbox) == Delivered(0, 1)
    assert store.fetch({}, 1) == ()
    entry.close()
    assert deliver_waiting(lambda: store, outbox) == Delivered(1, 0)


def test_two_that_deliver_at_once_do_it_once(outbox):
    """While the first one is in the middle of it, the second finds nothing to do."""
    keep(outbox, job("a"))
    seen = []

    class Nested(InMemoryHistory):
        def record(self, job):
            seen.append(deliver_waiting(InMemoryHistory, outbox))
            return super().record(job)

    assert deliver_waiting(Nested, outbox) == Delivered(1, 0)
    assert seen == [Delivered(0, 1)]


def test_a_dead_process_holds_nothing(outbox):
    """The lock of a process that was killed is void."""
    code = (
        "import os, sys; from pathlib import Path; from trimtab.core.history.outbox import put;"
        "from trimtab.core.history.record_file import decode_record;"
        "put(Path(sys.argv[1]), decode_record(sys.stdin.buffer.read(), 'x'), {}); os._exit(9)"
    )
    found = subprocess.run([sys.executable, "-c", code, str(outbox)], input=encode_record(job("a")))
    assert found.returncode == 9
    assert deliver_waiting(InMemoryHistory, outbox) == Delivered(1, 0)


def test_a_removed_job_is_dropped(outbox, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    keep(outbox, full(job_dir=str(folder)))
    (folder / "record.json").unlink()
    assert deliver_waiting(InMemoryHistory, outbox) == Delivered(0, 0)
    assert waiting(outbox) == ()


def test_a_broken_entry_is_set_aside_and_the_rest_goes(outbox):
    keep(outbox, job("b"))
    (outbox / "a.json").write_text("{")
    store = InMemoryHistory()
    found = deliver_waiting(lambda: store, outbox)
    assert (found.count, found.left) == (1, 0)
    assert "a.json" in found.error
    assert [entry.name for entry in outbox.iterdir()] == ["a.json.void"]


def test_a_record_of_a_newer_version_waits_for_it(outbox):
    keep(outbox, job("a"))
    record = outbox / "a.record"
    record.write_bytes(record.read_bytes().replace(b'"format":1', b'"format":9'))
    found = deliver_waiting(InMemoryHistory, outbox)
    assert (found.count, found.left) == (0, 1)
    assert "newer trimtab" in found.error
