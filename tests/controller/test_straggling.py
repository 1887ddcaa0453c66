"""A worker that becomes slow: smaller shards, a successor that is up before it goes, a second worker at the end."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from controller_world import plan_of
from straggler_world import BATCHES, CAPS, HEALTHY, StragglerWorld, falls, off, settings_of

from trimtab.core.controller.actions import AnswerWorker
from trimtab.core.controller.inputs import CapsChanged, WorkerSaid
from trimtab.core.controller.shares import memory_in_use, shares
from trimtab.core.controller.state import Phase
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState, Mode
from trimtab.core.domain.plan import Limits
from trimtab.core.optimizer.stability.stragglers import StragglerRules

SLOW = "worker-2-t1-g1"
FALLS_AT = 6.0


def world_of(to: float = 0.1, **changes: object) -> StragglerWorld:
    world = StragglerWorld(settings_of(**changes))
    world.speed = falls(SLOW, FALLS_AT, to)
    return world


@cache
def healthy_jct() -> float:
    return StragglerWorld(settings_of()).jct()


def workers(world: StragglerWorld) -> list[str]:
    return [pod.name for pod in world.state.workers()]


def test_a_straggler_gets_a_successor_that_is_up_before_it_goes_and_the_job_hardly_takes_longer():
    world = world_of()
    world.until(lambda world: world.state.successions)
    assert world.clock.now() < FALLS_AT + 10
    seen = []
    while world.state.successions:
        world.round()
        seen.append(workers(world))
    assert all(SLOW in names for names in seen[:-1]), "it stays until the new one has worked"
    assert any("worker-4-t1-g1" in names for names in seen)
    assert world.state.pods["worker-4-t1-g1"].worked
    world.until(lambda world: SLOW not in workers(world), 20)
    took = world.jct()
    assert world.ended.state is JobState.FINISHED
    assert world.state.manifest.applied() == IntervalSet.span(0, BATCHES)
    healthy = healthy_jct()
    alone = StragglerWorld(off(settings_of()))
    alone.speed = falls(SLOW, FALLS_AT, 0.1)
    assert took < 1.12 * healthy < alone.jct()
    assert world.said("straggler_replaced") and SLOW in world.said("straggler")[0]


def test_caps_hold_while_two_are_there_and_the_slow_one_gives_its_cores_first():
    """4 workers of one core and a server of half a core, with nothing to spare."""
    world = world_of(limits=replace(CAPS, cpu=4.5))
    world.until(lambda world: world.state.successions)
    share = shares(world.state)
    assert share[SLOW] <= 0.3 and sum(share.values()) <= 4.5 + 1e-9
    while world.state.successions:
        world.round()  # each step checks the sum of the cluster's shares
        assert sum(shares(world.state).values()) <= 4.5 + 1e-9
    world.until(lambda world: not world.state.departed and SLOW not in workers(world), 20)
    assert sorted(shares(world.state).values()) == [0.5, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "limits", [replace(CAPS, memory_bytes=2**28 + 4 * 2**30), replace(CAPS, workers=4)], ids=["memory", "workers"]
)
def test_where_the_caps_have_no_room_for_both_it_goes_first(limits: Limits):
    world = world_of(limits=limits)
    world.until(lambda world: world.said("pod_left"))
    assert "no room" in world.said("pod_left")[0] and not world.state.successions
    names = set()
    while world.ended is None:
        world.round()
        names |= set(workers(world))
        there = [status for status in world.cluster.observe() if status.role == "worker" and not status.ended]
        assert len(there) <= 4 and memory_in_use(world.state) <= (limits.memory_bytes or 0)
    assert "worker-2-t1-g2" in names and world.ended.state is JobState.FINISHED


def test_one_that_recovers_before_its_successor_works_is_kept():
    world = world_of()
    world.start_seconds = 60.0
    world.until(lambda world: world.state.successions)
    at = world.clock.now()
    slow = falls(SLOW, FALLS_AT, 0.1)
    world.speed = lambda name, seconds: slow(name, seconds) if seconds < at + 2 else HEALTHY
    world.until(lambda world: not world.state.successions, 200)
    assert world.said("straggler_recovered") and not world.said("straggler_replaced")
    world.until(lambda world: len(workers(world)) == 4, 20)
    assert SLOW in workers(world)
    world.jct()
    assert world.state.manifest.applied() == IntervalSet.span(0, BATCHES)
    assert not world.state.findings


def test_a_successor_that_is_as_slow_is_the_last_one_there():
    """It is the machine, not the pod."""
    world = StragglerWorld(settings_of(batches=2400))
    slow = ("worker-2-", "worker-4-", "worker-5-", "worker-6-")
    world.speed = lambda name, seconds: HEALTHY * (0.1 if name.startswith(slow) and seconds > FALLS_AT else 1.0)
    world.until(lambda world: world.said("straggler_stays"))
    assert "it is the machine" in world.said("straggler_stays")[0]
    assert len(world.said("straggler_replaced")) == 1
    finding = world.state.findings["straggler", "worker-4-t1-g1"]
    assert "does 0.1" in finding.text or "does 0.0" in finding.text
    world.jct()
    assert len(world.said("straggler_replaced")) == 1 and not world.state.successions


def test_replacements_of_one_job_are_bounded_and_indexes_stay_few():
    rules = StragglerRules(pause_seconds=4.0, most_replaced=4)
    chosen = settings_of(batches=3000, limits=replace(CAPS, workers=20), straggling=rules)
    world = StragglerWorld(chosen, start_seconds=1.0)

    def speed(name: str, seconds: float) -> float:
        """Workers of places 1 and 3 are well for ever; others become slow after a while, as a bad machine might do."""
        well = name.startswith(("worker-1-", "worker-3-")) or seconds - world.born_at.get(name, 0.0) < 13
        return HEALTHY * (1.0 if well else 0.1)

    world.speed = speed
    times: list[float] = []
    while world.ended is None:
        world.round()
        if len(world.said("straggler")) > len(times):
            times.append(world.clock.now())
    assert len(times) == rules.most_replaced
    assert all(later - earlier >= rules.pause_seconds for earlier, later in pairwise(times))
    assert any("no more are" in text for text in world.findings)
    places = {int(name.split("-")[1]) for name in world.workers}
    assert places <= set(range(6)), "a place is used again once its pod is gone"
    assert world.state.manifest.applied() == IntervalSet.span(0, 3000)


def test_replacements_that_bring_nothing_are_ever_farther_apart():
    rules = StragglerRules(pause_seconds=4.0)
    chosen = settings_of(batches=3000, limits=replace(CAPS, workers=20), straggling=rules)
    world = StragglerWorld(chosen, plan_of(1, 7), start_seconds=1.0)
    well = tuple(f"worker-{place}-" for place in range(4))
    world.speed = lambda name, seconds: HEALTHY * (1.0 if name.startswith(well) or seconds < FALLS_AT else 0.1)
    times: list[float] = []
    while world.ended is None:
        world.round()
        if len(world.said("straggler")) > len(times):
            times.append(world.clock.now())
    assert len(times) == 3, "one in each place, and none in the place of one that came"
    assert all(later - earlier >= 4.0 * 2.0**at for at, (earlier, later) in enumerate(pairwise(times)))
    assert len(world.said("straggler_stays")) == 3


def test_advice_says_what_would_be_done_and_starts_nothing():
    world = world_of(mode=Mode.ADVISE)
    world.jct()
    assert len(world.said("advice")) == 1 and "a new pod in its place would help" in world.said("advice")[0]
    assert workers(world) == [f"worker-{index}-t1-g1" for index in range(4)]
    assert len(world.cluster.started) == 5


def test_a_little_slow_worker_gets_small_shards_and_no_successor():
    world = world_of(to=0.42)
    world.until(lambda world: world.state.findings)
    world.until(lambda world: world.clock.now() > FALLS_AT + 20)
    held = world.state.ledger.holds.of(SLOW)
    assert held and all(hold.hi - hold.lo <= 8 for hold in held), "1.5 s of what it does now"
    assert "smaller data shards" in world.state.findings["straggler", SLOW].text
    world.jct()
    assert not world.said("straggler") and len(world.said("slow_worker")) == 1


def test_what_a_slow_worker_has_not_begun_goes_to_others_at_once():
    world = world_of(start_seconds=60)  # the successor plays no part here
    world.start_seconds = 1e9
    held = world.state.ledger.holds
    world.until(lambda world: world.said("taken_back"))
    slow = world.workers[SLOW]
    taken = world.state.pods[SLOW].taken_back
    assert taken and not held.of(SLOW)
    begun = slow.grants[0].id if slow.grants else None
    for _ in range(3):
        world.round()
    assert not world.state.pods[SLOW].taken_back, "it has said so"
    assert all(grant.id not in taken for grant in slow.grants) and (begun is None or begun in slow.seen)
    world.jct()
    assert world.state.manifest.applied() == IntervalSet.span(0, BATCHES)


def test_what_is_taken_back_is_said_again_until_the_worker_has_heard():
    world = world_of()
    world.start_seconds = 1e9
    world.until(lambda world: world.clock.now() > FALLS_AT + 2)
    world.silent.add(SLOW)
    world.until(lambda world: world.said("taken_back"))
    worker = world.workers[SLOW]
    taken = world.state.pods[SLOW].taken_back
    call = WorkerSaid(worker.message(1))
    for _ in range(2):  # the answer to the first is lost
        (answer,) = [one.orders for one in world.feed(call) if isinstance(one, AnswerWorker)]
        assert answer.taken_back == taken
    again = replace(worker.message(1), finished=taken)
    (answer,) = [one.orders for one in world.feed(WorkerSaid(again)) if isinstance(one, AnswerWorker)]
    assert answer.taken_back == ()


def test_near_the_end_a_second_worker_does_what_a_hung_one_holds():
    world = StragglerWorld(settings_of(batches=400))
    world.until(lambda world: len(world.state.ledger.applied) > 330)
    (first, *_) = world.state.workers()
    world.speed = lambda name, seconds: 0.0 if name == first.name else HEALTHY
    at = world.clock.now()
    world.jct()
    assert world.said("lent_twice") and world.clock.now() - at < 10
    assert world.state.manifest.applied() == IntervalSet.span(0, 400)
    assert max(world.trained().count(number) for number in range(400)) == 2
    assert world.state.losses.counted == IntervalSet.span(0, 400)


def test_evaluation_does_not_wait_for_a_hung_worker_either():
    world = StragglerWorld(settings_of(batches=200, evaluation_batches=200))
    world.until(lambda world: world.state.phase is Phase.EVALUATING and len(world.state.evaluation.done) > 150)
    (first, *_) = world.state.workers()
    world.speed = lambda name, seconds: 0.0 if name == first.name else HEALTHY
    at = world.clock.now()
    world.jct()
    assert world.ended.state is JobState.FINISHED and world.clock.now() - at < 10


def test_a_job_without_stragglers_lends_nothing_twice_and_says_nothing():
    world = StragglerWorld(settings_of())
    world.jct()
    assert sorted(world.trained()) == list(range(BATCHES))
    assert not {kind for kind, _ in world.notes} & {"slow_worker", "straggler", "taken_back", "lent_twice", "advice"}


def test_a_gap_of_a_parameter_server_makes_nobody_slow():
    world = StragglerWorld(settings_of())
    world.until(lambda world: world.clock.now() > 10)
    world.kill("ps-0-t1-g1")
    world.jct()
    assert not world.said("slow_worker") and world.ended.state is JobState.FINISHED


def test_a_successor_that_can_never_start_leaves_the_old_one_and_the_job_alone():
    world = world_of(failures_in_row=3)
    world.start_seconds = 1e9
    world.until(lambda world: world.state.successions)
    for _ in range(400):
        for status in world.cluster.observe():
            if status.name.startswith("worker-4"):
                world.kill(status.name)
        world.round()
        if world.said("successor_failed"):
            break
    assert world.ended is None and not world.state.successions and SLOW in workers(world)
    world.until(lambda world: len(workers(world)) == 4, 20)


def test_when_the_old_one_dies_first_its_successor_has_its_place():
    world = world_of()
    world.start_seconds = 5.0
    world.until(lambda world: "worker-4-t1-g1" in workers(world))
    world.kill(SLOW)
    world.until(lambda world: not world.state.successions, 10)
    assert workers(world) == ["worker-0-t1-g1", "worker-1-t1-g1", "worker-3-t1-g1", "worker-4-t1-g1"]
    assert world.jct() < 1.15 * healthy_jct()


def test_caps_that_fall_take_the_room_of_a_successor_back():
    world = world_of()
    world.start_seconds = 1e9
    world.until(lambda world: "worker-4-t1-g1" in workers(world))
    world.feed(CapsChanged(replace(CAPS, memory_bytes=2**28 + 4 * 2**30)))
    world.until(lambda world: not world.state.successions and len(workers(world)) == 4, 20)
    assert SLOW in workers(world)
    world.jct()
    assert world.state.manifest.applied() == IntervalSet.span(0, BATCHES)


def test_a_smaller_plan_does_without_the_slow_worker():
    world = world_of()
    world.start_seconds = 1e9
    world.until(lambda world: world.state.successions)
    world.wish(plan_of(1, 3))
    world.until(lambda world: len(workers(world)) == 3, 100)
    assert workers(world) == ["worker-0-t1-g1", "worker-1-t1-g1", "worker-3-t1-g1"]
    world.wish(plan_of(1, 5))
    world.until(lambda world: len(workers(world)) == 5, 100)
    assert [pod.slot[1] for pod in world.state.workers()] == [0, 1, 2, 3, 4]


def test_nothing_is_observed_while_two_share_a_place():
    world = world_of(window_seconds=1.0, mode=Mode.AUTO)
    world.start_seconds = 8.0
    world.until(lambda world: world.state.successions)
    before = world.state.observations
    assert before
    while world.state.successions:
        world.round()
        assert world.state.observations == before
    world.until(lambda world: world.state.observations != before, 200)
    assert world.state.observations[-1].throughput == pytest.approx(4 * HEALTHY, rel=0.15) or (
        world.state.observations[-1].batches > 0
    )


def test_parameter_servers_far_apart_become_a_finding():
    world = StragglerWorld(settings_of(batches=2400), plan_of(2, 4))
    world.until(lambda world: world.clock.now() > 8)
    rules = replace(world.state.settings.straggling, lag_batches=5, lag_seconds=0.0)
    world.state = replace(world.state, settings=replace(world.state.settings, straggling=rules))
    server = next(one for one in world.servers.values() if one.pod.startswith("ps-1"))
    for _ in range(80):
        world.reports = [one for one in world.reports if one.pod != server.pod]
        world.requests = [one for one in world.requests if one.pod != server.pod]
        known = world.state.ledger.known[server.process]
        world.round()
        if ("lag", server.pod) in world.state.findings:
            break
        ledger = world.state.ledger  # what it said stays as it was: its reports do not arrive
        world.state = replace(world.state, ledger=replace(ledger, known={**ledger.known, server.process: known}))
    assert "batches behind the others" in world.state.findings["lag", server.pod].text
    world.jct()
    assert not world.state.findings
