"""Sets of batch numbers as intervals: the applied sets of parameter servers and the controller's ledger.

A job has up to 10^9 batches, and nearly all of them form a few runs, so a set is a sorted tuple of disjoint,
non-touching half-open intervals. Values are immutable: a copy of a vshard, a report and the ledger can share one set
without a lock, and a set never forgets a number (see "How exactly-once works" in docs/design.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Interval = tuple[int, int]


class IntervalSet:
    """An immutable set of non-negative integers, stored as half-open intervals."""

    __slots__ = ("_starts", "intervals")

    intervals: tuple[Interval, ...]

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        """Builds the set from any intervals: unsorted, touching, overlapping or empty ones are allowed."""
        self.intervals = _normal(intervals)
        self._starts = [lo for lo, _ in self.intervals]

    @classmethod
    def _raw(cls, intervals: tuple[Interval, ...]) -> IntervalSet:
        made = cls.__new__(cls)
        made.intervals = intervals
        made._starts = [lo for lo, _ in intervals]
        return made

    @classmethod
    def span(cls, lo: int, hi: int) -> IntervalSet:
        """The numbers lo .. hi-1."""
        return cls._raw(((lo, hi),) if hi > lo else ())

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self.intervals[at][1]

    def __len__(self) -> int:
        return sum(hi - lo for lo, hi in self.intervals)

    def __bool__(self) -> bool:
        return bool(self.intervals)

    def __iter__(self) -> Iterator[int]:
        for lo, hi in self.intervals:
            yield from range(lo, hi)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and self.intervals == other.intervals

    def __hash__(self) -> int:
        return hash(self.intervals)

    def __repr__(self) -> str:
        return "IntervalSet(" + ", ".join(f"{lo}-{hi - 1}" for lo, hi in self.intervals) + ")"

    def add(self, number: int) -> IntervalSet:
        """This set with `number`: the fast path of every push, O(log n + n) on few intervals."""
        at = bisect_right(self._starts, number)
        old = self.intervals
        if at and number < old[at - 1][1]:
            return self
        left = at > 0 and old[at - 1][1] == number
        right = at < len(old) and old[at][0] == number + 1
        lo = old[at - 1][0] if left else number
        hi = old[at][1] if right else number + 1
        return IntervalSet._raw(old[: at - left] + ((lo, hi),) + old[at + right :])

    def __or__(self, other: IntervalSet) -> IntervalSet:
        return IntervalSet(self.intervals + other.intervals)

    def __and__(self, other: IntervalSet) -> IntervalSet:
        found: list[Interval] = []
        mine, theirs = self.intervals, other.intervals
        i = j = 0
        while i < len(mine) and j < len(theirs):
            lo, hi = max(mine[i][0], theirs[j][0]), min(mine[i][1], theirs[j][1])
            if lo < hi:
                found.append((lo, hi))
            if mine[i][1] < theirs[j][1]:
                i += 1
            else:
                j += 1
        return IntervalSet._raw(tuple(found))

    def __sub__(self, other: IntervalSet) -> IntervalSet:
        found: list[Interval] = []
        j, theirs = 0, other.intervals
        for lo, hi in self.intervals:
            while j < len(theirs) and theirs[j][1] <= lo:
                j += 1
            at, k = lo, j
            while k < len(theirs) and theirs[k][0] < hi:
                if theirs[k][0] > at:
                    found.append((at, theirs[k][0]))
                at = max(at, theirs[k][1])
                k += 1
            if at < hi:
                found.append((at, hi))
        return IntervalSet._raw(tuple(found))

    def issuperset(self, other: IntervalSet) -> bool:
        """Whether every number of `other` is in this set."""
        return not (other - self)

    def first(self, count: int) -> IntervalSet:
        """The `count` smallest numbers (fewer if the set is smaller)."""
        found: list[Interval] = []
        for lo, hi in self.intervals:
            if count <= 0:
                break
            take = min(count, hi - lo)
            found.append((lo, lo + take))
            count -= take
        return IntervalSet._raw(tuple(found))


def _normal(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted, disjoint, non-touching intervals with the same members."""
    merged: list[Interval] = []
    for lo, hi in sorted((lo, hi) for lo, hi in intervals if hi > lo):
        if merged and lo <= merged[-1][1]:
            if hi > merged[-1][1]:
                merged[-1] = (merged[-1][0], hi)
        else:
            merged.append((lo, hi))
    return tuple(merged)


EMPTY = IntervalSet()
