"""A job's record in MLflow's words: points, tags, tables and a note, all made by pure functions.

The record itself lies beside them as an artifact and is what is read back, so nothing here has to be reversible: it is
made for a person's eyes and for searches. Points carry the time at which they were measured and whole seconds as their
step, one point per step and metric, so that a page can be drawn over either, and a retry writes the very same rows.
Metric names with a slash make a section of the page; a pod is shown under its place ("worker-0"), whichever process
holds it at the time.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.plan import Plan
from trimtab.core.domain.quantities import format_memory
from trimtab.core.domain.records import Decision, JobRecord, Range, Sample
from trimtab.core.history.outline import encode_outline

RUN_ID = "trimtab.run_id"
STATE = "trimtab.state"
WRITTEN = "trimtab.written"
LAST_STEP = "trimtab.last_step"
OUTLINE = "trimtab.outline"
DROPPED = "trimtab.nonfinite_dropped"
STATUSES = {
    JobState.RUNNING: "RUNNING", JobState.FINISHED: "FINISHED", JobState.STOPPED: "KILLED", JobState.FAILED: "FAILED",
}  # fmt: skip
_LONGEST_TAG = 4000  # characters; servers cut or refuse beyond 5000
_LONGEST_NOTE_ROWS = 20
_LONGEST_CELL = 160
_TAG_KEY = re.compile(r"[\w.\- :/]{1,200}")
_METRIC_CHARACTERS = re.compile(r"[^\w.\- :/]")
_INCARNATION = re.compile(r"^((?:worker|ps)-\d+)-.+$")


@dataclass(frozen=True)
class Point:
    """One value of one metric: milliseconds since 1970, and whole seconds since the job's start."""

    key: str
    value: float
    timestamp: int
    step: int


def points(job: JobRecord, after_step: int) -> Iterator[list[Point]]:
    """The points of each sample behind `after_step`, at most one sample a second, in the order of time."""
    last = after_step
    for sample in job.samples:
        step = int(sample.time_seconds)
        if step <= last:
            continue
        last = step
        stamp = milliseconds(job.started_at + sample.time_seconds)
        plan = plan_at(job.plans, sample.time_seconds)
        yield [Point(_metric(key), value, stamp, step) for key, value in _values(sample, plan)]


def outcome(job: JobRecord, known: Mapping[str, float], dropped: int, stamp: int) -> list[Point]:
    """The figures of a job that has ended, as far as `known` does not hold them already.

    Args:
        job: the record. known: the run's present metrics. dropped: how many values were not finite.
        stamp: milliseconds since 1970.
    """
    if job.state is JobState.RUNNING:
        return []
    step = int(max((sample.time_seconds for sample in job.samples), default=0.0))
    figures = {_metric(key): value for key, value in job.figures.items()}
    figures["nonfinite_dropped"] = float(dropped)
    return [Point(key, value, stamp, step) for key, value in figures.items() if known.get(key) != value]


def plan_at(plans: Sequence[PlanChange], time_seconds: float) -> Plan | None:
    """The plan in force at a time, None before the first."""
    in_force = [change.plan for change in plans if change.time_seconds <= time_seconds]
    return in_force[-1] if in_force else None


def tags(job: JobRecord, dropped: Sequence[str]) -> dict[str, str]:
    """Identity, state and what a search asks for. Names that MLflow keeps for itself, or can't take, are left out."""
    kept = {key: tag_value(value) for key, value in job.tags.items() if searchable(key)}
    kept |= {RUN_ID: job.run_id, STATE: str(job.state), "trimtab.job_name": job.job_name, DROPPED: str(len(dropped))}
    if dropped:
        kept["trimtab.nonfinite"] = ", ".join(dropped)[:_LONGEST_TAG]
    if job.warm_start is not None:
        kept["trimtab.warm_start"] = tag_value(", ".join(run.run_id for run in job.warm_start.runs) or "cold")
    if job.out_of_memory:
        kept["trimtab.out_of_memory"] = job.out_of_memory
    packed = encode_outline(job)
    if packed:
        kept[OUTLINE] = packed
    return kept


def searchable(key: str) -> bool:
    """Whether a tag of a job is kept as a tag of the run."""
    return bool(_TAG_KEY.fullmatch(key)) and not key.startswith(("mlflow.", "trimtab."))


def tag_value(value: str) -> str:
    """A value that no server cuts: a long one is replaced by its hash, here and when it is searched for."""
    return value if len(value) <= _LONGEST_TAG else f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"


def plans_table(job: JobRecord) -> str:
    """Every plan that was in force, as a table that MLflow's pages show."""
    columns = (
        "time_seconds", "workers", "worker_cores", "worker_memory", "ps", "ps_cores", "ps_memory", "reason",
    )  # fmt: skip
    rows = [
        [
            round(change.time_seconds, 3),
            change.plan.worker.replicas, change.plan.worker.cpu, format_memory(change.plan.worker.memory_bytes),
            change.plan.ps.replicas, change.plan.ps.cpu, format_memory(change.plan.ps.memory_bytes), change.reason,
        ]
        for change in job.plans
    ]  # fmt: skip
    return _table(columns, rows)


def tables(job: JobRecord) -> dict[str, str]:
    """Every table by the name of its file; one that would be empty from the start to the end is left out."""
    found = {"plans.json": plans_table(job), "decisions.json": decisions_table(job)}
    if any(one.considered for one in job.decisions):
        found["candidates.json"] = candidates_table(job)
    if job.front:
        found["front.json"] = front_table(job)
    return found


def candidates_table(job: JobRecord) -> str:
    """Every plan that a decision looked at: predicted, its price, and why it was not chosen."""
    columns = (
        "number", "time_seconds", "plan", "predicted", "predicted_low", "predicted_high", "cost_per_hour", "chosen",
        "why_not",
    )  # fmt: skip
    rows: list[list[object]] = [
        [
            decision.number, round(decision.time_seconds, 3), str(one.plan), one.throughput.middle, one.throughput.low,
            one.throughput.high, one.cost_per_hour, one.chosen, one.why_not,
        ]
        for decision in job.decisions
        for one in decision.considered
    ]  # fmt: skip
    return _table(columns, rows)


def front_table(job: JobRecord) -> str:
    """The front at the start: plans that no other one beat in cost and throughput, as past runs predicted them."""
    columns = ("plan", "cost_per_hour", "predicted", "chosen")
    rows: list[list[object]] = [
        [str(one.plan), one.cost_per_hour, one.throughput.middle, one.chosen] for one in job.front
    ]
    return _table(columns, rows)


def decisions_table(job: JobRecord) -> str:
    """Every decision with its reason, the prediction, what it rests on, and what was measured afterwards."""
    columns = (
        "number", "time_seconds", "kind", "action", "reason", "before", "plan", "present", "predicted",
        "predicted_low", "predicted_high", "measured", "error", "switch_seconds", "paused_seconds", "advised", "probe",
        "law", "held",
    )  # fmt: skip
    return _table(columns, [_decision_row(decision) for decision in job.decisions])


def note(job: JobRecord) -> str:
    """The summary on the run's first page, in Markdown."""
    figures = dict(sorted(job.figures.items()))
    parts = [f"**{_cell(job.job_name)}**, {job.state}" + (f": {_cell(job.reason)}" if job.reason else "")]
    if job.warm_start is not None and job.warm_start.note:
        parts.append(_cell(job.warm_start.note))
    if figures:
        rows = [[name, f"{value:,.6g}"] for name, value in figures.items()]
        parts.append(_markdown(("figure", "value"), rows))
    if job.plans:
        rows = [[_clock(one.time_seconds), str(one.plan), _cell(one.reason)] for one in job.plans]
        parts.append(_markdown(("time", "plan (workers × cores + PSs × cores)", "why"), rows))
    changes = [decision for decision in job.decisions if decision.kind != "hold"]
    if changes:
        rows = [
            [_clock(one.time_seconds), _cell(one.action or one.kind), _speed(one.predicted), _number(one.measured)]
            for one in changes
        ]
        parts.append(_markdown(("time", "decision", "predicted samples/s", "measured samples/s"), rows))
    return _clipped(parts)


def milliseconds(seconds: float) -> int:
    """Seconds since 1970 as MLflow counts them."""
    return round(seconds * 1000)


def _values(sample: Sample, plan: Plan | None) -> Iterator[tuple[str, float]]:
    if plan is not None:
        yield "plan/workers", plan.worker.replicas
        yield "plan/worker_cores", plan.worker.cpu
        yield "plan/ps", plan.ps.replicas
        yield "plan/ps_cores", plan.ps.cpu
    if sample.throughput is not None:
        yield "throughput", sample.throughput
    if sample.predicted is not None:
        yield "predicted_throughput", sample.predicted
    yield "batches_done", sample.batches_done
    yield "table_gib", sample.table_bytes / 2**30
    seen: set[str] = set()
    for pod in sample.pods:
        place = place_of(pod.pod)
        if place in seen:  # a leaving process beside its follower: the place has one point per step
            continue
        seen.add(place)
        if pod.cpu is not None:
            yield f"{place}/cpu", pod.cpu
        yield f"{place}/memory_gib", pod.rss_bytes / 2**30


def place_of(pod: str) -> str:
    """`worker-0` of `worker-0-3`: the place in the role, without which process it is."""
    match = _INCARNATION.match(pod)
    return match.group(1) if match else pod


def _metric(key: str) -> str:
    return _METRIC_CHARACTERS.sub("_", key)[:200]


def _decision_row(decision: Decision) -> list[object]:
    present, predicted = decision.present, decision.predicted
    return [
        decision.number, round(decision.time_seconds, 3), decision.kind, decision.action, decision.reason,
        str(decision.before) if decision.before is not None else None, str(decision.plan),
        present.middle if present is not None else None, predicted.middle if predicted is not None else None,
        predicted.low if predicted is not None else None, predicted.high if predicted is not None else None,
        decision.measured, _error(decision), decision.switch_seconds, decision.paused_seconds, decision.advised,
        decision.probe, decision.law or None, ", ".join(decision.held) or None,
    ]  # fmt: skip


def _error(decision: Decision) -> float | None:
    """Measured / predicted - 1, where both are known."""
    predicted, measured = decision.predicted, decision.measured
    if decision.advised or predicted is None or measured is None or not predicted.middle:
        return None
    off = measured / predicted.middle - 1
    return off if math.isfinite(off) else None


def _table(columns: Sequence[str], rows: list[list[object]]) -> str:
    return json.dumps({"columns": list(columns), "data": rows}, allow_nan=False)


def _markdown(columns: Sequence[str], rows: list[list[str]]) -> str:
    left_out = len(rows) - _LONGEST_NOTE_ROWS
    shown = rows[: _LONGEST_NOTE_ROWS // 2] + rows[-_LONGEST_NOTE_ROWS // 2 :] if left_out > 0 else rows
    lines = [columns, ["---"] * len(columns), *shown]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return text + (f"\n\n{left_out} more in the tables beside this page." if left_out > 0 else "")


def _clipped(parts: Iterable[str]) -> str:
    """As many of the parts, from the first on, as a tag can hold; a table is never cut in its middle."""
    text = ""
    for part in parts:
        if len(text) + len(part) + 2 > _LONGEST_TAG:
            continue
        text = f"{text}\n\n{part}" if text else part
    return text


def _cell(text: str) -> str:
    plain = " ".join(text.split())
    short = plain if len(plain) <= _LONGEST_CELL else plain[: _LONGEST_CELL - 1] + "…"
    return short.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _speed(found: Range | None) -> str:
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return _number(found.middle)
    return f"{found.middle:,.0f} ({found.low:,.0f} to {found.high:,.0f})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def text(value: object) -> str:
    """`value` as JSON for a tag."""
    return json.dumps(value, allow_nan=False)
