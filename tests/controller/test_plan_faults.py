"""Plan changes that meet faults: no wedge, no plan beyond the caps, and figures that say what happened."""

from __future__ import annotations

from dataclasses import replace

from controller_world import World, plan_of, settings
from test_plan_changes import BATCHES, CAP, as_planned, training, until, world_of

from trimtab.core.cluster.fake import Outcome
from trimtab.core.controller.inputs import CommitResult, WorkerSaid
from trimtab.core.controller.state import Phase
from trimtab.core.controller.timeline import predicted_now
from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import Limits, Plan, RolePlan
from trimtab.core.domain.records import Decision, Range

GIB = 2**30


def even(ps: int, workers: int) -> Plan:
    """Pods of one size, so that memory counts pods."""
    return Plan(RolePlan(ps, 0.5, GIB), RolePlan(workers, 1.0, GIB))


def world_with(plan: Plan, limits: Limits, **changes: object) -> World:
    return World(settings(batches=BATCHES, checkpoint_seconds=1e9, limits=limits, **changes), plan)


def alive(world: World) -> list[object]:
    return list(world.cluster._pods.values())


def refuse_swap(world: World) -> None:
    world.commits.pop(0)
    world.feed(CommitResult(None, error="no space left on device"))


def deliver(world: World) -> None:
    while world.requests:
        world.deliver_request()
    while world.reports:
        world.deliver_report()


def test_what_comes_waits_for_the_memory_of_what_leaves() -> None:
    world = world_with(even(1, 2), Limits(9.0, 3 * GIB, 9, 9))
    until(world, training)
    world.wish(even(2, 1))
    for _ in range(60):
        world.round()
        assert sum(pod.spec.memory_bytes for pod in alive(world)) <= 3 * GIB  # type: ignore[attr-defined]
    assert world.state.document.plan == even(2, 1) and as_planned(world)


def test_a_lost_server_never_waits_for_the_room_that_was_its_own() -> None:
    """A plan that swaps a server for a worker, while the server that stays dies twice."""
    world = world_with(even(2, 1), Limits(9.0, 3 * GIB, 9, 9))
    until(world, training)
    world.wish(even(1, 2))
    until(world, lambda world: world.state.document.plan == even(1, 2), 10)
    killed = 0
    for _ in range(12):
        for status in world.cluster.observe():
            if status.name.startswith("ps-0") and not status.ended and killed < 2:
                world.kill(status.name)
                killed += 1
        world.round()
    until(world, as_planned, 600)
    assert world.until_end(1500).state is JobState.FINISHED


def test_a_server_that_fails_again_and_again_after_training_ends_the_job_with_a_reason() -> None:
    world = world_with(plan_of(2, 1), CAP, failures_in_row=3, failures_total=20)
    world.state = replace(world.state, settings=replace(world.state.settings, batches=BATCHES, evaluation_batches=4000))
    world = World(replace(world.state.settings, batches=40), plan_of(2, 1))
    until(world, lambda world: world.state.phase is Phase.EVALUATING)
    for _ in range(600):
        world.round()
        for status in world.cluster.observe():
            if status.name.startswith("ps-1") and not status.ended:
                world.kill(status.name)
        if world.ended:
            break
    assert world.ended is not None and world.ended.state is JobState.FAILED
    assert "ps-1" in world.ended.reason


def test_growth_that_was_refused_is_barred_and_its_failures_are_forgotten() -> None:
    world = world_of(failures_in_row=3, failures_total=8)
    until(world, training)
    for _ in range(4):  # twelve failures of a place that came and went four times
        world.wish(plan_of(1, 2))
        for _ in range(300):
            world.round()
            for status in world.cluster.observe():
                if status.name.startswith("worker-1"):
                    world.kill(status.name)
            if world.state.document.plan == plan_of(1, 1) and world.state.wish is None:
                break
        assert world.ended is None
        assert world.state.decisions[-1].barred
    assert world.until_end(1500).state is JobState.FINISHED


def test_a_swap_that_was_not_stored_leaves_the_freshest_rows_known() -> None:
    world = world_of()
    until(world, training)
    for _ in range(5):
        world.round()
    before = world.state.ledger.applied
    world.wish(plan_of(2, 1))
    until(world, lambda world: world.state.tenancies)
    world.requests.clear()
    world.kill("ps-1-t1-g1")
    refused = False
    for _ in range(100):
        world.tick()
        while world.commits:
            other = world.commits[0].document.routing.version != world.state.document.routing.version
            if other and not refused:
                refuse_swap(world)
                refused = True
            else:
                world.commit()
        deliver(world)
        if refused and world.state.ledger.served:
            break
    until(world, as_planned)
    assert world.state.ledger.applied.issuperset(before), "the checkpoint has none of these batches"


def test_a_move_whose_swap_was_not_stored_can_be_taken_back() -> None:
    world = world_of()
    until(world, training)
    world.wish(plan_of(2, 1))
    refused = False
    while not refused:
        world.tick()
        while world.commits:
            if world.commits[0].document.routing.version != world.state.document.routing.version:
                refuse_swap(world)
                refused = True
            else:
                world.commit()
        deliver(world)
    assert world.state.tenancies == ()
    world.state = replace(world.state, commit_at=world.clock.now() + 5)
    world.wish(plan_of(1, 1))
    until(world, lambda world: world.state.document.plan == plan_of(1, 1) and as_planned(world))


def test_a_store_that_refuses_is_asked_less_and_less_often() -> None:
    world = world_of()
    until(world, training)
    world.wish(plan_of(1, 2))
    tries = 0
    for _ in range(100):  # twenty seconds
        world.tick()
        while world.commits:
            refuse_swap(world)
            tries += 1
    assert 1 < tries < 8


def test_a_pod_that_hangs_keeps_its_share_until_it_has_ended() -> None:
    """`World.check` holds the cap of 2.5 cores after every step."""
    world = world_with(plan_of(1, 2), replace(CAP, cpu=2.5), silence_seconds=10.0)
    world.cluster._outcome = lambda spec: Outcome(stop_seconds=None)  # it obeys the kill only
    until(world, training)
    world.workers["worker-1-t1-g1"].stopped = True
    seen = set()
    for _ in range(120):
        world.round()
        seen |= set(world.state.departed)
    assert "worker-1-t1-g1" in seen and not world.state.departed


def test_the_wait_of_a_worker_that_is_told_late_still_belongs_to_the_change() -> None:
    world = world_of(settle_seconds=1.0, window_seconds=1.0)
    until(world, training)
    world.wish(plan_of(2, 1))
    until(world, lambda world: world.state.decisions and world.state.settled_at is not None)
    worker = next(iter(world.workers.values()))
    world.feed(WorkerSaid(replace(worker.message(1), max_gap_seconds=0.4)))
    until(world, lambda world: world.state.decisions[-1].measured is not None)
    assert world.state.decisions[-1].paused_seconds == 0.4


def test_growth_that_is_taken_back_stays_within_the_caps() -> None:
    world = world_with(plan_of(2, 1), Limits(2.5, 2**40, 2, 2))
    until(world, training)
    new = Plan(RolePlan(1, 0.5, 2**28), RolePlan(2, 1.0, 2**30))
    world.wish(new)
    until(world, lambda world: world.state.document.plan == new)
    for server in world.servers.values():
        if server.pod.startswith("ps-0"):
            server.move_error = "table has no room"
    until(world, lambda world: world.state.document.plan != new and as_planned(world))
    assert world.state.document.plan == plan_of(2, 1)


def test_a_prediction_is_shown_for_its_own_plan_only() -> None:
    small, big = plan_of(1, 1), plan_of(1, 2)
    first = Decision(0.0, "start", small, "", number=1, predicted=Range(100.0))
    grown = Decision(5.0, "grow", big, "", number=2, before=small, predicted=Range(190.0))
    back = Decision(9.0, "shrink", small, "", number=3, before=big)
    assert predicted_now((first, grown), big) == 190.0
    assert predicted_now((first, grown, back), small) is None
