"""Windows of a job made into the rows of a fit: one per configuration and visit, not one per window.

Windows of 2 to 5 seconds scatter by 10 % and there are hundreds of them; a fit that took each for evidence would
think itself sure of a law it has seen at a single point. So the last windows of one visit to a plan are one row, and
how long was observed is its weight. A long visit has a second row, of its first windows: they stand beside the plan
before it in time, and only measurements of the same minutes say which of two plans is better. What is missing stays
missing: CPU of None, 0 or NaN is not a demand of zero (case 30).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Observation
from trimtab.core.perf.cleaning import clean, length

LAST_WINDOWS = 8  # of one visit: what was measured long ago says less about now
MOST_ROWS = 24  # the newest
DEFAULT_WINDOW_SECONDS = 5.0  # where a window does not say how long it was
WINDOW_NOISE = 0.063  # log sd of the same plan measured again, for windows of 10.5 s, on a shared machine
_NOISE_WINDOW_SECONDS = 10.5


@dataclass(frozen=True)
class Row:
    """One visit to one plan.

    Attributes:
        plan: what was in force. batch_size: rows per batch.
        seconds: of one step of one worker.
        worker_cpu, ps_cpu: CPU seconds per step, None where not known.
        observed_seconds: how long was observed. windows: in how many windows.
        start, end: seconds since the job's start.
        scatter: log sd of the windows among each other, 0 for one window.
        ps_skew: CPU of the busiest server over the mean, None where not known.
        brought: by what `seconds` are more than they were measured (`slower`).
    """

    plan: Plan
    batch_size: int
    seconds: float
    worker_cpu: float | None
    ps_cpu: float | None
    observed_seconds: float
    windows: int
    start: float
    end: float
    scatter: float
    ps_skew: float | None = None
    brought: float = 1.0

    def slower(self, factor: float) -> Row:
        """The same visit on a machine that takes `factor` times as long for everything."""
        return replace(
            self, seconds=self.seconds * factor,
            worker_cpu=None if self.worker_cpu is None else self.worker_cpu * factor,
            ps_cpu=None if self.ps_cpu is None else self.ps_cpu * factor, brought=self.brought * factor,
        )  # fmt: skip

    @property
    def throughput(self) -> float:
        """Samples per second of the job."""
        return self.plan.worker.replicas * self.batch_size / self.seconds

    @property
    def measured_throughput(self) -> float:
        """Samples per second of the job as they were measured, whatever the machine does now."""
        return self.throughput * self.brought

    @property
    def standard_error(self) -> float:
        """Of the logarithm of `seconds`: from the scatter of its windows, at least what repeated windows have."""
        usual = WINDOW_NOISE * math.sqrt(_NOISE_WINDOW_SECONDS / self.observed_seconds)
        return max(usual, self.scatter / math.sqrt(self.windows))


def rows_of(observations: Sequence[Observation], changes: Sequence[tuple[float, float]] = ()) -> tuple[Row, ...]:
    """The rows of `observations`, oldest first; windows that are no evidence are left out (see `cleaning`)."""
    return rows_of_visits(clean(observations, changes).visits)


def rows_of_runs(observations: Sequence[Observation]) -> tuple[Row, ...]:
    """The newest rows of several runs' windows, one run after the other; where time goes back, the next one begins.

    In one job such a window is none (a clock that went back); here each run counts from its own start.
    """
    runs: list[list[Observation]] = []
    for one in observations:
        if not math.isfinite(one.time_seconds):
            continue
        if not runs or one.time_seconds <= runs[-1][-1].time_seconds:
            runs.append([])
        runs[-1].append(one)
    return tuple(row for run in runs for row in rows_of(run))[-MOST_ROWS:]


def rows_of_visits(visits: Sequence[Sequence[Observation]]) -> tuple[Row, ...]:
    """The newest rows of visits, oldest first."""
    rows = []
    for windows in visits:
        if len(windows) > LAST_WINDOWS:
            rows.append(_row(windows[:LAST_WINDOWS]))
        rows.append(_row(windows[-LAST_WINDOWS:]))
    return tuple(rows[-MOST_ROWS:])


def gap_seconds(one: Row, other: Row) -> float:
    """Time between two rows, 0 where they touch or overlap."""
    return max(0.0, one.start - other.end, other.start - one.end)


def _seconds(one: Observation) -> float:
    return one.plan.worker.replicas * one.batch_size / one.throughput


def _length(one: Observation) -> float:
    return length(one, DEFAULT_WINDOW_SECONDS)


def _row(windows: Sequence[Observation]) -> Row:
    lengths = [_length(one) for one in windows]
    total = sum(lengths)
    logs = [math.log(_seconds(one)) for one in windows]
    mean = sum(value * length for value, length in zip(logs, lengths, strict=True)) / total
    scatter = math.sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1)) if len(logs) > 1 else 0.0
    first, last = windows[0], windows[-1]
    return Row(
        last.plan, last.batch_size, math.exp(mean), _mean([one.worker_cpu_seconds for one in windows], lengths),
        _mean([one.ps_cpu_seconds for one in windows], lengths), total, len(windows),
        first.time_seconds - _length(first), last.time_seconds, scatter,
        _mean([one.ps_skew for one in windows], lengths),
    )  # fmt: skip


def _mean(values: Sequence[float | None], lengths: Sequence[float]) -> float | None:
    known = [
        (value, length)
        for value, length in zip(values, lengths, strict=True)
        if value is not None and math.isfinite(value) and value > 0
    ]
    total = sum(length for _, length in known)
    return sum(value * length for value, length in known) / total if total > 0 else None
