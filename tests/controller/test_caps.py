"""Caps that change while a job trains: cores at once, pods by a decision, and nothing beyond them is wished for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from controller_world import World, new_state, plan_of, settings

from trimtab.core.controller.actions import Note
from trimtab.core.controller.caps import keep_caps, least_plan, memory_needed
from trimtab.core.controller.inputs import CapsChanged, Decided, PodsSeen, Tick
from trimtab.core.controller.shares import shares
from trimtab.core.controller.state import Draft, Phase, Pod, State
from trimtab.core.controller.step import step
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState, Mode
from trimtab.core.domain.plan import Limits, Plan, RolePlan, within
from trimtab.core.domain.records import Decision

GIB = 2**30
BEFORE = Limits(3.0, 8 * GIB, 4, 4)
PLAN = Plan(RolePlan(1, 0.5, GIB), RolePlan(2, 1.0, GIB))


def training(mode: Mode = Mode.AUTO, **changes: object) -> State:
    state = new_state(settings(limits=BEFORE, mode=mode), plan=PLAN)
    pods = {name: Pod(name, slot, 0.0) for name, slot in (
        ("ps-0", ("ps", 0)), ("worker-0", ("worker", 0)), ("worker-1", ("worker", 1)))}  # fmt: skip
    return replace(state, phase=Phase.TRAINING, pods=pods, **changes)


def after(state: State, limits: Limits) -> tuple[State, list[Note]]:
    state, actions = step(state, [CapsChanged(limits)], 1.0)
    return state, [one for one in actions if isinstance(one, Note)]


def kept(state: State, least_ps: int = 1) -> State:
    draft = Draft(state, 2.0)
    keep_caps(draft, lambda: least_ps)
    return draft.state


def test_cores_fall_at_once_whatever_the_plan_says():
    state, notes = after(training(), Limits(1.5, 8 * GIB, 4, 4))
    assert sum(shares(state).values()) <= 1.5
    (note,) = notes
    assert note.kind == "caps" and note.text == (
        "the job's pods may use 1.5 cores and 8.0 GiB now, instead of 3 cores and 8.0 GiB: "
        "another job of this machine waits for room"
    )


def test_the_same_caps_again_are_no_news():
    assert after(training(), BEFORE)[1] == []


def test_room_that_became_free_is_said():
    state, (note,) = after(training(), Limits(4.0, 9 * GIB, 4, 4))
    assert note.text.endswith("room has become free on this machine") and kept(state).wish is None


def test_a_plan_that_does_not_fit_is_made_smaller_by_a_decision_with_its_reason():
    wish = kept(after(training(), Limits(1.5, 2 * GIB, 4, 4))[0]).wish
    assert wish.kind == "shrink" and wish.before == PLAN and wish.time_seconds == 2.0
    assert wish.plan == Plan(RolePlan(1, 0.5, GIB), RolePlan(1, 1.0, GIB))
    assert wish.reason == (
        "Another job of this machine waits for room: this one's pods may use 1.5 cores and 2.0 GiB now."
    )
    assert wish.action == "Remove 1 worker: 2 → 1"


def test_a_plan_that_fits_stays():
    assert kept(after(training(), Limits(2.5, 3 * GIB, 2, 1))[0]).wish is None


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.STOPPING, Phase.CLOSING, Phase.EVALUATING])
def test_pods_leave_only_while_it_trains(phase):
    state, _ = after(training(), Limits(1.0, 2 * GIB, 4, 4))
    state = replace(state, phase=phase)
    assert kept(state).wish is None and sum(shares(state).values()) <= 1.0
    assert least_plan(state, 1) == PLAN


@pytest.mark.parametrize("mode", [Mode.FIXED, Mode.ADVISE])
def test_other_modes_keep_their_plan(mode):
    state, _ = after(training(mode), Limits(1.0, 2 * GIB, 4, 4))
    assert kept(state).wish is None and least_plan(state, 1) == PLAN


def test_servers_that_the_tables_need_stay():
    plan = Plan(RolePlan(3, 0.2, GIB), RolePlan(1, 1.0, GIB))
    state = training(caps_fell=True)
    state = replace(state, document=replace(state.document, plan=plan), settings=replace(
        state.settings, limits=Limits(2.0, 3 * GIB, 4, 4)))  # fmt: skip
    assert kept(state, 2).wish.plan == Plan(RolePlan(2, 0.2, GIB), RolePlan(1, 1.0, GIB))
    assert kept(state, 3).wish is None, "nothing of it fits"
    assert least_plan(state, 2) == Plan(RolePlan(2, 0.1, GIB), RolePlan(1, 0.1, GIB))


def test_a_wish_of_before_the_caps_fell_is_cut_to_them_or_dropped():
    wish = Decision(0.5, "grow", Plan(RolePlan(1, 0.5, GIB), RolePlan(3, 0.8, GIB)), "more", before=PLAN)
    state = training(wish=wish, giving_up=("worker", 1))
    cut = kept(after(state, Limits(2.5, 3 * GIB, 4, 4))[0])
    assert cut.wish.plan == Plan(RolePlan(1, 0.5, GIB), RolePlan(2, 0.8, GIB)) and cut.wish.kind == "grow"
    same = training(wish=replace(wish, plan=Plan(RolePlan(1, 0.5, GIB), RolePlan(3, 1.0, GIB))), giving_up=("ps", 0))
    dropped = kept(after(same, Limits(2.5, 3 * GIB, 4, 4))[0])
    assert dropped.wish is None and dropped.giving_up is None
    busy = replace(same, committing=True)
    assert kept(after(busy, Limits(2.5, 3 * GIB, 4, 4))[0]).wish is not None, "it may be stored already"


def test_an_answer_to_a_question_of_before_the_caps_fell_is_not_carried_out():
    state, _ = after(training(considering=True), Limits(2.5, 3 * GIB, 4, 4))
    more = Decision(0.5, "grow", Plan(RolePlan(1, 0.5, GIB), RolePlan(3, 0.8, GIB)), "more", before=PLAN)
    found, _ = step(state, [Decided(more)], 2.0)
    assert found.wish is None and not found.considering


def test_memory_that_is_still_used_counts():
    state = training()
    assert memory_needed(state) == PLAN.memory_bytes
    wish = Decision(0.5, "grow", Plan(RolePlan(2, 0.5, GIB), RolePlan(2, 0.8, GIB)), "more", before=PLAN)
    assert memory_needed(replace(state, wish=wish)) == 4 * GIB
    slots = {**state.slots, ("ps", 0): replace(state.slots["ps", 0], memory_bytes=2 * GIB)}
    assert memory_needed(replace(state, slots=slots)) == 4 * GIB


def test_a_job_whose_caps_fall_and_rise_in_mid_run_applies_every_batch_once_and_asks_for_room_no_more():
    """What an other job takes and gives back: two workers and a server leave, and come again when that is decided."""
    world = World(settings(batches=900, checkpoint_seconds=1e9, limits=Limits(4.0, 8 * GIB, 9, 9), mode=Mode.AUTO),
                  plan_of(2, 3))  # fmt: skip

    def until(done: Callable[[State], bool], rounds: int = 150) -> None:
        for _ in range(rounds):
            if done(world.state):
                return
            world.round()
        raise AssertionError(f"never: {world.state.document.plan}, {sorted(world.state.pods)}")

    until(lambda state: state.phase is Phase.TRAINING and bool(state.losses.rows))
    tight = Limits(1.0, 3 * GIB // 2, 9, 9)
    world.feed(CapsChanged(tight), PodsSeen(tuple(world.cluster.observe())), Tick())  # as the driver tells it
    until(lambda state: within(state.document.plan, tight) and memory_needed(state) <= tight.memory_bytes)
    assert [one.kind for one in world.state.decisions] == ["shrink"]
    assert sum(status.cpu for status in world.cluster.observe()) <= 1.0 + 1e-9
    assert (len(world.state.servers()), len(world.state.workers())) == (2, 1)
    world.feed(CapsChanged(Limits(4.0, 8 * GIB, 9, 9)), PodsSeen(tuple(world.cluster.observe())), Tick())
    world.wish(plan_of(2, 3))
    until(lambda state: len(state.workers()) == 3 and state.wish is None)
    assert world.until_end(1000).state is JobState.FINISHED
    assert world.state.manifest.applied() == IntervalSet.span(0, 900)
