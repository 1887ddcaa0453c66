"""The plan that similar past runs speak for.

Runs of another model, other columns or another batch size say nothing, whatever else is alike, so those tags must be
equal. Runs of the job's own family (its name), and of the very same built model, are taken before others: where there
are any, others say nothing. Among the rest the most alike count, and what they say is smoothed in the order of time,
with drifts carried on and changes of level noticed (`series`). A run that failed says nothing about a good plan; one
that ran out of memory says what was too little.

Times in a record are those of the clock of the machine that wrote it. A clock that went back must not make a run the
newest for ever, nor give it a negative age, so a time is believed only as far as it agrees with the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import SMALLEST_CPU, Plan, RolePlan
from trimtab.core.domain.quantities import format_memory
from trimtab.core.domain.records import JobRecord, Observation, PastRun, Range, WarmStart
from trimtab.core.optimizer.past_memory import MEMORY_FIGURES
from trimtab.core.optimizer.series import Drift, Foreseen, Point, foresee

HARD_TAGS = ("model", "columns", "batch_size")  # must be equal
FIRST_TAGS = ("job_name", "model_fingerprint")  # where runs with equal ones are there, others say nothing
MOST_RUNS = 14  # k: as many as a drift of 2 % a day needs to be told from a scatter of 5 %
OUT_OF_MEMORY_FACTOR = 1.5  # what ran out of memory gets so much of it the next time
LEAST_SIMILARITY = 0.3
_LONG_ENOUGH_SECONDS, _LONG_ENOUGH_SHARE = 10.0, 0.2  # a plan counts if it was in force for the smaller of both
_MOST_PRIOR = 40  # observations
MOST_PRIOR_RUNS = 5
_NAMED = 3  # runs in a sentence
_CLOCKS_DIFFER_SECONDS = 300.0  # what the clocks of two machines may differ by
_DAY = 86_400.0
_WORTH_SAYING = 0.01
_WEIGHTS = {
    "data": 2.0, "rows": 1.0, "embedding_rows": 1.0, "max_cpu": 2.0, "max_memory_bytes": 1.0, "embedding_dim": 1.0,
}  # fmt: skip
_ENOUGH = 0.98  # of the cores to expect, before one more pod is needed for them
_ROLES = ("workers", "PSs")


def warm_start(past: Sequence[JobRecord], tags: Mapping[str, str], now: float, unread: int = 0) -> WarmStart:
    """What the first plan can rest on.

    Args:
        past: records of any runs, in any order.
        tags: the new job's identity.
        now: seconds since 1970.
        unread: runs of the history that could not be read; only said.

    Returns:
        Without `runs` it is a cold start. A `plan` without runs comes from runs that ran out of memory: its memory
        per pod is a floor, nothing else of it counts.
    """
    alike = [job for job in past if all(job.tags.get(name) == tags.get(name) for name in HARD_TAGS)]
    for name in FIRST_TAGS:
        ended_well = [final_plan(job) is not None for job in alike]
        own = [well and job.tags.get(name) == tags.get(name) for job, well in zip(alike, ended_well, strict=True)]
        if any(own):
            alike = [job for job, mine, well in zip(alike, own, ended_well, strict=True) if mine or not well]
    short, floors = _floors(alike)
    ranked: list[tuple[float, float | None, JobRecord, Plan]] = []
    for job in alike:
        plan = final_plan(job)
        if plan is None:
            continue
        similar = similarity(job.tags, tags)
        if similar >= LEAST_SIMILARITY:
            ranked.append((similar, ended(job, now), job, plan))
    also = [*floors, _unread(unread)] if unread else list(floors)
    if not ranked:
        return WarmStart(plan=short, floors=floors, note=_cold_note(len(past), len(alike), also))
    ranked.sort(key=lambda entry: (-entry[0], *_newest_first(entry[1]), entry[2].run_id))
    top = sorted(ranked[:MOST_RUNS], key=lambda entry: (*_newest_first(entry[1]), entry[2].run_id))[::-1]
    says = foresee(_series(top, now), now / _DAY, _positive(tags.get("rows")))
    counting = [(entry, weight) for entry, weight in zip(top, says.weights, strict=True) if weight > 0]
    plan = _planned([entry[3] for entry, _ in counting], [weight for _, weight in counting], says)
    if short is not None:
        plan = _at_least(plan, short)
    runs = tuple(
        PastRun(
            job.run_id, max(0.0, now - (when if when is not None else now)), similar, weight,
            final, _finite(job.figures.get("wall_seconds")), _throughput(job, final),
        )
        for (similar, when, job, final), weight in counting
    )  # fmt: skip
    runs = tuple(sorted(runs, key=lambda run: (-run.weight, run.age_seconds, run.run_id)))
    odd = sum(when is None for _, when, _, _ in top)
    words = [*_said(says, top), *([_odd_clock(odd)] if odd else []), *also]
    return WarmStart(runs, plan, floors, _predicted(runs, plan), _note(runs, plan, words))


def prior_observations(past: Sequence[JobRecord], runs: Sequence[str] | None = None) -> tuple[Observation, ...]:
    """Observations of past runs for `Question.prior`: of `runs`, heaviest first (None: of all, the newest first).

    At most 40 of at most 5 runs, evenly over these, so that one long run does not outvote the others; the run that is
    named first comes last, as the newest window does.
    """
    chosen = _speaking(past, runs)
    each = _MOST_PRIOR // max(1, len(chosen))
    found: list[Observation] = []
    for job in reversed(chosen):
        step = max(1, math.ceil(len(job.observations) / each))
        found.extend(job.observations[::step])
    return tuple(found)


def prior_runs(past: Sequence[JobRecord], runs: Sequence[str] | None = None) -> tuple[str, ...]:
    """The ids of the runs whose observations `prior_observations` takes."""
    return tuple(job.run_id for job in _speaking(past, runs))


def _speaking(past: Sequence[JobRecord], runs: Sequence[str] | None) -> list[JobRecord]:
    wanted = None if runs is None else set(runs)
    chosen = [job for job in past if job.observations and (wanted is None or job.run_id in wanted)]
    chosen.sort(key=lambda job: (-(job.ended_at or 0.0), job.run_id))
    if runs is not None:  # in the order of their weights, as a clock that went back does not change
        place = {run_id: at for at, run_id in enumerate(runs)}
        chosen.sort(key=lambda job: place[job.run_id])
    return chosen[:MOST_PRIOR_RUNS]


def final_plan(job: JobRecord) -> Plan | None:
    """The last plan that was in force long enough to count; None for a run that failed or never had one."""
    place = final_place(job)
    return job.plans[place].plan if place is not None else None


def final_place(job: JobRecord) -> int | None:
    """Where in `job.plans` the final plan stands; see `final_plan`."""
    if job.state not in (JobState.FINISHED, JobState.STOPPED) or job.out_of_memory or not job.plans:
        return None
    times = forward(job)
    end = _positive(job.figures.get("wall_seconds"))
    if end is None:
        end = max((one.time_seconds for one in job.observations), default=times[-1])
    end = max(end, times[-1])
    # Before its first plan a job reads rows and looks at the model: that is no part of what plans are measured by.
    enough = min(_LONG_ENOUGH_SECONDS, _LONG_ENOUGH_SHARE * (end - times[0]))
    proven = [one for one in job.decisions if one.plan == job.plans[-1].plan and one.measured is not None]
    if proven:
        return len(times) - 1  # measured, and not taken back
    until = end
    for place in reversed(range(len(times))):
        if until - times[place] >= enough:
            return place
        until = times[place]
    return None


def forward(job: JobRecord) -> list[float]:
    """When each plan of a job came into force; a clock that went back on the way adds nothing."""
    return list(accumulate((change.time_seconds for change in job.plans), max))


def ended(job: JobRecord, now: float) -> float | None:
    """When a run ended, seconds since 1970, at most `now`; None where its clock cannot be believed.

    An end that is still to come, or lies before the run's start, is a clock that went back; then the start and the
    length of the run say when it ended.
    """
    end, start, wall = job.ended_at, job.started_at, _positive(job.figures.get("wall_seconds"))
    latest = now + _CLOCKS_DIFFER_SECONDS
    if end is not None and math.isfinite(end) and start <= end <= latest:
        return min(end, now)
    if math.isfinite(start) and start > 0 and wall is not None and start + wall <= latest:
        return min(start + wall, now)
    return None


def similarity(past: Mapping[str, str], tags: Mapping[str, str]) -> float:
    """How alike two runs with equal hard tags are: 1 the same data, size and caps; towards 0 nothing in common."""
    total, weight = 0.0, 0.0
    for name, each in _WEIGHTS.items():
        one, other = past.get(name), tags.get(name)
        if (one is None and other is None) or (name == "embedding_rows" and not (one and other)):
            continue  # runs of older versions did not say how many embedding rows they have
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


def _newest_first(when: float | None) -> tuple[bool, float]:
    """A key to sort by: a run of which nobody knows when it ended is never the newest."""
    return when is None, -(when or 0.0)


def _series(top: Sequence[tuple[float, float | None, JobRecord, Plan]], now: float) -> list[Point]:
    """The runs, oldest first, as points whose values are the cores of all workers and of all PSs."""
    oldest = min((when for _, when, _, _ in top if when is not None), default=now)
    return [
        Point(
            (when if when is not None else oldest) / _DAY, _positive(job.tags.get("rows")), similar,
            (math.log(_cores(plan.worker)), math.log(_cores(plan.ps))), job.state is JobState.FINISHED,
        )
        for similar, when, job, plan in top
    ]  # fmt: skip


def _cores(role: RolePlan) -> float:
    return max(SMALLEST_CPU, role.replicas * role.cpu)


def _planned(plans: Sequence[Plan], weights: Sequence[float], says: Foreseen) -> Plan:
    """The plan with the cores to expect; exactly that of the runs where it is the same in all and nothing drifts."""
    if all(plan == plans[0] for plan in plans) and not any(says.carried):
        return plans[0]
    workers, servers = [plan.worker for plan in plans], [plan.ps for plan in plans]
    return Plan(
        _planned_role(servers, weights, math.exp(says.logs[1]), math.exp(says.carried[1])),
        _planned_role(workers, weights, math.exp(says.logs[0]), math.exp(says.carried[0])),
    )


def _planned_role(roles: Sequence[RolePlan], weights: Sequence[float], cores: float, factor: float) -> RolePlan:
    """`cores` as pods like those of the runs; `factor`: by which these were carried on."""
    most = max(role.cpu for role in roles)
    usual = sum(role.replicas * weight for role, weight in zip(roles, weights, strict=True))
    replicas = max(1, round(usual * factor))
    # Threads of a worker are as many as its cores, rounded up: a pod must not have more than the largest had.
    replicas += replicas * most < cores * _ENOUGH
    cpu = min(most, max(SMALLEST_CPU, round(cores / replicas * 20) / 20))
    memory = max(role.memory_bytes for role in roles)  # too much memory costs little, too little kills
    return RolePlan(replicas, cpu, memory)


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
        had = max(role.memory_bytes, _given(job))
        words.append(f"run {job.run_id} ran out of memory with {format_memory(had)} per {name}")
        more = replace(role, memory_bytes=int(had * OUT_OF_MEMORY_FACTOR) >> 20 << 20)
        raised = replace(plan, ps=more) if name == "PS" else replace(plan, worker=more)
        zero = Plan(replace(raised.ps, memory_bytes=0), replace(raised.worker, memory_bytes=0))
        raised = replace(zero, ps=raised.ps) if name == "PS" else replace(zero, worker=raised.worker)
        least = raised if least is None else _at_least(least, raised)
    return least, tuple(words)


def _given(job: JobRecord) -> int:
    """What a pod of the role whose memory ended the job had beyond the plan; 0 for none, or where it is not known."""
    found = job.figures.get(MEMORY_FIGURES[job.out_of_memory], 0.0)
    return int(found) if math.isfinite(found) else 0


def _at_least(plan: Plan, floor: Plan) -> Plan:
    return Plan(
        replace(plan.ps, memory_bytes=max(plan.ps.memory_bytes, floor.ps.memory_bytes)),
        replace(plan.worker, memory_bytes=max(plan.worker.memory_bytes, floor.worker.memory_bytes)),
    )


def _throughput(job: JobRecord, plan: Plan) -> float | None:
    """Samples per second of the last windows of `plan`; of the whole run where there is none."""
    windows = [one.throughput for one in job.observations if one.plan == plan and _positive(one.throughput)]
    if windows:
        last = windows[-5:]
        return sum(last) / len(last)
    return _finite(job.figures.get("samples_per_second"))


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _positive(number: float | str | None) -> float | None:
    """A number above 0, None for anything else."""
    try:
        found = float(number) if number is not None else 0.0
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and found > 0 else None


def _predicted(runs: Sequence[PastRun], plan: Plan) -> Range | None:
    """Weighted mean of the throughput of the runs that ended with `plan`; without a range: none of it is recent."""
    known = [(run.throughput, run.weight) for run in runs if run.throughput is not None and run.plan == plan]
    weight = sum(one for _, one in known)
    return Range(sum(value * one for value, one in known) / weight) if weight > 0 else None


def _said(says: Foreseen, top: Sequence[tuple[float, float | None, JobRecord, Plan]]) -> list[str]:
    """What was noticed in the series, in words."""
    words = []
    if says.level:
        first = next(plan for (_, _, _, plan), weight in zip(top, says.weights, strict=True) if weight > 0)
        jumps = []
        for at, (name, role) in enumerate(zip(_ROLES, (first.worker, first.ps), strict=True)):
            seen = _cores(role)
            if abs(math.log(seen) - says.led_to[at]) > math.log(1.1):
                jumps.append(f"{name} had {seen:.3g} cores instead of {math.exp(says.led_to[at]):.3g}")
        which = "the last run is" if says.level == 1 else f"the last {says.level} runs are"
        words.append(f"{which} far from those before ({', '.join(jumps)}): older plans do not count")
    for name, drift, carried in zip(_ROLES, says.drifts, says.carried, strict=True):
        if drift is not None and abs(carried) >= _WORTH_SAYING:
            words.append(f"cores of {name} {_pace(drift)}: carried on by {100 * math.expm1(carried):+.0f} %")
    if says.strays:
        strays = len(says.strays)
        words.append(f"{strays} run{'' if strays == 1 else 's'} lay far off and {_does(strays)} not count")
    return words


def _pace(drift: Drift) -> str:
    if drift.by == "days":
        return f"drift by {100 * math.expm1(drift.slope):+.1f} % a day"
    return f"drift with the rows of the data ({drift.slope:+.1f} % for each % of rows)"


def _does(count: int) -> str:
    return "does" if count == 1 else "do"


def _odd_clock(count: int) -> str:
    return f"when {count} run{'' if count == 1 else 's'} ended is not known (the clock went back): taken as oldest"


def _unread(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'} of the history could not be read"


def _note(runs: Sequence[PastRun], plan: Plan, words: Sequence[str]) -> str:
    names = ", ".join(run.run_id for run in runs[:_NAMED])
    names += f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    text = f"warm start from {len(runs)} run{'' if len(runs) == 1 else 's'} ({names}): {plan}"
    return "; ".join([text, *words])


def _cold_note(past: int, alike: int, words: Sequence[str]) -> str:
    if not past:
        text = "cold start, there is no past run"
    elif not alike:
        text = f"cold start, none of {past} past run{'' if past == 1 else 's'} has this model, columns and batch size"
    else:
        text = f"cold start, none of {alike} similar run{'' if alike == 1 else 's'} ended well and long enough"
    return "; ".join([text, *words])
