"""The index of a parameter server's table: which row holds (table, key).

One arena for all vshards keeps a look-up one compiled pass; a segment per vshard keeps growth short (one segment is
rehashed, never the whole index) and lists or drops a vshard without looking at any other.

Keys are spread evenly, so all segments fill alike: with one limit for all of them, hundreds would grow by the same few
pushes. Each vshard has a limit of its own, spaced so that they grow one after the other at every size, a few of them
per push at most. Two sizes per octave keep the index at about 37 bytes per row. The memory of a segment that was left
goes back at once.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps import kernels
from trimtab.core.ps.rows import Int64s
from trimtab.core.ps.space import give_back, reserve

UInt64s = npt.NDArray[np.uint64]

_SLOT_BYTES = 16
_PAGE_SLOTS = mmap.PAGESIZE // _SLOT_BYTES  # smaller segments share pages: they stay, and are used again
_ADDRESSES = 16  # times the limit in memory: places of segments that were left are only used again for the same size
_STEPS = 2  # sizes per octave
_FULL = 0.6  # entries per slot; linear probing degrades beyond


def _sizes() -> Int64s:
    """What segments there are, in slots: whole pages where they have more than a few."""
    sizes = 2.0 ** (np.arange(4 * _STEPS, 31 * _STEPS) / _STEPS)
    unit = np.where(sizes < 4 * _PAGE_SLOTS, 4, _PAGE_SLOTS)
    return (np.ceil(sizes / unit) * unit).astype(np.int64)


def _limits() -> npt.NDArray[np.float64]:
    """Entries per slot beyond which each vshard's segment grows: neighbours far apart, within one step of size.

    The vshard that grows first does so again just when the last one has: at every size the same share of vshards grows
    per row that is born.
    """
    bits = VSHARDS.bit_length() - 1
    turned = np.array([int(f"{vshard:0{bits}b}"[::-1], 2) for vshard in range(VSHARDS)])
    limits: npt.NDArray[np.float64] = _FULL * 2.0 ** (-turned / VSHARDS / _STEPS)
    return limits


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
        """`arena_bytes` is the most memory that all segments may take; more address space is reserved."""
        self.salts = salts
        self._slots = max(arena_bytes // _SLOT_BYTES, _PAGE_SLOTS)
        try:
            self._arena = reserve(self._slots * _ADDRESSES * _SLOT_BYTES)
            self._slots *= _ADDRESSES
        except OSError:  # a system that wants memory behind every address
            self._arena = reserve(self._slots * _SLOT_BYTES)
        self.slots = np.frombuffer(self._arena, np.int64, self._slots * 2).reshape(-1, 2)
        self.base = np.zeros(VSHARDS, np.int64)
        self.sizes = np.zeros(VSHARDS, np.int64)
        self.counts = np.zeros(VSHARDS, np.int64)
        self._limits, self._possible = _limits(), _sizes()
        self._end = 0
        self._discarded: dict[int, list[int]] = {}
        self._waiting = 0  # slots of small discarded segments

    @property
    def bytes_used(self) -> int:
        """Bytes of the segments that vshards have now, and of small ones that wait for reuse."""
        return self.bytes_held + self._waiting * _SLOT_BYTES

    @property
    def bytes_held(self) -> int:
        """Bytes of the segments that vshards have now."""
        return int(self.sizes.sum()) * _SLOT_BYTES

    def find(self, keys: Int64s, ends: Int64s, places: Int64s) -> int:
        """Fill `places` (-1 where absent); returns how many are absent."""
        return int(kernels.find(keys, ends, self.salts, self.base, self.sizes, self.slots, places))

    def bytes_to_make_room(self, new: Int64s) -> int | None:
        """Bytes by which `make_room` for `new[v]` more rows in each vshard would raise `bytes_used`.

        None where the arena has no addresses left for it.
        """
        slots, end = 0, self._end
        reusable = {size: len(bases) for size, bases in self._discarded.items()}
        for vshard in np.flatnonzero(self._crowded(new)):
            old, size = int(self.sizes[vshard]), self._size_for(int(vshard), new)
            again = reusable.get(size, 0) > 0
            if again:
                reusable[size] -= 1
            else:
                end = self._aligned(end, size) + size
            slots += size if not again or size >= _PAGE_SLOTS else 0
            slots -= old if old >= _PAGE_SLOTS else 0
        return slots * _SLOT_BYTES if end <= self._slots else None

    def make_room(self, new: Int64s) -> None:
        """Grow the segments of vshards that `new[v]` more rows would crowd; room for it was found before."""
        for vshard in np.flatnonzero(self._crowded(new)):
            self._grow(int(vshard), self._size_for(int(vshard), new))

    def entries(self, vshard: int) -> VshardEntries:
        """All rows of `vshard`."""
        found = self._listed(vshard)
        order = np.lexsort((found.keys, found.tables))
        return VshardEntries(found.tables[order], found.keys[order], found.places[order])

    def clear(self, vshard: int) -> VshardEntries:
        """Forget all rows of `vshard`; returns what they were, in no order."""
        found = self._listed(vshard)
        self._discard(int(self.base[vshard]), int(self.sizes[vshard]))
        self.base[vshard] = self.sizes[vshard] = self.counts[vshard] = 0
        return found

    def _listed(self, vshard: int) -> VshardEntries:
        n = int(self.counts[vshard])
        tables, keys, places = (np.empty(n, np.int64) for _ in range(3))
        kernels.list_segment(self.slots, int(self.base[vshard]), int(self.sizes[vshard]), tables, keys, places)
        return VshardEntries(tables, keys, places)

    def _crowded(self, new: Int64s) -> npt.NDArray[np.bool_]:
        crowded: npt.NDArray[np.bool_] = (new > 0) & (self.counts + new > self.sizes * self._limits)
        return crowded

    def _size_for(self, vshard: int, new: Int64s) -> int:
        rows = self.counts[vshard] + new[vshard]
        return int(self._possible[np.searchsorted(self._possible, rows / self._limits[vshard])])

    @staticmethod
    def _aligned(start: int, size: int) -> int:
        """The first slot from `start` on where a segment may lie: one of a page or more shares none."""
        return -(-start // _PAGE_SLOTS) * _PAGE_SLOTS if size >= _PAGE_SLOTS else start

    def _grow(self, vshard: int, size: int) -> None:
        bases = self._discarded.get(size)
        if bases:
            base = bases.pop()
            self._waiting -= size if size < _PAGE_SLOTS else 0
        else:
            base = self._aligned(self._end, size)
            self._end = base + size
        old_base, old_size = int(self.base[vshard]), int(self.sizes[vshard])
        kernels.rehash(self.slots, old_base, old_size, self.slots, base, size, self.salts)
        self._discard(old_base, old_size)
        self.base[vshard], self.sizes[vshard] = base, size

    def _discard(self, base: int, size: int) -> None:
        if not size:
            return
        if size < _PAGE_SLOTS:
            self.slots[base : base + size] = 0
            self._waiting += size
        else:
            give_back(self._arena, base * _SLOT_BYTES, size * _SLOT_BYTES)
        self._discarded.setdefault(size, []).append(base)
