"""The exact front against its definition, by comparing every pair, and against all plans of a space one by one."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.domain.plan import Limits, Plan, Prices, RolePlan
from trimtab.core.errors import BadInput
from trimtab.core.optimizer import front as front_module
from trimtab.core.optimizer.front import Candidate, exact_front, front, front_of, hypervolume, speed_of
from trimtab.core.optimizer.space import Space
from trimtab.core.perf.demand import RoleDemand
from trimtab.core.perf.iteration import Setting
from trimtab.core.perf.quota import QuotaLaw

NUMBER = st.integers(0, 6).map(float) | st.sampled_from([math.nan, math.inf, -math.inf])
GIB = 2**30


def plan(workers):
    return Plan(RolePlan(1, 1.0, 2**30), RolePlan(workers, 1.0, 2**30))


CANDIDATES = st.lists(
    st.builds(Candidate, plan=st.integers(1, 4).map(plan), cost=NUMBER, throughput=NUMBER), max_size=30
)


def beats(one, other):
    better = one.cost < other.cost or one.throughput > other.throughput
    return one.cost <= other.cost and one.throughput >= other.throughput and better


@given(CANDIDATES)
def test_the_front_is_what_nobody_beats(candidates):
    usable = [one for one in candidates if math.isfinite(one.cost) and math.isfinite(one.throughput)]
    expected = {(one.cost, one.throughput) for one in usable if not any(beats(other, one) for other in usable)}
    found = front(candidates)
    assert [(one.cost, one.throughput) for one in found] == sorted(expected)
    for one in found:
        first = next(c for c in usable if (c.cost, c.throughput) == (one.cost, one.throughput))
        assert one is first, "of equals the first given stays"


@given(CANDIDATES)
def test_it_rises_in_both(candidates):
    found = front(candidates)
    for one, following in itertools.pairwise(found):
        assert one.cost < following.cost and one.throughput < following.throughput


def test_nothing_usable_gives_nothing():
    assert front([]) == ()
    assert front([Candidate(plan(1), math.nan, 1.0), Candidate(plan(1), 1.0, math.inf)]) == ()


# ---- A space: the same front as of all its plans.

CORES = st.lists(st.integers(1, 40).map(lambda tenths: tenths / 10), min_size=1, max_size=6, unique=True)
PRICES = st.builds(
    Prices, core_hour=st.sampled_from([0.0, 0.04, 1.0]), gib_hour=st.sampled_from([0.0, 0.005, 1.0])
)
LIMITS = st.builds(
    Limits,
    cpu=st.none() | st.integers(1, 200).map(lambda tenths: tenths / 10),
    memory_bytes=st.none() | st.integers(2, 40).map(lambda gib: gib * GIB),
    workers=st.none() | st.integers(1, 5), ps=st.none() | st.integers(1, 4),
)  # fmt: skip


@st.composite
def spaces(draw):
    table = draw(st.sampled_from([0.0, 1.0, 12.0]))
    return Space.of(
        draw(LIMITS), draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(CORES), draw(CORES),
        GIB, lambda ps: (0.25 + table / ps) * GIB, draw(PRICES),
    )  # fmt: skip


DEMANDS = st.builds(
    RoleDemand,
    fixed=st.floats(0, 0.02), per_rows=st.floats(1e-6, 0.02), per_ps=st.floats(0, 0.01),
    overhead_seconds=st.sampled_from([0.0, 0.4e-3, 2e-3]),
)  # fmt: skip
SETTINGS = st.sampled_from([
    Setting(), Setting(period_seconds=0.02), Setting(enforced=False, machine_cpu=4.0), Setting(enforced=False),
])  # fmt: skip
LAWS = st.builds(QuotaLaw, worker=DEMANDS, ps=DEMANDS, skew=st.sampled_from([1.0, 1.1, 2.0]), sharp=st.booleans())


def one_by_one(space, speed):
    """The definition: every plan within the caps, judged by itself."""
    index = np.arange(len(space))
    index = index[space.within(index)]
    cost, throughput = space.cost(index), speed(space.shapes(index)) if len(index) else np.array([])
    kept = front_of(cost, throughput)
    return index[kept].tolist(), cost[kept].tolist(), throughput[kept].tolist()


def parts(found):
    return found.index.tolist(), found.cost.tolist(), found.throughput.tolist()


@settings(max_examples=150)
@given(spaces(), LAWS, SETTINGS, st.integers(1, 200), st.integers(1, 4096))
def test_leaving_plans_out_unseen_changes_nothing(space, law, setting, block, batch_size):
    speed = speed_of(law, batch_size, setting)
    assert parts(exact_front(space, speed, speed, block)) == one_by_one(space, speed)
    assert space.count_within() == np.count_nonzero(space.within(np.arange(len(space))))


@given(spaces(), st.integers(0, 2**32 - 1), st.integers(1, 200))
def test_any_throughput_at_all_if_nothing_is_known_of_it(space, seed, block):
    """Few values, so that many are equal, and some that are no numbers."""
    values = np.random.default_rng(seed).choice([1.0, 2.0, 3.0, 4.0, math.nan, math.inf, -math.inf], len(space))

    def speed(shapes):
        keys = np.stack([shapes.ps, shapes.workers, shapes.worker_cpu, shapes.ps_cpu])
        axes = (space.ps, space.workers, space.worker_cpu, space.ps_cpu)
        places = [np.abs(axis[:, None] - key).argmin(0) for axis, key in zip(axes, keys, strict=True)]
        return values[np.ravel_multi_index(places, [len(axis) for axis in axes])]

    assert parts(exact_front(space, speed, None, block)) == one_by_one(space, speed)


@settings(max_examples=150)
@given(
    spaces(), st.sampled_from([1, 3, 1000]), st.sampled_from([0, 1, 5]), st.integers(1, 50), st.sampled_from([9, 30]),
)
def test_ties_and_ceilings_above_the_truth(space, levels, slack, block, buckets):
    """Steps make many plans equally fast; the ceiling is only near the truth; at some PSs nothing is finite.

    With few buckets of cost and one level of guesses, plans often share a bucket, and equals are found out of order.
    """

    def smooth(shapes):
        return np.minimum(shapes.workers * shapes.worker_cpu**0.7, 3 * shapes.ps * shapes.ps_cpu)

    def speed(shapes):
        return np.where(shapes.ps == 2, math.nan, np.ceil(levels * smooth(shapes) / 10))

    def ceiling(shapes):
        return np.where(shapes.ps == 3, math.nan, np.ceil(levels * smooth(shapes) / 10) + slack)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front_module, "_BUCKETS", buckets)
        patch.setattr(front_module, "_LEVELS", 1)
        patch.setattr(front_module, "_MARGINS", (1.0,))
        assert parts(exact_front(space, speed, ceiling, block)) == one_by_one(space, speed)


def test_of_equals_the_smallest_number_stays_whenever_it_is_found():
    """1 PS with 1 core and 2 with half a core are equal here; the guesses are only of the second."""
    space = Space.of(Limits(), 1, 2, [1.0], [1.0, 0.5], GIB, lambda ps: GIB, Prices(1.0, 0.0))

    def speed(shapes):
        return shapes.ps * shapes.ps_cpu

    def ceiling(shapes):
        return np.where(shapes.ps == 1, math.nan, speed(shapes))

    found = exact_front(space, speed, ceiling)
    assert [str(space.plan(int(one))) for one in found.index] == ["1 × 1 + 1 × 0.5", "1 × 1 + 1 × 1", "1 × 1 + 2 × 1"]
    assert parts(found) == one_by_one(space, speed)


def test_most_plans_are_not_looked_at():
    sizes = np.arange(1, 21) / 10
    space = Space.of(Limits(), 16, 8, sizes, sizes, GIB, lambda ps: GIB)
    law = QuotaLaw(RoleDemand(3e-3, 4e-3, 1e-3, 4e-4), RoleDemand(1e-3, 2e-3, 1.4e-3, 4e-4), 1.04, False)
    speed = speed_of(law, 512, Setting())
    sizes_asked = []

    def asked(shapes):
        sizes_asked.append(len(shapes.workers))
        return speed(shapes)

    found = exact_front(space, asked, speed, 4096)
    assert len(space) == 51_200
    assert max(sizes_asked) <= 4096, "a block bounds what is in memory"
    assert sum(sizes_asked) == found.evaluated < len(space) / 10
    assert len(found) > 50


def test_its_candidates_are_plans_that_cost_what_it_says():
    space = Space.of(Limits(cpu=6.0), 3, 2, [0.5, 1.0], [0.5, 1.0], GIB, lambda ps: (1 + 2 / ps) * GIB)
    found = exact_front(space, lambda shapes: shapes.workers * shapes.worker_cpu * shapes.ps)
    candidates = found.candidates()
    assert len(candidates) == len(found) > 3
    for one in candidates:
        assert one.cost == pytest.approx(Prices().per_hour(one.plan))
        assert one.throughput == one.plan.worker.replicas * one.plan.worker.cpu * one.plan.ps.replicas
        assert one.plan.ps.memory_bytes == (3 if one.plan.ps.replicas == 1 else 2) * GIB
        assert one.plan.cpu <= 6.0
    assert candidates == front(candidates)


def test_no_plan_within_the_caps_is_an_empty_front():
    space = Space.of(Limits(cpu=0.5), 3, 2, [1.0], [1.0], GIB, lambda ps: GIB)
    found = exact_front(space, lambda shapes: shapes.workers, lambda shapes: shapes.workers)
    assert len(found) == 0 and found.candidates() == () and found.evaluated == 0


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("space.workers", {"workers": 0}),
        ("space.worker_cpu", {"worker_cpu": [0.0]}),
        ("space.ps_cpu", {"ps_cpu": [math.nan]}),
        ("space.ps_memory", {"ps_memory": lambda ps: math.inf}),
        ("space.worker_memory", {"worker_memory": 0}),
        ("prices.core_hour", {"prices": Prices(core_hour=-1.0)}),
        ("prices.gib_hour", {"prices": Prices(gib_hour=math.nan)}),
        ("space.cpu_cap", {"limits": Limits(cpu=0.0)}),
        ("space.memory_cap", {"limits": Limits(memory_bytes=0)}),
    ],
)
def test_a_space_of_nothing_is_refused(field, changed):
    given_ = {
        "limits": Limits(), "workers": 2, "ps": 2, "worker_cpu": [1.0], "ps_cpu": [1.0], "worker_memory": GIB,
        "ps_memory": lambda ps: GIB,
    }  # fmt: skip
    Space.of(**given_)
    with pytest.raises(BadInput) as raised:
        Space.of(**{**given_, **changed})
    assert raised.value.field == field


def test_a_block_of_nothing_is_refused():
    space = Space.of(Limits(), 1, 1, [1.0], [1.0], GIB, lambda ps: GIB)
    with pytest.raises(BadInput, match="block"):
        exact_front(space, lambda shapes: shapes.workers, None, 0)


# ---- The area it covers.


def test_hypervolume_counts_each_place_once():
    cost, throughput = np.array([1.0, 2.0, 3.0, 2.5]), np.array([1.0, 3.0, 4.0, 2.0])
    # From the corner (4, 0): 1 wide and 1 high, 1 wide and 3 high, 1 wide and 4 high; (2.5, 2) is beaten.
    assert hypervolume(cost, throughput, (4.0, 0.0)) == pytest.approx(1 + 3 + 4)
    assert hypervolume(cost, throughput, (2.5, 0.5)) == pytest.approx(0.5 + 0.5 * 2.5)
    assert hypervolume(cost, throughput, (0.5, 0.0)) == 0
    assert hypervolume(np.array([]), np.array([]), (4.0, 0.0)) == 0


@given(CANDIDATES, st.integers(0, 7), st.integers(-1, 7))
def test_hypervolume_of_whole_numbers_is_a_count_of_squares(candidates, highest, lowest):
    usable = [one for one in candidates if math.isfinite(one.cost) and math.isfinite(one.throughput)]
    squares = sum(
        any(one.cost <= c and one.throughput >= t + 1 for one in usable)
        for c in range(0, highest) for t in range(lowest, 7)
    )  # fmt: skip
    cost, throughput = (np.array([getattr(one, name) for one in usable]) for name in ("cost", "throughput"))
    assert hypervolume(cost, throughput, (float(highest), float(lowest))) == pytest.approx(squares)
