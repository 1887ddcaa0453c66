"""How a job stands, as one plain dictionary: for `trimtab status`, its JSON, and the metrics of a running job.

Whoever looks at a job should find the same words whether it runs, waits, died or ended last week, so there is one form
for all of them (`status_files` makes it from what lies in the job's directory). A figure that is not known is None, a
count that is not known too; nothing is ever missing, and nothing is not finite. The keys:

    schema                  trimtab.status/1
    run_id, job_name        of the job. job_dir: where its files lie
    state                   running | finished | stopped | failed
    controller              answers | silent (lives, and does not answer) | elsewhere (another machine or namespace) |
                            died | ended
    pid                     of the controller, None when there is none
    phase                   preparing | waiting | starting | training | stopping | closing | evaluating | scoring |
                            metrics | over
    phase_seconds           since when, seconds
    message                 what happened last, or why the job ended, as a sentence; "" for nothing
    started_at, ended_at    seconds since 1970; as_of: of when all this is. wall_seconds: since the first start
    batches_done            applied at every owner, or closed when the job has ended. batches_expected
    samples_per_second      of the last seconds while it trains, of the whole job afterwards
    loss                    moving average over recent batches
    eta_seconds             until the last batch at the present speed, None when it does not train
    plan                    {ps, worker}: {replicas, cpu, memory}
    limits                  {cpu, memory_bytes, workers, ps}: what pods may have together
    cpu_enforced            whether pods are held to their cores
    pods                    of each: name, role (ps | worker), place, state (pending | starting | running | leaving |
                            ending), cpu (cores it is given), cpu_used (cores), cpu_seconds, rss_bytes, memory_bytes
                            (limit), samples_per_second (worker), batches (a worker's that counted), pushes, rows and
                            table_bytes (PS), out_of_memory (kills in its place), heard_seconds (since its last word)
    checkpoint              {batches: closed, age_seconds: since it was committed, writing: another one is on its way,
                            path: of the manifest, asked: how many a person has asked for, done: of how many it is known
                            what came of them, error: why the last one brought nothing, "" when it did}
    decisions               how many. decision: the last one, as in `decisions` of a result
    findings                what is wrong at present, of each: kind, subject, text, seconds (since when)
    moving                  whether vshards are on the move
    out_of_memory           pods killed for want of memory so far
    resends_dropped         pushes that came again and were dropped
    max_worker_gap_seconds  longest time between two finished steps of a worker
    cpu_seconds             of all pods so far, as last reported
    table_bytes             rows, slots and index of all parameter servers together
    metrics_url             where a program reads figures, None without
    error                   why it did not finish, None otherwise
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.core.controller.result import decision_dict
from trimtab.core.controller.shares import memory_of, shares
from trimtab.core.controller.state import Departed, Phase, Pod, State
from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import Finding

SCHEMA = "trimtab.status/1"
ANSWERS, SILENT, ELSEWHERE, DIED, ENDED = "answers", "silent", "elsewhere", "died", "ended"
PREPARING, WAITING = "preparing", "waiting"  # phases of a job that no state tells of yet
_LEAST_SPAN_SECONDS = 0.5  # of a pod's reports: a CPU rate over less would be noise
_AFTER_TRAINING = (Phase.EVALUATING, Phase.SCORING, Phase.METRICS)

Status = dict[str, Any]


@dataclass(frozen=True)
class About:
    """What of a job stands beside its state.

    Attributes:
        job_name, job_dir: of the job. pid: of its controller. started_at: its first start, seconds since 1970.
        resends_dropped, max_worker_gap_seconds, cpu_seconds: what earlier controllers of it counted.
        metrics_url: where a program reads figures.
    """

    job_name: str
    job_dir: str
    pid: int
    started_at: float
    resends_dropped: int = 0
    max_worker_gap_seconds: float = 0.0
    cpu_seconds: float = 0.0
    metrics_url: str | None = None


@dataclass(frozen=True)
class Seen:
    """What only shows when a state is held up against earlier ones; times are the clock's seconds.

    Attributes:
        phase, phase_since: the present phase.
        cpu: by pod, cores used lately (None: not known yet). marks: time and CPU seconds of the report it counts from.
    """

    phase: Phase = Phase.STARTING
    phase_since: float | None = None
    cpu: Mapping[str, float | None] = field(default_factory=dict)
    marks: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def after(self, state: State, now: float) -> Seen:
        """The same with one more look."""
        same = self.phase_since is not None and state.phase is self.phase
        cpu: dict[str, float | None] = {}
        marks: dict[str, tuple[float, float]] = {}
        for name, pod in state.pods.items():
            if pod.heard_at is None:
                continue
            rate, mark = self.cpu.get(name), self.marks.get(name, (pod.heard_at, pod.cpu_seconds))
            span = pod.heard_at - mark[0]
            if span >= _LEAST_SPAN_SECONDS:
                rate, mark = max(0.0, pod.cpu_seconds - mark[1]) / span, (pod.heard_at, pod.cpu_seconds)
            cpu[name], marks[name] = rate, mark
        return Seen(state.phase, self.phase_since if same else now, cpu, marks)


class StatusBoard:
    """Tells how a running job stands, to whoever asks in whatever thread; the controller's loop keeps it up to date.

    Args:
        about: what stands beside the state. wall: seconds since 1970.
    """

    def __init__(self, about: About, wall: Callable[[], float]) -> None:
        self.about = about
        self._wall, self._seen = wall, Seen()

    def watch(self, state: State, now: float) -> None:
        """Look at the running job; call it as often as you like, from one thread."""
        self._seen = self._seen.after(state, now)

    def status(self, state: State, now: float, message: str = "") -> Status:
        """How the job stands."""
        return status_of(state, now, self.about, self._seen, message, self._wall())


def status_of(state: State, now: float, about: About, seen: Seen, message: str, wall: float) -> Status:
    """How a running job stands.

    Args:
        state: the controller's. now: the clock's seconds. wall: seconds since 1970.
        about, seen: see there.
        message: what happened last.
    """
    document, settings, limits = state.document, state.settings, state.settings.limits
    done, rate, given = done_of(state), rate_of(state, now), shares(state)
    pods = [*state.servers(), *state.workers()]
    dropped = sum(pod.report.duplicates for pod in state.servers() if pod.report is not None)
    since = seen.phase_since if seen.phase is state.phase else None
    decision = state.decisions[-1] if state.decisions else None
    return {
        "schema": SCHEMA,
        "run_id": settings.job_id,
        "job_name": about.job_name,
        "job_dir": about.job_dir,
        "state": str(document.state),
        "controller": ANSWERS,
        "pid": about.pid,
        "phase": str(state.phase),
        "phase_seconds": None if since is None else _number(now - since),
        "message": message,
        "started_at": about.started_at,
        "ended_at": None,
        "as_of": wall,
        "wall_seconds": _number(state.seconds(now)),
        "batches_done": done,
        "batches_expected": settings.batches,
        "samples_per_second": _number(rate),
        "loss": _number(state.losses.recent, 6),
        "eta_seconds": _eta(state, done, rate),
        "plan": document.plan.as_dict(),
        "limits": {
            "cpu": _number(limits.cpu), "memory_bytes": limits.memory_bytes, "workers": limits.workers, "ps": limits.ps,
        },
        "cpu_enforced": settings.cpu_enforced,
        "pods": [
            *(_pod(state, pod, given.get(pod.name), seen.cpu.get(pod.name), now) for pod in pods),
            *(_departed(name, kept) for name, kept in sorted(state.departed.items())),
        ],
        "checkpoint": _checkpoint(state, now),
        "decisions": len(state.decisions),
        "decision": decision_dict(decision) if decision is not None else None,
        "findings": [_finding(one, state.seconds(now)) for _, one in sorted(state.findings.items())],
        "moving": state.moving or bool(state.tenancies),
        "out_of_memory": sum(slot.out_of_memory for slot in state.slots.values()),
        "resends_dropped": about.resends_dropped + state.resends + dropped,
        "max_worker_gap_seconds": _number(max(about.max_worker_gap_seconds, state.max_gap_seconds), 6),
        "cpu_seconds": _number(about.cpu_seconds + state.cpu_gone + sum(pod.cpu_seconds for pod in pods)),
        "table_bytes": sum(pod.report.table_bytes for pod in state.servers() if pod.report is not None),
        "metrics_url": about.metrics_url,
        "error": document.reason or None,
    }  # fmt: skip


def done_of(state: State) -> int:
    """Batches that count as done in the present phase."""
    if state.phase in _AFTER_TRAINING:
        return state.settings.batches
    return len(state.manifest.applied()) if state.phase is Phase.OVER else len(state.ledger.applied)


def rate_of(state: State, now: float) -> float | None:
    """Samples per second: the last seconds' while training, the whole job's afterwards; None before any."""
    if state.phase in (Phase.STARTING, Phase.TRAINING, Phase.STOPPING):
        return state.losses.rate(now) if state.losses.first_at is not None else None
    return state.losses.throughput


def _eta(state: State, done: int, rate: float | None) -> float | None:
    if state.phase is not Phase.TRAINING or not rate or not state.ledger.served:
        return None
    return _number((state.settings.batches - done) * state.settings.batch_size / rate)


def _checkpoint(state: State, now: float) -> Status:
    made = state.checkpoints
    return {
        "batches": len(state.manifest.applied()),
        "age_seconds": None if made.at is None else _number(now - made.at),
        "writing": state.round is not None,
        "path": state.document.manifest.path,
        "asked": made.asked,
        "done": made.done,
        "error": made.error,
    }


def _pod(state: State, pod: Pod, cpu: float | None, used: float | None, now: float) -> Status:
    slot, report = state.slots[pod.slot], pod.report
    per_second = None
    if pod.role == "worker" and pod.speed is not None and state.phase is Phase.TRAINING:
        per_second = _number(pod.speed * state.settings.batch_size)
    return {
        "name": pod.name,
        "role": pod.role,
        "place": pod.slot[1],
        "state": _word(pod, active=slot.active),
        "cpu": _number(cpu),
        "cpu_used": _number(used),
        "cpu_seconds": _number(pod.cpu_seconds),
        "rss_bytes": (report.rss_bytes if report is not None else pod.rss_bytes) or None,
        "memory_bytes": memory_of(state, pod.slot),
        "samples_per_second": per_second,
        "batches": pod.batches if pod.role == "worker" else None,
        "pushes": report.pushes if report is not None else None,
        "rows": report.rows if report is not None else None,
        "table_bytes": report.table_bytes if report is not None else None,
        "out_of_memory": slot.out_of_memory,
        "heard_seconds": None if pod.heard_at is None else _number(now - pod.heard_at),
    }


def _departed(name: str, kept: Departed) -> Status:
    """A pod that was told to end and is still there: what it keeps is all that is known of it."""
    role, _, rest = name.partition("-")
    place = rest.partition("-")[0]
    known: Status = {"name": name, "role": role, "place": int(place) if place.isdigit() else None, "state": "ending"}
    known |= {"cpu": _number(kept.cpu), "memory_bytes": kept.memory_bytes, "out_of_memory": 0}
    return {key: known.get(key) for key in POD_KEYS}


POD_KEYS = (
    "name", "role", "place", "state", "cpu", "cpu_used", "cpu_seconds", "rss_bytes", "memory_bytes",
    "samples_per_second", "batches", "pushes", "rows", "table_bytes", "out_of_memory", "heard_seconds",
)  # fmt: skip


def _word(pod: Pod, *, active: bool) -> str:
    if not active:
        return "leaving"
    if pod.heard_at is not None:
        return "running"
    return "starting" if pod.seen else "pending"


def _finding(found: Finding, seconds: float) -> Status:
    lasted = _number(max(0.0, seconds - found.since_seconds))
    return {"kind": found.kind, "subject": found.subject, "text": found.text, "seconds": lasted}


def nothing_known(run_id: str, job_dir: str) -> Status:
    """A status of which only this is known; every key is there."""
    checkpoint = {"batches": None, "age_seconds": None, "writing": False, "path": None}
    empty: Status = dict.fromkeys(KEYS)
    empty |= {"schema": SCHEMA, "run_id": run_id, "job_dir": job_dir, "state": str(JobState.RUNNING), "message": ""}
    empty |= {
        "pods": [],
        "findings": [],
        "moving": False,
        "limits": dict.fromkeys(("cpu", "memory_bytes", "workers", "ps")),
    }
    return empty | {"checkpoint": checkpoint | {"asked": None, "done": None, "error": ""}}


KEYS = (
    "schema", "run_id", "job_name", "job_dir", "state", "controller", "pid", "phase", "phase_seconds", "message",
    "started_at", "ended_at", "as_of", "wall_seconds", "batches_done", "batches_expected", "samples_per_second", "loss",
    "eta_seconds", "plan", "limits", "cpu_enforced", "pods", "checkpoint", "decisions", "decision", "findings",
    "moving", "out_of_memory", "resends_dropped", "max_worker_gap_seconds", "cpu_seconds", "table_bytes", "metrics_url",
    "error",
)  # fmt: skip


def _number(value: float | None, digits: int = 3) -> float | None:
    """Rounded for a reader; None for what is not known or not finite."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
