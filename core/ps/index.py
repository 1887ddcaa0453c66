"""The index of a parameter server's table: which row holds (table, key).

One arena for all vshards keeps a look-up one compiled pass; a segment per vshard keeps growth short (one segment is
rehashed, never the whole index) and lists or drops a vshard without looking at any other. Arenas are reserved as
address space once and touched as they fill, so nothing is ever reallocated and a fork stays cheap.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps import kernels
from trimtab.core.ps.rows import Int64s

UInt64s = npt.NDArray[np.uint64]

_SMALLEST_SEGMENT = 16
_SLOT_BYTES = 16
_FULL = 0.6  # entries per slot; linear probing degrades beyond


def reserve(nbytes: int) -> mmap.mmap:
    """Anonymous zeroed address space that costs memory only where it is touched."""
    size = max(nbytes, mmap.PAGESIZE)
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    space = mmap.mmap(-1, size, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            space.madvise(mmap.MADV_HUGEPAGE)
    return space


@dataclass(frozen=True)
class VshardEntries:
    """All rows of a vshard, ordered by table, then key.

    Attributes:
        tables, keys, places: i64[n].
    """

    tables: Int64s
    keys: Int64s
    places: Int64s


class SegmentedIndex:
    """(table, key) → place, in a segment per vshard."""

    def __init__(self, salts: UInt64s, arena_bytes: int) -> None:
        """`arena_bytes` is the most that all segments may take, discarded ones that wait for reuse included."""
        self.salts = salts
        self._slots = max(arena_bytes // _SLOT_BYTES, _SMALLEST_SEGMENT)
        self._arena = reserve(self._slots * _SLOT_BYTES)
        self.slots = np.frombuffer(self._arena, np.int64, self._slots * 2).reshape(-1, 2)
        self.base = np.zeros(VSHARDS, np.int64)
        self.mask = np.zeros(VSHARDS, np.int64)
        self.counts = np.zeros(VSHARDS, np.int64)
        self._end = 0
        self._discarded: dict[int, list[int]] = {}

    @property
    def bytes_used(self) -> int:
        """Bytes of the arena that have been handed out."""
        return self._end * _SLOT_BYTES

    @property
    def bytes_held(self) -> int:
        """Bytes of the segments that vshards have now."""
        return int((self.mask + (self.mask > 0)).sum()) * _SLOT_BYTES

    def find(self, keys: Int64s, ends: Int64s, places: Int64s) -> int:
        """Fill `places` (-1 where absent); returns how many are absent."""
        return int(kernels.find(keys, ends, self.salts, self.base, self.mask, self.slots, places))

    def bytes_to_make_room(self, new: Int64s) -> int:
        """Arena bytes that `make_room` would take for `new[v]` more rows in each vshard."""
        need = 0
        reusable = {size: len(bases) for size, bases in self._discarded.items()}
        for vshard in np.flatnonzero(self._crowded(new)):
            size = self._size_for(int(self.counts[vshard] + new[vshard]))
            if reusable.get(size, 0):
                reusable[size] -= 1
            else:
                need += size * _SLOT_BYTES
        return need

    def fits(self, nbytes: int) -> bool:
        """Whether the arena has `nbytes` left."""
        return self._end * _SLOT_BYTES + nbytes <= self._slots * _SLOT_BYTES

    def make_room(self, new: Int64s) -> None:
        """Grow the segments of vshards that `new[v]` more rows would crowd."""
        for vshard in np.flatnonzero(self._crowded(new)):
            self._grow(int(vshard), self._size_for(int(self.counts[vshard] + new[vshard])))

    def entries(self, vshard: int) -> VshardEntries:
        """All rows of `vshard`."""
        n = int(self.counts[vshard])
        tables, keys, places = (np.empty(n, np.int64) for _ in range(3))
        if n:
            size = int(self.mask[vshard]) + 1
            kernels.list_segment(self.slots, int(self.base[vshard]), size, tables, keys, places)
            order = np.lexsort((keys, tables))
            tables, keys, places = tables[order], keys[order], places[order]
        return VshardEntries(tables, keys, places)

    def clear(self, vshard: int) -> None:
        """Forget all rows of `vshard`; the segment is kept for reuse."""
        if self.mask[vshard]:
            self._discard(int(self.base[vshard]), int(self.mask[vshard]) + 1)
        self.base[vshard] = self.mask[vshard] = self.counts[vshard] = 0

    def _crowded(self, new: Int64s) -> npt.NDArray[np.bool_]:
        size = np.where(self.mask > 0, self.mask + 1, 0)
        crowded: npt.NDArray[np.bool_] = (new > 0) & (self.counts + new > size * _FULL)
        return crowded

    @staticmethod
    def _size_for(rows: int) -> int:
        size = _SMALLEST_SEGMENT
        while rows > size * _FULL:
            size *= 2
        return size

    def _grow(self, vshard: int, size: int) -> None:
        bases = self._discarded.get(size)
        if bases:
            base = bases.pop()
        else:
            base, self._end = self._end, self._end + size
        old_base, old_size = int(self.base[vshard]), int(self.mask[vshard]) + 1 if self.mask[vshard] else 0
        if old_size:
            kernels.rehash(self.slots, old_base, old_size, self.slots, base, size - 1, self.salts)
            self._discard(old_base, old_size)
        self.base[vshard], self.mask[vshard] = base, size - 1

    def _discard(self, base: int, size: int) -> None:
        self.slots[base : base + size] = 0
        self._discarded.setdefault(size, []).append(base)
