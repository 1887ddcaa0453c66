"""What one batch wants from the parameter servers, laid out so that messages need no copying.

Tables come in sections of equal width (embedding groups, then dense blocks, then state). Within a section, keys and
rows are ordered by parameter server, then table: what goes to one server, and what comes back from it, is one
contiguous piece per section. The layout belongs to one routing version; with another one the sheet is grouped anew.
What is to be pushed can also be cut by vshards, whatever it was grouped for: that is how it goes out a second time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import TableSpec
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.rows import Floats, Int64s
from trimtab.core.wire.frames import COVER_BYTES, Counts


@dataclass(frozen=True)
class Section:
    """Consecutive tables of one width: tables first .. last-1 of the model."""

    first: int
    last: int
    dim: int


def sections_of(tables: tuple[TableSpec, ...]) -> tuple[Section, ...]:
    """The model's tables in runs of equal width and kind."""
    found: list[Section] = []
    for number, table in enumerate(tables):
        last = found[-1] if found else None
        if last is not None and last.dim == table.dim and tables[last.first].kind == table.kind:
            found[-1] = Section(last.first, number + 1, last.dim)
        else:
            found.append(Section(number, number + 1, table.dim))
    return tuple(found)


def cuts_of(counts: Int64s, sections: tuple[Section, ...]) -> list[list[int]]:
    """For each section where each server's piece starts, and where the last one ends (P + 1 places)."""
    cuts = []
    for section in sections:
        per_server = counts[:, section.first : section.last].sum(axis=1)
        cuts.append([0, *np.cumsum(per_server).tolist()])
    return cuts


@dataclass
class Sheet:
    """One batch's keys, rows and gradients.

    Attributes:
        number: batch number; token: under which servers keep the pulled rows' places, 0 for a read-only pull.
        ids: per embedding section, i64[positions]: every id of the batch, look-up after look-up.
        routing_version: that the grouping below belongs to, -1 for not grouped yet.
        counts: i64[P, T], rows per server and table; cuts: see `cuts_of`.
        keys: per section, i64[n]; values, gradients: per section, f32[n, dim], in the same order (maybe longer).
        places: per embedding section, i32[positions]: for each id of the batch its row in `values`.
    """

    number: int
    token: int
    ids: list[Int64s]
    routing_version: int
    counts: Int64s
    cuts: list[list[int]]
    keys: list[Int64s]
    values: list[Floats]
    gradients: list[Floats]
    places: list[npt.NDArray[np.int32]]


@dataclass(frozen=True)
class Push:
    """A batch's gradients as they were grouped for their first way out.

    Attributes:
        number: batch number; rate: learning rate. skipped: only the number is marked, the gradients mean nothing.
        counts: i64[P, T], rows per server and table.
        keys: per section, i64[n]; gradients: per section, f32[n, dim] (both maybe longer than the counts say).
    """

    number: int
    rate: float
    skipped: bool
    counts: Int64s
    keys: list[Int64s]
    gradients: list[Floats]

    @classmethod
    def of(cls, sheet: Sheet, rate: float, skipped: bool) -> Push:
        """What `sheet` pushes; nothing is copied."""
        return cls(sheet.number, rate, skipped, sheet.counts, sheet.keys, sheet.gradients)


class FlatPush:
    """A push with each row's table and vshard worked out, so that any part can be cut out of it."""

    def __init__(self, push: Push, tables: tuple[TableSpec, ...], sections: tuple[Section, ...]) -> None:
        self.push = push
        self._tables = len(tables)
        self._pieces: list[tuple[Int64s, Int64s, Floats]] = []  # per table: keys, vshards, gradients
        if push.skipped:
            return
        for number, section in enumerate(sections):
            counts = push.counts[:, section.first : section.last]
            ends = np.cumsum(counts.reshape(-1)).reshape(counts.shape)
            for table in range(section.first, section.last):
                runs = [
                    slice(end - count, end)
                    for end, count in zip(ends[:, table - section.first], counts[:, table - section.first], strict=True)
                ]
                keys = np.concatenate([push.keys[number][run] for run in runs])
                gradients = np.concatenate([push.gradients[number][run] for run in runs])
                self._pieces.append((keys, vshards(tables[table].name, keys), gradients))

    def part(self, cover: int) -> tuple[Counts, list[Int64s], list[Floats]]:
        """Counts u32[T], keys and gradients of the rows in `cover` (a bitmap); nothing of a skipped push."""
        counts = np.zeros(self._tables, np.uint32)
        keys: list[Int64s] = []
        gradients: list[Floats] = []
        raw = np.frombuffer(cover.to_bytes(COVER_BYTES, "little"), np.uint8)
        members = np.unpackbits(raw, bitorder="little").astype(bool)
        for table, (table_keys, where, table_gradients) in enumerate(self._pieces):
            mine = members[where]
            counts[table] = mine.sum()
            keys.append(table_keys[mine])
            gradients.append(table_gradients[mine])
        return counts, keys, gradients
