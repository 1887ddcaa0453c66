"""One job's part of the machine: waited for, followed in the right order, and given back."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from controller_world import new_state, settings

from trimtab.core.clock import ManualClock
from trimtab.core.cluster.fake import FakeCluster
from trimtab.core.controller import resources as resources_module
from trimtab.core.controller.capacity import LEASE_SECONDS, Capacity
from trimtab.core.controller.leases import NOTHING, Room, held
from trimtab.core.controller.progress import Progress
from trimtab.core.controller.resources import Resources
from trimtab.core.controller.sharing import Sharing
from trimtab.core.controller.state import Departed, Phase, State
from trimtab.core.domain.job import JobSpec, Mode
from trimtab.core.domain.plan import Limits, Plan, RolePlan
from trimtab.core.errors import Interrupted
from trimtab.core.optimizer.start import ZYGOTE_MEMORY

GIB = 2**30
MACHINE = Room(2.0, 12 * GIB)
LARGE = Plan(RolePlan(1, 0.5, 2 * GIB), RolePlan(3, 0.5, 3 * GIB))
SMALL = Plan(RolePlan(1, 0.3, 2 * GIB), RolePlan(1, 0.6, 3 * GIB))


class Machine:
    """Jobs of one home, all driven by the test."""

    def __init__(self, home: Path) -> None:
        self.home, self.clock, self.said = home, ManualClock(1000.0), list[Progress]()
        self.never = threading.Event()

    def job(self, name: str, **spec: object) -> Sharing:
        self.capacity = Capacity(self.home, self.clock, lambda: MACHINE)
        asked = JobSpec("rows", **spec)  # type: ignore[arg-type]
        return Sharing(self.capacity, asked, name, self.clock, lambda: 1 << 40)

    def join(self, job: Sharing, meanwhile=lambda: None) -> Resources:
        def show(progress: Progress) -> None:
            self.said.append(progress)
            assert len(self.said) < 100, progress.message
            meanwhile()

        return job.join(self.home / "jobs", show, self.never)

    def lease(self, name: str) -> Room:
        found = self.capacity.read().lease(name)
        return found.held if found is not None else NOTHING


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(resources_module, "why_not_enforced", lambda: "")
    return Machine(tmp_path / "home")


class Running:
    """A job that runs: what its driver would do with each look."""

    def __init__(self, machine: Machine, name: str, plan: Plan = LARGE, **spec: object) -> None:
        self.sharing = machine.job(name, **spec)
        self.resources = machine.join(self.sharing)
        self.sharing.begin(self.resources, thread=False)
        self.cluster = FakeCluster(machine.clock)
        self.cluster.caps = (self.resources.caps.cpu, self.resources.caps.memory_bytes)
        chosen = settings(limits=self.resources.for_pods, mode=self.sharing._spec.mode)
        self.state: State = replace(new_state(chosen, plan=plan), phase=Phase.TRAINING)
        self.follow()

    def follow(self) -> Limits | None:
        limits = self.sharing.follow(self.state, self.cluster)
        if limits is not None:
            self.state = replace(self.state, settings=replace(self.state.settings, limits=limits))
        return limits

    def second(self) -> None:
        """One look, and a few turns of the driver."""
        self.sharing.look()
        self.follow()
        self.follow()

    def plan(self, plan: Plan) -> None:
        self.state = replace(self.state, document=replace(self.state.document, plan=plan))


def test_a_job_alone_has_the_machine(machine):
    alone = machine.job("a")
    found = machine.join(alone)
    assert (found.caps.cpu, found.caps.memory_bytes) == (2.0, 12 * GIB)
    assert found == replace(alone.whole(), alone=found.caps)
    assert machine.lease("a") == MACHINE and machine.said == []
    alone.close()
    assert machine.lease("a") == NOTHING


def test_caps_that_were_given_hold_also_beyond_the_machine(machine):
    found = machine.join(machine.job("a", limits=Limits(cpu=5.0, memory_bytes=90 * GIB)))
    assert (found.caps.cpu, found.caps.memory_bytes) == (5.0, 90 * GIB)
    assert machine.lease("a") == MACHINE


def test_room_is_given_back_only_after_nobody_uses_it(machine):
    a = Running(machine, "a")
    b = machine.job("b")
    steps = []

    def meanwhile() -> None:
        """A second of the first job's life; what the file says must cover what it uses, whenever it is looked at."""
        a.sharing.look()
        assert machine.lease("a").cpu >= a.cluster.caps[0]
        limits = a.follow()
        steps.append((machine.lease("a"), limits, a.cluster.caps))
        if len(steps) == 5:
            a.plan(SMALL)
            a.state = replace(a.state, departed={"worker-1": Departed(0.05, 10 * GIB)})
        if len(steps) == 7:
            a.state = replace(a.state, departed={})
        a.follow()

    found = machine.join(b, meanwhile)
    half, pods = Room(1.0, 6 * GIB), LARGE.memory_bytes + ZYGOTE_MEMORY
    assert steps.pop(0) == (MACHINE, None, (2.0, 12 * GIB)), "it tells first how little it could do with"
    assert steps[0] == (MACHINE, Limits(1.0, 6 * GIB - ZYGOTE_MEMORY, 4, 2), (2.0, 12 * GIB)), "first its pods get less"
    assert steps[1] == (Room(1.0, pods), None, (1.0, pods)), "then it gives cores, and what its plan did not use"
    leaving = 10 * GIB + ZYGOTE_MEMORY
    then = [step[0].memory_bytes for step in steps[2:]]
    assert then == [pods, pods, leaving, leaving, 6 * GIB], "and what pods leave when they are gone"
    assert (found.caps.cpu, found.caps.memory_bytes) == (1.0, 6 * GIB)
    assert machine.lease("a") == half and held(machine.capacity.read().leases) == MACHINE
    assert all(one.phase == "waiting" for one in machine.said)
    assert machine.said[0].message == (
        "waits for room: it needs at least 0.2 cores and 1.0 GiB of 2 cores and 12.0 GiB; a holds 2 cores and 12.0 GiB"
    )


def test_room_is_taken_in_the_file_before_it_is_used(machine):
    a = Running(machine, "a", SMALL)
    b = machine.job("b")

    machine.join(b, a.second)
    assert a.cluster.caps == (1.0, 6 * GIB)
    b.close()
    assert a.follow() is None and a.cluster.caps == (1.0, 6 * GIB)
    a.sharing.look()
    assert machine.lease("a") == MACHINE and a.cluster.caps == (1.0, 6 * GIB)
    assert a.follow() == Limits(2.0, 12 * GIB - ZYGOTE_MEMORY, 4, 2)
    assert a.cluster.caps == (2.0, 12 * GIB)


def test_what_the_driver_has_not_taken_notice_of_is_not_given_away(machine):
    """The other one comes, goes and comes again between two turns of the driver."""
    a = Running(machine, "a", SMALL)
    machine.capacity.change(lambda book: book.with_lease(machine.job("b")._lease(MACHINE, NOTHING, 5)))
    a.second()
    a.second()
    assert a.cluster.caps == (1.0, 6 * GIB) and machine.lease("a") == MACHINE
    machine.capacity.change(lambda book: book.without("b"))
    a.sharing.look()  # it may have all again; the driver could act on that at any moment from now on
    machine.capacity.change(lambda book: book.with_lease(machine.job("b")._lease(MACHINE, NOTHING, 6)))
    a.sharing.look()
    assert machine.lease("a") == MACHINE
    a.follow()
    a.sharing.look()
    assert machine.lease("a") == Room(1.0, 6 * GIB)


@pytest.mark.parametrize("mode", [Mode.FIXED, Mode.ADVISE])
def test_a_plan_that_never_changes_keeps_what_it_began_with(machine, mode):
    a = Running(machine, "a", limits=Limits(cpu=1.5, memory_bytes=6 * GIB), mode=mode)
    machine.capacity.change(lambda book: book.with_lease(machine.job("b")._lease(MACHINE, NOTHING, 5)))
    for _ in range(3):
        a.sharing.look()
        assert a.follow() is None
    assert machine.lease("a") == Room(1.5, 6 * GIB)
    b = machine.join(machine.job("b"))
    assert (b.caps.cpu, b.caps.memory_bytes) == (0.5, 6 * GIB)


def test_while_it_does_not_train_a_job_gives_what_its_plan_does_not_need(machine):
    a = Running(machine, "a", LARGE)
    a.state = replace(a.state, phase=Phase.EVALUATING)
    machine.capacity.change(lambda book: book.with_lease(machine.job("b")._lease(MACHINE, NOTHING, 5)))
    for _ in range(4):
        a.second()
        assert machine.lease("a") == MACHINE and a.cluster.caps == (2.0, 12 * GIB), "its plan has all cores"
    a.plan(replace(LARGE, worker=replace(LARGE.worker, replicas=1)))
    machine.clock.advance(5.0)
    for _ in range(4):
        a.second()
    assert machine.lease("a") == Room(1.0, 6 * GIB)


def test_a_stop_ends_the_waiting_and_leaves_no_place_in_line(machine):
    Running(machine, "a", limits=Limits(cpu=2.0, memory_bytes=12 * GIB))
    b = machine.job("b")
    with pytest.raises(Interrupted, match="nothing was started"):
        machine.join(b, machine.never.set)
    assert machine.capacity.read().lease("b") is not None
    b.close()
    assert machine.capacity.read().lease("b") is None


def test_a_lost_file_is_filled_again_by_those_who_run_before_anybody_new(machine):
    a, b = Running(machine, "a", SMALL, limits=Limits(cpu=1.0, memory_bytes=6 * GIB)), machine.job("b")
    (machine.home / "capacity.json").write_text("{")
    looks = []

    def meanwhile() -> None:
        looks.append(machine.clock.now())
        if len(looks) == 2:
            a.sharing.look()

    found = machine.join(b, meanwhile)
    assert found.caps.cpu == 1.0 and held(machine.capacity.read().leases) == MACHINE
    assert a.sharing.problem == "" and len(looks) >= 5


def test_a_lease_that_others_took_meanwhile_is_said_and_the_rest_is_kept_to(machine):
    a = Running(machine, "a", SMALL)
    machine.capacity.change(lambda book: book.without("a"))
    b = Running(machine, "b", SMALL, limits=Limits(cpu=1.5, memory_bytes=6 * GIB))
    a.sharing.look()
    assert machine.lease("a") == Room(0.5, 6 * GIB)
    assert "holds of it (0.5 cores and 6.0 GiB)" in a.sharing.problem
    assert a.follow() is None, "it tells first how little it could do with"
    a.sharing.look()
    assert a.follow() == Limits(0.5, 6 * GIB - ZYGOTE_MEMORY, 4, 2)
    a.follow()
    a.sharing.look()
    assert a.cluster.caps[0] == 0.5 and a.sharing.problem == ""
    b.sharing.close()


def test_a_home_that_cannot_be_used_costs_only_the_sharing(tmp_path, machine):
    (tmp_path / "home").write_text("no directory")
    a = Running(machine, "a")
    assert (a.resources.caps.cpu, a.resources.caps.workers) == (a.sharing.whole().caps.cpu, a.resources.caps.workers)
    assert a.sharing.problem.startswith("the machine can't be shared with other jobs: its capacity file can't be used")
    a.sharing.look()
    assert a.follow() is None
    a.sharing.close()


def test_a_full_disk_is_said_as_long_as_it_lasts(machine, monkeypatch):
    a = Running(machine, "a")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_text", full)
        machine.clock.advance(LEASE_SECONDS)
        a.sharing.look()
        assert "No space left" in a.sharing.problem and a.follow() is None
    a.sharing.look()
    assert a.sharing.problem == ""


def test_the_lease_is_renewed_now_and_then_and_not_with_each_look(machine):
    a = Running(machine, "a")
    a.follow()
    a.sharing.look()
    before = machine.capacity.read()
    for _ in range(20):
        machine.clock.advance(1.0)
        a.sharing.look()
    assert machine.capacity.read() == before
    for _ in range(200):
        machine.clock.advance(1.0)
        a.sharing.look()
    assert machine.lease("a") == MACHINE and machine.capacity.read() != before


def test_a_dry_run_tells_what_there_would_be_and_enters_nothing(machine):
    assert machine.job("").outlook().caps.cpu == 2.0 and not machine.home.exists()
    a = Running(machine, "a")
    before = machine.capacity.read()
    found = machine.job("").outlook()
    assert (found.caps.cpu, found.caps.memory_bytes) == (1.0, 6 * GIB), "once the other one has given way"
    assert machine.capacity.read() == before
    a.sharing.close()


def test_a_newcomer_takes_no_more_memory_than_there_is_whatever_the_file_says(machine):
    Running(machine, "a", limits=Limits(cpu=1.0, memory_bytes=2 * GIB))
    capacity = Capacity(machine.home, machine.clock, lambda: MACHINE)
    tight = Sharing(capacity, JobSpec("rows"), "b", machine.clock, lambda: 3 * GIB)
    assert machine.join(tight).caps.memory_bytes == 3 * GIB
