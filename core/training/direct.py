"""Ids picked straight from a batch's arrays, where the model only moves columns to its embeddings.

For the usual model (an Input per column, or slices of one wide Input) asking TensorFlow for the ids costs a tenth of
the whole step and yields a transposed copy of an array that is already there. Which column goes where is learned by
running the ids' function once on inputs whose values are their own coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trimtab.core.training.inputs import Source
from trimtab.core.training.recording import Recording

if TYPE_CHECKING:
    from trimtab.core.data.batches import Batch


@dataclass(frozen=True)
class Pick:
    """Fills `length` positions from `start`: `columns` of a source, one after another or (`by_row`) row by row."""

    start: int
    length: int
    source: Source
    columns: np.ndarray
    by_row: bool
    index: slice | np.ndarray = field(init=False)  # the columns, as a slice where they are neighbours

    def __post_init__(self) -> None:
        first, count = int(self.columns[0]), len(self.columns)
        neighbours = (self.columns == np.arange(first, first + count)).all()
        object.__setattr__(self, "index", slice(first, first + count) if neighbours else self.columns)


@dataclass(frozen=True)
class DirectIds:
    """The picks of each group, in the order of its positions."""

    groups: tuple[tuple[Pick, ...], ...]

    def of(self, batch: Batch) -> list[np.ndarray]:
        """Per group the ids of `batch`, int64 [positions]."""
        found = []
        for picks in self.groups:
            ids = np.empty(picks[-1].start + picks[-1].length, np.int64)
            for pick in picks:
                chosen = pick.source.of(batch)[:, pick.index]
                if not pick.by_row:
                    chosen = chosen.T
                np.copyto(ids[pick.start : pick.start + pick.length].reshape(chosen.shape), chosen)
            found.append(ids)
        return found


def direct_ids(recording: Recording, sources: tuple[Source, ...], batch_size: int) -> DirectIds | None:
    """The picks that give the same ids as `recording.ids`, or None where the model does more than moving columns."""
    if not recording.only_moves or not recording.calls:
        return None
    coded, starts, start = [], [], 0
    for source in sources:
        size = batch_size * source.width if source.dtype == "int64" else 0
        starts.append(start)
        codes = start + np.arange(size, dtype=np.int64)
        shape = (batch_size, source.width)
        coded.append(codes.reshape(shape) if size else np.zeros(shape, source.dtype))
        start += size
    codes_of_groups = [np.asarray(codes) for codes in recording.ids(*coded)]
    shapes = _shapes_of_groups(recording)
    groups = []
    for codes, lengths in zip(codes_of_groups, shapes, strict=True):
        picks: list[Pick] = []
        at = 0
        for length in lengths:
            pick = _pick(codes[at : at + length], at, sources, starts, batch_size)
            if pick is None:
                return None
            picks.append(pick)
            at += length
        groups.append(_joined(picks))
    return DirectIds(tuple(groups))


def _shapes_of_groups(recording: Recording) -> list[list[int]]:
    lengths: dict[int, list[int]] = {}
    for place in recording.order:
        call = recording.calls[place]
        lengths.setdefault(call.layer.dim, []).append(call.ids)
    return [lengths[dim] for dim in sorted(lengths)]


def _pick(
    codes: np.ndarray, start: int, sources: tuple[Source, ...], starts: list[int], batch_size: int
) -> Pick | None:
    if not len(codes) or len(codes) % batch_size:
        return None
    place = max(at for at, first in enumerate(starts) if first <= codes[0] and sources[at].dtype == "int64")
    source = sources[place]
    rows, columns = np.divmod(codes.reshape(batch_size, -1) - starts[place], source.width)
    if (rows != np.arange(batch_size)[:, None]).any() or (columns != columns[0]).any():
        return None
    return Pick(start, len(codes), source, columns[0], by_row=True)


def _joined(picks: list[Pick]) -> tuple[Pick, ...]:
    """Neighbours that take one column each of the same source as one pick; runs of columns as slices."""
    joined: list[Pick] = []
    for pick in picks:
        single = len(pick.columns) == 1
        last = joined[-1] if joined else None
        if single and last is not None and not last.by_row and last.source == pick.source:
            columns = np.concatenate([last.columns, pick.columns])
            joined[-1] = Pick(last.start, last.length + pick.length, pick.source, columns, by_row=False)
        else:
            joined.append(Pick(pick.start, pick.length, pick.source, pick.columns, by_row=not single))
    return tuple(joined)
