"""The front: the plans that nobody beats in cost and throughput at once, exactly.

A genetic search finds most of it and never says what it missed. Enumerating is exact, but the law takes some 0.4 µs a
plan, 1.6 s for four million. Nearly all of them can be told to lose without the law: at a given number of PSs,
throughput never falls with more workers or more cores per pod, so a plan brings no more than its worker side does with
the PSs' largest cores, and no more than its PS side does with all the workers. Both are known per side, not per plan;
where the smaller one is less than what a cheaper plan is known to bring, the plan cannot be on the front. The law is
asked for the few that remain, so the answer is the same as with all of them.

Two faults of search libraries are kept out by construction (case 54): a dominated twin never stays because it equals
another, and what is not finite never counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.domain.plan import Plan
from trimtab.core.errors import BadInput
from trimtab.core.optimizer.space import Side, Space
from trimtab.core.perf.iteration import Array, Setting, Shapes
from trimtab.core.perf.law import Law

Speed = Callable[[Shapes], Array]

BLOCK = 1 << 17  # plans judged at once: three arrays of that length stay in a core's cache
_BUCKETS = 1 << 14  # of cost, for the throughput that cheaper plans are known to bring
_LEVELS, _MARGINS = 64, (1.0, 1.08, 1.2, 1.4)  # first guesses: so many throughputs, with sides so much faster
_ROUNDING = 1e-9  # of a ceiling against the law, relative


@dataclass(frozen=True)
class Candidate:
    """A plan with what it would cost and bring.

    Attributes:
        plan: the plan.
        cost: currency per hour.
        throughput: samples per second, predicted.
    """

    plan: Plan
    cost: float
    throughput: float


def front(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates that no other one beats, by rising cost and rising throughput.

    One beats another if it is neither dearer nor slower, and better in one of both. Of several with the same cost and
    throughput the first given stays. Candidates with a cost or throughput that is not finite are left out; the answer
    is empty when none is left, which means "keep the present plan".
    """
    given = list(candidates)
    cost = np.array([one.cost for one in given], float)
    return tuple(given[index] for index in front_of(cost, np.array([one.throughput for one in given], float)))


def front_of(cost: np.ndarray[Any, Any], throughput: np.ndarray[Any, Any]) -> list[int]:
    """`front` over arrays: indices of what nobody beats, by rising cost."""
    usable = np.flatnonzero(np.isfinite(cost) & np.isfinite(throughput))
    order = usable[np.lexsort((-throughput[usable], cost[usable]))]  # stable: the first given comes first
    if not len(order):
        return []
    best = np.maximum.accumulate(throughput[order])
    rises = np.concatenate([[True], throughput[order][1:] > best[:-1]])
    return [int(index) for index in order[rises]]


@dataclass(frozen=True)
class Front:
    """The front of a space, by rising cost and rising throughput.

    Attributes:
        space: where its plans are from.
        index: their numbers in it. cost: currency per hour. throughput: samples per second.
        evaluated: how many plans the law was asked for.
    """

    space: Space
    index: np.ndarray
    cost: Array
    throughput: Array
    evaluated: int = 0

    def __len__(self) -> int:
        return len(self.index)

    def candidates(self) -> tuple[Candidate, ...]:
        """Its plans, one by one."""
        rows = zip(self.index, self.cost, self.throughput, strict=True)
        return tuple(Candidate(self.space.plan(int(i)), float(cost), float(speed)) for i, cost, speed in rows)


def speed_of(law: Law, batch_size: int, setting: Setting) -> Speed:
    """The throughput that a law predicts, as a function of shapes: samples per second of all workers together."""
    return lambda shapes: shapes.workers * batch_size / law.seconds(shapes, batch_size, setting)


def exact_front(space: Space, throughput: Speed, ceiling: Speed | None = None, block: int = BLOCK) -> Front:
    """The front of all plans of `space` within its caps: the same as of all of them one by one.

    Of several plans with the same cost and throughput the one with the smallest number stays. Plans whose throughput
    is not finite are left out. Memory stays within some arrays of `block` plans, whatever the space.

    Args:
        space: the plans.
        throughput: samples per second of shapes, as predicted.
        ceiling: never below `throughput`, and never falling with more workers, more cores per worker or more cores
            per PS at the same number of PSs. For a law with coefficients of at least 0 that is the law itself. None:
            nothing of that kind is known, and every plan is evaluated.
        block: plans judged at once.

    Raises:
        BadInput: `block` is below 1.
    """
    if block < 1:
        raise BadInput("block", block, "give at least 1")
    parts = [_Part.of(space, number, ceiling) for number in range(len(space.ps))]
    known = _Known(parts)
    found = Front(space, np.array([], int), np.array([]), np.array([]))
    if ceiling is not None:
        found = _merged(found, np.unique(np.concatenate([part.guesses() for part in parts])), throughput)
        known.learn(found)
    for part in parts:
        for rows in part.slices(known, block):
            found = _merged(found, part.promising(rows, known), throughput)
            known.learn(found)
    return found


def hypervolume(cost: Array, throughput: Array, worst: tuple[float, float]) -> float:
    """The area that a front covers: of all (cost, throughput) that some plan of it is at least as good as.

    Args:
        cost, throughput: of the front's plans, in any order.
        worst: the corner: the highest cost and the lowest throughput that count.
    """
    kept = front_of(cost, throughput)
    c, t = np.append(cost[kept], worst[0]), throughput[kept]
    widths = np.maximum(0.0, np.minimum(c[1:], worst[0]) - c[:-1])
    return float(np.sum(widths * np.maximum(0.0, t - worst[1])))


@dataclass(frozen=True)
class _Part:
    """The plans with one number of PSs: worker sides (rows) by PS sides (columns), with the ceilings of both."""

    space: Space
    number: int
    worker: Side
    ps: Side
    worker_ceiling: Array
    ps_ceiling: Array

    @staticmethod
    def of(space: Space, number: int, ceiling: Speed | None) -> _Part:
        workers, worker_cpu = space.worker_axes()
        worker, ps = space.worker_side(workers, worker_cpu), space.ps_side(number)
        rows, columns = np.full(len(workers), np.inf), np.full(len(space.ps_cpu), np.inf)
        if ceiling is not None:
            p = space.ps[number]
            most = [np.full(len(rows), p), np.full(len(rows), space.ps_cpu.max())]
            rows = _raised(ceiling(Shapes(workers, worker_cpu, most[0], most[1])))
            all_workers = [np.full(len(columns), one.max()) for one in (space.workers, space.worker_cpu)]
            columns = _raised(ceiling(Shapes(all_workers[0], all_workers[1], np.full(len(columns), p), space.ps_cpu)))
        return _Part(space, number, worker, ps, rows, columns)

    def guesses(self) -> np.ndarray:
        """Numbers of plans that are probably on the front or near it.

        For some levels of throughput: the cheapest worker side and the cheapest PS side that reach it, or a bit more.
        """
        ends = [one[np.isfinite(one) & (one > 0)] for one in (self.worker_ceiling, self.ps_ceiling)]
        if not (len(ends[0]) and len(ends[1])):
            return np.array([], int)
        levels = np.geomspace(min(ends[0].min(), ends[1].min()), min(ends[0].max(), ends[1].max()), _LEVELS)
        found = []
        for worker_margin in _MARGINS:
            rows = _cheapest(self.worker.cost, self.worker_ceiling, levels * worker_margin)
            for ps_margin in _MARGINS:
                columns = _cheapest(self.ps.cost, self.ps_ceiling, levels * ps_margin)
                reached = (rows >= 0) & (columns >= 0)
                found.append(self._numbers(rows[reached], columns[reached]))
        numbers = np.concatenate(found)
        return np.asarray(numbers[self.space.within(numbers)])

    def slices(self, known: _Known, block: int) -> Iterable[np.ndarray]:
        """Rows that may hold something, in pieces of at most `block` plans (of one row where it alone has more)."""
        least = float(self.ps.cost.min())
        rows = np.flatnonzero(self.worker_ceiling >= known.at(known.scaled(self.worker.cost + least)))
        step = max(1, block // len(self.ps.cost))
        for start in range(0, len(rows), step):
            yield rows[start : start + step]

    def promising(self, rows: np.ndarray, known: _Known) -> np.ndarray:
        """Numbers, rising, of the plans of `rows` that no known cheaper plan is sure to beat."""
        least = float(self.worker.cost[rows].min())
        columns = np.flatnonzero(self.ps_ceiling >= known.at(known.scaled(self.ps.cost + least)))
        if not len(columns):
            return np.array([], int)
        # Scaled by side, so that a plan's bucket is one sum.
        bucket = np.add.outer(known.scaled(self.worker.cost[rows]), known.scaled(self.ps.cost[columns], 0.0))
        may = np.minimum.outer(self.worker_ceiling[rows], self.ps_ceiling[columns]) >= known.at(bucket)
        if self.space.cpu_cap < np.inf or self.space.memory_cap < np.inf:
            may &= self.space.fits(
                np.add.outer(self.worker.cpu[rows], self.ps.cpu[columns]),
                np.add.outer(self.worker.memory[rows], self.ps.memory[columns]),
            )
        row, column = np.nonzero(may)
        return self._numbers(rows[row], columns[column])

    def _numbers(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return np.asarray((self.number * self.space.rows + rows) * len(self.ps.cost) + columns)


class _Known:
    """The throughput that plans are known to bring, by cost, rounded so that it is never too much."""

    def __init__(self, parts: list[_Part]) -> None:
        self._least = min(float(part.worker.cost.min() + part.ps.cost.min()) for part in parts)
        most = max(float(part.worker.cost.max() + part.ps.cost.max()) for part in parts)
        self._scale = (_BUCKETS - 4) / (most - self._least) if most > self._least else 0.0
        # So that rounding makes no dearer plan a cheaper one; where all cost the same there is nothing to round.
        self._margin = 2 if self._scale else 0
        self._table = np.full(_BUCKETS, -np.inf)

    def scaled(self, cost: Array, least: float | None = None) -> Array:
        """Cost as a place in the table, of a whole plan or (`least` 0) of what is added to one."""
        return np.asarray((cost - (self._least if least is None else least)) * self._scale)

    def at(self, place: Array) -> Array:
        """The throughput that a plan which costs no more is known to bring, for each place."""
        return np.asarray(self._table.take(place.astype(np.int32), mode="clip"))

    def learn(self, found: Front) -> None:
        """Takes over a front. It rises in both, so of several in one place the last, which stays, is the fastest."""
        self._table[:] = -np.inf
        self._table[self.scaled(found.cost).astype(np.int32) + self._margin] = found.throughput
        np.maximum.accumulate(self._table, out=self._table)


def _merged(found: Front, numbers: np.ndarray, throughput: Speed) -> Front:
    """The front of `found` and of the plans with `numbers`."""
    if not len(numbers):
        return found
    numbers = np.setdiff1d(numbers, found.index, assume_unique=True)
    index = np.concatenate([found.index, numbers])
    cost = np.concatenate([found.cost, found.space.cost(numbers)])
    speed = np.concatenate([found.throughput, throughput(found.space.shapes(numbers))])
    by_number = np.argsort(index, kind="stable")  # so that the smallest of equals stays
    kept = by_number[front_of(cost[by_number], speed[by_number])]
    return Front(found.space, index[kept], cost[kept], speed[kept], found.evaluated + len(numbers))


def _cheapest(cost: Array, ceiling: Array, levels: Array) -> np.ndarray:
    """For each level the place of the cheapest side whose ceiling reaches it; -1 where none does."""
    order = np.argsort(cost, kind="stable")
    place = np.searchsorted(np.maximum.accumulate(ceiling[order]), levels)
    return np.where(place < len(order), order[np.minimum(place, len(order) - 1)], -1)


def _raised(ceiling: Array) -> Array:
    """With room for rounding; what is not a number says nothing, so nothing is left out for it."""
    return np.where(np.isnan(ceiling), np.inf, ceiling * (1 + _ROUNDING))
