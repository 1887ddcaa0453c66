"""The rows of a parameter server: every table of the model, in arenas by width.

The table knows nothing of vshards' owners, applied sets or messages: it finds, reads, updates, lists and replaces
rows. Callers hold the server's lock. Whatever can fail (room for new rows) is asked for and granted before the first
row changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import VSHARDS, OptimizerSpec, TableSpec
from trimtab.core.errors import TrimtabError
from trimtab.core.ps import kernels, update_kernels
from trimtab.core.ps.hashing import salt
from trimtab.core.ps.index import SegmentedIndex, reserve
from trimtab.core.ps.layout import RowLayout, layout_of
from trimtab.core.ps.rows import Floats, Int64s, VshardRows


class TableFull(TrimtabError):
    """The rows of a push have no room within the memory limit; nothing was changed."""


@dataclass(frozen=True)
class Found:
    """Where a message's keys lie.

    Attributes:
        keys: i64[n], table after table.
        ends: i64[T], end of each table's keys.
        places: i64[n], -1 where absent.
        absent: how many are.
    """

    keys: Int64s
    ends: Int64s
    places: Int64s
    absent: int


class _Group:
    """The arena of consecutive tables with one layout and one update rule."""

    def __init__(self, first: int, layout: RowLayout, optimizer: OptimizerSpec, arena_bytes: int) -> None:
        self.first, self.last = first, first
        self.layout, self.optimizer = layout, optimizer
        self.capacity = max(arena_bytes // (layout.stride * 4), 1)
        space = reserve(self.capacity * layout.stride * 4)
        self.rows = np.frombuffer(space, np.float32, self.capacity * layout.stride).reshape(-1, layout.stride)
        self.counters = self.rows.view(np.uint32)
        self.fresh = 0
        self.free = np.empty(0, np.int64)
        self.free_count = 0

    def give_back(self, places: Int64s) -> None:
        need = self.free_count + len(places)
        if need > len(self.free):
            grown = np.empty(max(need, 2 * len(self.free)), np.int64)
            grown[: self.free_count] = self.free[: self.free_count]
            self.free = grown
        self.free[self.free_count : need] = places
        self.free_count = need


class RowTable:
    """All tables of one model on one parameter server."""

    def __init__(self, tables: tuple[TableSpec, ...], seed: int, memory_bytes: int) -> None:
        """An empty table that may grow to `memory_bytes` (rows and index)."""
        self.tables, self.memory_bytes = tables, memory_bytes
        self.dims = np.array([table.dim for table in tables], np.int64)
        self._seed = np.uint64(seed & (2**64 - 1))
        self._groups: list[_Group] = []
        for number, table in enumerate(tables):
            layout = layout_of(table)
            last = self._groups[-1] if self._groups else None
            if last is None or (last.layout, last.optimizer) != (layout, table.optimizer):
                last = _Group(number, layout, table.optimizer, memory_bytes)
                self._groups.append(last)
            last.last = number + 1
        self._group_of = np.array(
            [g for g, group in enumerate(self._groups) for _ in range(group.first, group.last)], np.int64
        )
        self.index = SegmentedIndex(np.array([salt(table.name) for table in tables], np.uint64), memory_bytes)
        self.generation = 1

    @property
    def row_count(self) -> int:
        """Rows of all tables."""
        return int(self.index.counts.sum())

    @property
    def bytes_used(self) -> int:
        """Bytes of row arenas and index that have been handed out."""
        return sum(g.fresh * g.layout.stride * 4 for g in self._groups) + self.index.bytes_used

    def find(self, keys: Int64s, counts: npt.NDArray[np.uint32]) -> Found:
        """Where `keys` lie (counts[t] keys of each table, table after table); changes nothing."""
        ends = np.cumsum(counts, dtype=np.int64)
        places = np.empty(len(keys), np.int64)
        return Found(keys, ends, places, self.index.find(keys, ends, places))

    def read(self, found: Found, defaults: bool, out: Floats) -> None:
        """Values into `out` (flat, table after table). Absent rows: the initializer's, or zeros when `defaults`."""
        at = start = 0
        for number, table in enumerate(self.tables):
            end = int(found.ends[number])
            if end > start:
                group = self._groups[self._group_of[number]]
                kind = kernels.INITIALIZERS[table.initializer.kind]
                until = at + (end - start) * table.dim
                kernels.gather(
                    found.keys, found.places, start, end, self.index.salts[number], self._seed, kind,
                    np.float32(table.initializer.a), np.float32(table.initializer.b), group.rows, table.dim,
                    defaults, out[at:until].reshape(-1, table.dim),
                )  # fmt: skip
                at, start = until, end

    def bear(self, found: Found) -> Found:
        """The same keys, the absent ones born with their initial values.

        Raises:
            TableFull: no room within the limit; nothing was changed.
        """
        if not found.absent:
            return found
        places = found.places.copy()
        self._make_room(found.keys, found.ends, places)
        start = 0
        for number, table in enumerate(self.tables):
            end = int(found.ends[number])
            group = self._groups[self._group_of[number]]
            if end > start and self._insert(number, found.keys, start, end, places, group):
                kind = kernels.INITIALIZERS[table.initializer.kind]
                kernels.fill_newborn(
                    found.keys, places, start, end, self.index.salts[number], self._seed, kind,
                    np.float32(table.initializer.a), np.float32(table.initializer.b), group.rows, table.dim,
                    group.layout.slots, np.float32(group.layout.slot_value),
                )  # fmt: skip
            start = end
        return Found(found.keys, found.ends, places, 0)

    def update(self, found: Found, gradients: Floats, rate: float) -> None:
        """Apply one gradient per row (flat, table after table) by each group's rule; no row may be absent."""
        at = start = 0
        for group in self._groups:
            end, dim = int(found.ends[group.last - 1]), group.layout.dim
            if end > start:
                until = at + (end - start) * dim
                _apply(group, found.places, start, end, gradients[at:until].reshape(-1, dim), rate)
                at, start = until, end

    def vshards(self, found: Found) -> npt.NDArray[np.uint16]:
        """The vshard of each key."""
        out = np.empty(len(found.keys), np.uint16)
        kernels.vshards_of(found.keys, found.ends, self.index.salts, out)
        return out

    def extract(self, vshard: int) -> VshardRows:
        """A copy of all rows of `vshard`."""
        entries = self.index.entries(vshard)
        bounds = np.searchsorted(entries.tables, np.arange(len(self.tables) + 1))
        keys, rows = [], []
        for number in range(len(self.tables)):
            start, end = int(bounds[number]), int(bounds[number + 1])
            group = self._groups[self._group_of[number]]
            out = np.empty((end - start, group.layout.width), np.float32)
            kernels.read_rows(entries.places, start, end, group.rows, group.layout.width, out)
            keys.append(entries.keys[start:end].copy())
            rows.append(out)
        return VshardRows(tuple(keys), tuple(rows))

    def drop(self, vshard: int) -> None:
        """Forget all rows of `vshard`; every token ends."""
        entries = self.index.entries(vshard)
        owners = self._group_of[entries.tables]
        for number, group in enumerate(self._groups):
            group.give_back(entries.places[owners == number])
        self.index.clear(vshard)
        self.generation += 1

    def replace(self, vshard: int, content: VshardRows) -> None:
        """Make `content` all that is known of `vshard`; every token ends.

        Raises:
            TableFull: no room within the limit; the vshard is then empty.
        """
        self.drop(vshard)
        keys = np.concatenate(content.keys)
        ends = np.cumsum([len(k) for k in content.keys], dtype=np.int64)
        places = np.full(len(keys), -1, np.int64)
        self._make_room(keys, ends, places)
        start = 0
        for number in range(len(self.tables)):
            end = int(ends[number])
            group = self._groups[self._group_of[number]]
            if end > start:
                self._insert(number, keys, start, end, places, group)
                values = np.ascontiguousarray(content.rows[number])
                kernels.write_rows(places, start, end, group.rows, group.layout.width, values)
            start = end
        self.generation += 1

    def _make_room(self, keys: Int64s, ends: Int64s, places: Int64s) -> None:
        """Room for every absent key, or TableFull before anything changed."""
        per_vshard, per_group = np.zeros(VSHARDS, np.int64), np.zeros(len(self._groups), np.int64)
        kernels.count_absent(keys, ends, self.index.salts, places, self._group_of, per_vshard, per_group)
        index_bytes = self.index.bytes_to_make_room(per_vshard)
        new_bytes = index_bytes
        crowded = not self.index.fits(index_bytes)
        for group, new in zip(self._groups, per_group, strict=True):
            fresh = max(0, int(new) - group.free_count)
            new_bytes += fresh * group.layout.stride * 4
            crowded = crowded or group.fresh + fresh > group.capacity
        if crowded or self.bytes_used + new_bytes > self.memory_bytes:
            raise TableFull(
                f"table of {self.bytes_used} bytes has no room for {new_bytes} more within its limit of "
                f"{self.memory_bytes}: give the parameter servers more memory, or more of them"
            )
        self.index.make_room(per_vshard)

    def _insert(self, number: int, keys: Int64s, start: int, end: int, places: Int64s, group: _Group) -> int:
        index = self.index
        used: int = kernels.insert(
            keys, start, end, number, index.salts[number], index.base, index.mask, index.slots, index.counts,
            places, group.free_count, group.fresh, group.free,
        )  # fmt: skip
        reused = min(used, group.free_count)
        group.free_count -= reused
        group.fresh += used - reused
        return used


def _apply(group: _Group, places: Int64s, start: int, end: int, gradients: Floats, rate: float) -> None:
    optimizer, rows, dim = group.optimizer, group.rows, group.layout.dim
    if optimizer.kind == "adagrad":
        update_kernels.adagrad(
            places, start, end, gradients, rows, dim, np.float32(rate), np.float32(optimizer.epsilon)
        )
    elif optimizer.kind == "sgd":
        update_kernels.sgd(places, start, end, gradients, rows, dim, np.float32(rate))
    elif optimizer.kind == "add":
        update_kernels.add(places, start, end, gradients, rows, dim)
    else:
        update_kernels.adam(
            places, start, end, gradients, rows, group.counters, dim, np.float32(rate),
            optimizer.beta_1, optimizer.beta_2, np.float32(optimizer.epsilon),
        )  # fmt: skip
