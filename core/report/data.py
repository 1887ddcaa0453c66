"""A job's record as the report's data: `static/report.schema.json`, the contract between page, tab and tools.

Raw numbers only; every sentence in it comes from `sentences`. What is not known is null or an empty list, and so are
the parts of the contract that no record carries yet (phases, worker speeds, memory, Pareto fronts), so that a page made
for an older record still opens.
"""

from __future__ import annotations

import math
import shlex
from datetime import UTC, datetime

from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import Plan
from trimtab.core.domain.quantities import format_cpu, format_memory
from trimtab.core.domain.records import Considered, Decision, JobEvent, JobRecord, Range, WarmStart
from trimtab.core.report import measures, sentences
from trimtab.core.report.words import UNKNOWN, age, known, whole

SCHEMA = "trimtab.report/1"
MOST_CANDIDATES = 5
_KINDS = ("start", "grow", "shrink", "replace", "rebalance", "memory", "hold", "stop")
_EVENT_KINDS = ("straggler", "hot_ps", "crash", "recovery", "memory")
_EVENT_WORDS = {
    "crash": ("lost", "dead", "died", "killed", "fail"),
    "recovery": ("back", "recover", "restart", "again"),
    "memory": ("memory", "oom"),
}
_QUIET_EVENTS = ("checkpoint",)  # counted, not drawn: one a minute would hide all others


def report_data(record: JobRecord) -> dict[str, object]:
    """The report's data of `record`; holds nothing that is not finite.

    Pure: the same record gives the same data, also its `generated_at`, which is the last moment that the record knows.
    """
    length = measures.length_seconds(record)
    started = known(record.started_at) or 0.0
    spans = measures.plan_spans(record)
    points = measures.thinned(measures.measured(record), [one.start for one in spans])
    figures = {name: known(value) for name, value in record.figures.items()}
    return {
        "schema": SCHEMA,
        "generated_at": _iso(started + length),
        "currency": record.prices.currency,
        "prices": {"core_h": known(record.prices.core_hour), "gib_h": known(record.prices.gib_hour)},
        "job": _job(record, length, started),
        "outcome": _outcome(record),
        "baseline": None,
        "totals": {
            "cost": measures.cost(record),
            "core_h": measures.core_hours(record),
            "mean_psi": measures.mean_throughput(record),
            "first_psi": measures.span_throughput(record, spans[0]) if spans else None,
            "last_psi": measures.span_throughput(record, spans[-1]) if spans else None,
            "auc": figures.get("auc"),
            "log_loss": figures.get("log_loss"),
            "longest_wait_s": figures.get("max_worker_gap_seconds"),
        },
        "throughput": {"t": [_time(t) for t, _ in points], "v": [_value(v) for _, v in points]},
        "predicted": [
            {"t0": _time(one.start), "t1": _time(one.end)} | _range(one.range)
            for one in measures.prediction_spans(record)
        ],
        "plans": [_plan(one.change.plan) | {"t": _time(one.start), "reason": one.change.reason} for one in spans],
        "decisions": [_decision(n, one, record) for n, one in measures.numbered(record)],
        "events": [_event(one) for one in shown_events(record)],
        "phases": {"t": [], "pull": [], "compute": [], "push": [], "wait": [], "unit": "ms"},
        "workers": {"step_s": 0, "ids": [], "rel": []},
        "memory": {"t": [], "largest": [], "smallest": [], "limit": [], "forecast": None, "alert_share": 0,
                   "unit": "GiB per PS"},
        "cost": {"progress": [], "actual": [], "static": []},
        "pareto": {"launch": _front(record), "end": None},
        "accuracy": _accuracy(record),
        "warm_start": _warm_start(record.warm_start, record),
        "data": _data(record, figures),
        "reproduce": list(reproduce(record)),
    }  # fmt: skip


def shown_events(record: JobRecord) -> tuple[JobEvent, ...]:
    """Events that stand on the timeline, in the order of time."""
    dated = [one for one in record.events if known(one.time_seconds) is not None]
    return tuple(sorted((one for one in dated if one.kind not in _QUIET_EVENTS), key=lambda one: one.time_seconds))


def event_kind(event: JobEvent) -> str:
    """Which mark an event has: straggler | hot_ps | crash | recovery | memory | note."""
    kind = event.kind.lower()
    if kind in _EVENT_KINDS:
        return kind
    for found, words in _EVENT_WORDS.items():
        if any(word in kind for word in words):
            return found
    return "note"


def reproduce(record: JobRecord) -> tuple[str, ...]:
    """Commands: the same job once more (it starts from what this run taught), and its decisions in words.

    A record of an older version does not know all that was asked for, nor where the rows were: it says DATA instead.
    """
    explained = f"trimtab explain {shlex.quote(record.run_id)}"
    if record.asked:
        return f"trimtab train {shlex.join(record.asked)}", explained
    tags, limits = record.tags, record.limits
    options: list[tuple[str, str | None]] = [
        ("--model", tags.get("model")), ("--batch-size", tags.get("batch_size")),
        ("--embedding-dim", tags.get("embedding_dim")), ("--mode", tags.get("mode")),
        ("--objective", tags.get("objective") or record.objective), ("--job-name", record.job_name),
        ("--max-cpu", None if known(limits.cpu) is None else format_cpu(limits.cpu or 0)),
        ("--max-memory", None if known(limits.memory_bytes) is None else format_memory(limits.memory_bytes or 0)),
        ("--max-workers", None if limits.workers is None else str(limits.workers)),
        ("--max-ps", None if limits.ps is None else str(limits.ps)),
    ]  # fmt: skip
    given = [word for name, value in options if value for word in (name, value)]
    return (
        f"trimtab train --data DATA {shlex.join(given)}".rstrip(),
        explained,
    )


def _job(record: JobRecord, length: float, started: float) -> dict[str, object]:
    tags = record.tags
    rows = tags.get("rows", "")
    dataset = f"{whole(int(rows))} rows" if rows.isascii() and rows.isdigit() and len(rows) < 19 else UNKNOWN
    if tags.get("data"):
        dataset += f", fingerprint {tags['data'][:12]}"
    batch = tags.get("batch_size", "")
    return {
        "name": record.job_name,
        "model": tags.get("model") or UNKNOWN,
        "dataset": dataset,
        "dag": tags.get("dag"),
        "task": tags.get("task"),
        "run": record.run_id,
        "cluster": tags.get("cluster", "local"),
        "started_at": _iso(started),
        "ended_at": None if record.ended_at is None else _iso(known(record.ended_at) or started + length),
        "status": str(record.state),
        "duration_s": _time(length),
        "batch": int(batch) if batch.isascii() and batch.isdigit() and len(batch) < 19 else 0,
        "objective": record.objective,
        "mode": tags.get("mode") or UNKNOWN,
        "version": tags.get("trimtab_version") or UNKNOWN,
    }


def _outcome(record: JobRecord) -> dict[str, object]:
    figures = record.figures
    counts: dict[str, object] = {
        "kind": str(record.state),
        "plan_changes": max(0, len(record.plans) - 1),
        "held": sum(one.kind == "hold" for one in record.decisions),
        "progress": sentences.trained_share(record),
    }
    if record.state in (JobState.STOPPED, JobState.FAILED):
        return counts | {"cause": sentences.cause(record), "next_steps": []}
    return counts | {
        "faster": _saved(figures.get("wall_seconds"), figures.get("static_wall_seconds")),
        "cheaper": _saved(figures.get("cost"), figures.get("static_cost")),
    }


def _saved(actual: float | None, static: float | None) -> float | None:
    actual, static = known(actual), known(static)
    return None if actual is None or static is None or static <= 0 else known(1 - actual / static)


def _decision(number: int, decision: Decision, record: JobRecord) -> dict[str, object]:
    running = record.state is JobState.RUNNING
    present = None if decision.present is None else known(decision.present.middle)
    after = sentences.afterwards(decision, running, measures.measured_before(record, decision))
    return {
        "n": number,
        "t": _time(decision.time_seconds),
        "kind": decision.kind if decision.kind in _KINDS else "replace",
        "action": sentences.action(decision),
        "reason": decision.reason,
        "evidence": list(decision.evidence),
        "candidates": [_candidate(one, present, record) for one in decision.considered[:MOST_CANDIDATES]],
        "switch_s": known(decision.switch_seconds),
        "paused_s": known(decision.paused_seconds),
        "predicted": None if decision.predicted is None or known(decision.predicted.middle) is None
        else _range(decision.predicted),
        "present": None if present is None or decision.present is None else _range(decision.present),
        "measured": known(decision.measured),
        "verdict": measures.verdict(decision),
        "note": " ".join([after, *sentences.remarks(decision)]).strip(),
        "advised": decision.advised,
        "probe": decision.probe,
        "held": list(decision.held),
        "law": decision.law,
        "error": measures.error(decision),
        "before": None if decision.before is None else _plan(decision.before),
        "plan": _plan(decision.plan),
    }  # fmt: skip


def _front(record: JobRecord) -> dict[str, object] | None:
    """The front at the start as past runs predicted it; None without one."""
    points = [
        (cost, speed, one) for one in record.front
        if (cost := known(one.cost_per_hour)) is not None and (speed := known(one.throughput.middle)) is not None
    ]  # fmt: skip
    start = next((one for one in record.decisions if one.kind == "start"), None)
    chosen = [] if start is None else [one for one in start.considered if one.chosen]
    cost = known(chosen[0].cost_per_hour) if chosen else None
    speed = known(chosen[0].throughput.middle) if chosen else None
    if not points or cost is None or speed is None:
        return None
    return {
        "tried": None,
        "points": [],
        "front": [[cost, speed, _plan(one.plan)] for cost, speed, one in points],
        "chosen": {"cost_h": cost, "psi": speed, "plan": _plan(chosen[0].plan)},
        "static": None,
    }


def _accuracy(record: JobRecord) -> dict[str, object] | None:
    found = measures.accuracy(record)
    return None if found is None else {
        "checked": found.checked, "ranged": found.ranged, "inside": found.inside,
        "median_error": known(found.median_error), "worst_error": known(found.worst_error), "worst": found.worst,
        "text": sentences.came_true(record),
    }  # fmt: skip


def _candidate(considered: Considered, present: float | None, record: JobRecord) -> dict[str, object]:
    predicted = known(considered.throughput.middle)
    gain = None if predicted is None or not present else known(predicted / present - 1)
    found = _range(considered.throughput)
    return {
        "plan": _plan(considered.plan),
        "psi": found["p50"],
        "lo": found["lo"],
        "hi": found["hi"],
        "gain": gain,
        "cost_h": known(considered.cost_per_hour),
        "chosen": considered.chosen,
        "why_not": considered.why_not,
    }


def _event(event: JobEvent) -> dict[str, object]:
    title = event.kind.replace("_", " ").replace("-", " ").strip().capitalize() or "Event"
    time = _time(event.time_seconds)
    return {"t": time, "end": time, "kind": event_kind(event), "title": title, "who": "", "text": event.text}


def _warm_start(found: WarmStart | None, record: JobRecord) -> dict[str, object]:
    if found is None:
        return {"runs": [], "rows": [], "note": sentences.warm_start(record), "floors": []}
    runs = [
        {
            "id": one.run_id, "age": age(one.age_seconds), "similarity": known(one.similarity) or 0.0,
            "weight": known(one.weight) or 0.0, "plan": _plan(one.plan), "time_s": known(one.wall_seconds),
            "throughput": known(one.throughput),
        }
        for one in found.runs
    ]  # fmt: skip
    rows: list[dict[str, object]] = []
    spans = measures.plan_spans(record)
    if spans:
        first, last = _plan(spans[0].change.plan), _plan(spans[-1].change.plan)
        for label, key, unit in (
            ("Workers", "workers", ""), ("PSs", "ps", ""), ("Cores per worker", "worker_cores", ""),
            ("Cores per PS", "ps_cores", ""), ("Memory per PS", "ps_mem_gib", "GiB"),
        ):  # fmt: skip
            rows.append({"label": label, "unit": unit, "predicted": first[key], "final": last[key]})
    return {"runs": runs, "rows": rows, "note": sentences.warm_start(record), "floors": list(found.floors)}


def _data(record: JobRecord, figures: dict[str, float | None]) -> dict[str, object]:
    left = sentences.batches_left(record)
    finished = record.state is JobState.FINISHED
    checkpoints = figures.get("checkpoints")
    noted = sum(one.kind in _QUIET_EVENTS for one in record.events)
    return {
        "batches_expected": _count(figures.get("batches_expected")),
        "batches_applied": _count(figures.get("batches_applied")),
        "skipped": _count(figures.get("batches_skipped")),
        "left": _count(left),
        "duplicated": _count(figures.get("batches_duplicated")),
        "lost": _count(left) if finished else None,
        "requeued": _count(figures.get("batches_requeued")),
        "rows": _count(figures.get("rows_applied")),
        "checkpoints": _count(checkpoints) if checkpoints is not None else noted or None,
    }


def _plan(plan: Plan) -> dict[str, object]:
    return {
        "workers": max(0, plan.worker.replicas),
        "worker_cores": _value(plan.worker.cpu) or 0.0,
        "ps": max(0, plan.ps.replicas),
        "ps_cores": _value(plan.ps.cpu) or 0.0,
        "worker_mem_gib": _value((known(plan.worker.memory_bytes) or 0.0) / 2**30) or 0.0,
        "ps_mem_gib": _value((known(plan.ps.memory_bytes) or 0.0) / 2**30) or 0.0,
    }


def _range(prediction: Range) -> dict[str, object]:
    """Both bounds or none: half a range is no promise."""
    low, high = known(prediction.low), known(prediction.high)
    both = low is not None and high is not None
    return {"p50": known(prediction.middle), "lo": low if both else None, "hi": high if both else None}


def _time(seconds: float) -> float:
    return round(max(0.0, known(seconds) or 0.0), 2)


def _value(value: float | None) -> float | None:
    """Rounded to what a reader can use, so that the file stays small."""
    found = known(value)
    return None if found is None else round(found, 3) if abs(found) < 1000 else round(found, 1)


def _count(value: float | None) -> int | None:
    return None if value is None or value < 0 or value > 2**63 else math.floor(value)


def _iso(seconds: float) -> str:
    """Seconds since 1970 as UTC; the epoch for what no calendar knows."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return "1970-01-01T00:00:00Z"
