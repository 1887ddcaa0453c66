"""Losses of trained batches and the pace of training, each number counted once, whoever reports it how often.

A batch may be computed twice (a lost answer, a repair); the first report of its number counts, so that mean loss and
throughput are those of the data and not of the repairs.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.wire.messages import BatchLoss

RATE_WINDOW_SECONDS = 10.0


@dataclass(frozen=True)
class Losses:
    """Losses of trained batches, each number counted once, first report.

    Attributes:
        counted: numbers. rows, weighted: rows of finite ones, and their losses times rows. not_finite: how many.
        all_rows: of all counted ones; first_rows: of those in the first report.
        recent: moving average over about the last 50 batches, None before the first.
        samples: (time, rows) of the last seconds, for the present rate. first_at, last_at: times of reports.
    """

    counted: IntervalSet = EMPTY
    rows: int = 0
    weighted: float = 0.0
    not_finite: int = 0
    all_rows: int = 0
    first_rows: int = 0
    recent: float | None = None
    samples: tuple[tuple[float, int], ...] = ()
    first_at: float | None = None
    last_at: float | None = None

    def with_reports(self, losses: tuple[BatchLoss, ...], batches: int, now: float) -> tuple[Losses, int]:
        """These losses and new ones; and how many of them count."""
        counted, rows, weighted, bad, recent, fresh_rows, fresh = (
            self.counted, self.rows, self.weighted, self.not_finite, self.recent, 0, 0
        )  # fmt: skip
        for entry in losses:
            if entry.number in counted or not 0 <= entry.number < batches:
                continue
            counted, fresh, fresh_rows = counted.add(entry.number), fresh + 1, fresh_rows + entry.rows
            if entry.loss is None:
                bad += 1
                continue
            rows, weighted = rows + entry.rows, weighted + entry.loss * entry.rows
            recent = entry.loss if recent is None else recent + (entry.loss - recent) / 50
        if not fresh:
            return self, 0
        samples = tuple(sample for sample in self.samples if sample[0] > now - RATE_WINDOW_SECONDS)
        first = self.first_at is None
        return Losses(
            counted, rows, weighted, bad, self.all_rows + fresh_rows, fresh_rows if first else self.first_rows,
            recent, (*samples, (now, fresh_rows)), now if first else self.first_at, now,
        ), fresh  # fmt: skip

    @property
    def throughput(self) -> float | None:
        """Rows per second from the first report to the last: without start and compilation. None: too short to tell."""
        if self.first_at is None or self.last_at is None or self.last_at <= self.first_at:
            return None
        return (self.all_rows - self.first_rows) / (self.last_at - self.first_at)

    def rate(self, now: float) -> float:
        """Rows per second over the last seconds."""
        recent = [sample for sample in self.samples if sample[0] > now - RATE_WINDOW_SECONDS]
        if not recent:
            return 0.0
        began = self.first_at if self.first_at is not None else now
        return sum(rows for _, rows in recent) / max(1.0, min(RATE_WINDOW_SECONDS, now - began))
