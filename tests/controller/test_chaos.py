"""Any order of messages, losses, doubles and kills: the job never ends wrongly, and ends when the faults do."""

from __future__ import annotations

from typing import Any

from controller_world import World, plan_of, settings
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import Limits

BATCHES = 24
SHORT = {"hold_seconds": 4.0, "start_seconds": 15.0, "silence_seconds": 10.0, "stall_seconds": 15.0, "copy_seconds": 8,
         "limits": Limits(5.0, 2**40, 9, 9)}  # fmt: skip
place = st.integers(0, 10**6)


class JobUnderChaos(RuleBasedStateMachine):
    """The simulated world, driven by hypothesis."""

    world: World

    @initialize(ps=st.integers(1, 3), workers=st.integers(1, 3), fair=st.integers(0, 6))
    def start(self, ps: int, workers: int, fair: int) -> None:
        self.world = World(settings(batches=BATCHES, metrics=True, **SHORT), plan_of(ps, workers))
        for _ in range(fair):  # so that faults meet every part of a job's life
            if self.world.ended is None:
                self.world.round()

    def running(self) -> bool:
        return self.world.ended is None

    @precondition(running)
    @rule(seconds=st.sampled_from([0.05, 0.2, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.tick(seconds)

    @precondition(running)
    @rule()
    def fair_round(self) -> None:
        self.world.round()

    @precondition(lambda self: self.running() and bool(self.world.commits))
    @rule()
    def swap(self) -> None:
        self.world.commit()

    def _message(self, kind: str, at: int, fate: str, deliver: Any) -> None:
        waiting = getattr(self.world, kind)
        if waiting:
            at %= len(waiting)
            if fate == "lost":
                waiting.pop(at)
            else:
                deliver(at, fate == "doubled")

    @precondition(running)
    @rule(ps=st.integers(1, 3), workers=st.integers(1, 3))
    def the_plan_changes(self, ps: int, workers: int) -> None:
        self.world.wish(plan_of(ps, workers))

    @precondition(running)
    @rule(at=place, fate=st.sampled_from(["delivered", "delivered", "lost", "doubled"]))
    def request_to_a_server(self, at: int, fate: str) -> None:
        self._message("requests", at, fate, self.world.deliver_request)

    @precondition(running)
    @rule(at=place, fate=st.sampled_from(["delivered", "delivered", "lost", "doubled"]))
    def report_of_a_server(self, at: int, fate: str) -> None:
        self._message("reports", at, fate, self.world.deliver_report)

    @precondition(running)
    @rule(at=place, fate=st.sampled_from(["delivered", "delivered", "lost", "doubled"]))
    def call_of_a_worker(self, at: int, fate: str) -> None:
        self._message("calls", at, fate, self.world.deliver_call)

    @precondition(lambda self: self.running() and bool(self.world.answers))
    @rule(at=place, lost=st.booleans())
    def answer_to_a_worker(self, at: int, lost: bool) -> None:
        at %= len(self.world.answers)
        if lost:
            self.world.answers.pop(at)
        else:
            self.world.deliver_answer(at)

    @precondition(lambda self: self.running() and bool(self.world.workers))
    @rule(at=place, loses=st.frozensets(st.integers(0, 2)), steps=st.integers(1, 6))
    def worker_works_and_speaks(self, at: int, loses: frozenset[int], steps: int) -> None:
        workers = sorted(self.world.workers)
        worker = self.world.workers[workers[at % len(workers)]]
        for _ in range(steps):
            worker.work(self.world, loses)
        self.world.call(worker)

    @precondition(lambda self: bool(self.world.pushes))
    @rule(at=place)
    def an_old_push_arrives_again(self, at: int) -> None:
        process, number, cover = self.world.pushes[at % len(self.world.pushes)]
        if process in self.world.servers:
            self.world.servers[process].push(number, cover)

    @precondition(lambda self: self.running() and bool(self.world.state.pods))
    @rule(at=place, zombie=st.booleans())
    def a_pod_is_killed(self, at: int, zombie: bool) -> None:
        pods = [status.name for status in self.world.cluster.observe()]
        if pods:
            self.world.kill(pods[at % len(pods)], zombie=zombie)

    @invariant()
    def counted_once_and_ended_rightly(self) -> None:
        world = self.world
        assert world.state.losses.all_rows == 8 * len(world.state.losses.counted)
        if world.ended is not None:
            assert world.ended.state is JobState.FINISHED, world.ended.reason
            assert world.state.manifest.complete(BATCHES)
            assert world.state.evaluation.complete

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        assert self.world.until_end(600).state is JobState.FINISHED
        self.counted_once_and_ended_rightly()
        assert self.world.state.manifest.applied() == IntervalSet.span(0, BATCHES)


JobUnderChaos.TestCase.settings = hypothesis_settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck),
    derandomize=True, phases=[Phase.generate],  # shrinking a whole job takes minutes; add Phase.shrink to look closer
)
TestJobUnderChaos = JobUnderChaos.TestCase
