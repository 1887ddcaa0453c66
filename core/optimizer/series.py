"""What a series of past runs says about the next one: smoothing in the order of time, drift, and a change of level.

Sizes of recurring jobs drift (a catalogue grows), scatter (the last plan of a run depends on noise), and jump (a model
gets a layer, a machine is replaced). Smoothing alone lags behind a drift and takes a week to follow a jump, so both are
looked for first. All of it is done on logarithms, because what drifts, scatters and jumps does so by a factor.

A run far from what the runs before it lead to may be a new level or a stray one, and nobody can know before the next.
The newest run is believed: if it is a new level, the next job is right at once; if it was astray, one job starts from a
wrong plan, and from then on it is known to be a stray.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SMOOTHING = 0.35  # mu: by how much each newer run takes over; paper.md's plots agree with 0.3 to 0.4
FAR = math.log(1.25)  # what differs by less is scatter, whatever the spread
FAR_SPREADS = 4.0
_LEAST_BEFORE = 3  # runs of a level before another level is looked for
_LEAST_FOR_DRIFT = 5
_SURE = 2.5  # a slope of so many standard errors is a drift
_SPREAD, _SPREAD_COUNTS = 0.06, 1.0  # of runs of one level, before any was seen; as much as so many runs say
_MOST_CARRIED = math.log(2.0)  # the most that a drift is carried on by
_ROWS_VARY = 0.01  # less than this between the runs says nothing about rows


@dataclass(frozen=True)
class Point:
    """One past run.

    Attributes:
        days: when, on any scale of days.
        rows: of its data; None: not known.
        similarity: to the new job, (0..1].
        logs: natural logarithms of what is smoothed, as many in every run.
        whole: it was not stopped by somebody: one that was is never the first of a new level.
    """

    days: float
    rows: float | None
    similarity: float
    logs: tuple[float, ...]
    whole: bool = True


@dataclass(frozen=True)
class Drift:
    """A change with time or rows: `by` is "days" or "rows"; `slope`: of the logarithm, per day or per ln(rows)."""

    by: str
    slope: float


@dataclass(frozen=True)
class Foreseen:
    """What the series says.

    Attributes:
        logs: logarithms of the values to expect.
        weights: of the runs, in their order; they add up to 1, and a run that does not count has 0.
        drifts: of each value; None: none was found.
        carried: by how much each value was carried on beyond the weighted mean of the runs, as a logarithm.
        level: how many of the newest runs alone count, because they are far from those before; 0: no such change.
        led_to: what the runs before these led to (logarithms), () without such a change.
        strays: places of runs that lay far off and were followed by runs that did not.
    """

    logs: tuple[float, ...]
    weights: tuple[float, ...]
    drifts: tuple[Drift | None, ...]
    carried: tuple[float, ...]
    level: int = 0
    led_to: tuple[float, ...] = ()
    strays: tuple[int, ...] = ()


def foresee(series: Sequence[Point], days: float, rows: float | None) -> Foreseen:
    """The values to expect of a new run.

    Args:
        series: at least one run, the oldest first.
        days, rows: of the new run; see `Point`.
    """
    levels, strays = _levels(series)
    newest = levels[-1]
    logs, drifts, carried = _expected(series, levels, days, rows)
    raw = _smoothing(series, newest)
    weights = [0.0] * len(series)
    for place, weight in zip(newest, raw, strict=True):
        weights[place] = weight
    if len(levels) == 1:
        return Foreseen(logs, tuple(weights), drifts, carried, strays=strays)
    first = series[newest[0]]
    led_to, _, _ = _expected(series, levels[:-1], first.days, first.rows)
    return Foreseen(logs, tuple(weights), drifts, carried, len(newest), led_to, strays)


def _levels(series: Sequence[Point]) -> tuple[list[list[int]], tuple[int, ...]]:
    """The runs as levels, oldest first (places in the series), and the stray ones."""
    levels: list[list[int]] = [[]]
    strays: list[int] = []
    doubt: list[int] = []  # far from the level, and not yet known what it is
    for at, one in enumerate(series):
        level = levels[-1]
        if len(level) < _LEAST_BEFORE:
            level.append(at)
            continue
        led_to, _, _ = _expected(series, levels, one.days, one.rows)
        unsure = math.sqrt(1 + sum(weight**2 for weight in _smoothing(series, level)))  # the run itself, and the mean
        far = [max(FAR, FAR_SPREADS * unsure * spread) for spread in _spreads(series, levels)]
        if _near(one.logs, led_to, far):
            strays += doubt
            doubt = []
            level.append(at)
        elif doubt and _near(one.logs, series[doubt[0]].logs, far):
            levels.append([*doubt, at])
            doubt = []
        else:
            strays += doubt
            doubt = [at]
    if doubt and series[doubt[0]].whole:
        levels.append(doubt)
    else:
        strays += doubt
    return levels, tuple(sorted(strays))


def _near(logs: Sequence[float], others: Sequence[float], far: Sequence[float]) -> bool:
    return all(abs(one - other) <= most for one, other, most in zip(logs, others, far, strict=True))


def _smoothing(series: Sequence[Point], places: Sequence[int]) -> list[float]:
    """Weights of exponential smoothing, normalised: the plain recursion gives the oldest run the largest of all."""
    raw = [series[at].similarity * (1 - SMOOTHING) ** age for age, at in enumerate(reversed(places))][::-1]
    return [one / sum(raw) for one in raw]


def _expected(
    series: Sequence[Point], levels: Sequence[Sequence[int]], days: float, rows: float | None
) -> tuple[tuple[float, ...], tuple[Drift | None, ...], tuple[float, ...]]:
    """The values to expect at `days` and `rows`, the drifts they rest on, and how far they were carried."""
    newest = levels[-1]
    weights = _smoothing(series, newest)
    logs, drifts, carried = [], [], []
    for value in range(len(series[0].logs)):
        drift = _drift(series, levels, value, rows)
        step = 0.0
        if drift is not None:
            seen = _along(series, [at for level in levels for at in level], drift.by)
            mine = days if drift.by == "days" else math.log(rows or 1.0)
            span = max(seen) - min(seen)
            mine = min(max(seen) + span, max(min(seen) - span, mine))  # no farther ahead than was looked back
            middle = sum(w * x for w, x in zip(weights, _along(series, newest, drift.by), strict=True))
            step = min(_MOST_CARRIED, max(-_MOST_CARRIED, drift.slope * (mine - middle)))
        mean = sum(weight * series[at].logs[value] for weight, at in zip(weights, newest, strict=True))
        logs.append(mean + step)
        drifts.append(drift)
        carried.append(step)
    return tuple(logs), tuple(drifts), tuple(carried)


def _drift(series: Sequence[Point], levels: Sequence[Sequence[int]], value: int, rows: float | None) -> Drift | None:
    """The drift of one value, None where the runs do not show one; rows explain it before time does."""
    best: tuple[float, Drift] | None = None
    for by in ("rows", "days"):
        found = _slope(series, levels, value, by) if by == "days" or rows is not None else None
        if found is None:
            continue
        slope, error = found
        sure = abs(slope) / error
        if sure >= _SURE and (best is None or sure > 1.1 * best[0]):
            best = (sure, Drift(by, slope))
    return best[1] if best is not None else None


def _slope(
    series: Sequence[Point], levels: Sequence[Sequence[int]], value: int, by: str
) -> tuple[float, float] | None:
    """Least squares with one slope over all levels, each with a height of its own: the slope and its standard error."""
    count = sum(len(level) for level in levels)
    free = count - len(levels) - 1
    known = by == "days" or all(series[at].rows is not None for level in levels for at in level)
    if count < _LEAST_FOR_DRIFT or free < 1 or not known:
        return None
    xx = xy = yy = 0.0
    for level in levels:
        xs = _along(series, level, by)
        ys = [series[at].logs[value] for at in level]
        x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
        xx += sum((x - x_mean) ** 2 for x in xs)
        xy += sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
        yy += sum((y - y_mean) ** 2 for y in ys)
    if xx <= (count * _ROWS_VARY**2 if by == "rows" else 1e-9):
        return None
    slope = xy / xx
    left = max(0.0, yy - slope * xy)
    variance = (left + _SPREAD_COUNTS * _SPREAD**2) / (free + _SPREAD_COUNTS)
    return slope, math.sqrt(variance / xx)


def _spreads(series: Sequence[Point], levels: Sequence[Sequence[int]]) -> list[float]:
    """The standard deviation of each value about its level and drift."""
    spreads = []
    for value in range(len(series[0].logs)):
        drift = _drift(series, levels, value, 1.0)
        squares, free = 0.0, -1.0 if drift is not None else 0.0
        for level in levels:
            xs = _along(series, level, drift.by) if drift is not None else [0.0] * len(level)
            slope = drift.slope if drift is not None else 0.0
            left = [series[at].logs[value] - slope * x for at, x in zip(level, xs, strict=True)]
            mean = sum(left) / len(left)
            squares += sum((one - mean) ** 2 for one in left)
            free += len(level) - 1
        variance = (squares + _SPREAD_COUNTS * _SPREAD**2) / (max(0.0, free) + _SPREAD_COUNTS)
        spreads.append(math.sqrt(variance))
    return spreads


def _along(series: Sequence[Point], places: Sequence[int], by: str) -> list[float]:
    """Days, or logarithms of rows, of some runs."""
    if by == "days":
        return [series[at].days for at in places]
    return [math.log(max(1.0, series[at].rows or 1.0)) for at in places]
