"""From the ids of a batch to a sheet that servers can answer, and back to what the TensorFlow step wants.

The planner owns the buffers: a small ring of sheets whose arrays are 64-byte aligned, written in place by the sockets
and handed to TensorFlow without a copy. A sheet's memory is used again two batches later; by then its step has been
read out and its push acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import EMBEDDING, TableSpec
from trimtab.core.ps.hashing import salt, vshards
from trimtab.core.ps.routing_view import RoutingView
from trimtab.core.ps.rows import Floats, Int64s
from trimtab.core.ps.sheet import Section, Sheet, cuts_of, sections_of
from trimtab.core.training import kernels
from trimtab.core.wire.frames import aligned

LookupSlice = tuple[int, int, int]  # table id, offset, length: ids of one look-up within its section

_RING = 3


class BatchPlanner:
    """Lays batches out for the present routing."""

    def __init__(self, tables: tuple[TableSpec, ...], lookups: Sequence[Sequence[LookupSlice]]) -> None:
        """`lookups[s]`: the look-ups of embedding section s, as `ElasticModel` numbers them."""
        self.tables, self.sections = tables, sections_of(tables)
        self._embedding = [n for n, s in enumerate(self.sections) if tables[s.first].kind == EMBEDDING]
        self._uniques = [_Unique(tables, self.sections[n], lookups[n]) for n in self._embedding]
        self._blocks = {n: _Blocks(tables[s.first], s) for n, s in enumerate(self.sections) if n not in self._embedding}
        self._ring = [self._empty() for _ in range(_RING)]
        self._turn = 0
        self._token = 0

    def sheet(self, number: int, ids: list[Int64s], read_only: bool = False) -> Sheet:
        """An ungrouped sheet for a batch; read-only ones keep nothing on the servers."""
        sheet = self._ring[self._turn]
        self._turn = (self._turn + 1) % _RING
        self._token += 1
        sheet.number, sheet.token, sheet.ids, sheet.routing_version = number, 0 if read_only else self._token, ids, -1
        return sheet

    def regroup(self, sheet: Sheet, view: RoutingView) -> None:
        """Group the sheet's keys by `view`'s owners (a vshard without one goes to the first server, to be refused)."""
        servers = max(1, len(view.covers))
        owner = np.maximum(view.owner, 0)
        sheet.counts = np.zeros((servers, len(self.tables)), np.int64)
        for place, unique in zip(self._embedding, self._uniques, strict=True):
            section = self.sections[place]
            counts = unique.group(sheet.ids[place], owner, servers, sheet.keys[place], sheet.places[place])
            sheet.counts[:, section.first : section.last] = counts
        for place, blocks in self._blocks.items():
            section = self.sections[place]
            sheet.keys[place][:] = blocks.grouped(owner)
            sheet.counts[:, section.first] = np.bincount(owner[blocks.vshards], minlength=servers)
        sheet.cuts = cuts_of(sheet.counts, self.sections)
        sheet.routing_version = view.version

    def rows(self, sheet: Sheet) -> list[Floats]:
        """Per embedding section, the pulled rows f32[n, dim]."""
        return [sheet.values[n][: max(1, sheet.cuts[n][-1])] for n in self._embedding]

    def blocks(self, sheet: Sheet, kind: str) -> Floats | None:
        """The pulled blocks of the dense or state table as one flat array, in block order; None without one."""
        for place, blocks in self._blocks.items():
            if blocks.kind == kind:
                return blocks.natural(sheet.keys[place], sheet.values[place])
        return None

    def put_gradients(self, sheet: Sheet, row_gradients: list[Floats], blocks: dict[str, Floats | None]) -> bool:
        """Sum the gradients of equal ids and lay everything out for the push; returns whether all is finite."""
        finite = True
        for place, gradients in zip(self._embedding, row_gradients, strict=True):
            n = sheet.cuts[place][-1]
            finite &= bool(kernels.sum_by_place(gradients, sheet.places[place], sheet.gradients[place], n))
        for place, held in self._blocks.items():
            values = blocks[held.kind]
            assert values is not None
            finite &= bool(np.isfinite(values.sum()))
            np.take(values.reshape(-1, held.dim), sheet.keys[place], axis=0, out=sheet.gradients[place], mode="clip")
        return finite

    def _empty(self) -> Sheet:
        keys: list[Int64s] = []
        values: list[Floats] = []
        gradients: list[Floats] = []
        places: list[npt.NDArray[np.int32]] = []
        uniques = dict(zip(self._embedding, self._uniques, strict=True))
        for number, section in enumerate(self.sections):
            n = uniques[number].positions if number in uniques else self._blocks[number].count
            keys.append(np.zeros(n, np.int64))
            for held in (values, gradients):
                held.append(aligned(n * section.dim * 4).view(np.float32).reshape(n, section.dim))
            if number in uniques:
                places.append(aligned(n * 4).view(np.int32))
        return Sheet(-1, 0, [], -1, np.zeros((1, len(self.tables)), np.int64), [], keys, values, gradients, places)


class _Unique:
    """Distinct keys of one embedding section."""

    def __init__(self, tables: tuple[TableSpec, ...], section: Section, lookups: Sequence[LookupSlice]) -> None:
        self.positions = sum(length for _, _, length in lookups)
        self._tables = np.array([table - section.first for table, _, _ in lookups], np.int64)
        self._offsets = np.array([offset for _, offset, _ in lookups], np.int64)
        self._lengths = np.array([length for _, _, length in lookups], np.int64)
        self._salts = np.array([salt(table.name) for table in tables[section.first : section.last]], np.uint64)
        size = 1 << max(4, (2 * self.positions - 1).bit_length())
        self._hash_keys, self._hash_tables = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._hash_places, self._hash_generation = np.zeros(size, np.int32), np.zeros(size, np.int32)
        self._generation = 0
        self._found, self._bucket = np.zeros(self.positions, np.int64), np.zeros(self.positions, np.int64)
        self._order = np.zeros(self.positions, np.int32)

    def group(
        self, ids: Int64s, owner: Int64s, servers: int, keys: Int64s, places: npt.NDArray[np.int32]
    ) -> Int64s:
        """Fill `keys` and `places`; returns counts i64[servers, tables of the section]."""
        self._generation += 1
        if self._generation == 2**31 - 1:  # tags are int32: start over with clean ones
            self._hash_generation[:] = 0
            self._generation = 1
        counts = np.zeros((servers, len(self._salts)), np.int64)
        kernels.unique(
            ids, self._offsets, self._lengths, self._tables, self._salts, owner, self._hash_keys, self._hash_tables,
            self._hash_places, self._hash_generation, np.int32(self._generation), keys, places, counts, self._found,
            self._bucket, self._order, np.zeros(counts.size, np.int64),
        )  # fmt: skip
        return counts


class _Blocks:
    """Blocks of a dense or state table: all of them in every batch, grouped by owner."""

    def __init__(self, table: TableSpec, section: Section) -> None:
        if section.last - section.first != 1:
            raise ValueError("block tables stand alone in their section")
        self.kind, self.dim, self.count = table.kind, table.dim, table.rows
        self.vshards = vshards(table.name, np.arange(table.rows, dtype=np.int64))
        self._flat = aligned(table.rows * table.dim * 4).view(np.float32).reshape(-1, table.dim)
        self._owner: Int64s | None = None
        self._grouped = np.arange(table.rows, dtype=np.int64)

    def grouped(self, owner: Int64s) -> Int64s:
        """Block numbers ordered by owner."""
        if self._owner is None or not np.array_equal(self._owner, owner):
            self._owner = owner.copy()
            self._grouped = np.argsort(owner[self.vshards], kind="stable").astype(np.int64)
        return self._grouped

    def natural(self, keys: Int64s, values: Floats) -> Floats:
        """`values` (in the order of `keys`) as one flat array in block order."""
        if bool((keys[1:] > keys[:-1]).all()):
            return values.reshape(-1)
        self._flat[keys] = values
        return self._flat.reshape(-1)
