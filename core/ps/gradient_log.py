"""What a worker pushed lately, so that a server which came back with older rows gets the very same gradients again.

Nothing rests on this log: numbers that it no longer has are computed again by whoever is lent them, and counts come
out the same. What it gives are the same bits, and time. It is one ring of bytes, reserved once and touched as it fills:
keeping the arrays themselves made a worker grow by 2 GB in 3,300 steps.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.ps.rows import Floats, Int64s
from trimtab.core.ps.sheet import Push, Section
from trimtab.core.wire.frames import padded

LOG_BYTES = 64 << 20
_LEAST_BYTES = 2048  # that a push is charged: bounds how many lie here, and so the objects that describe them


@dataclass(frozen=True)
class _Entry:
    """Where one push lies: from byte `start` of the ring on its counts, keys, gradients; `rows` of each section."""

    number: int
    rate: float
    skipped: bool
    servers: int
    rows: tuple[int, ...]
    start: int


class GradientLog:
    """The last pushes of one worker, each number once, in the order in which they were applied."""

    def __init__(self, tables: int, sections: tuple[Section, ...], limit_bytes: int = LOG_BYTES) -> None:
        """`tables`: T. The ring has `limit_bytes`; a push that is larger than it is not kept."""
        self._tables, self._sections = tables, sections
        ring = mmap.mmap(-1, max(limit_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):  # fewer page faults where the system has huge pages
            ring.madvise(mmap.MADV_HUGEPAGE)
        self._ring = np.frombuffer(ring, np.uint8)
        self._entries: OrderedDict[int, _Entry] = OrderedDict()  # oldest first; in the ring they lie in this order
        self._head = 0
        self.touched_bytes = 0  # of the ring, so far: what it costs of memory

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, number: int) -> bool:
        return number in self._entries

    def __iter__(self) -> Iterator[Push]:
        """The pushes, oldest first, as views that hold until the next `add`."""
        for entry in tuple(self._entries.values()):
            yield self._push(entry)

    def get(self, number: int) -> Push | None:
        """The push of one batch as views that hold until the next `add`, or None."""
        entry = self._entries.get(number)
        return None if entry is None else self._push(entry)

    def numbers(self) -> tuple[int, ...]:
        """The batch numbers, oldest push first."""
        return tuple(self._entries)

    def add(self, push: Push) -> None:
        """Keep a copy of `push` (of one that is here already: the first), at the cost of the oldest ones."""
        if push.number in self._entries:
            return
        rows: tuple[int, ...] = ()
        if not push.skipped:
            per_table = push.counts.sum(axis=0)
            rows = tuple(int(per_table[one.first : one.last].sum()) for one in self._sections)
        size = padded(push.counts.nbytes + sum(n * (8 + 4 * s.dim) for n, s in zip(rows, self._sections, strict=False)))
        start = self._place(max(size, _LEAST_BYTES))
        if start is None:
            return
        entry = _Entry(push.number, push.rate, push.skipped, len(push.counts), rows, start)
        kept = self._push(entry)
        kept.counts[:] = push.counts
        for n, to, source in zip(rows, kept.keys, push.keys, strict=False):
            to[:] = source[:n]
        for n, into, given in zip(rows, kept.gradients, push.gradients, strict=False):
            into[:] = given[:n]
        self._entries[push.number] = entry

    def _place(self, size: int) -> int | None:
        """Where `size` bytes in one piece may lie; what lay there is forgotten. None: more than the ring has."""
        if size > len(self._ring):
            return None
        start = self._head
        if start + size > len(self._ring):
            self._forget(start, len(self._ring))
            start = 0
        self._forget(start, start + size)
        self._head = start + size
        self.touched_bytes = max(self.touched_bytes, self._head)
        return start

    def _forget(self, start: int, end: int) -> None:
        """The oldest pushes follow the head, so those within start .. end-1 are the first ones."""
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if not start <= oldest.start < end:
                return
            self._entries.popitem(last=False)

    def _push(self, entry: _Entry) -> Push:
        at = entry.start
        counts, at = self._view(at, entry.servers * self._tables * 8)
        keys: list[Int64s] = []
        gradients: list[Floats] = []
        for rows in entry.rows:
            part, at = self._view(at, rows * 8)
            keys.append(part.view(np.int64))
        for rows, section in zip(entry.rows, self._sections, strict=False):
            part, at = self._view(at, rows * section.dim * 4)
            gradients.append(part.view(np.float32).reshape(rows, section.dim))
        shaped = counts.view(np.int64).reshape(entry.servers, self._tables)
        return Push(entry.number, entry.rate, entry.skipped, shaped, keys, gradients)

    def _view(self, at: int, nbytes: int) -> tuple[npt.NDArray[np.uint8], int]:
        return self._ring[at : at + nbytes], at + nbytes
