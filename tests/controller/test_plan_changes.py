"""Plans change while a simulated job runs: places follow, caps hold, decisions are measured, nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_world import World, plan_of, settings

from trimtab.core.controller.actions import AnswerWorker
from trimtab.core.controller.inputs import Decided, WorkerSaid
from trimtab.core.controller.state import Phase
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState, Mode
from trimtab.core.domain.plan import Limits, Plan
from trimtab.core.domain.records import Decision

BATCHES = 1200
CAP = Limits(4.0, 2**40, 9, 9)


def world_of(ps: int = 1, workers: int = 1, **changes: object) -> World:
    return World(settings(batches=BATCHES, checkpoint_seconds=1e9, limits=CAP, **changes), plan_of(ps, workers))


def until(world: World, done: object, rounds: int = 200) -> None:
    for _ in range(rounds):
        if done(world):  # type: ignore[operator]
            return
        world.round()
    raise AssertionError(f"never: {world.state.document.plan}, {world.state.pods}, {world.state.tenancies}")


def training(world: World) -> bool:
    return world.state.phase is Phase.TRAINING and bool(world.state.losses.rows)


def as_planned(world: World) -> bool:
    state = world.state
    plan = state.document.plan
    pods = (len(state.servers()), len(state.workers()))
    owners = {state.document.routing.owner.count(place) for place in state.active("ps")}
    even = max(owners) - min(owners) <= 1 and sum(owners) and not state.tenancies and not state.moving
    return (
        state.wish is None and pods == (plan.ps.replicas, plan.worker.replicas) and even and not state.departed
        and state.ledger.served
    )  # fmt: skip


def decide(world: World, plan: Plan, kind: str = "grow") -> None:
    world.wish(plan)
    until(world, lambda world: world.state.document.plan == plan and as_planned(world))
    world.tick()


def test_workers_and_servers_come_and_go_in_mid_run_and_every_batch_is_applied_once():
    world = world_of()
    until(world, training)
    for ps, workers in ((1, 2), (2, 2), (3, 2), (1, 2), (2, 1), (1, 1)):
        decide(world, plan_of(ps, workers))
        assert world.ended is None
    assert world.until_end(1000).state is JobState.FINISHED
    assert world.state.manifest.applied() == IntervalSet.span(0, BATCHES)
    assert [change.plan for change in world.state.plans] == [
        plan_of(*pair) for pair in ((1, 1), (1, 2), (2, 2), (3, 2), (1, 2), (2, 1), (1, 1))
    ]
    numbers = sorted(number for grant in world.lent if grant.kind == "train" for number in range(grant.lo, grant.hi))
    assert numbers == list(range(BATCHES)), "a planned change lends nothing twice: nobody loses what it has"


def test_a_worker_that_leaves_finishes_what_it_has_and_gets_no_more():
    world = world_of(workers=2)
    until(world, training)
    world.wish(plan_of(1, 1))
    until(world, lambda world: world.state.document.plan == plan_of(1, 1), 5)
    leaving = world.workers["worker-1-t1-g1"]
    assert "worker-1-t1-g1" in world.state.pods
    held = {hold.id for hold in world.state.ledger.holds.of("worker-1-t1-g1")}
    until(world, as_planned)
    assert leaving.stopped and not leaving.grants
    assert held and not world.state.ledger.holds.of("worker-1-t1-g1")


def test_the_leaving_share_goes_to_the_others_only_when_it_is_free():
    world = world_of(ps=1, workers=2)
    until(world, training)
    bigger = plan_of(1, 1)
    bigger = replace(bigger, worker=replace(bigger.worker, cpu=3.5))
    world.wish(bigger)
    seen = []
    for _ in range(60):
        world.round()  # every step checks the cap of 4 cores
        seen.append({status.name: status.cpu for status in world.cluster.observe()})
    assert seen[-1] == {"ps-0-t1-g1": 0.5, "worker-0-t1-g1": 3.5}
    assert any(0 < shares.get("worker-1-t1-g1", 0) < 1 for shares in seen), "all gave a little meanwhile"


def test_workers_hear_of_new_owners_when_these_serve_or_when_they_ask():
    """Whoever knew before would wait for them, while the old owner still takes pushes."""
    world = world_of()
    until(world, training)
    world.wish(plan_of(2, 1))
    until(world, lambda world: world.state.tenancies)
    worker = next(iter(world.workers.values()))
    before = world.state.document.routing.version - 1
    call = replace(worker.message(1), routing_version=before)
    (quiet,) = [one.orders for one in world.feed(WorkerSaid(call)) if isinstance(one, AnswerWorker)]
    assert quiet.routing is None and quiet.grants == ()
    (asked,) = [
        one.orders for one in world.feed(WorkerSaid(replace(call, trouble=True))) if isinstance(one, AnswerWorker)
    ]
    assert asked.routing == world.state.document.routing
    until(world, as_planned)
    (later,) = [one.orders for one in world.feed(WorkerSaid(call)) if isinstance(one, AnswerWorker)]
    assert later.routing == world.state.document.routing


def test_shares_change_in_place():
    world = world_of(workers=2)
    until(world, training)
    plan = plan_of(1, 2)
    other = replace(plan, worker=replace(plan.worker, cpu=1.5))
    decide(world, other)
    assert {status.cpu for status in world.cluster.observe() if status.role == "worker"} == {1.5}
    assert len(world.cluster.started) == 3, "nothing was started for it"


@pytest.mark.parametrize("victim", ["ps-0-t1-g1", "ps-1-t1-g1"])
@pytest.mark.parametrize("moment", ["prepared", "swapped"])
@pytest.mark.parametrize("direction", ["grow", "shrink"])
def test_a_server_that_dies_while_vshards_move_costs_only_repairs(victim: str, moment: str, direction: str):
    first, then = (1, 2) if direction == "grow" else (2, 1)
    world = world_of(ps=first)
    until(world, training)
    world.wish(plan_of(then, 1))
    until(world, lambda world: world.state.moving if moment == "prepared" else world.state.tenancies)
    if moment == "swapped":  # one request too late to be carried out
        world.requests.clear()
    world.kill(victim)
    until(world, lambda world: world.state.document.plan == plan_of(then, 1) and as_planned(world))
    assert world.until_end(1000).state is JobState.FINISHED
    assert world.state.manifest.applied() == IntervalSet.span(0, BATCHES)


def test_an_owner_that_dies_before_it_took_over_leaves_the_freshest_rows_with_their_holder():
    world = world_of()
    until(world, training)
    for _ in range(5):
        world.round()
    before = world.state.ledger.applied
    world.wish(plan_of(2, 1))
    until(world, lambda world: world.state.tenancies)
    world.requests.clear()
    world.kill("ps-1-t1-g1")
    until(world, lambda world: world.state.document.plan == plan_of(2, 1) and as_planned(world))
    assert world.state.ledger.applied.issuperset(before), "the checkpoint has none of these batches"


def test_growth_without_room_is_taken_back_with_its_reason():
    world = world_of()
    until(world, training)
    world.wish(plan_of(2, 1))
    until(world, lambda world: len(world.servers) == 2)
    for server in world.servers.values():
        if server.pod.startswith("ps-1"):
            server.move_error = "table has no room"
    until(world, lambda world: world.state.document.plan == plan_of(1, 1) and as_planned(world))
    last = world.state.decisions[-1]
    assert last.kind == "memory" and "no room" in last.reason
    assert world.until_end(1000).state is JobState.FINISHED


def test_a_worker_that_can_never_start_is_taken_back_instead_of_ending_the_job():
    world = world_of(failures_in_row=3)
    until(world, training)
    world.wish(plan_of(1, 2))
    for _ in range(300):
        world.round()
        late = [status.name for status in world.cluster.observe() if status.name.startswith("worker-1")]
        for name in late:
            world.kill(name)
        if world.state.document.plan == plan_of(1, 1):
            break
    assert world.ended is None and "go on without it" in world.state.decisions[-1].reason
    assert world.until_end(1000).state is JobState.FINISHED


def answering(world: World, plan: Plan) -> None:
    """Let the optimizer decide for `plan` as soon as it is asked, and hold then."""

    def answer(asked: object) -> Decided:
        question = asked.question  # type: ignore[attr-defined]
        world.questions.append(question)  # type: ignore[attr-defined]
        kind = "hold" if question.plan == plan else "grow"
        return Decided(Decision(question.time_seconds, kind, plan, "it pays", action="Change", before=question.plan))

    world.questions = []  # type: ignore[attr-defined]
    world.answer = answer


def test_a_settled_window_becomes_an_observation_and_a_question():
    world = world_of(mode=Mode.AUTO, batch_size=8, settle_seconds=1.0, window_seconds=1.0)
    answering(world, plan_of(1, 2))
    until(world, lambda world: world.state.document.plan == plan_of(1, 2) and as_planned(world))
    question = world.questions[0]  # type: ignore[attr-defined]
    (seen,) = question.observations
    # Four batches of eight rows a round of 0.2 s.
    assert seen.plan == plan_of(1, 1) and seen.throughput == pytest.approx(160, rel=0.15) and seen.batches >= 16
    assert 0 < question.batches_left < BATCHES
    until(world, lambda world: world.state.decisions[0].measured is not None)
    changed = world.state.decisions[0]
    assert (changed.kind, changed.number, changed.before) == ("grow", 1, plan_of(1, 1))
    assert changed.switch_seconds is not None and changed.switch_seconds > 0
    assert changed.measured == pytest.approx(320, rel=0.15)
    later = world.questions[-1]  # type: ignore[attr-defined]
    assert later.plan == plan_of(1, 2)


def test_advice_is_given_once_and_changes_nothing():
    world = world_of(mode=Mode.ADVISE, settle_seconds=0.4, window_seconds=0.4)
    answering(world, plan_of(1, 2))
    until(world, lambda world: len(world.questions) > 5)  # type: ignore[attr-defined]
    assert world.state.document.plan == plan_of(1, 1)
    (advice,) = world.state.decisions
    assert advice.advised and advice.plan == plan_of(1, 2)


def test_a_fixed_plan_is_observed_and_never_asked_about():
    world = world_of(mode=Mode.FIXED, settle_seconds=0.4, window_seconds=0.4)
    answering(world, plan_of(1, 2))
    until(world, lambda world: len(world.state.observations) > 3)
    assert world.questions == [] and world.state.document.plan == plan_of(1, 1)  # type: ignore[attr-defined]


def test_an_optimizer_that_fails_leaves_the_plan():
    world = world_of(mode=Mode.AUTO, settle_seconds=0.4, window_seconds=0.4)
    until(world, lambda world: len(world.state.observations) > 3)
    assert world.state.document.plan == plan_of(1, 1) and not world.state.considering


def test_what_was_seen_before_a_change_or_a_loss_is_not_of_the_plan_after_it():
    world = world_of(workers=2, settle_seconds=1.0, window_seconds=2.0)
    until(world, lambda world: world.state.marks)
    world.kill("worker-1-t1-g1")
    until(world, lambda world: not world.state.marks, 3)
    assert world.state.observations == ()
    until(world, lambda world: world.state.observations)
    assert world.state.observations[0].throughput == pytest.approx(320, rel=0.15), "both workers are there again"


def test_holds_are_written_down_once_a_minute():
    world = world_of(mode=Mode.AUTO, settle_seconds=0.4, window_seconds=0.4)
    answering(world, plan_of(1, 1))
    until(world, lambda world: len(world.questions) > 5)  # type: ignore[attr-defined]
    (hold,) = world.state.decisions
    assert hold.kind == "hold"
    assert hold.measured == world.state.observations[1].throughput, "what came of it: the window after it"


def test_workers_lend_cores_to_a_server_that_loads_what_was_lost():
    """Nobody can train until it serves: the same cores stay in use, and no more."""
    world = world_of(ps=2, workers=2)
    until(world, training)
    until(world, as_planned)
    world.kill("ps-1-t1-g1")
    seen = []
    for _ in range(60):
        world.round()
        seen.append({status.name: status.cpu for status in world.cluster.observe() if not status.ended})
    lent = [one for one in seen if one["worker-0-t1-g1"] < 1.0]
    assert lent, "it is seen while the new server loads"
    assert all(sum(one.values()) <= 3.0 + 1e-9 for one in seen)
    assert max(one.get("ps-1-t1-g2", 0.0) for one in lent) > 1.5
    assert seen[-1] == {"ps-0-t1-g1": 0.5, "ps-1-t1-g2": 0.5, "worker-0-t1-g1": 1.0, "worker-1-t1-g1": 1.0}


def test_working_workers_lend_cores_to_one_that_gets_ready():
    """Its start is a fixed amount of work; until its first batch it has more, and all together have the same."""
    world = world_of(ps=1, workers=1)
    until(world, training)
    until(world, as_planned)
    small = Plan(replace(plan_of(1, 2).ps, cpu=0.5), replace(plan_of(1, 2).worker, cpu=0.6))
    world.wish(small)
    seen = []
    for _ in range(40):
        world.round()
        seen.append({status.name: status.cpu for status in world.cluster.observe() if not status.ended})
    lent = [one for one in seen if one.get("worker-1-t1-g1", 0.0) > 0.6]
    assert lent and 0.98 < lent[0]["worker-1-t1-g1"] <= 1.0 and 0.2 <= lent[0]["worker-0-t1-g1"] < 0.22
    assert seen[-1] == {"ps-0-t1-g1": 0.5, "worker-0-t1-g1": 0.6, "worker-1-t1-g1": 0.6}
