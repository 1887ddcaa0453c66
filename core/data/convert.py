"""From raw columns to the numbers a model is fed, one chunk at a time.

The rules are those of docs/data.md and have golden tests: keys by `keys`, dense values by their transform, a missing
value never a NaN. Everything is vectorised; only distinct texts are hashed one by one. What is counted on the way
(missing values, means, distinct keys) costs little here and would cost a whole pass later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.core.data.columns import CategoricalColumn, Columns
from trimtab.core.data.keys import MISSING_KEY, Int64s, finish_keys
from trimtab.core.data.raw import RowFault as RowFault
from trimtab.core.data.raw import flattened, floats, labels, raw_keys, weights
from trimtab.core.data.sketch import DistinctSketch, Moments

Float32s = npt.NDArray[np.float32]
_LARGEST = float(np.finfo(np.float32).max)


@dataclass
class Converted:
    """Rows as numbers. Columns marked `standard` hold value - shift, NaN where missing, until they are read."""

    dense: Float32s
    keys: Int64s
    multi: dict[str, Int64s]
    label: Float32s
    weight: Float32s | None


@dataclass
class Counts:
    """What was seen while converting, by column name."""

    rows: int = 0
    label_sum: float = 0.0
    missing: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)  # multi-hot rows with more ids than `length`
    moments: dict[str, Moments] = field(default_factory=dict)  # of standard columns
    distinct: dict[str, DistinctSketch] = field(default_factory=dict)


class Converter:
    """Converts chunks of one dataset in order.

    Args:
        columns: with `values` decided (not "auto").
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.counts = Counts()

    def convert(self, table: Any) -> Converted:
        """One chunk.

        Raises:
            RowFault: a label, weight or dense value that cannot be used.
        """
        columns, rows = self.columns, table.num_rows
        label = labels(table.column(columns.label), columns.label)
        weight = None if columns.weight is None else weights(table.column(columns.weight), columns.weight)
        # Filled column by column, so kept that way until the rows are copied into their block.
        dense = np.empty((rows, len(columns.dense)), np.float32, order="F")
        for at, column in enumerate(columns.dense):
            dense[:, at] = self._dense(table.column(column.name), column.name, column.transform)
        keys = np.empty((rows, len(columns.single)), np.int64, order="F")
        for at, single in enumerate(columns.single):
            keys[:, at] = self._keys(table.column(single.name), single)
        multi = {column.name: self._lists(table.column(column.name), column) for column in columns.multi}
        self.counts.rows += rows
        self.counts.label_sum += float(label.sum(dtype=np.float64))
        return Converted(dense, keys, multi, label, weight)

    def _dense(self, array: Any, name: str, transform: str) -> npt.NDArray[np.float64]:
        values = floats(array, name)
        missing = ~np.isfinite(values)
        # Beyond float32 there is only infinity, which must not reach a model.
        np.clip(values, -_LARGEST, _LARGEST, out=values)
        self._missed(name, int(missing.sum()))
        if transform == "standard":
            moments = self.counts.moments.setdefault(name, Moments())
            moments.add(values[~missing])
            # Stored relative to a value near the mean: float32 keeps the digits that matter (timestamps, prices).
            values = np.clip(values - moments.shift, -_LARGEST, _LARGEST)
            values[missing] = np.nan
            return values
        values = np.where(missing, 0.0, values)
        if transform == "log1p":
            return np.log1p(np.maximum(values, 0.0))
        return values

    def _keys(self, array: Any, column: CategoricalColumn) -> Int64s:
        keys, missing = raw_keys(array, column)
        self._missed(column.name, int(missing.sum()))
        finish_keys(keys, missing, column.buckets)
        self._saw(column.name, keys if not missing.any() else keys[~missing])
        return keys

    def _lists(self, array: Any, column: CategoricalColumn) -> Int64s:
        """Padded lists: int64[rows, length]."""
        flat, lengths = flattened(array)
        keys, missing = raw_keys(flat, column)
        finish_keys(keys, missing, column.buckets)
        found = np.full((len(lengths), column.length), MISSING_KEY, np.int64)
        row = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(len(keys)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        kept = place < column.length
        found[row[kept], place[kept]] = keys[kept]
        self._missed(column.name, int((found == MISSING_KEY).all(axis=1).sum()))
        cut = int((lengths > column.length).sum())
        self.counts.cut[column.name] = self.counts.cut.get(column.name, 0) + cut
        self._saw(column.name, found[found != MISSING_KEY])
        return found

    def _missed(self, name: str, count: int) -> None:
        self.counts.missing[name] = self.counts.missing.get(name, 0) + count

    def _saw(self, name: str, keys: Int64s) -> None:
        self.counts.distinct.setdefault(name, DistinctSketch()).add(keys)
