"""Giving the memory of dropped rows back: the rows that are left move together, then the arenas' ends are returned.

A vshard that leaves frees places all over the arenas, and memory is only had back in whole pages. Training goes on
meanwhile, so the work is cut in pieces of a few milliseconds: each looks at a stretch of the index and moves what it
names from the arena's end to the lowest unused place. Rows that are born between two pieces take the lowest unused
places, too. Nothing depends on the pieces seeing everything: a row that they missed only leaves more memory in use.
"""

from __future__ import annotations

from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps import kernels
from trimtab.core.ps.arena import Arena
from trimtab.core.ps.index import SegmentedIndex
from trimtab.core.ps.rows import Int64s

PIECE_SLOTS = 1 << 14  # of the index: at most 60 % of them name a row, and a row is moved in a tenth of a microsecond
PIECE_BYTES = 64 << 20  # given back at once
LEAST_FREE_BYTES = 16 << 20
LEAST_FREE_SHARE = 0.25
_WORTH_IT = 0.125  # an arena with a smaller free share is left alone
_SLACK = 16  # a part of the free places is left for rows that are born meanwhile


def is_due(arenas: list[Arena]) -> bool:
    """Whether so much is free that it should be given back."""
    free = sum(arena.free * arena.row_bytes for arena in arenas)
    taken = sum(arena.fresh * arena.row_bytes for arena in arenas)
    return free > LEAST_FREE_BYTES and free > LEAST_FREE_SHARE * taken


class Compaction:
    """One pass over all rows, and the return of what it has freed. The caller holds the server's lock."""

    def __init__(self, index: SegmentedIndex, arenas: list[Arena], groups: Int64s) -> None:
        self._index, self._groups = index, groups
        self._arenas = [
            (number, arena, arena.fresh - arena.free + arena.free // _SLACK)
            for number, arena in enumerate(arenas)
            if arena.free > _WORTH_IT * arena.fresh
        ]
        self._vshard = self._slot = 0
        self._base = -1
        self._packed = not self._arenas

    def piece(self, slots: int) -> tuple[list[int], bool]:
        """A little of the work, about `slots` slots of the index; returns whose rows moved, and if more is left."""
        if self._packed:
            more = [arena.give_memory_back(PIECE_BYTES) for _, arena, _ in self._arenas]
            return [], any(more)
        moved = []
        left = slots
        while left > 0 and self._vshard < VSHARDS:
            vshard = self._vshard
            rows, looked = self._move(vshard, left)
            left -= looked
            if rows:
                moved.append(vshard)
        if self._vshard == VSHARDS:
            self._packed = True
            for _, arena, _ in self._arenas:
                arena.shrink()
        return moved, True

    def _move(self, vshard: int, slots: int) -> tuple[int, int]:
        """Go on with one vshard; returns how many rows moved and how many slots were looked at."""
        index = self._index
        base, size = int(index.base[vshard]), int(index.sizes[vshard])
        if base != self._base:  # another vshard, or its segment has grown since the last piece
            self._base, self._slot = base, 0
        self._slot = min(self._slot, size)
        end = min(size, self._slot + max(slots // len(self._arenas), 1))
        moved = sum(
            kernels.move_down(
                index.slots, base + self._slot, base + end, self._groups, number, target,
                arena.rows, arena.used, arena.state,
            )
            for number, arena, target in self._arenas
        )  # fmt: skip
        looked = (end - self._slot) * len(self._arenas)
        self._slot = end
        if end >= size:
            self._vshard, self._base = vshard + 1, -1
        return moved, looked + 1
