"""Pods that come near their memory limit: what is done and in which order, and what a kill leads to that happens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from controller_world import World, settings

from trimtab.core.cluster.base import PodStatus
from trimtab.core.controller.inputs import Decided, PodsSeen, Tick
from trimtab.core.controller.shares import memory_beyond, memory_free, memory_in_use, memory_of
from trimtab.core.controller.state import Phase
from trimtab.core.domain.job import JobState, Mode
from trimtab.core.domain.plan import Limits, Plan, RolePlan, table_room
from trimtab.core.domain.records import Decision
from trimtab.core.optimizer.lattice import needed_ps

MIB = 1 << 20
GIB = 1 << 30
OTHERS = 90 * MIB  # of a simulated server's process, beside its table


class MemoryWorld(World):
    """Parameter servers whose tables grow as the test says, as far as they may, in groups with limits."""

    def __init__(self, cap: int = 4 * GIB, ps: int = 2, workers: int = 2, mode: Mode = Mode.FIXED, **more: object):
        chosen = settings(
            batches=100_000, checkpoint_seconds=1e6, mode=mode,
            limits=Limits(cpu=8.0, memory_bytes=cap, workers=4, ps=4), **more,
        )  # fmt: skip
        super().__init__(chosen, Plan(RolePlan(ps, 0.5, 512 * MIB), RolePlan(workers, 1.0, GIB)))
        self.wanted: dict[int, float] = {}  # by place: bytes that the table would have
        self.pace: dict[int, float] = {}
        self.of_vshards: list[float] = []  # bytes of each, where the test says so: then they go where their owner is
        self.notes: list[tuple[str, str]] = []
        self.limits_told: list[tuple[str, int]] = []

    def feed(self, *inputs):
        actions = super().feed(*inputs)
        self.notes += [(one.kind, one.text) for one in actions if type(one).__name__ == "Note"]
        promised = memory_in_use(self.state)
        assert promised <= (self.state.settings.limits.memory_bytes or 0), "the cap holds at every instant"
        return actions

    def tick(self, seconds: float = 0.2) -> None:
        for place, pace in self.pace.items():
            self.wanted[place] = self.wanted.get(place, 0.0) + pace * seconds
        super().tick(seconds)

    def deliver_request(self, at: int = 0, again: bool = False) -> None:
        limit, before = self.requests[at].sync.memory_bytes, len(self.reports)
        self.limits_told.append((self.requests[at].pod, limit))
        super().deliver_request(at, again)
        for number in range(before, len(self.reports)):
            said = self.reports[number]
            place = self.state.pods[said.pod].slot[1] if said.pod in self.state.pods else -1
            mine = [owner == place for owner in self.state.document.routing.owner]
            if self.of_vshards:
                self.wanted[place] = sum(size for size, here in zip(self.of_vshards, mine, strict=True) if here)
            table = int(min(self.wanted.get(place, 0.0), limit))
            full = self.wanted.get(place, 0.0) > limit
            sizes = self.of_vshards or [100_000.0] * 512
            rows = [int(size / 1000) if here else 0 for size, here in zip(sizes, mine, strict=True)]
            report = replace(
                said.report, table_bytes=table, full=full, memory_bytes=limit, vshard_rows=tuple(rows),
                vshard_traffic=(0.0,) * 512, cpu_seconds=0.1 * self.clock.now(),
            )  # fmt: skip
            self.reports[number] = replace(said, report=report)
            if said.pod in {one.name for one in self.cluster.observe()}:
                self.cluster.use(said.pod, OTHERS + table)

    def go(self, seconds: float) -> None:
        end = self.clock.now() + seconds
        while self.clock.now() < end and self.ended is None:
            self.round()

    def started(self) -> MemoryWorld:
        self.go(2.0)
        assert self.state.phase is Phase.TRAINING
        return self

    def said(self, kind: str) -> list[str]:
        return [text for of, text in self.notes if of == kind]

    def pod(self, role: str, index: int) -> str:
        return next(name for name, pod in self.state.pods.items() if pod.slot == (role, index))

    def limit(self, role: str = "ps", index: int = 0) -> int:
        return next(one.memory_bytes for one in self.cluster.observe() if one.name == self.pod(role, index))

    def kill(self, pod: str, *, zombie: bool = False, memory: bool = False) -> None:
        if not memory:
            super().kill(pod, zombie=zombie)
            return
        self.cluster.kill(pod, out_of_memory=True)
        self.workers.pop(pod, None)
        self.servers = {process: server for process, server in self.servers.items() if server.pod != pod}


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.FIXED])
@pytest.mark.parametrize("pace", [30, 200])
def test_a_growing_table_gets_more_in_place_and_is_never_killed(pace, mode):
    world = MemoryWorld(cap=8 * GIB, mode=mode).started()
    world.pace[0] = pace * MIB
    while world.wanted.get(0, 0) < GIB and world.ended is None:
        world.round()
    assert world.ended is None
    assert world.said("oom") == [] and world.said("pod_lost") == []
    assert world.limit() > GIB and world.limit("ps", 1) == 512 * MIB, "only this one's (case 11)"
    raises = world.said("memory")
    assert 3 <= len(raises) <= 16
    assert all("its limit rises to" in text for text in raises)
    assert world.state.document.plan.ps.memory_bytes == 512 * MIB, "no change of the plan"
    assert world.limits_told[-1][1] in (table_room(world.limit()), table_room(512 * MIB))
    assert not world.state.findings


def test_the_table_may_grow_only_after_the_limit_has_risen():
    world = MemoryWorld(cap=8 * GIB).started()
    world.pace[0] = 100 * MIB
    for _ in range(100):
        world.tick()
        while world.requests:
            enforced = {one.name: one.memory_bytes for one in world.cluster.observe()}
            request = world.requests[0]
            assert request.sync.memory_bytes <= table_room(enforced[request.pod])
            world.deliver_request()
        while world.reports:
            world.deliver_report()


def test_what_stays_below_its_limit_is_left_alone():
    world = MemoryWorld().started()
    world.wanted = {0: 150 * MIB, 1: 150 * MIB}
    world.go(30.0)
    assert world.said("memory") == [] and world.limit() == 512 * MIB


def test_a_move_helps_where_the_caps_have_no_more_and_others_have_room():
    world = MemoryWorld(cap=2 * 512 * MIB + 2 * GIB).started()
    owner = world.state.document.routing.owner
    heavy = [vshard for vshard in range(512) if owner[vshard] == 0][:128]
    world.of_vshards = [0.9 * MIB if vshard in heavy else 0.1 * MIB for vshard in range(512)]
    for _ in range(150):
        if len(set(world.state.document.routing.since)) > 1:
            break
        world.of_vshards = [size * 1.01 for size in world.of_vshards]
        world.round()
    world.go(15.0)
    assert world.ended is None
    (text,) = world.said("memory")
    assert text.startswith("ps-0 has 512Mi") and "vshards move to others" in text
    assert world.wanted[0] < 0.7 * table_room(512 * MIB)
    assert world.limit() == world.limit("ps", 1) == 512 * MIB
    assert not world.state.findings, "what is over is shown no more"


def test_another_server_comes_where_it_can_not_get_more(monkeypatch):
    """A place that gives a pod no more than it has: the limit does not follow."""
    world = MemoryWorld(cap=8 * GIB, ps=1, mode=Mode.AUTO).started()
    world.wanted[0] = 250 * MIB
    world.go(3.0)
    monkeypatch.setattr(world.cluster, "_hold", lambda pod, memory_bytes: None)
    world.pace[0] = 1 * MIB
    for _ in range(400):
        world.round()
        if world.state.document.plan.ps.replicas == 2:
            break
    assert world.state.document.plan.ps.replicas == 2
    decision = world.state.decisions[-1]
    assert (decision.kind, decision.action) == ("memory", "Add 1 PS: 1 → 2")
    assert "the caps have no more for it" in decision.reason
    assert world.said("oom") == []


@pytest.mark.parametrize("mode", [Mode.FIXED, Mode.ADVISE])
def test_without_any_room_the_job_stops_in_order_and_says_what_would_do(mode):
    world = MemoryWorld(cap=512 * MIB + 2 * GIB, ps=1, mode=mode).started()
    world.pace[0] = 20 * MIB
    ended = world.until_end(2000)
    assert ended.state is JobState.FAILED
    assert ended.reason.startswith("ps-0 has 512Mi, and its table has no room for new rows, and the caps have no more")
    assert "may do, so give it --max-memory" in ended.reason
    assert "its checkpoint holds" in ended.reason, "in order, with a last checkpoint"
    assert world.state.out_of_memory == "ps"
    assert world.said("oom") == []


def test_in_mode_advise_it_is_said_until_the_job_would_end_for_it():
    world = MemoryWorld(cap=8 * GIB, ps=1, mode=Mode.ADVISE).started()
    world.wanted[0] = 150 * MIB
    world.pace[0] = 4 * MIB
    while table_room(512 * MIB) - world.wanted[0] > 25 * MIB:
        world.round()
    (finding,) = world.state.findings.values()
    assert (finding.kind, finding.subject) == ("memory", "ps-0") and "give it more memory" in finding.text
    assert world.limit() == 512 * MIB
    assert len(world.said("memory")) == 1, "once, not with every look"
    world.go(10.0)
    assert world.limit() > 512 * MIB and world.ended is None


def test_a_queue_of_work_asks_for_cores_and_gets_no_memory():
    """Case 12."""
    world = MemoryWorld(cap=8 * GIB).started()
    world.wanted = {0: 50 * MIB, 1: 50 * MIB}
    world.go(5.0)
    busy = 0.0
    for step in range(60):
        world.tick()
        while world.requests:
            world.deliver_request()
        busy += 0.2 * 0.5
        mine = world.pod("ps", 0)
        world.reports = [
            replace(said, report=replace(said.report, cpu_seconds=100 + busy)) if said.pod == mine else said
            for said in world.reports
        ]
        world.cluster.use(world.pod("ps", 0), OTHERS + 50 * MIB + step * 4 * MIB)
        while world.reports:
            world.deliver_report()
    finding = world.state.findings["memory", "ps-0"]
    assert "more cores would help, more memory would not" in finding.text
    assert world.limit() == 512 * MIB


def test_a_worker_that_grows_gets_more_and_the_log_that_fills_counts():
    world = MemoryWorld(cap=8 * GIB).started()
    name = world.pod("worker", 0)
    for step in range(400):
        if world.limit("worker", 0) > GIB:
            break
        world.cluster.use(name, 700 * MIB + step * 3 * MIB)
        world.round()
    assert world.limit("worker", 0) > GIB and world.limit("worker", 1) == GIB
    assert world.said("oom") == []


@pytest.mark.parametrize("cap", [8 * GIB, 512 * MIB + 2 * GIB])
def test_what_is_to_be_loaded_gets_room_too(cap):
    """A job that goes on with a table that has outgrown the plan: its servers load it once they may."""
    world = MemoryWorld(cap=cap, ps=1)
    needed = 400 * MIB
    deliver = MemoryWorld.deliver_request

    def loading(at=0, again=False):
        limit, before = world.requests[at].sync.memory_bytes, len(world.reports)
        if limit < needed:  # it serves nothing before it has room
            request = world.requests[at]
            world.requests[at] = replace(request, sync=replace(request.sync, serve=()))
        deliver(world, at, again)
        for number in range(before, len(world.reports)):
            said = world.reports[number]
            report = replace(said.report, full=limit < needed, load_error="no room" if limit < needed else "")
            world.reports[number] = replace(said, report=report)

    world.deliver_request = loading
    world.go(15.0)
    if cap == 8 * GIB:
        assert world.state.phase is Phase.TRAINING and table_room(world.limit()) >= needed
    else:
        assert world.ended is not None and world.ended.state is JobState.FAILED
        assert "no room for new rows, and the caps have no more" in world.ended.reason
        assert world.state.out_of_memory == "ps"


# ---- kills that happen anyway


def test_a_kill_raises_only_its_place_and_counts_once():
    """Cases 18 and 24."""
    world = MemoryWorld(cap=8 * GIB).started()
    name = world.pod("worker", 0)
    world.kill(name, memory=True)
    seen = PodsSeen(world.cluster.observe())
    world.feed(seen, Tick())
    world.feed(seen, Tick())  # the same is told twice
    world.go(5.0)
    assert len(world.said("oom")) == 1
    assert world.state.slots["worker", 0].out_of_memory == 1
    assert (world.limit("worker", 0), world.limit("worker", 1)) == (1536 * MIB, GIB)
    finding = world.state.findings["out_of_memory", "worker-0"]
    assert "was killed once for want of memory and has 1536Mi now" in finding.text
    assert "s were lost" in finding.text, "case 19"
    lost = world.state.slots["worker", 0].lost_seconds
    assert 0 < lost < 5
    world.clock.advance(world.state.settings.memory.told_seconds)
    world.go(1.0)
    assert ("out_of_memory", "worker-0") not in world.state.findings
    assert world.ended is None


def test_a_kill_without_want_of_memory_is_a_preemption():
    """Case 8: an event, and no more memory."""
    world = MemoryWorld(cap=8 * GIB).started()
    world.kill(world.pod("worker", 0))
    world.go(5.0)
    assert world.said("oom") == [] and len(world.said("pod_lost")) == 1
    assert world.limit("worker", 0) == GIB
    assert world.state.slots["worker", 0].out_of_memory == 0


def test_a_kill_of_a_pod_that_was_told_to_end_is_counted():
    """Case 24: it is gone before anybody knows why."""
    world = MemoryWorld(cap=8 * GIB).started()
    name = world.pod("worker", 0)
    world.state = replace(world.state, settings=replace(world.state.settings, silence_seconds=1.0))
    world.workers.pop(name)
    while name in world.state.pods:
        world.round()
    assert name in world.state.departed
    gone = PodStatus(name, "worker", "failed", 137, None, 0.0, out_of_memory=True)
    world.feed(PodsSeen((*world.cluster.observe(), gone)), Tick())
    world.feed(PodsSeen((*world.cluster.observe(), gone)), Tick())
    assert len(world.said("oom")) == 1
    assert memory_of(world.state, ("worker", 0)) == 1536 * MIB


@pytest.mark.parametrize("role", ["ps", "worker"])
def test_a_place_whose_pods_are_always_killed_ends_the_job_with_sizes(role):
    """Case 7: bounded, each time with more, and the end says memory, the last size and what would do."""
    world = MemoryWorld(cap=16 * GIB).started()
    sizes = []
    for _ in range(2000):
        world.round()
        if world.ended is not None:
            break
        ready = [pod for pod in world.state.pods.values() if pod.slot == (role, 0) and pod.process]
        if ready and ready[0].name in {one.name for one in world.cluster.observe() if one.phase == "running"}:
            sizes.append(world.limit(role, 0))
            world.kill(ready[0].name, memory=True)
    assert world.ended is not None and world.ended.state is JobState.FAILED
    first = 512 * MIB if role == "ps" else GIB
    assert sizes == [first, first * 3 // 2, first * 9 // 4, pytest.approx(first * 27 / 8, abs=2 * MIB)]
    last, enough = f"{sizes[-1] // MIB}Mi", math.ceil(sizes[-1] / MIB * 1.5)
    assert f"was killed for want of memory with {last}, kill 4 of its place" in world.ended.reason
    assert f"{enough}Mi per {'PS' if role == 'ps' else 'worker'} may do" in world.ended.reason
    assert world.state.out_of_memory == role
    assert len(world.said("oom")) == 4


def test_a_kill_gets_no_more_than_the_caps_have():
    world = MemoryWorld(cap=2 * 512 * MIB + 2 * GIB + 100 * MIB).started()
    world.kill(world.pod("worker", 1), memory=True)
    world.go(5.0)
    assert world.limit("worker", 1) == GIB + 100 * MIB
    world.kill(world.pod("worker", 1), memory=True)
    world.go(5.0)
    assert world.limit("worker", 1) == GIB + 100 * MIB
    assert "the caps have no more for the next one" in world.said("oom")[1]


# ---- what plans may count on


def test_no_plan_counts_on_what_a_place_was_given():
    world = MemoryWorld(cap=4 * GIB + 300 * MIB, mode=Mode.AUTO).started()
    world.kill(world.pod("worker", 0), memory=True)
    world.go(8.0)
    assert memory_beyond(world.state) == 512 * MIB
    bigger = Plan(world.state.document.plan.ps, RolePlan(3, 1.0, GIB))
    present = world.state.document.plan
    assert bigger.memory_bytes <= 4 * GIB + 300 * MIB < bigger.memory_bytes + 512 * MIB
    world.feed(Decided(Decision(0.0, "grow", bigger, "because", before=present)))
    assert world.state.wish is None, "it was asked for before the place was given more"
    asked = []
    world.answer = lambda question: (asked.append(question.question), Decided(None, "no"))[1]
    world.go(12.0)
    assert asked and asked[-1].limits.memory_bytes == 4 * GIB + 300 * MIB - 512 * MIB
    room = asked[-1].ps_memory_bytes
    assert room == 512 * MIB + memory_free(world.state) // 2


def test_servers_whose_limits_can_rise_need_no_others():
    world = MemoryWorld(cap=8 * GIB, mode=Mode.AUTO).started()
    asked = []
    world.answer = lambda question: (asked.append(question.question), Decided(None, "no"))[1]
    world.go(12.0)
    question = replace(asked[-1], table_bytes=GIB, table_skew=1.1)
    assert needed_ps(question) == 2
    assert needed_ps(replace(question, ps_memory_bytes=0)) > 2
