"""The rows of a parameter server: every table of the model, in arenas by width.

The table knows nothing of vshards' owners, applied sets or messages: it finds, reads, updates, lists, replaces and
moves rows. Callers hold the server's lock. Whatever can fail (room for new rows) is asked for and granted before the
first row changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import VSHARDS, TableSpec
from trimtab.core.errors import TrimtabError
from trimtab.core.ps import compaction, kernels, update_kernels
from trimtab.core.ps.arena import Arena, arenas_of
from trimtab.core.ps.hashing import salt
from trimtab.core.ps.index import SegmentedIndex
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


class RowTable:
    """All tables of one model on one parameter server.

    Attributes:
        memory_bytes: how far it may grow now. most_bytes: how far at most, ever.
        table_rows: i64[T], rows of each table.
        generation: rises whenever rows lose their places.
    """

    def __init__(self, tables: tuple[TableSpec, ...], seed: int, memory_bytes: int, most_bytes: int = 0) -> None:
        """An empty table that may grow to `memory_bytes` (rows and index).

        `most_bytes`: how far that limit may ever rise; so much address space is reserved, where the system gives it.
        """
        self.tables, self.memory_bytes = tables, memory_bytes
        self.most_bytes = max(memory_bytes, most_bytes)
        self.dims = np.array([table.dim for table in tables], np.int64)
        self._seed = np.uint64(seed & (2**64 - 1))
        salts = np.array([salt(table.name) for table in tables], np.uint64)
        try:
            self._groups, self.index = arenas_of(tables, self.most_bytes), SegmentedIndex(salts, self.most_bytes)
        except OSError:  # a system that wants memory behind every address
            self.most_bytes = memory_bytes
            self._groups, self.index = arenas_of(tables, memory_bytes), SegmentedIndex(salts, memory_bytes)
        self._group_of = np.array(
            [g for g, group in enumerate(self._groups) for _ in range(group.first, group.last)], np.int64
        )
        self.table_rows = np.zeros(len(tables), np.int64)
        self.generation = 1
        self._displaced = np.zeros(VSHARDS, np.int64)  # the generation in which each vshard's rows last lost places
        self._compaction: compaction.Compaction | None = None

    def allow(self, memory_bytes: int) -> bool:
        """Let the table grow to `memory_bytes` from now on, or as far as it can; returns whether that is more."""
        before, self.memory_bytes = self.memory_bytes, min(memory_bytes, self.most_bytes)
        return self.memory_bytes > before

    @property
    def row_count(self) -> int:
        """Rows of all tables."""
        return int(self.index.counts.sum())

    @property
    def bytes_used(self) -> int:
        """Bytes of row arenas and index that cost memory: what the limit is about."""
        return sum(g.fresh * g.row_bytes for g in self._groups) + self.index.bytes_used

    @property
    def bytes_held(self) -> int:
        """Bytes of the rows and index segments that are in use: what would have to be kept elsewhere."""
        rows = sum((g.fresh - g.free) * g.row_bytes for g in self._groups)
        return rows + self.index.bytes_held

    @property
    def wants_compaction(self) -> bool:
        """Whether dropped rows have left so much memory behind that `compact_piece` should be called until it is done.

        More than 16 MB and a quarter of the arenas; always while a compaction is under way.
        """
        return self._compaction is not None or compaction.is_due(self._groups)

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

    def width(self, number: int) -> int:
        """Floats of a whole row of one table."""
        group: Arena = self._groups[self._group_of[number]]
        return group.layout.width

    def vshards_of(self, number: int, keys: Int64s) -> npt.NDArray[np.uint16]:
        """The vshard of each key of one table."""
        ends = np.zeros(len(self.tables), np.int64)
        ends[number:] = len(keys)
        return self.vshards(Found(keys, ends, keys, 0))

    def rows_in(self, vshard: int) -> Found:
        """Every row of `vshard`, by table, then key."""
        entries = self.index.entries(vshard)
        ends = np.searchsorted(entries.tables, np.arange(1, len(self.tables) + 1)).astype(np.int64)
        return Found(entries.keys, ends, entries.places, 0)

    def whole_rows(self, found: Found) -> tuple[Floats, ...]:
        """Values, slots and counters of rows of which none is absent: for each table [n, width]."""
        rows, start = [], 0
        for number in range(len(self.tables)):
            end = int(found.ends[number])
            group = self._groups[self._group_of[number]]
            out = np.empty((end - start, group.layout.width), np.float32)
            kernels.read_rows(found.places, start, end, group.rows, group.layout.width, out)
            rows.append(out)
            start = end
        return tuple(rows)

    def extract(self, vshard: int) -> VshardRows:
        """A copy of all rows of `vshard`."""
        found = self.rows_in(vshard)
        bounds = [0, *found.ends.tolist()]
        keys = tuple(found.keys[lo:hi].copy() for lo, hi in pairwise(bounds))
        return VshardRows(keys, self.whole_rows(found))

    def drop(self, vshard: int) -> None:
        """Forget all rows of `vshard`; tokens of pulls that named it end. Their memory waits for new rows, or for
        `compact_piece`; the index's goes back at once.
        """
        gone = self.index.clear(vshard)
        for number, group in enumerate(self._groups):
            group.give_back(gone.places, gone.tables, self._group_of, number)
        self.table_rows -= np.bincount(gone.tables, minlength=len(self.tables))
        self.generation += 1
        self._displaced[vshard] = self.generation

    def intact(self, cover: int, generation: int) -> bool:
        """Whether the places of `cover`'s rows are still those of `generation`.

        A drop of one of its vshards ends that, so does a load, which begins with one, and a compaction that moved some.
        """
        if generation == self.generation:
            return True
        displaced = np.flatnonzero(self._displaced > generation)
        return not any(cover >> int(vshard) & 1 for vshard in displaced)

    def compact_piece(self, slots: int = compaction.PIECE_SLOTS) -> bool:
        """A few milliseconds of giving the memory of dropped rows back; returns whether there is more to do.

        Begins whether or not it is due (see `wants_compaction`). Everything else may happen between two pieces. Tokens
        of pulls that named a vshard whose rows moved end. `slots` of the index are looked at.
        """
        if self._compaction is None:
            self._compaction = compaction.Compaction(self.index, self._groups, self._group_of)
        moved, more = self._compaction.piece(slots)
        if moved:
            self.generation += 1
            self._displaced[moved] = self.generation
        if not more:
            self._compaction = None
        return more

    def replace(self, vshard: int, content: VshardRows) -> None:
        """Make `content` all that is known of `vshard`; tokens of pulls that named it end.

        Raises:
            TableFull: no room within the limit; the vshard is then empty.
        """
        self.drop(vshard)
        keys = np.concatenate(content.keys)
        counts = np.array([len(k) for k in content.keys], np.uint32)
        self.write(self.find(keys, counts), content.rows)

    def replace_all(self, contents: Mapping[int, VshardRows]) -> None:
        """As `replace`, for several vshards together: their rows pass through the kernels at once.

        Raises:
            TableFull: no room within the limit; all of them are then empty.
        """
        for vshard in contents:
            self.drop(vshard)
        parts = list(contents.values())
        by_table = [np.concatenate([one.keys[number] for one in parts]) for number in range(len(self.tables))]
        ends = np.cumsum([len(one) for one in by_table], dtype=np.int64)
        keys = np.concatenate(by_table)
        rows = [np.concatenate([one.rows[number] for one in parts]) for number in range(len(self.tables))]
        self.write(Found(keys, ends, np.full(len(keys), -1, np.int64), len(keys)), rows)

    def write(self, found: Found, rows: Sequence[Floats]) -> Found:
        """Overwrite whole rows ([n, width] of each table), giving absent ones a place.

        Raises:
            TableFull: no room within the limit; nothing was changed.
        """
        places = found.places.copy()
        if found.absent:
            self._make_room(found.keys, found.ends, places)
        start = 0
        for number in range(len(self.tables)):
            end = int(found.ends[number])
            group = self._groups[self._group_of[number]]
            if end > start:
                if found.absent:
                    self._insert(number, found.keys, start, end, places, group)
                values = np.ascontiguousarray(rows[number])
                kernels.write_rows(places, start, end, group.rows, group.layout.width, values)
            start = end
        return Found(found.keys, found.ends, places, 0)

    def add_sums(self, found: Found, sums: npt.NDArray[np.uint64], *, negative: bool = False) -> None:
        """Add the hashes of the present rows to their vshards' `sums` u64[512], or take them away.

        A row's hash covers table, key and every float of it, and a sum does not depend on the order of rows, so two
        tables hold the same rows of a vshard exactly (but for chance) when counts and sums agree.
        """
        start = 0
        for number in range(len(self.tables)):
            end = int(found.ends[number])
            group = self._groups[self._group_of[number]]
            if end > start:
                salt_of = self.index.salts[number]
                kernels.add_sums(
                    found.keys, found.places, start, end, salt_of, group.counters, group.layout.width, negative, sums
                )
            start = end

    def _make_room(self, keys: Int64s, ends: Int64s, places: Int64s) -> None:
        """Room for every absent key, or TableFull before anything changed."""
        per_vshard, per_group = np.zeros(VSHARDS, np.int64), np.zeros(len(self._groups), np.int64)
        kernels.count_absent(keys, ends, self.index.salts, places, self._group_of, per_vshard, per_group)
        index_bytes = self.index.bytes_to_make_room(per_vshard)
        new_bytes = index_bytes or 0
        crowded = index_bytes is None
        for group, new in zip(self._groups, per_group, strict=True):
            fresh = max(0, int(new) - group.free)
            new_bytes += fresh * group.row_bytes
            crowded = crowded or group.fresh + fresh > group.capacity
        if crowded or self.bytes_used + new_bytes > self.memory_bytes:
            raise TableFull(
                f"table of {self.bytes_used} bytes has no room for {new_bytes} more within its limit of "
                f"{self.memory_bytes}: give the parameter servers more memory, or more of them"
            )
        self.index.make_room(per_vshard)

    def _insert(self, number: int, keys: Int64s, start: int, end: int, places: Int64s, group: Arena) -> int:
        index = self.index
        born: int = kernels.insert(
            keys, start, end, number, index.salts[number], index.base, index.sizes, index.slots, index.counts,
            places, group.used, group.state,
        )  # fmt: skip
        self.table_rows[number] += born
        return born


def _apply(group: Arena, places: Int64s, start: int, end: int, gradients: Floats, rate: float) -> None:
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
