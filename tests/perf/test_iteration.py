"""The iteration-time law: bounds that a CPU quota cannot break, and what it says at the ends."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.errors import BadInput
from trimtab.core.perf.iteration import Demand, exponent, iteration_seconds, throughput

CORES = st.floats(0.1, 8)
SECONDS = st.floats(1e-4, 2)


@st.composite
def plans(draw):
    ps, worker = draw(st.integers(1, 16)), draw(st.integers(1, 64))
    return Plan(RolePlan(ps, draw(CORES), 2**30), RolePlan(worker, draw(CORES), 2**30))


def plan(workers, worker_cpu, ps, ps_cpu):
    return Plan(RolePlan(ps, ps_cpu, 2**30), RolePlan(workers, worker_cpu, 2**30))


@given(SECONDS, SECONDS, plans())
def test_a_step_lies_between_the_largest_bound_and_little_more(worker, ps, given_plan):
    demand = Demand(worker, ps)
    bounds = (
        worker / given_plan.worker.cpu,
        given_plan.worker.replicas * ps / (given_plan.ps.replicas * given_plan.ps.cpu),
        worker + ps / given_plan.ps.replicas,
    )
    found = iteration_seconds(demand, given_plan)
    assert max(bounds) <= found * (1 + 1e-12)
    assert found <= max(bounds) * 3 ** (1 / 3) * (1 + 1e-12), "n is at least 3, so three equal bounds add 44 %"


@given(SECONDS, SECONDS, plans(), st.floats(0.01, 100))
def test_the_law_does_not_depend_on_the_unit_of_time(worker, ps, given_plan, factor):
    one = iteration_seconds(Demand(worker, ps), given_plan, 0.1)
    other = iteration_seconds(Demand(worker * factor, ps * factor), given_plan, 0.1 * factor)
    assert other == pytest.approx(one * factor, rel=1e-9)


def test_a_measured_configuration_is_met():
    """The hardest measured row: 17 and 9.1 CPU ms per step under quotas of 0.1 and 0.05 cores took 230 ms."""
    found = iteration_seconds(Demand(0.017, 0.0091), plan(1, 0.1, 1, 0.05), period_seconds=0.02)
    assert found == pytest.approx(0.230, rel=0.05)


def test_the_busier_side_decides():
    demand = Demand(0.00843, 0.00449)
    found = iteration_seconds(demand, plan(2, 0.3, 1, 0.1), period_seconds=0.02)
    assert found == pytest.approx(2 * 0.00449 / 0.1, rel=0.02), "the server's quota binds"
    other = iteration_seconds(demand, plan(2, 0.3, 1, 1.0), period_seconds=0.02)
    assert other == pytest.approx(0.00843 / 0.3, rel=0.02), "the workers' quota binds"


def test_throughput_is_the_rows_of_all_workers_over_the_step():
    demand, given_plan = Demand(0.01, 0.004), plan(4, 1.0, 2, 1.0)
    assert throughput(demand, given_plan, 512) == pytest.approx(4 * 512 / iteration_seconds(demand, given_plan))


def test_the_exponent_stays_between_a_sum_and_a_maximum():
    assert exponent(1e6, 1e6, 1, 0.1) == 3.0
    assert exponent(1e-9, 1e-9, 64, 0.1) == 60.0
    assert exponent(0.1, 0.1, 1, 0.1) == pytest.approx(1 + math.exp(2.584))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_demand_is_a_positive_time(wrong):
    with pytest.raises(BadInput, match=r"demand\.worker"):
        Demand(wrong, 1.0)
    with pytest.raises(BadInput, match=r"demand\.ps"):
        Demand(1.0, wrong)
