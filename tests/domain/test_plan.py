"""Plans, prices and the stated cold default."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.plan import (
    SMALLEST_CPU,
    SMALLEST_PS_MEMORY,
    SMALLEST_WORKER_MEMORY,
    Limits,
    Plan,
    Prices,
    RolePlan,
    cold_plan,
)
from trimtab.core.errors import BadInput

GIB = 2**30
PLAN = Plan(ps=RolePlan(2, 0.5, GIB), worker=RolePlan(4, 1.25, 2 * GIB))


def test_a_plan_adds_up_and_reads_as_on_every_page():
    assert PLAN.cpu == 6.0
    assert PLAN.memory_bytes == 10 * GIB
    assert str(PLAN) == "4 × 1.25 + 2 × 0.5"
    assert PLAN.as_dict() == {
        "ps": {"replicas": 2, "cpu": "500m", "memory": "1Gi"},
        "worker": {"replicas": 4, "cpu": "1250m", "memory": "2Gi"},
    }


def test_an_hour_costs_cores_and_memory():
    assert Prices(core_hour=0.1, gib_hour=0.01).per_hour(PLAN) == pytest.approx(0.7)


@given(
    cpu=st.none() | st.floats(0.2, 64),
    memory=st.none() | st.integers(GIB, 256 * GIB),
    most_workers=st.none() | st.integers(1, 20),
    most_ps=st.none() | st.integers(1, 6),
    machine_cpu=st.floats(1, 64),
    machine_memory=st.integers(GIB, 256 * GIB),
    workers=st.none() | st.integers(1, 12),
    ps=st.none() | st.integers(1, 4),
)
def test_a_cold_plan_keeps_every_cap_or_says_which_one_is_too_small(
    cpu, memory, most_workers, most_ps, machine_cpu, machine_memory, workers, ps
):
    limits = Limits(cpu, memory, most_workers, most_ps)
    try:
        plan = cold_plan(limits, machine_cpu, machine_memory, workers=workers, ps=ps)
    except BadInput as error:
        assert error.field in ("--max-cpu", "--max-memory", "--workers", "--ps")
        return
    assert plan.cpu <= (cpu if cpu is not None else machine_cpu) + 1e-9
    assert plan.memory_bytes <= (memory if memory is not None else machine_memory)
    assert plan.worker.replicas <= (most_workers or math.inf) and plan.ps.replicas <= (most_ps or math.inf)
    assert workers in (None, plan.worker.replicas) and ps in (None, plan.ps.replicas)
    assert min(plan.ps.cpu, plan.worker.cpu) >= SMALLEST_CPU
    assert plan.ps.memory_bytes >= SMALLEST_PS_MEMORY and plan.worker.memory_bytes >= SMALLEST_WORKER_MEMORY


def test_the_default_on_two_cores_is_two_workers_and_one_ps():
    plan = cold_plan(Limits(), 2, 8 * GIB, workers=None, ps=None)
    assert (plan.worker.replicas, plan.ps.replicas) == (2, 1)
    assert plan.worker.cpu == pytest.approx(3 * plan.ps.cpu, abs=0.01)


@pytest.mark.parametrize(
    ("limits", "asked", "field", "words"),
    [
        (Limits(cpu=0.15), {}, "--max-cpu", "need at least"),
        (Limits(cpu=1.0), {"workers": 16}, "--max-cpu", "16 worker"),
        (Limits(memory_bytes=GIB // 2), {}, "--max-memory", "need at least"),
        (Limits(memory_bytes=2 * GIB), {"workers": 8}, "--max-memory", "8 worker"),
        (Limits(workers=2), {"workers": 3}, "--workers", "--max-workers is 2"),
        (Limits(ps=1), {"ps": 2}, "--ps", "--max-ps is 1"),
    ],
)
def test_limits_below_the_smallest_plan_are_bad_input(limits, asked, field, words):
    with pytest.raises(BadInput, match=words) as caught:
        cold_plan(limits, 4, 16 * GIB, workers=asked.get("workers"), ps=asked.get("ps"))
    assert caught.value.field == field
