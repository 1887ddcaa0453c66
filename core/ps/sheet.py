"""What one batch wants from the parameter servers, laid out so that messages need no copying.

Tables come in sections of equal width (embedding groups, then dense blocks, then state). Within a section, keys and
rows are ordered by parameter server, then table: what goes to one server, and what comes back from it, is one
contiguous piece per section. The layout belongs to one routing version; with another one the sheet is grouped anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import TableSpec
from trimtab.core.ps.rows import Floats, Int64s


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
