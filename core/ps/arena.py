"""The rows of one width: an array of places, which of them are used, and how places become memory again.

A bit per place says whether it is used, and the lowest unused one is given out first: so rows lie close together by
themselves, what was freed costs no list that grows with it, and a row that is born while rows are moved together never
stands in the way.
"""

from __future__ import annotations

import numpy as np

from trimtab.core.domain.model_spec import OptimizerSpec, TableSpec
from trimtab.core.ps import kernels
from trimtab.core.ps.layout import RowLayout, layout_of
from trimtab.core.ps.rows import Int64s
from trimtab.core.ps.space import give_back, reserve

_HUGE_PAGE = 2 << 20


class Arena:
    """The rows of consecutive tables with one layout and one update rule.

    Attributes:
        first, last: the tables, `last` not included.
        rows: f32[capacity, stride]; counters: the same memory as u32.
        used: u64, a bit per place.
        state: i64[3], kernels.FRESH, FREE, HINT.
    """

    def __init__(self, first: int, layout: RowLayout, optimizer: OptimizerSpec, arena_bytes: int) -> None:
        self.first, self.last = first, first
        self.layout, self.optimizer = layout, optimizer
        self.row_bytes = layout.stride * 4
        self.capacity = max(arena_bytes // self.row_bytes, 1)
        self._space = reserve(self.capacity * self.row_bytes)
        self.rows = np.frombuffer(self._space, np.float32, self.capacity * layout.stride).reshape(-1, layout.stride)
        self.counters = self.rows.view(np.uint32)
        words = -(-self.capacity // 64)
        self.used = np.frombuffer(reserve(words * 8, huge=False), np.uint64, words)
        self.state = np.zeros(3, np.int64)
        self._touched = 0  # bytes from here on have been given back

    @property
    def fresh(self) -> int:
        """The end of all places that are or were used: memory is taken for these."""
        return int(self.state[kernels.FRESH])

    @property
    def free(self) -> int:
        """Unused places below `fresh`."""
        return int(self.state[kernels.FREE])

    def give_back(self, places: Int64s, tables: Int64s, groups: Int64s, group: int) -> None:
        """Take back the places of those rows whose table groups[table] is `group`, this arena's number."""
        kernels.free_places(places, tables, groups, group, self.used, self.state)

    def shrink(self) -> None:
        """Forget the unused places at the end; their memory is given back by `give_memory_back`."""
        self._touched = max(self._touched, self.fresh * self.row_bytes)
        end = kernels.end_of_used(self.used, self.fresh)
        self.state[kernels.FREE] -= self.fresh - end
        self.state[kernels.FRESH] = end

    def give_memory_back(self, nbytes: int) -> bool:
        """Up to `nbytes` of the memory beyond all places, from its end; returns whether there is more.

        Rows that were born there meanwhile stay: it looks again where the places end.
        """
        keep = -(-self.fresh * self.row_bytes // _HUGE_PAGE) * _HUGE_PAGE
        start = max(keep, (self._touched - nbytes) // _HUGE_PAGE * _HUGE_PAGE)
        if start < self._touched:
            give_back(self._space, start, self._touched - start)
            self._touched = start
        return self._touched > keep


def arenas_of(tables: tuple[TableSpec, ...], arena_bytes: int) -> list[Arena]:
    """An arena for each run of tables with one layout and one rule, with addresses for `arena_bytes` of rows each.

    Raises:
        OSError: the system gives no addresses beyond its memory.
    """
    found: list[Arena] = []
    for number, table in enumerate(tables):
        layout = layout_of(table)
        last = found[-1] if found else None
        if last is None or (last.layout, last.optimizer) != (layout, table.optimizer):
            last = Arena(number, layout, table.optimizer, arena_bytes)
            found.append(last)
        last.last = number + 1
    return found
