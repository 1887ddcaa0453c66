"""What changes in vshards that are being prepared for a move: a list of changed rows, and a running sum of all rows.

A move copies most rows while the server goes on applying pushes, so it must know which rows changed since. A list of
changed keys costs in proportion to the pushes, where a bitmap over all rows would have to be scanned while nobody is
served. The sum is kept by taking a row's hash away before it changes and adding it afterwards; it says at the end, at
the cost of the last few changes only, whether the other side holds the same rows. Callers hold the server's lock,
except for `sorted_out`, which takes long and would make training wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps.rows import Int64s
from trimtab.core.ps.table import Found, RowTable

Bools = npt.NDArray[np.bool_]

MOST_CHANGES = 8_000_000  # keys in the list; beyond, the copies are worthless and are made anew


def members(cover: int) -> Bools:
    """The bitmap as 512 booleans."""
    raw = np.frombuffer(cover.to_bytes(VSHARDS // 8, "little"), np.uint8)
    return np.unpackbits(raw, bitorder="little").astype(bool)


def selected(found: Found, keep: Bools) -> Found:
    """The rows of `found` for which `keep` is true."""
    before = np.concatenate(([0], np.cumsum(keep, dtype=np.int64)))
    places = found.places[keep]
    return Found(found.keys[keep], before[found.ends], places, int((places < 0).sum()))


def slices(ends: Int64s, size: int) -> Iterator[tuple[int, int, Int64s, Int64s]]:
    """Rows of a message (`ends` as in `Found`) so many at a time, one slice at least.

    Returns:
        For each slice where it begins and ends, and the same for each table's part of it, i64[T] both.
    """
    starts = np.concatenate(([0], ends[:-1]))
    total = int(ends[-1])
    for lo in range(0, max(total, 1), size):
        hi = min(lo + size, total)
        yield lo, hi, np.clip(starts, lo, hi), np.clip(ends, lo, hi)


@dataclass(frozen=True)
class Changes:
    """Rows by table: keys i64[n], and the end of each table's keys i64[T]; a key may stand there more than once."""

    keys: Int64s
    ends: Int64s


class Watch:
    """The watched vshards of one table.

    Attributes:
        mask: the watched vshards as a bitmap.
        sums: u64[512], of the watched ones.
    """

    def __init__(self, table: RowTable) -> None:
        self.mask = 0
        self.sums = np.zeros(VSHARDS, np.uint64)
        self._table = table
        self._members: Bools = np.zeros(VSHARDS, bool)
        self._log: list[Changes] = []
        self._logged = 0

    @property
    def logged(self) -> int:
        """Keys in the list of changes."""
        return self._logged

    def begin(self, vshard: int) -> Found:
        """Watch `vshard` from this instant on; returns its rows as they are now."""
        found = self._table.rows_in(vshard)
        self.sums[vshard] = 0
        self._table.add_sums(found, self.sums)
        self.mask |= 1 << vshard
        self._members[vshard] = True
        return found

    def end(self, vshards: int) -> None:
        """Watch `vshards` (a bitmap) no more."""
        self.mask &= ~vshards
        self._members &= ~members(vshards)
        if not self.mask:
            self._log, self._logged = [], 0

    def before(self, found: Found, newborn: Bools | None) -> Found | None:
        """Rows that are about to change; `newborn` marks those that did not exist before this push."""
        keep = self._members[self._table.vshards(found)]
        if not keep.any():
            return None
        old = keep if newborn is None else keep & ~newborn
        self._table.add_sums(selected(found, old), self.sums, negative=True)
        return selected(found, keep)

    def after(self, touched: Found) -> None:
        """They have changed."""
        self._table.add_sums(touched, self.sums)
        self._log.append(Changes(touched.keys, touched.ends))
        self._logged += len(touched.keys)
        if self._logged > MOST_CHANGES:
            self.end(self.mask)

    def take(self) -> list[Changes]:
        """The list of changes so far; a new one begins."""
        log, self._log, self._logged = self._log, [], 0
        return log

    def give_back(self, changes: Changes) -> None:
        """Changes that were taken and are not the taker's."""
        if len(changes.keys) and self.mask:
            self._log.append(changes)
            self._logged += len(changes.keys)

    def sorted_out(self, log: list[Changes], vshards: int) -> tuple[Changes, Changes]:
        """Distinct keys of `vshards` in `log`, and those of other vshards. Needs no lock: it looks at nothing else."""
        tables = len(self._table.tables)
        parts = [[one.keys[(one.ends[n - 1] if n else 0) : one.ends[n]] for one in log] for n in range(tables)]
        keys = [_distinct(of_table) for of_table in parts]
        whole = _joined(keys)
        chosen = members(vshards)[self._table.vshards(Found(whole.keys, whole.ends, whole.keys, 0))]
        return _chosen(whole, chosen), _chosen(whole, ~chosen)


def _distinct(parts: list[Int64s]) -> Int64s:
    """Each key once; the keys of one push are distinct already."""
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate(parts) if parts else np.empty(0, np.int64)
    keys.sort()  # several times as fast as np.unique, which hashes
    first = np.ones(len(keys), bool)
    first[1:] = keys[1:] != keys[:-1]
    return keys[first]


def _chosen(whole: Changes, keep: Bools) -> Changes:
    before = np.concatenate(([0], np.cumsum(keep, dtype=np.int64)))
    return Changes(whole.keys[keep], before[whole.ends])


def _joined(parts: list[Int64s]) -> Changes:
    return Changes(np.concatenate(parts), np.cumsum([len(part) for part in parts], dtype=np.int64))
