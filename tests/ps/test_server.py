"""Orders to a parameter server: tenure, terms, processes, copies, silence."""

import threading
from pathlib import Path

import numpy as np
import pytest

from trimtab.core.clock import ManualClock
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.errors import Refused
from trimtab.core.ps import storage
from trimtab.core.ps.copies import read_copy
from trimtab.core.ps.initial import write_initial
from trimtab.core.ps.manifest import merge, read_manifest, write_manifest
from trimtab.core.ps.server import CROWDED_SECONDS, LOAD_AGAIN_SECONDS, ParameterServer
from trimtab.core.ps.table import RowTable
from trimtab.core.wire.messages import CopyOrder, PsSync, Routing, ServeOrder, to_bitmap

EVERY = (1 << 512) - 1


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def server(model, clock):
    return ParameterServer("job", "p" * 32, 2, model, RowTable(model.tables, 1, 64 << 20), 50, clock)


@pytest.fixture
def manifest(model, tmp_path):
    return write_initial(tmp_path / "checkpoint", "job", model)


def order(server, *serve, term=2, process=None, job="job", copy=None, stop=False, sequence=1):
    return server.sync(PsSync(job, term, sequence, server.process if process is None else process, serve, copy, stop))


def settled(server, *serve, **more):
    """Repeat the orders, as a controller does, until they are carried out."""
    pause = threading.Event()
    for _ in range(6000):  # a minute: only a fault takes that long
        report = order(server, *serve, **more)
        if not (report.loading or report.writing):
            return report
        pause.wait(0.01)
    pytest.fail("orders were not carried out")


def serve(manifest, since, vshards=range(512)):
    return ServeOrder(to_bitmap(vshards), since, manifest.path)


def test_a_new_process_serves_nothing_until_told(server):
    report = order(server, process="")
    assert (report.process, report.served) == (server.process, ())


def test_it_serves_what_the_manifest_holds(server, manifest):
    report = settled(server, serve(manifest, 1))
    (only,) = report.served
    assert (only.since, only.applied, only.skipped) == (1, (), ())
    assert int(only.vshards, 16) == EVERY
    assert report.rows == 3


def test_orders_to_another_process_are_refused(server, manifest):
    """Trace 12: the late telling of a predecessor must not reach its successor."""
    with pytest.raises(Refused, match="process"):
        order(server, serve(manifest, 1), process="q" * 32)


def test_a_request_without_process_orders_nothing(server, manifest):
    order(server, serve(manifest, 1), process="")
    assert order(server).loading is False
    assert order(server).served == ()


def test_another_job_and_a_lower_term_are_refused(server, manifest):
    with pytest.raises(Refused, match="job"):
        order(server, job="other")
    order(server, term=5)
    with pytest.raises(Refused, match="term 4 is over"):
        order(server, serve(manifest, 1), term=4)


def test_a_late_or_doubled_order_changes_nothing(server, manifest):
    """Trace 9: the tenure must rise."""
    settled(server, serve(manifest, 3))
    server.exchange.sets.mark(0, EVERY, False)
    for since in (3, 2, 1):
        report = settled(server, serve(manifest, since))
        (only,) = report.served
        assert (only.since, only.applied) == (3, ((0, 1),))


def test_a_new_tenure_replaces_rows_and_sets(server, manifest):
    """Trace 3: a load never merges with what was there."""
    settled(server, serve(manifest, 1))
    found = server.exchange.table.bear(
        server.exchange.table.find(np.arange(100, dtype=np.int64), np.array([100, 0, 0, 0], np.uint32))
    )
    assert found.absent == 0
    server.exchange.sets.mark(0, EVERY, False)
    report = settled(server, serve(manifest, 2))
    (only,) = report.served
    assert (only.since, only.applied) == (2, ())
    assert report.rows == 3


def test_copies_are_written_once_per_order_and_stay_reported(server, manifest, model, tmp_path):
    settled(server, serve(manifest, 1, range(10)))
    server.exchange.sets.mark(4, (1 << 10) - 1, True)
    copy = CopyOrder(7, str(tmp_path))
    first = settled(server, copy=copy).copies
    assert first.id == 7
    assert [entry.vshard for entry in first.entries] == list(range(10))
    held = read_copy(first.entries[3], model.tables)
    assert (held.since, held.applied, held.skipped) == (1, IntervalSet(((4, 5),)), IntervalSet(((4, 5),)))
    server.exchange.sets.mark(5, (1 << 10) - 1, False)
    assert settled(server, copy=copy).copies == first
    assert settled(server).copies == first
    assert settled(server, copy=CopyOrder(8, str(tmp_path))).copies.sets[0].applied == ((4, 6),)


def test_a_disk_that_refuses_is_reported_and_tried_again_with_the_next_order(server, manifest, tmp_path):
    settled(server, serve(manifest, 1))
    missing = str(tmp_path / "missing")
    copies = settled(server, copy=CopyOrder(1, missing)).copies
    assert (copies.id, copies.entries) == (1, ())
    assert "No such file" in copies.error
    assert settled(server, copy=CopyOrder(2, str(tmp_path))).copies.error == ""


def test_a_restored_server_goes_on_from_the_copies(server, manifest, model, clock, tmp_path):
    settled(server, serve(manifest, 1))
    table = server.exchange.table
    found = table.bear(table.find(np.arange(500, dtype=np.int64), np.array([500, 0, 0, 0], np.uint32)))
    table.update(found, np.ones(2000, np.float32), 1.0)
    server.exchange.sets.mark(0, EVERY, False)
    copies = settled(server, copy=CopyOrder(1, str(tmp_path))).copies
    routing = Routing(1, (server.process,), ("",), (0,) * 512, (1,) * 512)
    newer = write_manifest(tmp_path, merge(read_manifest(manifest), copies, routing, server.process))
    other = ParameterServer("job", "o" * 32, 2, model, RowTable(model.tables, 1, 64 << 20), 50, clock)
    report = settled(other, serve(newer, 2))
    assert report.rows == 503
    assert report.served[0].applied == ((0, 1),)
    again = other.exchange.table.find(found.keys, np.array([500, 0, 0, 0], np.uint32))
    one, two = np.zeros(2000, np.float32), np.zeros(2000, np.float32)
    table.read(found, False, one)
    other.exchange.table.read(again, False, two)
    assert (one == two).all()


def test_a_damaged_copy_is_an_error_that_is_reported(server, manifest, model):
    path = Path(read_manifest(manifest).entries[0].file)
    with path.open("r+b") as file:
        file.truncate(100)
    report = settled(server, serve(manifest, 1))
    assert "cannot be read" in report.error or "checksum" in report.error
    assert len(report.served) <= 1


@pytest.mark.parametrize("what", ["read_bytes", "read_into"])
def test_a_store_that_does_not_answer_for_a_while_is_asked_again(server, manifest, clock, monkeypatch, what):
    asked = []

    def refusing(*given):
        asked.append(given)
        raise OSError(5, "503 Service Unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(storage, what, refusing)
        report = settled(server, serve(manifest, 1))
        assert (report.error, report.served) == ("", ())
        assert "503" in report.load_error
        before = len(asked)
        assert not order(server, serve(manifest, 1)).loading and len(asked) == before, "not at once"
        clock.advance(LOAD_AGAIN_SECONDS)
        settled(server, serve(manifest, 1))
        assert len(asked) > before
    clock.advance(LOAD_AGAIN_SECONDS)
    report = settled(server, serve(manifest, 1))
    assert (report.error, report.load_error, int(report.served[0].vshards, 16)) == ("", "", EVERY)


def test_the_table_may_grow_as_far_as_it_is_told(server, manifest):
    report = settled(server, serve(manifest, 1))
    assert (report.memory_bytes, report.full) == (64 << 20, False)
    sync = PsSync("job", 2, 1, server.process, (serve(manifest, 1),), memory_bytes=32 << 20)
    assert server.sync(sync).memory_bytes == 32 << 20
    assert order(server, serve(manifest, 1)).memory_bytes == 32 << 20, "0 says nothing"


def test_pushes_without_room_are_told_for_a_while(server, manifest, clock):
    settled(server, serve(manifest, 1))
    server.exchange.counters.crowded += 1
    assert order(server).full and order(server).error == ""
    clock.advance(CROWDED_SECONDS)
    assert not order(server).full
    server.exchange.counters.crowded += 3
    assert order(server).full


def test_copies_that_do_not_fit_are_loaded_once_the_table_may_grow(server, manifest, clock):
    small = [serve(manifest, 1)]
    server.sync(PsSync("job", 2, 1, server.process, (), memory_bytes=1024))
    report = settled(server, *small)
    assert (report.error, report.full) == ("", True)
    assert "no room" in report.load_error
    server.sync(PsSync("job", 2, 2, server.process, (), memory_bytes=64 << 20))
    clock.advance(LOAD_AGAIN_SECONDS)
    report = settled(server, *small)
    assert (report.error, report.load_error, int(report.served[0].vshards, 16)) == ("", "", EVERY)


def test_a_file_that_is_gone_is_an_error_at_once(server, manifest):
    Path(read_manifest(manifest).entries[0].file).unlink()
    assert "cannot be read" in settled(server, serve(manifest, 1)).error


def test_writing_copies_is_not_loading(server, manifest, tmp_path):
    settled(server, serve(manifest, 1))
    extract = server.exchange.table.extract
    server.exchange.table.extract = lambda vshard: threading.Event().wait(600)
    report = order(server, copy=CopyOrder(1, str(tmp_path)))
    assert (report.loading, report.writing) == (False, True)
    server.exchange.table.extract = extract
    assert settled(server, copy=CopyOrder(2, str(tmp_path))).copies.error == ""


def test_a_manifest_of_another_job_is_not_loaded(server, model, tmp_path):
    other = write_initial(tmp_path / "other", "another-job", model)
    report = settled(server, serve(other, 1))
    assert "another-job" in report.error
    assert report.served == ()


def test_an_order_that_fails_unexpectedly_is_reported_and_the_next_one_is_done(server, manifest):
    replace = server.exchange.table.replace_all
    server.exchange.table.replace_all = lambda contents: (_ for _ in ()).throw(MemoryError("no memory"))
    assert "MemoryError" in settled(server, serve(manifest, 1)).error
    server.exchange.table.replace_all = replace
    assert int(settled(server, serve(manifest, 2)).served[0].vshards, 16) == EVERY


def test_copies_that_fail_unexpectedly_cost_one_round(server, manifest, tmp_path):
    settled(server, serve(manifest, 1))
    extract = server.exchange.table.extract
    server.exchange.table.extract = lambda vshard: (_ for _ in ()).throw(MemoryError("no memory"))
    report = settled(server, copy=CopyOrder(1, str(tmp_path)))
    assert "MemoryError" in report.copies.error
    assert report.error == ""
    assert list(tmp_path.glob("*.ttc*")) == []
    server.exchange.table.extract = extract
    assert settled(server, copy=CopyOrder(2, str(tmp_path))).copies.error == ""


def test_silence_is_measured_from_the_last_contact(server, clock):
    clock.advance(5)
    assert server.seconds_without_contact() == 5
    order(server)
    assert server.seconds_without_contact() == 0
    with pytest.raises(Refused):
        order(server, job="other")
    clock.advance(1)
    assert server.seconds_without_contact() == 1


def test_stop_is_heard(server):
    assert not server.stopping.is_set()
    order(server, stop=True)
    assert server.stopping.is_set()
    assert server.exchange.sets.classes() == () and server.exchange.sets.of(0).applied == EMPTY
