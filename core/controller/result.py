"""How a job went: one immutable record, computed from the committed manifest and nothing that merely was reported.

The counts of batches and rows come from the copies that the state document names: these are the rows that the model
holds. `batches_duplicated` is read there too: a set that names a number in two of its intervals has taken it twice.
That a set holds a number once is the parameter servers' rule, so this figure is a check of what lies on disk, and the
audit table in the tests is the proof that does not trust the sets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.records import Decision, WarmStart
from trimtab.core.ps.manifest import Manifest


@dataclass(frozen=True)
class RowCounts:
    """Batch number to rows: every batch is full but the last of each epoch.

    Attributes:
        batch_size: rows of a full batch. batches_per_epoch, epochs. train_rows: of one epoch.
    """

    batch_size: int
    batches_per_epoch: int
    epochs: int
    train_rows: int

    def rows(self, numbers: IntervalSet) -> int:
        """Real rows of these batches together."""
        short = self.batches_per_epoch * self.batch_size - self.train_rows
        last = (epoch * self.batches_per_epoch - 1 for epoch in range(1, self.epochs + 1))
        return len(numbers) * self.batch_size - short * sum(number in numbers for number in last)


@dataclass(frozen=True)
class Tally:
    """What the manifest holds; applied excludes skipped."""

    batches_applied: int
    batches_skipped: int
    batches_duplicated: int
    rows_applied: int
    rows_skipped: int


def tally(manifest: Manifest, counts: RowCounts) -> Tally:
    """Count the committed copies. A batch counts as applied when all copies hold it, as skipped when any skipped it."""
    held = manifest.applied()
    skipped = manifest.skipped() & held
    applied = held - skipped
    doubled = max(
        (sum(hi - lo for lo, hi in copies.applied) - len(IntervalSet(copies.applied)) for copies in manifest.sets),
        default=0,
    )
    return Tally(len(applied), len(skipped), doubled, counts.rows(applied), counts.rows(skipped))


@dataclass(frozen=True)
class JobResult:
    """How one job went.

    Attributes:
        run_id: of the job. state: finished | stopped | failed.
        batches_*, rows_*: see the module. resends_dropped: pushes that came again and were dropped.
        auc, log_loss: over the held-out rows, None without any (or where they can't be computed).
        metrics: the model's own compiled metrics, finite ones.
        samples_per_second: training rows per second from the first reported batch to the last, None when too short.
        plans: every plan that was in force. decisions: all of them, as JSON shows them.
        warm_start: what the first plan rested on (note, runs, plan).
        mlflow: address of the run's page, None without one. report: path of its page. history_problem: why the
            history does not have it yet, None when it has.
        max_worker_gap_seconds: longest time between two finished steps of a worker.
        wall_seconds: of the whole call. cpu_seconds: of all pods and of the controller since it started them.
        job_dir: where everything lies. model: path of the final manifest. error: why it did not finish, or None.
    """

    run_id: str
    state: JobState
    batches_expected: int
    batches_applied: int
    batches_duplicated: int
    batches_skipped: int
    resends_dropped: int
    rows_expected: int
    rows_applied: int
    rows_skipped: int
    auc: float | None
    log_loss: float | None
    metrics: Mapping[str, float]
    samples_per_second: float | None
    plans: tuple[PlanChange, ...]
    max_worker_gap_seconds: float
    wall_seconds: float
    cpu_seconds: float
    job_dir: str
    model: str
    error: str | None = None
    warm_start: Mapping[str, object] | None = field(default=None)
    objective: str = "balanced"
    decisions: tuple[Mapping[str, object], ...] = ()
    mlflow: str | None = None
    report: str | None = None
    history_problem: str | None = None

    def as_dict(self) -> dict[str, object]:
        """The job's JSON; numbers that are not finite are null."""
        return {
            "run_id": self.run_id,
            "state": str(self.state),
            "batches_expected": self.batches_expected,
            "batches_applied": self.batches_applied,
            "batches_duplicated": self.batches_duplicated,
            "batches_skipped": self.batches_skipped,
            "resends_dropped": self.resends_dropped,
            "rows_expected": self.rows_expected,
            "rows_applied": self.rows_applied,
            "rows_skipped": self.rows_skipped,
            "auc": _finite(self.auc),
            "log_loss": _finite(self.log_loss),
            "metrics": {name: value for name, value in self.metrics.items() if math.isfinite(value)},
            "samples_per_second": _finite(self.samples_per_second, 3),
            "plans": [change.as_dict() for change in self.plans],
            "objective": self.objective,
            "decisions": [dict(one) for one in self.decisions],
            "warm_start": dict(self.warm_start) if self.warm_start is not None else None,
            "max_worker_gap_seconds": _finite(self.max_worker_gap_seconds, 6),
            "wall_seconds": _finite(self.wall_seconds, 3),
            "cpu_seconds": _finite(self.cpu_seconds, 3),
            "job_dir": self.job_dir,
            "model": self.model,
            "report": self.report,
            "mlflow": self.mlflow,
            "history_problem": self.history_problem,
            "error": self.error,
            "bad_input": None,
        }


def decision_dict(decision: Decision) -> dict[str, object]:
    """A decision as JSON shows it."""
    predicted = decision.predicted
    return {
        "number": decision.number,
        "time": round(decision.time_seconds, 3),
        "kind": decision.kind,
        "action": decision.action,
        "reason": decision.reason,
        "plan": decision.plan.as_dict(),
        "before": decision.before.as_dict() if decision.before is not None else None,
        "advised": decision.advised,
        "probe": decision.probe,
        "predicted": _finite(predicted.middle, 3) if predicted is not None else None,
        "predicted_low": _finite(predicted.low, 3) if predicted is not None else None,
        "predicted_high": _finite(predicted.high, 3) if predicted is not None else None,
        "measured": _finite(decision.measured, 3),
        "switch_seconds": _finite(decision.switch_seconds, 3),
        "paused_seconds": _finite(decision.paused_seconds, 3),
    }


def warm_start_dict(warm: WarmStart) -> dict[str, object]:
    """What the first plan rested on, as JSON shows it."""
    runs = [
        {"run_id": run.run_id, "weight": _finite(run.weight, 4), "similarity": _finite(run.similarity, 4),
         "plan": run.plan.as_dict()}
        for run in warm.runs
    ]  # fmt: skip
    plan = warm.plan.as_dict() if warm.plan is not None else None
    return {"note": warm.note, "runs": runs, "plan": plan, "floors": list(warm.floors)}


def no_result(state: JobState, error: str, bad_input: Mapping[str, str] | None = None) -> dict[str, object]:
    """The JSON of a job that has no result: every key of `JobResult.as_dict`, null where nothing is known.

    Args:
        state: failed or stopped.
        error: the reason in one line.
        bad_input: field, value and remedy, where it was that.
    """
    known: dict[str, object] = {"state": str(state), "error": error, "plans": [], "decisions": [], "metrics": {}}
    known["bad_input"] = dict(bad_input) if bad_input is not None else None
    return {key: known.get(key) for key in _KEYS}


_KEYS = (
    "run_id", "state", "batches_expected", "batches_applied", "batches_duplicated", "batches_skipped",
    "resends_dropped", "rows_expected", "rows_applied", "rows_skipped", "auc", "log_loss", "metrics",
    "samples_per_second", "plans", "objective", "decisions", "warm_start", "max_worker_gap_seconds", "wall_seconds",
    "cpu_seconds", "job_dir", "model", "report", "mlflow", "history_problem", "error", "bad_input",
)  # fmt: skip


def _finite(value: float | None, digits: int | None = None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(value, digits) if digits is not None else value
