"""Snapshots: when they are due, what they hold, which copy a vshard is loaded from, and what is pruned."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ps_models import embedding, spec_of

from trimtab.core.clock import ManualClock
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.errors import CorruptCopy
from trimtab.core.ps.copies import VshardCopy, read_copy, write_copies
from trimtab.core.ps.copying import Copying, SnapshotRule
from trimtab.core.ps.exchange import Exchange
from trimtab.core.ps.holdings import Holdings
from trimtab.core.ps.initial import write_initial
from trimtab.core.ps.loading import Loading
from trimtab.core.ps.manifest import merge, read_manifest
from trimtab.core.ps.snapshots import read_indexes, remove_of_others, sources_of, write_index
from trimtab.core.ps.table import RowTable
from trimtab.core.wire.messages import CopiesWritten, CopyOrder, Routing

EVERY = (1 << VSHARDS) - 1
ME, OTHER = "a" * 32, "b" * 32
SEEN = IntervalSet(((0, 3),))
MORE = IntervalSet(((0, 7),))


@pytest.fixture
def held(model):
    """What a server holds that serves everything since version 4 and has batches 0 to 2."""
    holdings = Holdings(Exchange(RowTable(model.tables, 1, 64 << 20), 50))
    for vshard in range(VSHARDS):
        holdings.serve(vshard, 4)
    holdings.exchange.sets.put(EVERY, SEEN, EMPTY)
    table = holdings.exchange.table
    table.bear(table.find(np.arange(300, dtype=np.int64), np.array([300, 0, 0, 0], np.uint32)))
    return holdings


@pytest.fixture
def rule(tmp_path):
    return SnapshotRule(str(tmp_path / "snapshots"), seconds=20.0, bytes=1000, deadline_seconds=60.0)


def copying_of(held, model, rule, clock, process=ME):
    return Copying(held, model, "job", process, rule, clock)


def push(held, nbytes=1):
    held.exchange.counters.bytes += nbytes
    held.exchange.counters.pushes += 1


def names(rule):
    return sorted(path.name for path in Path(rule.directory).glob("*"))


def snapshots_taken(copying, clock, *steps):
    """How many there are after each step (seconds to wait)."""
    found = []
    for seconds in steps:
        clock.advance(seconds)
        copying.turn()
        found.append(copying.snapshots)
    return found


def test_one_is_due_after_some_time_if_anything_changed(held, model, rule):
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    assert snapshots_taken(copying, clock, 100) == [0], "nothing was pushed"
    push(held)
    assert snapshots_taken(copying, clock, 1) == [1]
    push(held)
    assert snapshots_taken(copying, clock, 19, 1, 100) == [1, 2, 2]


def test_one_is_due_after_enough_bytes(held, model, rule):
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    push(held, 999)
    assert snapshots_taken(copying, clock, 1) == [0]
    push(held, 1)
    assert snapshots_taken(copying, clock, 1) == [1]


def test_writing_takes_a_fifth_of_the_time_at_most(held, model, rule):
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    copying.snapshot_seconds = 3.0
    push(held, 10_000)
    assert snapshots_taken(copying, clock, 11.9, 0.1) == [0, 1]


def test_no_directory_no_snapshots(held, model):
    clock = ManualClock()
    copying = copying_of(held, model, SnapshotRule(), clock)
    push(held, 1 << 40)
    assert snapshots_taken(copying, clock, 1000) == [0]


def test_a_snapshot_holds_what_the_server_held_and_the_newest_stays(held, model, rule):
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    for _ in range(3):
        push(held, 1000)
        snapshots_taken(copying, clock, 30)
    assert len(names(rule)) == 2, names(rule)
    (index,) = read_indexes(rule.directory, "job", model.fingerprint)
    assert index.process == ME
    assert [entry.vshard for entry in index.entries] == list(range(VSHARDS))
    copies = [read_copy(entry, model.tables) for entry in index.entries]
    assert {(one.since, one.applied) for one in copies} == {(4, SEEN)}
    assert sum(len(one.content.keys[0]) for one in copies) == 300


def test_a_failed_snapshot_is_told_and_the_last_one_stays(held, model, rule):
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    push(held, 1000)
    snapshots_taken(copying, clock, 30)
    before = names(rule)
    held.exchange.table.extract = lambda vshard: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    push(held, 1000)
    assert snapshots_taken(copying, clock, 30) == [1]
    assert "No space left" in copying.snapshot_error
    assert names(rule) == before
    assert snapshots_taken(copying, clock, 60) == [1]
    assert names(rule) == before, "a second failure changes nothing"
    del held.exchange.table.extract
    assert snapshots_taken(copying, clock, 60) == [2]
    assert copying.snapshot_error == ""


def test_a_hanging_snapshot_ends_at_its_deadline(held, model, rule):
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    held.exchange.table.extract = lambda vshard: threading.Event().wait(600)
    push(held, 1000)
    threading.Timer(0.2, clock.advance, [100]).start()
    assert snapshots_taken(copying, clock, 30) == [0]
    assert "took more than 60 s" in copying.snapshot_error
    assert names(rule) == []


def test_an_order_ends_a_running_snapshot_and_is_carried_out(held, model, rule, tmp_path):
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    extract = held.exchange.table.extract
    held.exchange.table.extract = lambda vshard: threading.Event().wait(600)
    push(held, 1000)
    threading.Timer(0.2, copying.order, [CopyOrder(1, str(tmp_path))]).start()
    assert snapshots_taken(copying, clock, 30) == [0]
    assert copying.writing and copying.snapshot_error == ""
    held.exchange.table.extract = extract
    copying.turn()
    assert not copying.writing
    assert (copying.written.id, copying.written.error, len(copying.written.entries)) == (1, "", VSHARDS)
    push(held, 1)
    assert snapshots_taken(copying, clock, 1) == [0], "a checkpoint is as good as a snapshot"


def test_pages_without_room_are_written_vshard_by_vshard(held, model, rule, monkeypatch):
    """The child's own memory is measured; what is beyond the plan ends it, and the snapshot is made without it."""
    from trimtab.core.ps import copy_child

    monkeypatch.setattr(copy_child, "_private_bytes", lambda pid: 1 << 40)
    extract, here, locked = held.exchange.table.extract, os.getpid(), []

    def slow_in_a_child(vshard):
        if os.getpid() != here:
            threading.Event().wait(600)
        locked.append(held.exchange.lock.locked())
        return extract(vshard)

    held.exchange.table.extract = slow_in_a_child
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    push(held, 1000)
    assert snapshots_taken(copying, clock, 30) == [1]
    assert locked == [True] * VSHARDS
    (index,) = read_indexes(rule.directory, "job", model.fingerprint)
    assert len(index.entries) == VSHARDS


def test_a_child_that_the_kernel_killed_is_not_tried_again(held, model, rule, tmp_path):
    extract, here = held.exchange.table.extract, os.getpid()

    def killed_in_a_child(vshard):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return extract(vshard)

    held.exchange.table.extract = killed_in_a_child
    copying = copying_of(held, model, rule, ManualClock())
    copying.order(CopyOrder(1, str(tmp_path)))
    copying.turn()
    assert (copying.written.error, len(copying.written.entries)) == ("", VSHARDS)


def test_an_upload_that_begins_at_the_end_is_not_taken_for_a_hanging_disk(held, model, rule, tmp_path, monkeypatch):
    from trimtab.core.ps import copying as module

    clock, pause = ManualClock(), threading.Event()
    given, go = tmp_path / "given", tmp_path / "go"

    def until(path):
        for _ in range(6000):
            if path.exists():
                return
            pause.wait(0.01)

    def write(path, copies, tables, order_id):
        given.write_text(str(len(list(copies))))
        until(go)
        return CopiesWritten(order_id)

    def look():
        until(given)
        pause.wait(0.2)
        clock.advance(10 * module.COPY_SILENCE_SECONDS)
        pause.wait(0.2)
        go.touch()

    monkeypatch.setattr(module, "write_copies", write)
    monkeypatch.setattr(module, "prepare", lambda directory: None)
    copying = copying_of(held, model, rule, clock)
    copying.order(CopyOrder(1, "far://away"))
    looking = threading.Thread(target=look)
    looking.start()
    copying.turn()
    looking.join()
    assert (copying.written, given.read_text()) == (CopiesWritten(1), str(VSHARDS))


def test_a_snapshot_holds_what_is_being_handed_over_and_a_checkpoint_does_not(held, model, rule, tmp_path):
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    for ended in (range(10), range(VSHARDS)):
        held.end_tenure(ended, 4)
        push(held, 1000)
        snapshots_taken(copying, clock, 30)
        (index,) = read_indexes(rule.directory, "job", model.fingerprint)
        assert [(entry.vshard, entry.since) for entry in index.entries] == [(v, 4) for v in range(VSHARDS)]
        copying.order(CopyOrder(len(ended), str(tmp_path)))
        copying.turn()
        assert [entry.vshard for entry in copying.written.entries] == list(range(len(ended), VSHARDS))
    before = copying.snapshots
    copying.last()
    (index,) = read_indexes(rule.directory, "job", model.fingerprint)
    assert len(index.entries) == VSHARDS and copying.snapshots == before
    for vshard in range(VSHARDS):
        held.empty(vshard)
    push(held, 1000)
    assert snapshots_taken(copying, clock, 30) == [before], "nothing is held any more"


def test_without_a_process_they_are_written_vshard_by_vshard(held, model, rule, monkeypatch):
    from trimtab.core.ps import copying as module

    monkeypatch.setattr(module, "fork_child", lambda work: (_ for _ in ()).throw(OSError(12, "no memory")))
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    push(held, 1000)
    assert snapshots_taken(copying, clock, 30) == [1]


def test_a_newer_order_ends_a_checkpoint_that_hangs(held, model, rule, tmp_path):
    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    extract = held.exchange.table.extract
    held.exchange.table.extract = lambda vshard: threading.Event().wait(600)
    copying.order(CopyOrder(1, str(tmp_path)))
    threading.Timer(0.2, copying.order, [CopyOrder(2, str(tmp_path))]).start()
    copying.turn()
    assert "given up" in copying.written.error and copying.writing
    held.exchange.table.extract = extract
    copying.turn()
    assert (copying.written.id, copying.written.error) == (2, "")


def test_a_snapshot_that_was_given_up_for_the_last_one_does_not_delete_it(held, model, rule, monkeypatch):
    """A server leaves while a child writes: the thread that waits for the child hears of its end only afterwards."""
    from trimtab.core.ps import copying as module

    class Child:
        def wait(self, *_):
            copying.last()  # as the main thread does meanwhile
            raise module.ChildFailed("was given up")

    clock = ManualClock()
    copying = copying_of(held, model, rule, clock)
    push(held, 1000)
    assert snapshots_taken(copying, clock, 30) == [1]
    held.exchange.sets.put(EVERY, MORE, EMPTY)
    monkeypatch.setattr(module, "fork_child", lambda work: Child())
    push(held, 1000)
    snapshots_taken(copying, clock, 30)
    (index,) = read_indexes(rule.directory, "job", model.fingerprint)
    assert [IntervalSet(one.applied) for one in index.sets] == [MORE]
    push(held, 1000)
    snapshots_taken(copying, clock, 1000)
    assert read_indexes(rule.directory, "job", model.fingerprint) == [index], "nothing is written after the last one"


def test_an_order_is_answered_whatever_broke(held, model, rule, tmp_path, monkeypatch):
    from trimtab.core.ps import copying as module

    monkeypatch.setattr(module, "fork_child", lambda work: (_ for _ in ()).throw(MemoryError("no room")))
    copying = copying_of(held, model, rule, ManualClock())
    copying.order(CopyOrder(1, str(tmp_path)))
    copying.turn()
    assert not copying.writing
    assert copying.written.id == 1 and "no room" in copying.written.error


# ---- which copy


def written(model, path, applied, vshards=range(VSHARDS), process=OTHER, number=1, job="job"):
    """A snapshot in which every vshard has these batches."""
    path.mkdir(exist_ok=True)
    empty = RowTable(model.tables, 1, 64 << 20).extract(0)
    copies = [VshardCopy(vshard, 9, applied, EMPTY, empty) for vshard in vshards]
    made = write_copies(str(path / f"snapshot-{process[:12]}-{number}.ttc"), copies, model.tables, number)
    write_index(str(path), job, model.fingerprint, process, number, made)
    return made


@pytest.fixture
def manifest(model, tmp_path, held):
    """All vshards with batches 0 to 2."""
    ref = write_initial(str(tmp_path / "checkpoint"), "job", model)
    copies = [VshardCopy(v, 4, SEEN, EMPTY, held.exchange.table.extract(v)) for v in range(VSHARDS)]
    made = write_copies(str(tmp_path / "checkpoint" / "c.ttc"), copies, model.tables, 1)
    routing = Routing(4, (ME,), ("",), (0,) * VSHARDS, (4,) * VSHARDS)
    return merge(read_manifest(ref), made, routing, ME)


def test_the_freshest_copy_comes_first_and_the_manifests_last(model, tmp_path, manifest):
    written(model, tmp_path / "s", MORE, vshards=range(10))
    written(model, tmp_path / "s", IntervalSet(((0, 5),)), vshards=range(20), number=2)
    found = sources_of(range(30), manifest, read_indexes(str(tmp_path / "s"), "job", model.fingerprint))
    assert [len(source.applied) for source in found[3]] == [7, 5, 3]
    assert [len(source.applied) for source in found[15]] == [5, 3]
    assert [len(source.applied) for source in found[25]] == [3]


def test_trace_14_a_copy_without_what_was_closed_is_no_source(model, tmp_path, manifest):
    """It has more batches, and lacks one that the manifest's copy has."""
    written(model, tmp_path / "s", IntervalSet(((1, 9),)))
    found = sources_of(range(VSHARDS), manifest, read_indexes(str(tmp_path / "s"), "job", model.fingerprint))
    assert all([source.applied for source in held] == [SEEN] for held in found.values())


@pytest.mark.parametrize("harm", ["cut", "changed", "renamed", "other job"])
def test_an_index_that_is_not_whole_or_not_ours_is_passed_over(model, tmp_path, harm):
    written(model, tmp_path / "s", MORE, job="another" if harm == "other job" else "job")
    (index,) = (tmp_path / "s").glob("*.json")
    data = index.read_bytes()
    if harm == "cut":
        index.write_bytes(data[: len(data) // 2])
    elif harm == "changed":
        index.write_bytes(data.replace(b'"since":9', b'"since":8', 1))
    elif harm == "renamed":
        index.rename(index.with_name("snapshot-x-1-0123.json"))
    assert read_indexes(str(tmp_path / "s"), "job", model.fingerprint) == []


def test_a_damaged_snapshot_costs_its_freshness_only(model, tmp_path, manifest):
    from trimtab.core.ps.manifest import write_manifest

    written(model, tmp_path / "s", MORE)
    (data,) = (tmp_path / "s").glob("*.ttc")
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size // 2)
    ref = write_manifest(str(tmp_path / "checkpoint"), manifest)
    loading = Loading("job", model, str(tmp_path / "s"))
    pieces = loading.copies(loading.sources(ref.path, list(range(VSHARDS))))
    copies = {one.vshard: one for piece in pieces for one in piece}
    assert sorted(copies) == list(range(VSHARDS))
    assert copies[0].applied == MORE, "what lies before the damage is whole"
    assert copies[511].applied == SEEN


def test_no_whole_copy_is_an_error(model, tmp_path, manifest):
    gone = replace(manifest, entries=tuple(replace(one, file="/nowhere/c.ttc") for one in manifest.entries))
    with pytest.raises(CorruptCopy):
        list(Loading("job", model, "").copies(sources_of([1, 2], gone, [])))


def test_snapshots_of_the_living_stay(model, tmp_path):
    written(model, tmp_path / "s", MORE, vshards=range(2), process=ME)
    written(model, tmp_path / "s", MORE, vshards=range(2), process=OTHER)
    (tmp_path / "s" / f"snapshot-{OTHER[:12]}-9.ttc").write_bytes(b"half")
    remove_of_others(str(tmp_path / "s"), [ME])
    assert {index.process for index in read_indexes(str(tmp_path / "s"), "job", model.fingerprint)} == {ME}
    assert len(list((tmp_path / "s").iterdir())) == 2
    remove_of_others(str(tmp_path / "s"), [])
    assert not (tmp_path / "s").exists()


def test_models_differ(tmp_path):
    one = spec_of(embedding("a"), fingerprint="one")
    written(one, tmp_path / "s", MORE, vshards=range(2))
    assert read_indexes(str(tmp_path / "s"), "job", "two") == []
