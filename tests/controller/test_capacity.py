"""The capacity file: changed by one at a time, cleared of the dead, begun anew when damaged, never in the way."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.core.clock import ManualClock
from trimtab.core.controller import capacity as module
from trimtab.core.controller.capacity import (
    LEASE_SECONDS,
    LIVING_SECONDS,
    SETTLE_SECONDS,
    Book,
    Capacity,
    machine_room,
    this_process,
)
from trimtab.core.controller.leases import NOTHING, Holder, Lease, Room

GIB = 2**30
MACHINE = Room(2.0, 8 * GIB)


@pytest.fixture
def clock():
    return ManualClock(1000.0)


@pytest.fixture
def capacity(tmp_path, clock):
    return Capacity(tmp_path, clock, lambda: MACHINE)


ONE = Room(1.0, GIB)


def lease(name="a", held=ONE, expires=1060.0, **more):
    plain = {"holder": this_process(), "ticket": 1, "job_dir": "/nowhere"}
    return Lease(name, held, Room(0.2, GIB), MACHINE, expires=expires, **{**plain, **more})


def enter(capacity, one):
    return capacity.change(lambda book: book.with_lease(one))


def gone(capacity):
    """A process of this namespace that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return replace(this_process(), pid=ended.pid)


def test_what_was_written_is_read(capacity, tmp_path):
    one = lease(keeps_cpu=True, changes=False, weight=2.0)
    assert enter(capacity, one) == capacity.read() == Book(MACHINE, (one,))
    told = json.loads((tmp_path / "capacity.json").read_text())
    assert told["version"] == 1 and told["machines"][0]["leases"][0]["held"] == {"cpu": 1.0, "memory_bytes": GIB}
    assert oct((tmp_path / "capacity.lock").stat().st_mode & 0o777) == "0o600"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capacity.json", "capacity.lock"]


def test_nothing_is_written_where_nothing_changes(capacity, tmp_path):
    enter(capacity, lease())
    before = (tmp_path / "capacity.json").stat().st_ino
    capacity.change(lambda book: book)
    assert (tmp_path / "capacity.json").stat().st_ino == before
    capacity.change(lambda book: book.without("a"))
    assert (tmp_path / "capacity.json").stat().st_ino != before


def test_a_reader_makes_nothing(capacity, tmp_path):
    assert capacity.read() == Book(MACHINE)
    assert list(tmp_path.iterdir()) == []


def test_the_machine_is_as_large_as_the_first_found_it_while_anybody_is_left(tmp_path, clock, capacity):
    later = Capacity(tmp_path, clock, lambda: Room(4.0, GIB))
    enter(capacity, lease())
    assert later.read().machine == MACHINE
    later.change(lambda book: book.without("a"))
    assert later.read().machine == Room(4.0, GIB)
    found = machine_room()
    assert found.cpu > 0 and found.memory_bytes > 0


def test_a_dead_holders_lease_is_free(capacity):
    enter(capacity, lease(holder=gone(capacity)))
    assert capacity.read().leases == ()


def test_but_not_before_its_pods_are_gone(capacity, monkeypatch):
    one = lease(holder=gone(capacity), job_dir="/jobs/a")
    pods = {Path("/jobs/a")}
    monkeypatch.setattr(module, "pods_in", lambda job_dir: [1] if job_dir in pods else [])
    enter(capacity, one)
    assert capacity.read().leases == (one,)
    pods.clear()
    assert capacity.read().leases == ()


def test_another_process_with_the_same_id_is_not_the_holder(capacity):
    enter(capacity, lease(holder=replace(this_process(), began=this_process().began - 100.0)))
    assert capacity.read().leases == ()


def test_a_dead_process_does_not_stay_in_line(capacity, monkeypatch):
    monkeypatch.setattr(module, "pods_in", lambda _: [1])
    enter(capacity, lease(held=NOTHING, holder=gone(capacity)))
    assert capacity.read().leases == ()


def test_a_lease_without_a_word_expires_late_where_the_holder_is_seen_to_live(capacity, clock):
    elsewhere = Holder(1, 0.0, "another namespace")
    mine, other = lease("mine"), lease("other", Room(0.5, GIB), holder=elsewhere)
    capacity.change(lambda book: book.with_lease(mine).with_lease(other))
    clock.advance(LEASE_SECONDS)
    assert capacity.read().leases == (mine, other)
    clock.advance(1.0)
    assert capacity.read().leases == (mine,)
    clock.advance(LIVING_SECONDS)
    assert capacity.read().leases == ()


def test_a_clock_that_is_set_changes_nothing(tmp_path):
    hours_later = ManualClock(1000.0, wall=1_700_009_999.0)
    enter(Capacity(tmp_path, ManualClock(1000.0), lambda: MACHINE), lease())
    assert Capacity(tmp_path, hours_later, lambda: MACHINE).read().leases == (lease(),)


def test_leases_of_before_a_restart_of_the_machine_are_void(capacity, tmp_path, clock):
    enter(capacity, lease())
    path = tmp_path / "capacity.json"
    path.write_text(path.read_text().replace(capacity._boot, "an earlier boot"))
    assert capacity.read().leases == ()
    assert enter(capacity, lease("b")).settles == 0.0, "nobody can be there who should enter a lease again"
    assert "an earlier boot" not in path.read_text()


def test_what_other_machines_wrote_into_a_shared_home_stays_for_a_week(capacity, tmp_path, clock):
    path = tmp_path / "capacity.json"
    enter(capacity, lease())
    told = json.loads(path.read_text())
    other = {**told["machines"][0], "host": "another", "boot": "theirs"}
    path.write_text(json.dumps({**told, "machines": [other, *told["machines"]]}))
    assert capacity.read().leases == (lease(),), "their leases take nothing of this machine"
    capacity.change(lambda book: book.without("a"))
    assert json.loads(path.read_text())["machines"][1] == other
    clock.advance(8 * 86_400.0)
    enter(capacity, lease("b", expires=1e9))
    assert len(json.loads(path.read_text())["machines"]) == 1


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b'{"version": 1, "machines": 3}', b'{"version": "x"}', b"null",
     b'{"version": 1, "machines": [{"host": 1}]}'],
)  # fmt: skip
def test_a_damaged_file_is_put_aside_and_newcomers_wait_for_those_who_run(capacity, tmp_path, clock, damage):
    enter(capacity, lease())
    (tmp_path / "capacity.json").write_bytes(damage)
    assert capacity.read().leases == ()
    book = enter(capacity, lease("b"))
    assert book.settles == clock.now() + SETTLE_SECONDS and [one.run_id for one in book.leases] == ["b"]
    assert (tmp_path / "capacity.damaged").read_bytes() == damage
    assert capacity.read() == book


@pytest.mark.parametrize("value", ["NaN", "-1.0", "1e999", '"many"', "null"])
@pytest.mark.parametrize("name", ["cpu", "memory_bytes", "weight"])
def test_a_number_that_means_nothing_is_damage(capacity, tmp_path, name, value):
    enter(capacity, lease())
    path = tmp_path / "capacity.json"
    path.write_text(re.sub(rf'"{name}": [\d.]+', f'"{name}": {value}', path.read_text()))
    assert capacity.read().leases == ()


def test_a_file_that_somebody_removed_is_begun_anew_in_the_same_way(capacity, tmp_path, clock):
    assert enter(capacity, lease()).settles == 0.0, "the very first one waits for nobody"
    (tmp_path / "capacity.json").unlink()
    assert enter(capacity, lease("b")).settles == clock.now() + SETTLE_SECONDS


def test_a_newer_trimtabs_file_is_left_alone(capacity, tmp_path):
    text = '{"version": 2, "machines": "all is different"}'
    (tmp_path / "capacity.json").write_text(text)
    for use in (capacity.read, lambda: enter(capacity, lease())):
        with pytest.raises(OSError, match="newer trimtab"):
            use()
    assert (tmp_path / "capacity.json").read_text() == text


def test_a_lock_that_is_never_let_go_is_not_waited_for_for_ever(capacity, tmp_path, clock):
    enter(capacity, lease())
    with (tmp_path / "capacity.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        before = clock.now()
        with pytest.raises(BlockingIOError):
            enter(capacity, lease("b"))
        assert 5.0 <= clock.now() - before < 6.0
        assert capacity.read().leases == (lease(),), "reading waits for nobody"
    enter(capacity, lease("b"))


def test_a_home_without_the_right_to_write_is_an_error_and_leaves_what_is_there(capacity, tmp_path, monkeypatch):
    enter(capacity, lease())
    text = (tmp_path / "capacity.json").read_text()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        enter(capacity, lease("b"))
    assert (tmp_path / "capacity.json").read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["capacity.json", "capacity.lock"]
    unwritable = Capacity(tmp_path / "capacity.json" / "home", ManualClock(), lambda: MACHINE)
    with pytest.raises(OSError):
        enter(unwritable, lease())


COUNTING = """
import sys
from pathlib import Path
from trimtab.core.clock import SystemClock
from trimtab.core.controller.capacity import Capacity, this_process
from trimtab.core.controller.leases import Lease, Room

capacity = Capacity(Path(sys.argv[1]), SystemClock(), lambda: Room(1.0, 1))
for _ in range(40):
    capacity.change(lambda book: book.with_lease(Lease(
        "count", Room(1.0, 1 + (book.lease("count").held.memory_bytes if book.lease("count") else 0)),
        Room(), Room(), expires=1e12, job_dir="/nowhere")))
"""


def test_several_processes_lose_no_change(tmp_path):
    """The holder is of another namespace ("") and never expires, so nobody clears the lease that all of them raise."""
    many = [subprocess.Popen([sys.executable, "-c", COUNTING, str(tmp_path)], env=os.environ) for _ in range(3)]
    assert [one.wait() for one in many] == [0, 0, 0]
    book = Capacity(tmp_path, ManualClock(), lambda: MACHINE).read()
    assert book.lease("count").held.memory_bytes == 120
