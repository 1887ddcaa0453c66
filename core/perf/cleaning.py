"""Which windows may be evidence, and how many were not and why.

A fit is only as good as its rows: a window in the middle of a change measures neither plan, one with a stalled worker
measures the worker, and a speed of zero or NaN measures nothing. They are left out here, each with its reason counted,
because a fit that drops silently cannot be told from one that saw nothing wrong. Missing CPU is not among them: such
a window still says how fast the job was (case 30: missing is not zero).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from trimtab.core.domain.records import Observation

NOT_A_SPEED = "without a speed"
IN_A_CHANGE = "in a change of the plan"
CLOCK_BACK = "before the one measured earlier"
STRAGGLING = "with a worker at less than half the others' speed"
FAR_OFF = "far from the others of its plan"
_STRAGGLER = 0.5  # of the median worker's batches
_FEWEST_FOR_OUTLIERS = 4  # windows of a visit
_FAR = 0.35  # log distance from its neighbours in time below which nothing is called an outlier
_FAR_DEVIATIONS = 4.0  # robust standard deviations
_MAD_TO_SD = 1.4826
_SAME_TIME = 1e-6  # seconds


@dataclass(frozen=True)
class Cleaned:
    """Windows by visit (one stay at one plan), oldest first, and how many were left out by reason."""

    visits: tuple[tuple[Observation, ...], ...]
    dropped: Mapping[str, int]

    def words(self) -> str:
        """'3 windows left out: 2 in a change of the plan, 1 without a speed'; "" when none was."""
        total = sum(self.dropped.values())
        parts = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        return f"{total} window{'' if total == 1 else 's'} left out: {parts}" if total else ""


def clean(observations: Sequence[Observation], changes: Sequence[tuple[float, float]] = ()) -> Cleaned:
    """Sort windows into visits and leave out what is no evidence.

    Args:
        observations: oldest first.
        changes: when (begin, settled, in the observations' time) the plan changed. A window that overlaps one is
            neither of the old plan nor of the new one (case 32), and no visit goes on over one.
    """
    dropped: Counter[str] = Counter()
    visits: list[list[Observation]] = []
    latest = -math.inf
    made = _Changes(changes)
    for one in observations:
        reason = _unfit(one, made, latest)
        if reason:
            dropped[reason] += 1
            continue
        latest = one.time_seconds
        if visits and _same_visit(visits[-1][-1], one, made):
            visits[-1].append(one)
        else:
            visits.append([one])
    kept = tuple(tuple(_without_outliers(visit, dropped)) for visit in visits)
    return Cleaned(kept, {reason: count for reason, count in dropped.items() if count})


def length(one: Observation, usual: float) -> float:
    """Seconds of a window; `usual` where it does not say."""
    return one.window_seconds if math.isfinite(one.window_seconds) and one.window_seconds > 0 else usual


class _Changes:
    """Changes of the plan, to be asked for by each of thousands of windows without looking at each of hundreds."""

    def __init__(self, changes: Sequence[tuple[float, float]]) -> None:
        ordered = sorted(changes)
        self._begins = [begin for begin, _ in ordered]
        self._settled = list(accumulate((settled for _, settled in ordered), max))  # the latest up to each

    def overlap(self, start: float, end: float) -> bool:
        """Whether a change was under way at some time between two."""
        before = bisect_left(self._begins, end - _SAME_TIME)
        return before > 0 and self._settled[before - 1] > start + _SAME_TIME

    def begin_between(self, start: float, end: float) -> bool:
        """Whether a change began between two times, both included."""
        at = bisect_left(self._begins, start - _SAME_TIME)
        return at < len(self._begins) and self._begins[at] <= end - _SAME_TIME


def _unfit(one: Observation, changes: _Changes, latest: float) -> str:
    if not (math.isfinite(one.throughput) and one.throughput > 0 and one.batch_size > 0):
        return NOT_A_SPEED
    if not math.isfinite(one.time_seconds) or one.time_seconds < latest:
        return CLOCK_BACK
    start = one.time_seconds - max(0.0, length(one, 0.0))
    return IN_A_CHANGE if changes.overlap(start, one.time_seconds) else ""


def _same_visit(before: Observation, one: Observation, changes: _Changes) -> bool:
    if before.plan != one.plan or before.batch_size != one.batch_size:
        return False
    return not changes.begin_between(before.time_seconds, one.time_seconds)


def _without_outliers(visit: list[Observation], dropped: Counter[str]) -> list[Observation]:
    """Stragglers and outliers go, unless they are all there is: then they are how the plan does at present."""
    even = [one for one in visit if one.slowest_worker is None or one.slowest_worker >= _STRAGGLER]
    if even and len(even) < len(visit):
        dropped[STRAGGLING] += len(visit) - len(even)
        visit = even
    if len(visit) < _FEWEST_FOR_OUTLIERS:
        return visit
    logs = [math.log(one.throughput) for one in visit]
    misses = [value - median(_neighbours(logs, at)) for at, value in enumerate(logs)]
    spread = _MAD_TO_SD * median(abs(one) for one in misses)
    far = max(_FAR, _FAR_DEVIATIONS * spread)
    near = [one for one, miss in zip(visit, misses, strict=True) if abs(miss) <= far]
    dropped[FAR_OFF] += len(visit) - len(near)
    return near


def _neighbours(values: Sequence[float], at: int) -> Sequence[float]:
    """The five nearest in time, itself among them: a level that lasts is no outlier, whatever came before it."""
    first = min(max(0, at - 2), max(0, len(values) - 5))
    return values[first : first + 5]
