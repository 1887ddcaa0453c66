"""The sentences of a report: what came of a job, for a person who reads only the first line.

Rules: the verb first, then the number, then the reason. Gains are rounded down and losses up, so that no sentence
promises more than was measured. A comparison with the static request is a counterfactual and says "predicted";
without a baseline it is left out. No sentence is made anywhere else.
"""

from __future__ import annotations

import math

from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import JobRecord

_THIN, _NO_BREAK, _UNKNOWN = "\u202f", "\u00a0", "–"


def outcome(job: JobRecord) -> str:
    """One sentence on how `job` ended.

    Figures it reads, all optional: wall_seconds, batches_expected, batches_applied, batches_skipped, and for the
    comparison cost, static_wall_seconds and static_cost (predicted for the request that the job would have had
    without trimtab). The reason of a job that did not finish is that of its last decision of kind "stop".
    """
    took = duration(job.figures.get("wall_seconds"))
    if job.state is JobState.RUNNING:
        return f"Training: {_trained(job)} done."
    if job.state is JobState.FINISHED:
        compared = _compared(job)
        return f"Finished in {took}{': ' + compared if compared else ''}."
    verb = "Stopped" if job.state is JobState.STOPPED else "Failed"
    reasons = [decision.reason for decision in job.decisions if decision.kind == "stop"]
    reason = f": {reasons[-1].rstrip('.')}" if reasons else ""
    return f"{verb} after {took}, {_trained(job)} trained{reason}."


def accounting(job: JobRecord) -> str:
    """The second line: plan changes, and batches skipped, repeated and missing. A dash where it is not known."""
    figures = job.figures
    expected, applied = figures.get("batches_expected"), figures.get("batches_applied")
    skipped = figures.get("batches_skipped")
    missing = None if expected is None or applied is None else max(0.0, expected - applied - (skipped or 0.0))
    changes = max(0, len(job.plans) - 1)
    parts = [f"{changes} plan change{'' if changes == 1 else 's'}"]
    counts = (("skipped", skipped), ("repeated", figures.get("batches_duplicated")), ("missing", missing))
    parts += [f"{whole(count)} batches {word}" for word, count in counts]
    return ", ".join(parts) + "."


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: '45 s', '41 min', '2 h 5 min'; a dash when not known."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return _UNKNOWN
    if seconds < 60:
        return f"{math.ceil(seconds)}{_NO_BREAK}s"
    minutes = math.ceil(seconds / 60)
    if minutes < 60:
        return f"{minutes}{_NO_BREAK}min"
    hours, rest = divmod(minutes, 60)
    return f"{hours}{_NO_BREAK}h" + (f" {rest}{_NO_BREAK}min" if rest else "")


def whole(number: float | None) -> str:
    """A count with thin spaces between thousands; a dash when not known."""
    if number is None or not math.isfinite(number):
        return _UNKNOWN
    return f"{round(number):,}".replace(",", _THIN).replace("-", "\u2212")


def _trained(job: JobRecord) -> str:
    """Share of the batches that are done, rounded down."""
    expected = job.figures.get("batches_expected")
    if not expected:
        return _UNKNOWN
    done = job.figures.get("batches_applied", 0.0) + job.figures.get("batches_skipped", 0.0)
    return f"{math.floor(100 * done / expected)}{_THIN}%"


def _compared(job: JobRecord) -> str:
    """'39 % faster and 23 % cheaper than predicted for the static request', or nothing without a baseline."""
    figures = job.figures
    words = [
        _gain(figures.get("wall_seconds"), figures.get("static_wall_seconds"), "faster", "slower"),
        _gain(figures.get("cost"), figures.get("static_cost"), "cheaper", "dearer"),
    ]
    said = [word for word in words if word]
    return " and ".join(said) + " than predicted for the static request" if said else ""


def _gain(actual: float | None, static: float | None, better: str, worse: str) -> str:
    """Relative difference in words: a gain rounded down, a loss rounded up. Nothing where one is not known."""
    if actual is None or not static or static <= 0:
        return ""
    share = round(100 * (1 - actual / static), 6)  # rounded first: 1 - 0.61 is not quite 0.39
    percent = math.floor(share) if share >= 0 else math.ceil(-share)
    return f"{percent}{_THIN}% {better if share >= 0 else worse}"
