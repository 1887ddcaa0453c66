"""A plan cut down to smaller caps: within them, never larger in anything, and only as much as needed."""

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.plan import SMALLEST_CPU, Limits, Plan, RolePlan, within
from trimtab.core.optimizer.smaller import smaller
from trimtab.core.optimizer.words import kind_of

GIB = 2**30


def plan(workers, worker_cpu, ps, ps_cpu, worker_memory=GIB, ps_memory=GIB):
    return Plan(RolePlan(ps, ps_cpu, ps_memory), RolePlan(workers, worker_cpu, worker_memory))


def test_what_fits_stays():
    present = plan(2, 0.8, 1, 0.4)
    assert smaller(present, Limits(2.0, 8 * GIB, 4, 4)) == present
    assert smaller(present, Limits()) == present


def test_cores_are_cut_in_the_same_ratio_first():
    assert smaller(plan(2, 0.8, 1, 0.4), Limits(1.0, 8 * GIB, 4, 4)) == plan(2, 0.4, 1, 0.2)


def test_who_would_come_below_the_least_keeps_that_and_the_others_give_it():
    assert smaller(plan(2, 0.8, 1, 0.2), Limits(0.7, 8 * GIB, 4, 4)) == plan(2, 0.3, 1, 0.1)


def test_pods_go_where_memory_does_not_fit_from_the_role_that_has_more():
    assert smaller(plan(4, 0.4, 2, 0.2), Limits(2.0, 4 * GIB, 9, 9)) == plan(2, 0.4, 2, 0.2)
    assert smaller(plan(2, 0.4, 4, 0.1), Limits(2.0, 4 * GIB, 9, 9)) == plan(2, 0.4, 2, 0.1)
    assert smaller(plan(2, 0.4, 4, 0.1), Limits(2.0, 5 * GIB, 9, 9), least_ps=4) == plan(1, 0.4, 4, 0.1)


def test_where_nothing_fits_there_is_none():
    assert smaller(plan(1, 0.5, 1, 0.5), Limits(0.15, 8 * GIB, 4, 4)) is None
    assert smaller(plan(1, 0.5, 2, 0.5), Limits(1.0, 2 * GIB, 4, 4), least_ps=2) is None
    assert smaller(plan(1, 0.5, 2, 0.5), Limits(1.0, 8 * GIB, 4, 1), least_ps=2) is None


cores = st.integers(50, 4000).map(lambda one: one / 1000)
plans = st.builds(plan, st.integers(1, 8), cores, st.integers(1, 8), cores, st.integers(1, 4 * GIB),
                  st.integers(1, 4 * GIB))  # fmt: skip


@given(plans, cores, st.integers(1, 40 * GIB), st.integers(1, 9), st.integers(1, 9), st.integers(1, 4))
def test_it_is_within_and_nothing_grows(present, cpu, memory, workers, ps, least_ps):
    limits = Limits(cpu, memory, workers, ps)
    cut = smaller(present, limits, least_ps)
    if cut is None:
        one, few = present.worker, min(least_ps, present.ps.replicas)
        least = Plan(
            RolePlan(few, min(SMALLEST_CPU, present.ps.cpu), present.ps.memory_bytes),
            RolePlan(1, min(SMALLEST_CPU, one.cpu), one.memory_bytes),
        )
        # Shares are cut to thousandths, so what fits to the last one may not be found.
        assert not within(least, Limits(cpu - 0.01, memory, workers, ps))
        return
    assert within(cut, limits)
    assert kind_of(present, cut) in ("hold", "shrink")
    for before, after in ((present.worker, cut.worker), (present.ps, cut.ps)):
        assert after.replicas <= before.replicas and after.cpu <= before.cpu
        assert after.memory_bytes == before.memory_bytes and after.cpu >= min(SMALLEST_CPU, before.cpu)
    assert cut.ps.replicas >= min(least_ps, present.ps.replicas)
