"""Records of made-up jobs, small and whole."""

from dataclasses import replace

from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.plan import Limits, Plan, RolePlan
from trimtab.core.domain.records import (
    Considered,
    Decision,
    JobEvent,
    JobRecord,
    Observation,
    PastRun,
    PodSample,
    Range,
    Sample,
    WarmStart,
)  # fmt: skip

START = 1_790_000_000.0
SMALL = Plan(RolePlan(1, 0.25, 2**29), RolePlan(1, 0.75, 2**30))
LARGE = Plan(RolePlan(1, 0.5, 2**29), RolePlan(2, 0.75, 2**30))


def job(run_id, tags=None, figures=None, **more):
    """A finished job with nothing but tags and figures."""
    return JobRecord(run_id, "daily", JobState.FINISHED, tags or {}, (), (), (), figures or {}, **more)


def sample(at, throughput=1000.0, predicted=None, workers=1):
    pods = [PodSample(f"worker-{place}-t1-g0", "worker", 0.7, 2**30) for place in range(workers)]
    pods.append(PodSample("ps-0-t1-g0", "ps", None, 2**28))
    done = int(at * 10) if 0 <= at < 1e6 else 0
    return Sample(at, throughput, predicted, tuple(pods), done, 2**20)


def full(run_id="20261130-201758-a1b2c3", seconds=20, **more):
    """A job with everything that a record can hold; it grew once, at 10 s."""
    considered = (Considered(LARGE, Range(1800.0, 1600.0, 2000.0), 0.07, True), Considered(SMALL, Range(1e3), 0.04))
    decisions = (
        Decision(0.0, "start", SMALL, "the default for this machine", 1, "Start with 1 × 0.75 + 1 × 0.25"),
        Decision(
            10.0, "grow", LARGE, "Workers use 97 % of their cores", 2, "Add 1 worker: 1 → 2", SMALL,
            evidence=("PSs used 40 % of their cores",), considered=considered, predicted=Range(1800.0, 1600.0, 2000.0),
            present=Range(1000.0), held=("k2",), switch_seconds=1.5, paused_seconds=0.1, measured=1750.0,
        ),
    )  # fmt: skip
    record = JobRecord(
        run_id, "daily", JobState.FINISHED, {"model": "dlrm", "batch_size": "1024", "job_name": "daily"},
        (PlanChange(0.0, SMALL, "the default for this machine"), PlanChange(10.5, LARGE, "Workers use 97 %")),
        (Observation(SMALL, 1000.0, 0.018, None, 1024, 8.0, 3.0, 30, {"compute": 0.01}),),
        decisions,
        {"auc": 0.75, "samples_per_second": 1400.0, "wall_seconds": 21.0},
        tuple(sample(at + 0.5, 1000.0 + at, 1800.0 if at > 10 else None, 1 if at < 11 else 2) for at in range(seconds)),
        (JobEvent(3.0, "checkpoint", "written"),),
        START, START + seconds + 1, "balanced", Limits(2.0, 2**32, 4, 2),
        warm_start=WarmStart((PastRun("20261129-x", 3600.0, 0.9, 1.0, SMALL, 20.0, 990.0),), SMALL, (), None, "warm"),
    )  # fmt: skip
    return replace(record, **more)
