"""Routing under restarts and changing places: one owner a vshard, little moved, a new tenure with each new owner."""

import random
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.controller.moving import next_routing
from trimtab.core.controller.spreading import SLACK, loads, spread, unevenness
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps.client import ALL_VSHARDS, RoutingView
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.messages import Routing


def pod(process):
    return SimpleNamespace(process=process, report=SimpleNamespace(address=f"unix:{process}"))


def counts(owner):
    return {place: owner.count(place) for place in set(owner)}


@given(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=8))
def test_an_even_spread_moves_as_little_as_possible(rounds):
    owner = (-1,) * VSHARDS
    for places in map(sorted, rounds):
        before, owner = owner, spread(owner, places)
        sizes = counts(owner)
        assert set(sizes) == set(places) and max(sizes.values()) - min(sizes.values()) <= 1
        # Whatever a place had within its share has stayed: only what had to move did.
        held = counts(before)
        must_stay = sum(min(held.get(place, 0), sizes[place]) for place in places)
        assert sum(one == two for one, two in zip(before, owner, strict=True)) == must_stay
        assert spread(owner, places) == owner, "an even spread stays as it is"


def test_a_third_place_takes_a_third_and_gives_it_back():
    two = spread((-1,) * VSHARDS, [0, 1])
    three = spread(two, [0, 1, 2])
    assert sum(one != two_ for one, two_ in zip(three, two, strict=True)) == VSHARDS // 3
    again = spread(three, [0, 1])
    assert sum(one != two_ for one, two_ in zip(three, again, strict=True)) == counts(three)[2]


@given(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=5), st.integers(0, 1000), st.floats(0, 2))
def test_loads_are_level_with_as_little_load_moved_as_possible(rounds, seed, steep):
    weight = [(1 + rank) ** -steep for rank in range(VSHARDS)]
    random.Random(seed).shuffle(weight)
    owner = (-1,) * VSHARDS
    for places in map(sorted, rounds):
        before, owner = owner, spread(owner, places, weight)
        load, had, even = loads(owner, weight, places), loads(before, weight, places), sum(weight) / len(places)
        assert set(owner) <= set(places)
        for place in places:  # level, or nothing that it has could go to the emptiest place and help
            gap = load[place] - min(load.values())
            own = [one for one, at in zip(weight, owner, strict=True) if at == place]
            assert gap <= SLACK * even + 1e-9 or min(own) >= gap * (1 - 1e-6)
        moved = sum(one for one, old, new in zip(weight, before, owner, strict=True) if old != new)
        homeless = sum(one for one, old in zip(weight, before, strict=True) if old not in places)
        surplus = sum(max(0.0, had[place] - even) for place in places)
        assert moved <= homeless + surplus + SLACK * sum(weight) + max(weight)
        assert spread(owner, places, weight) == owner, "a level spread stays as it is"


def test_what_is_level_within_two_percent_is_left_alone():
    owner = tuple(vshard % 2 for vshard in range(VSHARDS))
    for factor, moves in ((1.01, 0), (1.3, 38)):
        weight = [factor if place == 0 else 1.0 for place in owner]
        new = spread(owner, [0, 1], weight)
        assert abs(sum(one != two for one, two in zip(owner, new, strict=True)) - moves) <= 9
        assert unevenness(loads(new, weight, [0, 1])) < 1 + SLACK


@given(st.integers(1, 7), st.lists(st.sets(st.integers(0, 6)), max_size=8))
def test_tenures_change_exactly_with_their_owner(count, restarts):
    born = {place: f"process-{place}-0" for place in range(count)}
    pods = {place: pod(name) for place, name in born.items()}
    routing = next_routing(Routing(), pods, dict(enumerate(spread((-1,) * VSHARDS, range(count)))))
    for round_, wanted in enumerate(restarts, 1):
        changed = {place for place in wanted if place < count}
        for place in changed:
            born[place] = f"process-{place}-{round_}"
            pods[place] = pod(born[place])
        owners = {vshard: place for vshard, place in enumerate(routing.owner) if place in changed}
        before, routing = routing, next_routing(routing, pods, owners)
        assert routing.version == before.version + 1
        for vshard in range(VSHARDS):
            mine, was = routing.processes[routing.owner[vshard]], before.processes[before.owner[vshard]]
            assert mine == born[routing.owner[vshard]]
            if mine == was:
                assert routing.since[vshard] == before.since[vshard]
            else:
                assert routing.since[vshard] == routing.version
    view = RoutingView.of(routing)
    assert view.whole
    union = 0
    for cover in view.covers:
        assert cover and not union & cover
        union |= cover
    assert union == ALL_VSHARDS
    assert from_json(Routing, to_json(routing)) == routing


def test_a_place_that_owns_nothing_any_more_is_named_no_more():
    pods = {0: pod("a"), 1: pod("b")}
    both = next_routing(Routing(), pods, dict(enumerate(spread((-1,) * VSHARDS, [0, 1]))))
    left = {vshard: 0 for vshard, place in enumerate(both.owner) if place == 1}
    alone = next_routing(both, pods, left)
    assert (alone.processes, alone.addresses, set(alone.owner)) == (("a",), ("unix:a",), {0})
    swapped = next_routing(both, pods, {vshard: 1 for vshard, place in enumerate(both.owner) if place == 0})
    assert swapped.processes == ("", "b")
