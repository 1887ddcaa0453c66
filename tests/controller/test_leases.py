"""The rules by which jobs share a machine: within it at every instant, nobody half-started, nobody starved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.controller.leases import NOTHING, Lease, Room, free, grant, grown, held, line, shrunk, targets

GIB = 2**30
MACHINE = Room(2.0, 8 * GIB)
LEAST = Room(0.2, GIB)


def job(name: str, cpu: float = 0.0, memory: int = 0, ticket: int = 0, **more: object) -> Lease:
    plain = {"least": LEAST, "wants": MACHINE}
    return Lease(name, Room(cpu, memory), ticket=ticket, **{**plain, **more})  # type: ignore[arg-type]


def test_a_job_alone_gets_all_it_can_use():
    assert grant(MACHINE, [job("a")], "a") == MACHINE
    assert grant(MACHINE, [job("a", wants=Room(0.5, GIB))], "a") == Room(0.5, GIB)


def test_a_job_that_runs_gives_way_to_one_that_waits_down_to_a_fair_share():
    leases = [job("a", 2.0, 8 * GIB), job("b", ticket=1)]
    assert grant(MACHINE, leases, "b") is None
    half = Room(1.0, 4 * GIB)
    assert shrunk(MACHINE, leases, "a") == half
    leases[0] = replace(leases[0], held=half)
    assert grant(MACHINE, leases, "b") == half


def test_half_of_what_a_newcomer_should_have_is_enough_to_begin_with():
    leases = [job("a", 1.5, 6 * GIB), job("b", ticket=1)]
    assert grant(MACHINE, leases, "b") == Room(0.5, 2 * GIB)
    leases[0] = replace(leases[0], held=Room(1.5, 6 * GIB + 1))
    assert grant(MACHINE, leases, "b") is None


def test_cores_without_memory_start_nothing():
    leases = [job("a", 0.5, 8 * GIB, keeps_memory=True), job("b", ticket=1)]
    assert grant(MACHINE, leases, "b") is None and "b" not in targets(MACHINE, leases)
    assert shrunk(MACHINE, leases, "a") == Room(0.5, 8 * GIB), "nobody gives way for one that can't be helped"


@pytest.mark.parametrize("kept", [{"keeps_cpu": True, "keeps_memory": True}, {"changes": False}])
def test_caps_that_were_given_and_fixed_plans_are_kept(kept):
    leases = [job("a", 1.5, 4 * GIB, **kept), job("b", ticket=1)]
    assert shrunk(MACHINE, leases, "a") == Room(1.5, 4 * GIB)
    assert grant(MACHINE, leases, "b") == Room(0.5, 4 * GIB)


def test_a_fixed_plan_begins_with_all_of_the_caps_that_were_given_or_waits():
    asked = {"changes": False, "keeps_cpu": True, "keeps_memory": True, "wants": Room(1.0, GIB)}
    leases = [job("a", 1.5, GIB), job("b", ticket=1, **asked)]
    assert grant(MACHINE, leases, "b") is None
    assert shrunk(MACHINE, leases, "a") == Room(1.0, GIB)
    assert grant(MACHINE, [job("a", 1.0, GIB), leases[1]], "b") == Room(1.0, GIB)


def test_a_fixed_plan_without_caps_begins_with_its_fair_share_or_waits():
    leases = [job("a", 1.5, 4 * GIB), job("b", ticket=1, changes=False)]
    assert grant(MACHINE, leases, "b") is None
    assert grant(MACHINE, [job("a", 1.0, 4 * GIB), leases[1]], "b") == Room(1.0, 4 * GIB)


def test_nobody_overtakes_the_first_of_the_line():
    large = job("large", ticket=1, changes=False, keeps_cpu=True, keeps_memory=True, wants=MACHINE)
    leases = [job("a", 0.5, GIB, keeps_cpu=True), large, job("small", ticket=2, wants=LEAST)]
    assert [one.run_id for one in line(leases)] == ["large", "small"]
    assert grant(MACHINE, leases, "large") is None and grant(MACHINE, leases, "small") is None
    assert grown(MACHINE, [job("c", 0.5, GIB), *leases[1:]], "c") == Room(0.5, GIB), "nor does one that runs"
    assert grant(MACHINE, leases[1:], "large") == MACHINE


def test_room_that_becomes_free_is_taken_again_when_nobody_waits():
    assert grown(MACHINE, [job("a", 1.0, 4 * GIB)], "a") == MACHINE
    both = [job("a", 0.5, 2 * GIB), job("b", 0.5, 2 * GIB)]
    assert grown(MACHINE, both, "a") == Room(1.0, 4 * GIB)
    assert grown(MACHINE, both, "a", most=Room(0.2, GIB)) == Room(0.7, 3 * GIB)
    assert grown(MACHINE, [job("a", 1.96, 8 * GIB - 2**20)], "a") == Room(1.96, 8 * GIB - 2**20), "crumbs"
    assert grown(MACHINE, [job("a", 1.0, 4 * GIB, changes=False)], "a") == Room(1.0, 4 * GIB)


def test_weights_make_shares_uneven():
    leases = [job("a", 2.0, 8 * GIB, weight=3.0), job("b", ticket=1)]
    assert shrunk(MACHINE, leases, "a") == Room(1.5, 6 * GIB)


def test_more_is_not_given_than_may_be_taken_now():
    leases = [job("a", 1.0, 2 * GIB), job("b", ticket=1)]
    assert grant(MACHINE, leases, "b", most=Room(9.0, 3 * GIB)) == Room(1.0, 3 * GIB)
    assert grant(MACHINE, leases, "b", most=Room(9.0, GIB - 1)) is None


rooms = st.builds(Room, st.integers(0, 2500).map(lambda one: one / 1000), st.integers(0, 9 * GIB))
newcomers = st.builds(
    dict,
    least=st.builds(Room, st.integers(1, 800).map(lambda one: one / 1000), st.integers(1, 3 * GIB)),
    wants=rooms, keeps_cpu=st.booleans(), keeps_memory=st.booleans(), changes=st.booleans(),
    weight=st.sampled_from([1.0, 1.0, 2.0, 0.5]), patience=st.integers(1, 6),
)  # fmt: skip


@settings(max_examples=200)
@given(st.lists(newcomers, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_jobs_in_any_order_stay_within_the_machine_and_all_get_their_turn(asked, chance):
    """Jobs act on the file one after the other, in any order; each gives way late, runs a while, and leaves or dies."""
    waiting = [
        Lease(f"job-{at}", NOTHING, one["least"], one["wants"].most(one["least"]).least(MACHINE), one["keeps_cpu"],
              one["keeps_memory"], one["changes"], one["weight"], ticket=at)
        for at, one in enumerate(asked)
    ]  # fmt: skip
    coming, leases, left = list(waiting), [], {}
    began: list[str] = []
    for _ in range(400):
        if not coming and not leases:
            break
        if coming and chance.random() < 0.3:
            leases.append(coming.pop(0))
        if not leases:
            continue
        at = chance.randrange(len(leases))
        me = leases[at]
        if me.waits:
            given = grant(MACHINE, leases, me.run_id)
            if given is not None:
                assert given.holds(me.least), "all that it needs, or nothing"
                assert me.run_id == line(leases)[0].run_id, "in its turn"
                if not me.changes and me.keeps_cpu:
                    assert given.cpu == pytest.approx(me.wants.cpu, abs=1e-3)
                leases[at] = replace(me, held=given)
                left[me.run_id] = asked[int(me.run_id[4:])]["patience"]
                began.append(me.run_id)
        elif left[me.run_id] == 0:
            del leases[at]
        else:
            to = shrunk(MACHINE, leases, me.run_id)
            assert me.held.holds(to) and to.holds(me.least.least(me.held)), "down, but not below what it needs"
            if to == me.held:
                to = grown(MACHINE, leases, me.run_id)
                assert to.holds(me.held)
                left[me.run_id] -= 1
            else:
                assert me.changes and not (me.keeps_cpu and to.cpu < me.held.cpu)
                assert not (me.keeps_memory and to.memory_bytes < me.held.memory_bytes)
            leases[at] = replace(me, held=to)
        assert MACHINE.holds(held(leases))
        assert MACHINE.holds(held(leases) + free(MACHINE, leases))
        assert MACHINE.holds(sum(targets(MACHINE, leases).values(), NOTHING))
    assert sorted(began) == sorted(one.run_id for one in waiting), "everybody has had its turn"
    assert began == [one.run_id for one in waiting], "in the order of coming"
