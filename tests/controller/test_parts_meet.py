"""Where parts of the controller meet: caps fall on raised memory, places are used again, a successor has no room."""

from __future__ import annotations

from dataclasses import replace

from controller_world import new_state, plan_of, settings
from straggler_world import StragglerWorld, falls, settings_of
from test_hot_servers import HotWorld, trained, until

from trimtab.core.cluster.base import PodStatus
from trimtab.core.controller.caps import caps_changed, keep_caps
from trimtab.core.controller.inputs import Late, Noticed, PodsSeen, Tick, Trouble
from trimtab.core.controller.out_of_memory import count_kill, watch_kills
from trimtab.core.controller.shares import memory_of
from trimtab.core.controller.state import Draft, Phase, Pod, State, Succession
from trimtab.core.controller.successors import begin, fit_places
from trimtab.core.domain.job import JobState, Mode
from trimtab.core.domain.plan import Limits, Plan, RolePlan

GIB = 2**30
PLAN = Plan(RolePlan(1, 0.5, GIB), RolePlan(3, 1.0, GIB))


def training(cap: int = 16 * GIB) -> State:
    state = new_state(settings(limits=Limits(8.0, cap, 9, 9), mode=Mode.AUTO), plan=PLAN)
    pods = {name: Pod(name, slot, 0.0, worked=True) for name, slot in (
        ("ps-0", ("ps", 0)), *((f"worker-{at}", ("worker", at)) for at in range(3)))}  # fmt: skip
    slots = {key: replace(slot, started=True) for key, slot in state.slots.items()}
    return replace(state, phase=Phase.TRAINING, pods=pods, slots=slots)


def raised(state: State, key: tuple[str, int], size: int) -> State:
    return replace(state, slots={**state.slots, key: replace(state.slots[key], memory_bytes=size)})


def planned(draft: Draft, workers: int) -> None:
    plan = Plan(PLAN.ps, replace(PLAN.worker, replicas=workers))
    draft.state = replace(draft.state, document=replace(draft.state.document, plan=plan))
    fit_places(draft)


def test_caps_that_fall_count_what_places_have_beyond_the_plan():
    """Else the lease could never fall, and whoever waits for the room would wait for ever."""
    draft = Draft(raised(training(), ("ps", 0), 2 * GIB), 1.0)
    caps_changed(draft, Limits(8.0, 4 * GIB + GIB // 2, 9, 9))
    keep_caps(draft, lambda: 1)
    assert draft.state.wish is not None and draft.state.wish.plan.worker.replicas == 2
    assert "4.5 GiB now" in draft.state.wish.reason


def test_a_place_that_the_plan_gets_again_has_what_the_plan_gives():
    """Else it could wait for ever for memory that nobody has counted."""
    draft = Draft(training(), 1.0)
    for _ in range(3):
        assert count_kill(draft, ("worker", 2), "worker-2") == ""
    assert memory_of(draft.state, ("worker", 2)) > 3 * GIB
    planned(draft, 2)
    draft.state = replace(draft.state, pods={name: pod for name, pod in draft.state.pods.items() if name != "worker-2"})
    planned(draft, 3)
    assert memory_of(draft.state, ("worker", 2)) == GIB
    assert draft.state.slots["worker", 2].out_of_memory == 3, "the job's count goes on"
    for _ in range(3):
        assert count_kill(draft, ("worker", 2), "worker-2") == "", "it is answered as often as any other"
    assert "kill 4 of its place" in count_kill(draft, ("worker", 2), "worker-2")


def test_a_place_that_comes_back_while_its_pod_is_there_keeps_its_memory():
    draft = Draft(raised(training(), ("worker", 2), 2 * GIB), 1.0)
    planned(draft, 2)
    planned(draft, 3)
    assert memory_of(draft.state, ("worker", 2)) == 2 * GIB


def test_time_lost_to_a_kill_ends_when_the_plan_does_without_the_place():
    draft = Draft(training(), 1.0)
    count_kill(draft, ("worker", 2), "worker-2")
    draft.state = replace(draft.state, pods={name: pod for name, pod in draft.state.pods.items() if name != "worker-2"})
    watch_kills(draft)
    assert ("out_of_memory", "worker-2") in draft.state.findings
    planned(draft, 2)
    watch_kills(draft)
    assert ("out_of_memory", "worker-2") not in draft.state.findings
    planned(draft, 3)
    watch_kills(draft)
    assert ("out_of_memory", "worker-2") not in draft.state.findings


def test_kills_of_a_successor_that_was_given_up_do_not_end_the_job_for_the_next_one():
    draft = Draft(training(), 1.0)
    for index in range(3):
        one = begin(draft, ("worker", index), "is slow")
        assert one is not None and one.new == 3, "the index is used again"
        for _ in range(2):
            assert count_kill(draft, ("worker", 3), "worker-3") == ""
        draft.state = replace(draft.state, successions={})
        draft.put_slot(replace(draft.state.slots["worker", 3], active=False))


def test_what_is_wrong_with_limits_outside_stays_a_finding_since_when_it_began():
    world = StragglerWorld(settings_of())
    world.until(lambda world: world.state.phase is Phase.TRAINING)
    world.feed(Noticed((Trouble("memory", "limits", "no control group", said=True),)), Tick())
    began = world.state.findings["memory", "limits"].since_seconds
    for _ in range(20):
        world.round()
    assert world.state.findings["memory", "limits"].since_seconds == began


def test_a_straggler_is_not_ended_while_the_place_of_a_peer_waits_for_its_pod():
    world = StragglerWorld(settings_of())
    world.speed = falls("worker-1-t1-g1", 5.0, 0.05)
    world.until(lambda world: world.clock.now() > 6.0)
    gone = PodStatus("worker-2-t1-g1", "worker", "failed", 137, None, 0.0)
    slot = world.state.slots["worker", 2]
    world.feed(PodsSeen((*(one for one in world.cluster.observe() if one.name != gone.name), gone)))
    world.workers.pop(gone.name)
    world.state = replace(world.state, slots={
        **world.state.slots, ("worker", 2): replace(slot, generation=2, starts_at=world.clock.now() + 15.0)
    })  # fmt: skip
    until_at = world.clock.now() + 14.0
    while world.clock.now() < until_at:
        world.round()
        assert "worker-1-t1-g1" in world.state.pods
    assert world.said("slow_worker") and not world.state.successions
    world.until(lambda world: world.said("straggler_replaced"))
    assert world.until_end(20_000).state is JobState.FINISHED


def test_a_successor_is_given_the_time_in_which_the_controller_did_not_look():
    world = StragglerWorld(settings_of())
    world.until(lambda world: world.state.phase is Phase.TRAINING)
    began = world.clock.now()
    world.state = replace(world.state, successions={("worker", 0): Succession(4, began, "is slow")})
    world.clock.advance(200.0)
    world.feed(Late(200.0))
    assert world.state.successions["worker", 0].began_at == began + 200.0


def test_a_parameter_server_stays_when_its_successor_has_no_room_for_its_rows():
    """The plan is not to blame, and one with fewer would have less room still."""
    world = trained(HotWorld())
    slow, plans = world.process(1), len(world.state.plans)
    world.speed[slow] = 0.1
    until(world, lambda: any(pod.slot == ("ps", 3) and pod.report is not None for pod in world.state.servers()))
    world.servers[world.process(3)].move_error = "table has no room"
    until(world, lambda: world.told("takes over"))
    until(world, lambda: world.state.active("ps") == [0, 1, 2] and not world.state.retired and world.rest(), 400)
    assert world.state.slots["ps", 1].active and slow in world.servers
    assert len(world.state.plans) == plans and world.state.document.plan == plan_of(3, 2)


def test_a_slow_worker_whose_batches_are_long_keeps_the_one_that_it_does():
    """Taken back it would be done twice, lent again, and taken back again."""
    world = StragglerWorld(settings_of(batches=120, mode=Mode.ADVISE))
    world.speed = lambda pod, seconds: 0.05 if pod == "worker-1-t1-g1" and seconds >= 60 else 0.25
    world.jct()
    assert world.said("slow_worker") and len(world.said("taken_back")) <= 2
    assert len(world.trained()) <= 120 + 4
