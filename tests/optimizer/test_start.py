"""First plans: small when cold, where others ended when warm, within the caps always."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import (
    SMALLEST_CPU,
    SMALLEST_PS_MEMORY,
    SMALLEST_WORKER_MEMORY,
    Limits,
    Plan,
    RolePlan,
    cold_plan,
    table_room,
)
from trimtab.core.domain.records import PastRun, Range, WarmStart
from trimtab.core.errors import BadInput
from trimtab.core.optimizer.past_memory import MemoryNeed
from trimtab.core.optimizer.start import ZYGOTE_MEMORY, caps_for_pods, first_plan
from trimtab.core.perf.memory import Expected

GIB, MIB = 2**30, 2**20
CAPS = Limits(2.0, 6 * GIB)


def plan(workers, worker_cpu, ps, ps_cpu, worker_memory=GIB, ps_memory=GIB):
    return Plan(RolePlan(ps, ps_cpu, ps_memory), RolePlan(workers, worker_cpu, worker_memory))


def warm(one, **more):
    run = PastRun("20261130-abcd", 60.0, 1.0, 1.0, one)
    note = f"warm start from 1 run (20261130-abcd): {one}"
    return WarmStart((run,), one, predicted=Range(80_000.0), note=note, **more)


def test_a_cold_job_starts_small_with_room_to_grow():
    made = first_plan(JobSpec("rows"), CAPS, None, True)
    assert (made.kind, made.before, made.time_seconds) == ("start", None, 0.0)
    assert str(made.plan) == "1 × 1 + 1 × 0.3"
    assert made.action == "Start with 1 × 1 + 1 × 0.3"
    assert made.reason == (
        "Cold start, no past run to start from: start small with 1 × 1 + 1 × 0.3 and grow where it pays."
    )
    worker, ps = made.plan.worker.memory_bytes, made.plan.ps.memory_bytes
    assert 2 * worker + 2 * ps + ZYGOTE_MEMORY <= 6 * GIB, "two workers, two PSs and the zygotes fit"
    assert worker > SMALLEST_WORKER_MEMORY and ps > SMALLEST_PS_MEMORY


def test_why_nothing_was_looked_for_is_part_of_the_sentence():
    made = first_plan(JobSpec("rows"), CAPS, WarmStart(note="No past run was looked for"), True)
    assert made.reason.startswith("Cold start, no past run was looked for: start small with")


def test_wishes_are_the_starting_point_and_tight_caps_shrink_shares():
    asked = first_plan(JobSpec("rows", workers=3, ps=2), CAPS, None, True).plan
    assert (asked.worker.replicas, asked.ps.replicas) == (3, 2) and asked.cpu <= 2
    tight = first_plan(JobSpec("rows"), Limits(0.5, 6 * GIB), None, True).plan
    assert str(tight) == "1 × 0.3 + 1 × 0.1"


def test_fixed_and_advise_take_the_stated_default():
    for mode in ("fixed", "advise"):
        made = first_plan(JobSpec("rows", mode=mode), CAPS, None, True)
        room, _ = caps_for_pods(JobSpec("rows", mode=mode), CAPS)
        assert made.plan == cold_plan(room, 2.0, 6 * GIB, workers=None, ps=None)
        assert made.reason.startswith(f"Mode {mode}: 2 × 0.857 + 1 × 0.285 within 2 cores")
    warm_too = first_plan(JobSpec("rows", mode="fixed", workers=1), CAPS, warm(plan(2, 0.8, 1, 0.4)), True)
    assert warm_too.plan.worker.replicas == 1 and "as asked for" in warm_too.reason


def test_a_warm_job_starts_where_the_others_ended():
    before = plan(2, 0.8, 1, 0.4)
    made = first_plan(JobSpec("rows"), CAPS, warm(before), True)
    assert made.plan == before
    assert made.reason == "Warm start from 1 run (20261130-abcd): 2 × 0.8 + 1 × 0.4."
    assert made.predicted == Range(80_000.0)


def test_a_warm_plan_is_cut_to_the_caps_and_gives_way_to_wishes():
    before = plan(4, 1.0, 2, 0.5, 2 * GIB, 2 * GIB)
    cut = first_plan(JobSpec("rows"), Limits(2.5, 6 * GIB, 3, 1), warm(before), True)
    assert (cut.plan.worker.replicas, cut.plan.ps.replicas) == (3, 1)
    assert cut.plan.cpu <= 2.5 and cut.plan.memory_bytes + ZYGOTE_MEMORY <= 6 * GIB
    assert "to stay within the caps" in cut.reason and cut.predicted is None
    asked = first_plan(JobSpec("rows", workers=1, ps=3), CAPS, warm(before), True)
    assert (asked.plan.worker.replicas, asked.plan.ps.replicas) == (1, 3) and "as asked for" in asked.reason


def test_runs_that_ran_out_of_memory_raise_what_a_pod_gets_and_nothing_else():
    floor = WarmStart(
        plan=plan(4, 1.0, 1, 0.5, 0, 3 * GIB), floors=("run x ran out of memory with 2Gi per PS",),
        note="cold start, none of 1 similar run ended well and long enough; run x ran out of memory with 2Gi per PS",
    )  # fmt: skip
    made = first_plan(JobSpec("rows"), CAPS, floor, True)
    assert str(made.plan) == "1 × 1 + 1 × 0.3"
    assert made.plan.ps.memory_bytes == 3 * GIB
    assert "run x ran out of memory" in made.reason
    little = first_plan(JobSpec("rows"), Limits(2.0, 2 * GIB), floor, True)
    assert little.plan.memory_bytes <= 2 * GIB, "a floor gives way to the cap"


def test_it_says_when_shares_do_not_hold_and_when_zygotes_have_no_room():
    assert "CPU shares are not enforced here." in first_plan(JobSpec("rows"), CAPS, None, False).reason
    small = first_plan(JobSpec("rows"), Limits(2.0, 2 * GIB), None, True)
    assert "2Gi leave no room for zygotes: pods start cold." in small.reason
    assert caps_for_pods(JobSpec("rows"), Limits(2.0, 2 * GIB)) == (Limits(2.0, 2 * GIB), False)
    assert caps_for_pods(JobSpec("rows"), CAPS) == (Limits(2.0, 6 * GIB - ZYGOTE_MEMORY), True)


@pytest.mark.parametrize(
    ("spec", "caps", "field"),
    [
        (JobSpec("rows"), Limits(0.15, 6 * GIB), "--max-cpu"),
        (JobSpec("rows"), Limits(2.0, 512 * MIB), "--max-memory"),
        (JobSpec("rows", workers=16), Limits(1.0, 64 * GIB), "--max-cpu"),
        (JobSpec("rows", workers=3), Limits(2.0, 6 * GIB, 2), "--workers"),
        (JobSpec("rows", mode="fixed", ps=3), Limits(2.0, 6 * GIB, None, 2), "--ps"),
        (JobSpec("rows"), Limits(None, 6 * GIB), "caps"),
    ],
)
def test_caps_that_are_too_small_are_bad_input(spec, caps, field):
    for said in (None, warm(plan(2, 0.8, 1, 0.4))):
        with pytest.raises(BadInput) as caught:
            first_plan(spec, caps, said, True)
        assert caught.value.field == field


def test_memory_for_one_worker_is_enough_in_mode_auto():
    made = first_plan(JobSpec("rows"), Limits(4.0, GIB), None, True)
    assert made.plan.memory_bytes <= GIB and made.plan.worker.replicas == 1


PLANS = st.builds(
    plan, st.integers(1, 12), st.sampled_from([0.1, 0.35, 0.8, 1.0, 2.5]), st.integers(1, 6),
    st.sampled_from([0.1, 0.4, 1.0]), st.integers(GIB // 2, 8 * GIB), st.integers(GIB // 4, 8 * GIB),
)  # fmt: skip


@given(
    caps=st.builds(Limits, st.floats(0.2, 32), st.integers(GIB, 64 * GIB), st.none() | st.integers(1, 12),
                   st.none() | st.integers(1, 6)),
    workers=st.none() | st.integers(1, 6), ps=st.none() | st.integers(1, 3),
    mode=st.sampled_from(["auto", "fixed", "advise"]), past=st.none() | PLANS,
)  # fmt: skip
def test_a_first_plan_keeps_every_cap_or_says_which_one_is_too_small(caps, workers, ps, mode, past):
    spec = JobSpec("rows", workers=workers, ps=ps, mode=mode)
    try:
        made = first_plan(spec, caps, warm(past) if past else None, True)
    except BadInput as error:
        assert error.field in ("--max-cpu", "--max-memory", "--workers", "--ps")
        return
    room, zygotes = caps_for_pods(spec, caps)
    one = made.plan
    assert one.cpu <= caps.cpu + 1e-9
    assert one.memory_bytes + (ZYGOTE_MEMORY if zygotes else 0) <= caps.memory_bytes
    assert room.memory_bytes == caps.memory_bytes - (ZYGOTE_MEMORY if zygotes else 0)
    assert one.worker.replicas <= (caps.workers or math.inf) and one.ps.replicas <= (caps.ps or math.inf)
    assert workers in (None, one.worker.replicas) and ps in (None, one.ps.replicas)
    assert min(one.worker.cpu, one.ps.cpu) >= SMALLEST_CPU - 1e-9
    assert one.worker.memory_bytes >= SMALLEST_WORKER_MEMORY and one.ps.memory_bytes >= SMALLEST_PS_MEMORY


def needs(table=None, worker=None, source="run x"):
    def about(nbytes):
        return Expected(nbytes, nbytes * 0.9, nbytes * 1.1) if nbytes else None

    return MemoryNeed(about(table), about(worker), source)


@pytest.mark.parametrize("before", [None, plan(2, 0.8, 1, 0.4)])
def test_pods_get_the_memory_that_is_expected_to_be_needed(before):
    said = warm(before) if before else None
    caps = Limits(2.0, 32 * GIB, 4, 4)
    plain = first_plan(JobSpec("rows"), caps, said, True)
    made = first_plan(JobSpec("rows"), caps, said, True, needs(12 * GIB, 5 * GIB))
    assert str(made.plan) == str(plain.plan)
    assert table_room(made.plan.ps.memory_bytes) >= 12 * 1.1 * 1.2 * GIB, "with the high end, and the fullest PS"
    assert made.plan.worker.memory_bytes >= 5.5 * GIB - MIB
    assert "the tables should reach 12Gi by run x, a worker should need 5Gi" in made.reason
    assert made.predicted == plain.predicted
    small = first_plan(JobSpec("rows"), caps, said, True, needs(8 * MIB, 600 * MIB))
    assert small == plain, "what is enough already stays"


def test_what_one_server_cannot_hold_is_shared_by_those_that_may_come():
    caps = Limits(2.0, 16 * GIB, 2, 4)
    made = first_plan(JobSpec("rows"), caps, None, True, needs(8 * GIB)).plan
    worst = 8 * 1.1 * 1.2 * GIB
    assert table_room(made.ps.memory_bytes) < worst, "it does not fit into one"
    each = made.ps.memory_bytes
    assert any(n * each <= 16 * GIB and table_room(each) >= worst / n for n in (2, 3, 4))
    fixed = first_plan(JobSpec("rows", mode="fixed", workers=1, ps=1), caps, None, True, needs(9 * GIB)).plan
    assert fixed.memory_bytes + ZYGOTE_MEMORY <= 16 * GIB and table_room(fixed.ps.memory_bytes) > table_room(GIB)


@given(table=st.integers(1, 2**44), worker=st.integers(1, 2**40), memory=st.integers(4 * GIB, 64 * GIB),
       mode=st.sampled_from(["auto", "fixed"]))  # fmt: skip
def test_no_forecast_breaks_a_cap(table, worker, memory, mode):
    made = first_plan(JobSpec("rows", mode=mode), Limits(4.0, memory, 4, 4), None, True, needs(table, worker))
    room, _ = caps_for_pods(JobSpec("rows", mode=mode), Limits(4.0, memory, 4, 4))
    assert made.plan.memory_bytes <= room.memory_bytes
