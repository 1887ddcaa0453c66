"""A month of made-up recurring jobs, and a simple job that the product's decisions lead from its first plan to its end.

The month: six families start once a day for thirty days. Their data grows by 2 % a day, and the cores that a run ends
with, of all workers and of all parameter servers, grow with it; each total scatters by a log-normal factor of sd 5 %,
and the plan has pods of like size in twentieths of a core. On day 17 a change that no tag shows takes 1.6 times the
cores from then on. Each day has new data (another fingerprint), every twelfth run fails first and is repeated.

The job: a step takes (A^8 + (w S)^8 + L^8)^(1/8) seconds, with A a worker's CPU seconds over its cores, S the busiest
server's CPU seconds per batch over its cores, w the number of workers and L what a step takes at least; this is not a
law that the product fits. Each window of 3 s scatters by 7 %; `decide` is asked after every second one, and a change
costs 1.5 s of training.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from trimtab.core.domain.job import JobSpec, JobState, Objective, PlanChange
from trimtab.core.domain.plan import Limits, Plan, Prices, RolePlan
from trimtab.core.domain.records import Decision, JobRecord, Observation, WarmStart
from trimtab.core.optimizer.decide import decide
from trimtab.core.optimizer.question import Question
from trimtab.core.optimizer.start import first_plan
from trimtab.core.optimizer.warm_start import prior_observations, warm_start

GIB, DAY_SECONDS, NOW = 2**30, 86_400.0, 1_790_000_000.0
DAYS, REGIME_DAY, REGIME, DRIFT, NOISE = 30, 17, 1.6, 0.02, 0.05
FAILS_EVERY = 12
# name: cores of all workers on day 0, most cores of one, cores of all servers, most cores of one
FAMILIES = {
    "ranking": (110.0, 8.0, 15.0, 4.0), "retrieval": (80.0, 4.0, 8.0, 2.0), "clicks": (135.0, 8.0, 22.0, 4.0),
    "feed": (40.0, 4.0, 12.0, 2.0), "search": (24.0, 2.0, 6.0, 1.0), "nightly": (8.0, 1.0, 3.0, 0.5),
}  # fmt: skip


def role(cores: float, most: float) -> RolePlan:
    """`cores` as pods of at most `most` cores, each in twentieths of a core."""
    replicas = max(1, math.ceil(cores / most - 1e-9))
    return RolePlan(replicas, max(0.1, round(cores / replicas * 20) / 20), 2 * GIB)


def tags_of(family: str, day: int, seed: int) -> dict[str, str]:
    """The identity of a family's job of a day."""
    rows = 5e7 * (1 + DRIFT) ** day
    return {
        "model": "dlrm", "model_fingerprint": family, "columns": "c", "batch_size": "1024", "job_name": family,
        "data": f"{family}-{seed}-{day}", "rows": f"{rows:.0f}", "embedding_rows": f"{rows / 9:.0f}",
        "embedding_dim": "16", "max_cpu": "256", "max_memory_bytes": str(2048 * GIB),
    }  # fmt: skip


def month(seed: int, visit: Callable[[str, int, WarmStart | None, Plan, list[Plan]], None]) -> None:
    """Let a month pass: `visit(family, day, what warm start said, the plan it ended with, the plans before)`."""
    for at, family in enumerate(FAMILIES):
        chance = random.Random(seed * 100 + at)
        worker, worker_most, ps, ps_most = FAMILIES[family]
        records: list[JobRecord] = []
        before: list[Plan] = []
        for day in range(DAYS):
            began = NOW + day * DAY_SECONDS + 3600 * at
            tags = tags_of(family, day, seed)
            found = warm_start(records, tags, began) if records else None
            size = (1 + DRIFT) ** day * (REGIME if day >= REGIME_DAY else 1.0)
            final = Plan(
                role(ps * size * math.exp(chance.gauss(0, NOISE)), ps_most),
                role(worker * size * math.exp(chance.gauss(0, NOISE)), worker_most),
            )
            visit(family, day, found, final, before)
            name, wall = f"{family}-{day:02d}", 3600 * math.exp(chance.gauss(0, 0.1))
            record = JobRecord(
                name, family, JobState.FINISHED, tags, (PlanChange(0.0, final, ""),),
                (Observation(final, 1e6, None, None, 1024, 600.0, 60.0, 10_000),), (), {"wall_seconds": wall},
                started_at=began, ended_at=began + wall,
            )  # fmt: skip
            if chance.randrange(FAILS_EVERY) == 0:
                records.append(replace(record, run_id=f"{name}-failed", state=JobState.FAILED))
            records.append(record)
            before.append(final)


@dataclass(frozen=True)
class Family:
    """A job that the decisions lead: CPU seconds of a batch of a worker and of all servers, and the least of a step."""

    name: str
    worker: float
    ps: float
    least: float
    batches: int


JOBS = (
    Family("wide", 0.030, 0.006, 0.004, 60_000),
    Family("deep", 0.090, 0.008, 0.006, 30_000),
    Family("tables", 0.020, 0.020, 0.004, 50_000),
)
CAPS = Limits(16.0, 64 * GIB, 12, 6)
BATCH, WINDOW_SECONDS, SWITCH_SECONDS, WINDOW_NOISE = 1024, 3.0, 1.5, 0.07
_MOST_WINDOWS = 3000


def step(family: Family, plan: Plan) -> float:
    """True seconds of a step; see this module."""
    w, p = plan.worker.replicas, plan.ps.replicas
    worker = family.worker / plan.worker.cpu
    server = family.ps * (0.8 + 0.2 * p) / p / plan.ps.cpu
    return float((worker**8 + (w * server) ** 8 + family.least**8) ** (1 / 8))


def run_job(family: Family, day: int, seed: int, records: list[JobRecord], now: float) -> JobRecord:
    """One job from its first plan (warm where `records` say something) to its end; its record."""
    chance = random.Random(f"{family.name}-{day}-{seed}")
    left = total = round(family.batches * (1 + DRIFT) ** day)
    tags = {**tags_of(family.name, day, seed), "max_cpu": f"{CAPS.cpu:g}", "rows": str(total * BATCH)}
    warm = warm_start(records, tags, now)
    prior = prior_observations(records, [one.run_id for one in warm.runs])
    plan = first_plan(JobSpec("rows", objective="fastest"), CAPS, warm, True).plan
    plans, windows, decisions = [PlanChange(0.0, plan, "")], list[Observation](), list[Decision]()
    time = 0.0
    costs = {"worker": SWITCH_SECONDS, "ps": SWITCH_SECONDS, "cpu": 0.2}
    for index in range(_MOST_WINDOWS):
        seconds = step(family, plan) * math.exp(chance.gauss(0, WINDOW_NOISE))
        speed = plan.worker.replicas / seconds  # batches per second
        length = min(WINDOW_SECONDS, left / speed)
        time, left = time + length, left - max(1, round(speed * length))
        if left <= 0:
            break
        cpu = [family.worker, family.ps * (0.8 + 0.2 * plan.ps.replicas)]
        cpu = [one * math.exp(chance.gauss(0, 0.03)) for one in cpu]
        windows.append(
            Observation(plan, speed * BATCH, cpu[0], cpu[1], BATCH, time, length, round(speed * length))
        )  # fmt: skip
        if index % 2 == 0:
            continue
        asked = Question(
            time, plan, BATCH, left, tuple(windows), prior, CAPS, Objective("fastest"), Prices(), tuple(decisions),
            costs,
        )  # fmt: skip
        made = replace(decide(asked), number=len(decisions) + 1)
        if made.changes_plan:
            plan, time = made.plan, time + SWITCH_SECONDS
            made = replace(made, switch_seconds=SWITCH_SECONDS)
            plans.append(PlanChange(time, plan, made.reason))
        decisions.append(made)
    return JobRecord(
        f"{family.name}-{day:02d}", family.name, JobState.FINISHED, tags, tuple(plans), tuple(windows),
        tuple(decisions), {"wall_seconds": time, "samples_per_second": total * BATCH / time},
        started_at=now, ended_at=now + time,
    )  # fmt: skip
