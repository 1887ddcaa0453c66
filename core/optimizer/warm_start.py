"""The plan that similar past runs speak for.

Runs of another model, other columns or another batch size say nothing, whatever else is alike, so those tags must be
equal. Runs of the job's own family (its name), and of the very same built model, are taken before others: where there
are any, others say nothing. Among the rest a run counts the more, the more it is alike and the newer it is. Newer runs
weigh more than older ones from the first pair on: the plain recursion A = mu new + (1 - mu) A gives the oldest run the
largest weight of all, so its weights are used normalised here. A run that failed says nothing about a good plan; one
that ran out of memory says what was too little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import SMALLEST_CPU, Plan, RolePlan
from trimtab.core.domain.quantities import format_memory
from trimtab.core.domain.records import JobRecord, Observation, PastRun, Range, WarmStart

HARD_TAGS = ("model", "columns", "batch_size")  # must be equal
FIRST_TAGS = ("job_name", "model_fingerprint")  # where runs with equal ones are there, others say nothing
MOST_RUNS = 5
SMOOTHING = 0.35  # mu: by how much each newer run takes over
OUT_OF_MEMORY_FACTOR = 1.5  # what ran out of memory gets so much of it the next time
LEAST_SIMILARITY = 0.3
_LONG_ENOUGH_SECONDS, _LONG_ENOUGH_SHARE = 10.0, 0.2  # a plan counts if it was in force for the smaller of both
_MOST_PRIOR = 40  # observations
_WEIGHTS = {"data": 2.0, "rows": 1.0, "max_cpu": 2.0, "max_memory_bytes": 1.0, "embedding_dim": 1.0}


def warm_start(past: Sequence[JobRecord], tags: Mapping[str, str], now: float) -> WarmStart:
    """What the first plan can rest on.

    Args:
        past: records of any runs, in any order.
        tags: the new job's identity.
        now: seconds since 1970; where a run ended later than that, the clock went back, and its age counts as 0.

    Returns:
        Without `runs` it is a cold start. A `plan` without runs comes from runs that ran out of memory: its memory
        per pod is a floor, nothing else of it counts.
    """
    alike = [job for job in past if all(job.tags.get(name) == tags.get(name) for name in HARD_TAGS)]
    for name in FIRST_TAGS:
        own = [job for job in alike if job.tags.get(name) == tags.get(name) and final_plan(job) is not None]
        alike = [job for job in alike if job in own or final_plan(job) is None] if own else alike
    short, floors = _floors(alike)
    ranked: list[tuple[float, JobRecord, Plan]] = []
    for job in alike:
        plan = final_plan(job)
        if plan is None:
            continue
        similar = similarity(job.tags, tags)
        if similar >= LEAST_SIMILARITY:
            ranked.append((similar, job, plan))
    if not ranked:
        return WarmStart(plan=short, floors=floors, note=_cold_note(len(past), len(alike), floors))
    ranked.sort(key=lambda entry: (-entry[0], -(entry[1].ended_at or 0.0), entry[1].run_id))
    top = sorted(ranked[:MOST_RUNS], key=lambda entry: (-(entry[1].ended_at or 0.0), entry[1].run_id))
    raw = [similar * (1 - SMOOTHING) ** place for place, (similar, _, _) in enumerate(top)]
    weights = [one / sum(raw) for one in raw]
    plan = _smoothed([entry[2] for entry in top], weights)
    if short is not None:
        plan = _at_least(plan, short)
    runs = tuple(
        PastRun(
            job.run_id, max(0.0, now - (job.ended_at if job.ended_at is not None else now)), similar, weight,
            final, _finite(job.figures.get("wall_seconds")), _throughput(job, final),
        )
        for (similar, job, final), weight in zip(top, weights, strict=True)
    )  # fmt: skip
    runs = tuple(sorted(runs, key=lambda run: (-run.weight, run.age_seconds, run.run_id)))
    return WarmStart(runs, plan, floors, _predicted(runs, plan), _note(runs, plan, floors))


def prior_observations(past: Sequence[JobRecord], runs: Sequence[str] | None = None) -> tuple[Observation, ...]:
    """Observations of past runs for `Question.prior`: of `runs` (all where None), the newest runs' first kept.

    At most 40, evenly over the runs, so that one long run does not outvote the others.
    """
    chosen = [job for job in past if job.observations and (runs is None or job.run_id in set(runs))]
    chosen.sort(key=lambda job: (-(job.ended_at or 0.0), job.run_id))
    chosen = chosen[:MOST_RUNS]
    each = _MOST_PRIOR // max(1, len(chosen))
    found: list[Observation] = []
    for job in reversed(chosen):
        step = max(1, math.ceil(len(job.observations) / each))
        found.extend(job.observations[::step])
    return tuple(found)


def final_plan(job: JobRecord) -> Plan | None:
    """The last plan that was in force long enough to count; None for a run that failed or never had one."""
    if job.state not in (JobState.FINISHED, JobState.STOPPED) or job.out_of_memory or not job.plans:
        return None
    end = job.figures.get("wall_seconds")
    if end is None or not math.isfinite(end):
        end = max((one.time_seconds for one in job.observations), default=job.plans[-1].time_seconds)
    end = max(end, job.plans[-1].time_seconds)
    # Before its first plan a job reads rows and looks at the model: that is no part of what plans are measured by.
    enough = min(_LONG_ENOUGH_SECONDS, _LONG_ENOUGH_SHARE * (end - job.plans[0].time_seconds))
    proven = [one for one in job.decisions if one.plan == job.plans[-1].plan and one.measured is not None]
    if proven:
        return job.plans[-1].plan  # measured, and not taken back
    until = end
    for change in reversed(job.plans):
        if until - change.time_seconds >= enough:
            return change.plan
        until = change.time_seconds
    return None


def similarity(past: Mapping[str, str], tags: Mapping[str, str]) -> float:
    """How alike two runs with equal hard tags are: 1 the same data, size and caps; towards 0 nothing in common."""
    total, weight = 0.0, 0.0
    for name, each in _WEIGHTS.items():
        one, other = past.get(name), tags.get(name)
        if one is None and other is None:
            continue
        total += each * _alike(one, other, name == "data")
        weight += each
    return max(1e-3, total / weight) if weight else 1.0


def _alike(one: str | None, other: str | None, exact: bool) -> float:
    if one == other:
        return 1.0
    if one is None or other is None:
        return 0.5
    try:
        first, second = float(one), float(other)
    except ValueError:
        return 0.5 if exact else 0.3
    if exact:
        return 0.5
    if not (math.isfinite(first) and math.isfinite(second) and first > 0 and second > 0):
        return 0.3
    return math.exp(-abs(math.log(first / second)))


def _smoothed(plans: Sequence[Plan], weights: Sequence[float]) -> Plan:
    """The weighted mean; exactly the plan where all are the same."""
    if all(plan == plans[0] for plan in plans):
        return plans[0]
    return Plan(
        _smoothed_role([plan.ps for plan in plans], weights), _smoothed_role([plan.worker for plan in plans], weights)
    )


def _smoothed_role(roles: Sequence[RolePlan], weights: Sequence[float]) -> RolePlan:
    pairs = list(zip(roles, weights, strict=True))
    replicas = max(1, round(sum(role.replicas * weight for role, weight in pairs)))
    cores = sum(role.replicas * role.cpu * weight for role, weight in pairs) / replicas
    # Threads of a worker are as many as its cores, rounded up: a mean must not have more than the largest had.
    cores = min(max(role.cpu for role in roles), max(SMALLEST_CPU, round(cores * 20) / 20))
    memory = max(role.memory_bytes for role in roles)  # too much memory costs little, too little kills
    return RolePlan(replicas, cores, memory)


def _floors(alike: Sequence[JobRecord]) -> tuple[Plan | None, tuple[str, ...]]:
    """The least memory per pod that runs which ran out of it ask for, and the same in words."""
    least: Plan | None = None
    words: list[str] = []
    for job in alike:
        if job.out_of_memory not in ("ps", "worker") or not job.plans:
            continue
        plan = job.plans[-1].plan
        role = plan.ps if job.out_of_memory == "ps" else plan.worker
        name = "PS" if job.out_of_memory == "ps" else "worker"
        words.append(f"run {job.run_id} ran out of memory with {format_memory(role.memory_bytes)} per {name}")
        more = replace(role, memory_bytes=int(role.memory_bytes * OUT_OF_MEMORY_FACTOR) >> 20 << 20)
        raised = replace(plan, ps=more) if name == "PS" else replace(plan, worker=more)
        zero = Plan(replace(raised.ps, memory_bytes=0), replace(raised.worker, memory_bytes=0))
        raised = replace(zero, ps=raised.ps) if name == "PS" else replace(zero, worker=raised.worker)
        least = raised if least is None else _at_least(least, raised)
    return least, tuple(words)


def _at_least(plan: Plan, floor: Plan) -> Plan:
    return Plan(
        replace(plan.ps, memory_bytes=max(plan.ps.memory_bytes, floor.ps.memory_bytes)),
        replace(plan.worker, memory_bytes=max(plan.worker.memory_bytes, floor.worker.memory_bytes)),
    )


def _throughput(job: JobRecord, plan: Plan) -> float | None:
    """Samples per second of the last windows of `plan`; of the whole run where there is none."""
    windows = [one.throughput for one in job.observations if one.plan == plan and math.isfinite(one.throughput)]
    if windows:
        last = windows[-5:]
        return sum(last) / len(last)
    return _finite(job.figures.get("samples_per_second"))


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _predicted(runs: Sequence[PastRun], plan: Plan) -> Range | None:
    """Weighted mean of the throughput of the runs that ended with `plan`; without a range: none of it is recent."""
    known = [(run.throughput, run.weight) for run in runs if run.throughput is not None and run.plan == plan]
    weight = sum(one for _, one in known)
    return Range(sum(value * one for value, one in known) / weight) if weight > 0 else None


def _note(runs: Sequence[PastRun], plan: Plan, floors: Sequence[str]) -> str:
    names = ", ".join(run.run_id for run in runs)
    text = f"warm start from {len(runs)} run{'' if len(runs) == 1 else 's'} ({names}): {plan}"
    return "; ".join([text, *floors])


def _cold_note(past: int, alike: int, floors: Sequence[str]) -> str:
    if not past:
        text = "cold start, there is no past run"
    elif not alike:
        text = f"cold start, none of {past} past run{'' if past == 1 else 's'} has this model, columns and batch size"
    else:
        text = f"cold start, none of {alike} similar run{'' if alike == 1 else 's'} ended well and long enough"
    return "; ".join([text, *floors])
