"""The exact front against its definition, by comparing every pair."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.optimizer.front import Candidate, front

NUMBER = st.integers(0, 6).map(float) | st.sampled_from([math.nan, math.inf, -math.inf])


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
