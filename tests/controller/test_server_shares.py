"""Cores that go from pod to pod: the sum stays, nobody gives more than a part, and what is lent comes back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from controller_world import World, plan_of, settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from trimtab.core.controller.server_shares import LENT_TO_MOVE, MOST_GIVEN, MOVING_CPU
from trimtab.core.controller.shares import shares
from trimtab.core.controller.state import Phase, State
from trimtab.core.domain.plan import Limits, Plan, RolePlan


def world_of(ps: int = 2, workers: int = 2, ps_cpu: float = 0.1, worker_cpu: float = 0.4, cap: float = 9.0) -> World:
    plan = Plan(RolePlan(ps, ps_cpu, 2**28), RolePlan(workers, worker_cpu, 2**30))
    world = World(settings(batches=100_000, checkpoint_seconds=1e9, limits=Limits(cap, 2**40, 9, 9)), plan)
    for _ in range(30):
        world.round()
        if world.state.phase is Phase.TRAINING and all(pod.worked for pod in world.state.workers()):
            return world
    raise AssertionError("training never began")


def by_role(state: State, role: str) -> list[float]:
    share = shares(state)
    return [share[pod.name] for pod in state.pods.values() if pod.role == role]


def moving(world: World) -> World:
    """A third of the vshards should go to the second place, and nothing of it is done yet."""
    state = world.state
    assert state.layout is not None
    target = tuple(1 if vshard < 170 else place for vshard, place in enumerate(state.layout.target))
    world.state = replace(state, layout=replace(state.layout, target=target))
    return world


def test_who_moves_with_a_tenth_of_a_core_is_lent_some_by_workers_and_gives_it_back() -> None:
    world = moving(world_of(ps=3, worker_cpu=0.8))
    total = sum(shares(world.state).values())
    assert by_role(world.state, "ps") == [MOVING_CPU] * 3, "two give, and one takes"
    assert sum(shares(world.state).values()) <= total + 1e-9
    assert min(by_role(world.state, "worker")) >= 0.8 * (1 - LENT_TO_MOVE)
    for _ in range(40):
        world.round()
    assert not world.state.moving and by_role(world.state, "ps") == [0.1] * 3
    assert by_role(world.state, "worker") == [0.8] * 2


def test_a_peer_that_has_nothing_to_do_with_a_move_is_lent_nothing() -> None:
    world = world_of(ps=3)
    state = world.state
    assert state.layout is not None
    target = tuple(1 if place == 0 else place for place in state.layout.target)
    world.state = replace(state, layout=replace(state.layout, target=target))
    assert by_role(world.state, "ps") == [MOVING_CPU, MOVING_CPU, 0.1]


def test_who_has_enough_to_move_is_lent_nothing() -> None:
    world = world_of(ps_cpu=0.5)
    before = shares(world.state)
    assert shares(moving(world).state) == before


def test_lending_goes_on_until_the_new_owner_serves() -> None:
    world = moving(world_of())
    seen = set()
    for _ in range(40):
        world.tick()
        seen.add((bool(world.state.tenancies), max(by_role(world.state, "ps"))))
        while world.commits:
            world.commit()
        world.deliver_request() if world.requests else None
        while world.reports:
            world.deliver_report()
    assert (True, MOVING_CPU) in seen and (True, 0.1) not in seen


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(st.one_of(st.just(0.0), st.floats(0.05, 3.0)), min_size=3, max_size=3), ps_cpu=st.floats(0.1, 1.0),
    worker_cpu=st.floats(0.1, 1.0), cap=st.floats(0.3, 4.0),
)  # fmt: skip
def test_uneven_shares_keep_the_sum_and_leave_everybody_half(
    asked: list[float], ps_cpu: float, worker_cpu: float, cap: float
) -> None:
    state = EVEN.state
    plan = Plan(RolePlan(3, ps_cpu, 2**28), RolePlan(2, worker_cpu, 2**30))
    slots = {key: replace(one, cpu=asked[key[1]] if key[0] == "ps" else 0.0) for key, one in state.slots.items()}
    state = replace(
        state, document=replace(state.document, plan=plan), slots=slots,
        settings=replace(state.settings, limits=Limits(cap, 2**40, 9, 9)),
    )  # fmt: skip
    found = shares(state)
    assert math.fsum(found.values()) <= min(plan.cpu, cap) + 1e-9
    scale = min(1.0, cap / plan.cpu)
    for pod in state.pods.values():
        even = ps_cpu if pod.role == "ps" else worker_cpu
        wanted = slots[pod.slot].cpu
        assert found[pod.name] >= even * scale * (1 - MOST_GIVEN) - 0.002
        assert found[pod.name] <= max(even, wanted) + 1e-9, "nobody gets more than it asks for"


EVEN = world_of(ps=3)


def test_a_place_with_more_gets_it_from_all_others() -> None:
    state = EVEN.state
    slots = {**state.slots, ("ps", 1): replace(state.slots["ps", 1], cpu=0.3)}
    found = shares(replace(state, slots=slots))
    name = next(pod.name for pod in state.servers() if pod.slot[1] == 1)
    assert found[name] == 0.3
    assert [cpu for other, cpu in found.items() if other != name] == pytest.approx([0.08, 0.08, 0.32, 0.32], abs=0.002)


def test_calls_are_as_rare_as_ever_while_a_move_is_prepared_and_frequent_once_it_can_be_carried_out() -> None:
    world = moving(world_of(ps_cpu=0.5))
    world.tick()
    assert world.state.moving and not world.state.waits_for_servers
    while world.requests:
        world.deliver_request()
    while world.reports:
        world.deliver_report()
    world.tick()
    while world.requests:
        world.deliver_request()
    seen = []
    while world.reports:
        world.deliver_report()
        seen.append((world.state.staged_at is not None, world.state.waits_for_servers))
    assert world.state.tenancies or world.state.committing or (True, True) in seen
    assert plan_of().ps.cpu == 0.5
