"""At most one option per group within two capacities: most value, nearly, in milliseconds.

An exact solver takes seconds to hours for a thousand groups of fifty options. The greedy takes the steps of each
group's concave hull by value per size, which is optimal but for the last steps that do not fit; those are what a repair
wins back: fill what is left, then exchange one option against another where the sum is better. Two capacities make one
size by a mix of the shares they take; several mixes are tried, for which of the two is scarce depends on the groups.

Groups are rows and options columns of arrays of one shape; the option "nothing" (value 0, size 0) is always there.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from trimtab.core.perf.iteration import Array

NOTHING = -1
_MIXES = (0.0, 0.15, 0.3, 0.5, 0.7, 0.85, 1.0)  # share of the second capacity in an option's size
_REPAIRED = 3  # of the best answers
_REFINED = 4  # more mixes, halfway to the neighbours of the best
_LEAST_SIZE = 1e-12  # of an option that takes nothing: as good as free
_ROUNDING = 1e-9  # of a capacity, relative
_EXCHANGES = 60  # exchanges at most; each makes the sum better
_TRIED, _FEWEST_TRIED = 1 << 19, 16  # options looked at in one search for an exchange; gives tried in any case
_FILLS = 3  # rows, per row that gives, whose gains are taken for possible before it is tried


@dataclass(frozen=True)
class Options:
    """What may be taken.

    Attributes:
        value: of each option; not finite or not above 0: not to be taken.
        sizes: of each option in both capacities; below 0 gives something back.
        capacity: of both; below 0 nothing that needs more of it fits.
    """

    value: Array
    sizes: tuple[Array, Array]
    capacity: tuple[float, float]

    def total(self, chosen: np.ndarray) -> float:
        """The value of a choice: a column per row, or `NOTHING`."""
        rows = np.flatnonzero(chosen != NOTHING)
        return float(self.value[rows, chosen[rows]].sum())

    def left(self, chosen: np.ndarray) -> tuple[float, float]:
        """What a choice leaves of both capacities."""
        rows = np.flatnonzero(chosen != NOTHING)
        first, second = (float(size[rows, chosen[rows]].sum()) for size in self.sizes)
        return self.capacity[0] - first, self.capacity[1] - second


def choose_options(options: Options) -> np.ndarray:
    """A column of `options` per row, or `NOTHING`; together they keep both capacities.

    The best of the greedy's answers over all mixes, repaired. The same options always get the same answer.
    """
    if options.value.size == 0:
        return np.full(len(options.value), NOTHING)
    usable = np.isfinite(options.value) & (options.value > 0)
    usable &= np.isfinite(options.sizes[0]) & np.isfinite(options.sizes[1])
    value = np.where(usable, options.value, -np.inf)
    clean = Options(value, options.sizes, options.capacity)
    found = {mix: _filled(clean, _greedy(clean, mix)) for mix in _MIXES}
    for _ in range(_REFINED):
        mixes = sorted(found)
        at = mixes.index(max(mixes, key=lambda mix: clean.total(found[mix])))
        for other in (at - 1, at + 1):
            if 0 <= other < len(mixes):
                mix = (mixes[at] + mixes[other]) / 2
                found[mix] = _filled(clean, _greedy(clean, mix))
    distinct = {tuple(chosen.tolist()): mix for mix, chosen in found.items()}.values()
    best = sorted(distinct, key=lambda mix: -clean.total(found[mix]))[:_REPAIRED]
    repaired = [_exchanged(clean, found[mix], mix) for mix in best]
    return max(repaired, key=clean.total)


def bound(options: Options, steps: int = 200) -> float:
    """A value that no choice exceeds: the Lagrangian dual, by subgradient steps on the prices of both capacities."""
    capacity = np.maximum(np.array(options.capacity), 0.0)
    value = np.where(np.isfinite(options.value), options.value, -np.inf)
    unit = np.where(capacity > 0, capacity, 1.0)
    sizes = [size / each for size, each in zip(options.sizes, unit, strict=True)]
    prices, best = np.zeros(2), np.inf
    for step in range(steps):
        worth = value - prices[0] * sizes[0] - prices[1] * sizes[1]
        column = worth.argmax(1)
        rows = np.arange(len(worth))
        taken = worth[rows, column] > 0
        dual = float(worth[rows, column][taken].sum() + prices @ (capacity / unit))
        best = min(best, dual)
        slack = capacity / unit - [float(size[rows, column][taken].sum()) for size in sizes]
        if not np.any(slack < 0) and step == 0:
            break
        length = float(slack @ slack)
        if length == 0:
            break
        prices = np.maximum(0.0, prices - 0.3 * best / np.sqrt(1 + step) * slack / np.sqrt(length))
    return best


def _sizes(options: Options, mix: float) -> Array:
    """One size per option: the shares of both capacities, mixed."""
    shares = [size / max(cap, _LEAST_SIZE) for size, cap in zip(options.sizes, options.capacity, strict=True)]
    return np.asarray(np.maximum((1 - mix) * shares[0] + mix * shares[1], _LEAST_SIZE))


def _greedy(options: Options, mix: float) -> np.ndarray:
    """Steps of the hulls by value per size, each taken if it fits in what the ones before left."""
    size = _sizes(options, mix)
    steps = _hull_steps(options.value, size)
    chosen = np.full(len(options.value), NOTHING)
    left = list(options.capacity)
    room = [-_ROUNDING * abs(cap) for cap in options.capacity]
    closed: set[int] = set()
    values = [one.tolist() for one in options.sizes]
    for row, column in steps:
        if row in closed:
            continue
        before = chosen[row]
        more = [one[row][column] - (one[row][before] if before != NOTHING else 0.0) for one in values]
        if all(after >= room[at] or more[at] <= 0 for at, after in enumerate((left[0] - more[0], left[1] - more[1]))):
            chosen[row] = column
            left = [left[0] - more[0], left[1] - more[1]]
        else:
            closed.add(row)  # the hull's later steps stand on this one
    return chosen


def _hull_steps(value: Array, size: Array) -> list[tuple[int, int]]:
    """(row, column) of all steps of all rows' concave hulls from (0, 0), by falling value per size."""
    rows = np.arange(len(value))
    at_value, at_size = np.zeros(len(value)), np.zeros(len(value))
    found: list[tuple[np.ndarray, np.ndarray, Array]] = []
    while len(rows):
        more = size[rows] - at_size[rows, None]
        gain = value[rows] - at_value[rows, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where((gain > 0) & (more > 0), gain / more, -np.inf)
        best = slope.max(1)
        # Of equally steep ones the largest: the hull's next corner.
        column = np.where(slope >= best[:, None] * (1 - 1e-12), more, -np.inf).argmax(1)
        go = np.isfinite(best)
        rows, column, best = rows[go], column[go], best[go]
        found.append((rows, column, best))
        at_value[rows], at_size[rows] = value[rows, column], size[rows, column]
    row, column, slope = (np.concatenate([one[part] for one in found]) for part in range(3))
    order = np.argsort(-slope, kind="stable")  # a row's steps were found in their order
    return list(zip(row[order].tolist(), column[order].tolist(), strict=True))


def _current(options: Options, chosen: np.ndarray) -> tuple[Array, Array, Array]:
    """Value and sizes of what each row has."""
    rows, has = np.arange(len(chosen)), chosen != NOTHING
    column = np.where(has, chosen, 0)
    return tuple(  # type: ignore[return-value]
        np.where(has, one[rows, column], 0.0) for one in (options.value, *options.sizes)
    )


def _fits(options: Options, more: tuple[Array, Array], left: tuple[float, float]) -> np.ndarray:
    room = [_ROUNDING * abs(cap) for cap in options.capacity]
    parts = [(one <= max(here, 0.0) + slack) | (one <= 0) for one, here, slack in zip(more, left, room, strict=True)]
    return np.asarray(parts[0] & parts[1])


def _filled(options: Options, chosen: np.ndarray) -> np.ndarray:
    """The same with what still fits, the largest gain first."""
    chosen = chosen.copy()
    value, first, second = _current(options, chosen)
    gain = options.value - value[:, None]
    more = options.sizes[0] - first[:, None], options.sizes[1] - second[:, None]
    left = options.left(chosen)
    while True:
        may = (gain > 1e-12) & _fits(options, more, left)
        places = np.flatnonzero(may.ravel())
        if not len(places):
            return chosen
        row, column = divmod(int(places[gain.ravel()[places].argmax()]), gain.shape[1])
        took = float(more[0][row, column]), float(more[1][row, column])
        left = left[0] - took[0], left[1] - took[1]
        gain[row] -= gain[row, column]
        more[0][row] -= took[0]
        more[1][row] -= took[1]
        chosen[row] = column


def _exchanged(options: Options, chosen: np.ndarray, mix: float) -> np.ndarray:
    """Exchanges: one or two rows take less (or nothing), others what that makes room for, if the sum is better.

    The rows that lose least value per size give first. That, and how many are tried, bounds the work.
    """
    size = _sizes(options, mix)
    for _ in range(_EXCHANGES):
        better = _exchange(options, chosen, size)
        if better is None:
            return chosen
        chosen = better
    return chosen


def _exchange(options: Options, chosen: np.ndarray, size: Array) -> np.ndarray | None:
    """The first exchange that makes the sum better by more than rounding; None if there is none."""
    total = options.total(chosen)
    gives = _gives(options, chosen, size)
    tried = _TRIED // max(1, options.value.size)
    most = max(_FEWEST_TRIED, tried)
    few = gives[: int(math.sqrt(2 * tried))]
    pairs = (one for one in itertools.combinations(few, 2) if one[0][0] != one[1][0])
    for given in itertools.chain(((one,) for one in gives[:most]), pairs):
        trial = chosen.copy()
        for row, column in given:
            trial[row] = column
        left = options.left(trial)
        if min(left) < 0:  # smaller by the mix, but larger in the capacity that is full
            continue
        if total - options.total(trial) >= _most_gain(options, trial, left, len(given)):
            continue
        trial = _filled(options, trial)
        if options.total(trial) > total * (1 + 1e-9) + 1e-12:
            return trial
    return None


def _gives(options: Options, chosen: np.ndarray, size: Array) -> list[tuple[int, int]]:
    """(row, column) of what rows could take instead that is smaller, by the value lost per size."""
    found: list[tuple[float, int, int]] = []
    for row in np.flatnonzero(chosen != NOTHING).tolist():
        value, here = options.value[row, chosen[row]], size[row, chosen[row]]
        smaller = (options.value[row] < value) & (size[row] < here) & np.isfinite(options.value[row])
        columns = np.flatnonzero(smaller)
        lost = (value - options.value[row, columns]) / (here - size[row, columns])
        found += [(each, row, column) for each, column in zip(lost.tolist(), columns.tolist(), strict=True)]
        found.append((float(value / here), row, NOTHING))
    return [(row, column) for _, row, column in sorted(found)]


def _most_gain(options: Options, trial: np.ndarray, left: tuple[float, float], given: int) -> float:
    """What filling `trial` may bring: no more than the largest gain that fits, for each of some rows."""
    value, first, second = _current(options, trial)
    may = _fits(options, (options.sizes[0] - first[:, None], options.sizes[1] - second[:, None]), left)
    gain = np.where(may, options.value - value[:, None], 0.0).max(1)
    return float(np.sort(gain)[-_FILLS * given :].sum())
