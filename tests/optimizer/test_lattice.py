"""The lattice: within the caps, one decision away, and the present plan in it."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.domain.job import Objective
from trimtab.core.domain.plan import SMALLEST_CPU, Limits, Plan, Prices, RolePlan, table_room
from trimtab.core.optimizer.lattice import lattice, needed_ps
from trimtab.core.optimizer.question import Question

GIB = 2**30


def question(plan, limits, enforced=True, **more):
    return Question(
        0.0, plan, 1024, 1000, (), (), limits, Objective.BALANCED, Prices(), (), {}, cpu_enforced=enforced, **more
    )


def plan(workers, worker_cpu, ps, ps_cpu, memory=GIB):
    return Plan(RolePlan(ps, ps_cpu, memory), RolePlan(workers, worker_cpu, memory))


PLANS = st.builds(
    plan, st.integers(1, 6), st.sampled_from([0.1, 0.25, 0.333, 1.0, 1.5, 4.0]), st.integers(1, 4),
    st.sampled_from([0.1, 0.3, 1.0, 2.0]),
)  # fmt: skip
LIMITS = st.builds(
    Limits, st.floats(0.3, 16), st.integers(GIB, 32 * GIB), st.integers(1, 10), st.integers(1, 5)
)  # fmt: skip


@settings(max_examples=60)
@given(PLANS, LIMITS, st.booleans())
def test_every_plan_keeps_the_caps_and_is_one_decision_away(present, limits, enforced):
    found = lattice(question(present, limits, enforced))
    for index in range(len(found)):
        one = found.plan(index)
        assert one.cpu <= limits.cpu + 1e-9 and one.memory_bytes <= limits.memory_bytes
        assert one.worker.replicas <= min(limits.workers, 2 * present.worker.replicas)
        assert one.ps.replicas <= min(limits.ps, 2 * present.ps.replicas)
        assert math.ceil(one.worker.cpu - 1e-9) == math.ceil(present.worker.cpu) or not enforced
        assert min(one.worker.cpu, one.ps.cpu) >= SMALLEST_CPU - 1e-9 or one == present
        assert (one.worker.memory_bytes, one.ps.memory_bytes) == (GIB, GIB)
        assert found.cost[index] == question(present, limits).prices.per_hour(one)
    inside = (
        present.cpu <= limits.cpu and present.memory_bytes <= limits.memory_bytes
        and present.worker.replicas <= limits.workers and present.ps.replicas <= limits.ps
    )  # fmt: skip
    assert (found.present is not None) == inside
    if inside:
        assert found.plan(found.present) == present


def test_two_cores_have_the_plans_one_would_name():
    found = lattice(question(plan(1, 1.0, 1, 0.3), Limits(2.0, 16 * GIB, 4, 4)))
    plans = {str(found.plan(index)) for index in range(len(found))}
    assert {"1 × 1 + 1 × 0.3", "2 × 0.8 + 1 × 0.4", "2 × 0.7 + 2 × 0.3", "1 × 0.5 + 1 × 0.1"} <= plans
    assert "3 × 0.4 + 1 × 0.4" not in plans, "at most twice the workers in one decision"


def test_everything_within_the_caps_is_more_than_one_decision_away_and_never_too_much():
    present = plan(1, 1.0, 1, 0.3)
    wide = question(present, Limits(16.0, 64 * GIB, 12, 4))
    near, far = lattice(wide), lattice(wide, everything=True)
    assert near.shapes.workers.max() == 2 and far.shapes.workers.max() == 12
    assert {int(one) for one in far.shapes.workers} == set(range(1, 13))
    assert far.present is not None and far.plan(far.present) == present
    huge = lattice(question(present, Limits(2000.0, 4000 * GIB, 2000, 2000)), everything=True)
    assert len(huge) < 500_000
    assert huge.shapes.workers.max() > 1500 and huge.present is not None


def test_a_large_job_looks_at_a_selection_with_the_next_steps_in_it():
    """100 workers and 60 PSs may become 200 and 120 in one decision: two million plans."""
    present = plan(100, 0.5, 60, 0.3)
    found = lattice(question(present, Limits(4000.0, 4000 * GIB, 10**9, 10**9)))
    assert len(found) < 600_000 and found.plan(found.present) == present
    assert {99, 100, 101, 200} <= set(found.shapes.workers) and {59, 60, 61, 120} <= set(found.shapes.ps)
    far = lattice(question(present, Limits(4000.0, 4000 * GIB, 10**9, 10**9)), everything=True)
    assert len(far) < 600_000 and far.plan(far.present) == present


def test_where_shares_do_not_hold_cores_only_follow_the_pods():
    found = lattice(question(plan(1, 1.0, 1, 0.3), Limits(2.0, 16 * GIB, 4, 4), enforced=False))
    plans = [str(found.plan(index)) for index in range(len(found))]
    assert plans == ["1 × 1 + 1 × 0.3", "1 × 1 + 2 × 0.3", "2 × 0.85 + 1 × 0.25", "2 × 0.75 + 2 × 0.25"]
    back = lattice(question(plan(2, 0.85, 1, 0.25), Limits(2.0, 16 * GIB, 4, 4), enforced=False))
    assert "1 × 1 + 1 × 0.3" in [str(back.plan(index)) for index in range(len(back))], "the way back leads back"


def test_the_table_decides_how_few_servers_there_may_be():
    present = plan(1, 1.0, 2, 0.3)
    each = table_room(GIB)
    small = question(present, Limits(4.0, 16 * GIB, 4, 4), table_bytes=each // 2)
    assert needed_ps(small) == 1
    grown = question(present, Limits(4.0, 16 * GIB, 4, 4), table_bytes=each // 2, table_bytes_at_end=2 * each)
    assert needed_ps(grown) == 3, "twice what one holds, and a fifth for the fullest"
    found = lattice(grown)
    assert {int(one) for one in found.shapes.ps} == {3, 4}
    assert found.present is None


def test_the_fullest_server_is_reckoned_with_as_it_was_measured():
    present = plan(1, 1.0, 2, 0.3)
    each = table_room(GIB)
    limits = Limits(4.0, 16 * GIB, 4, 4)
    full = question(present, limits, table_bytes=each, table_bytes_high=int(1.9 * each))
    assert needed_ps(full) == 3, "until it is known how full the fullest is"
    assert needed_ps(replace(full, table_skew=1.04)) == 2, "these two hold it"
    assert needed_ps(replace(full, table_skew=1.4)) == 3 == needed_ps(replace(full, table_skew=1.1))
    assert needed_ps(replace(full, table_bytes=0, table_bytes_high=each // 2, table_skew=1.9)) == 1
