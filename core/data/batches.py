"""Batches as a worker's step takes them: always the same shape, ready for DLPack.

TensorFlow's step is compiled for one static shape, so the short last batch of an epoch is padded: with weight 0, and
with repeats of its last real row, so that no key appears that the batch does not have. Arrays go to TensorFlow by
DLPack, which aborts the process on memory that is not aligned to 64 bytes and refuses read-only memory; and since
TensorFlow may hold on to what it was given, every call gives fresh memory (one allocation for the whole batch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.core.data.dataset import Dataset, Float32s, Rows
from trimtab.core.data.keys import Int64s
from trimtab.core.data.numbering import Numbering
from trimtab.core.errors import BadInput

ALIGNMENT = 64


@dataclass(frozen=True)
class Batch:
    """One batch of B rows, C-contiguous, 64-byte aligned, writeable and owned by the caller.

    Attributes:
        number: of the batch. rows: how many of its rows are real; the others repeat the last one with weight 0.
        dense: float32[B, D]. keys: int64[B, C]. multi: int64[B, K] by column. label, weight: float32[B].
    """

    number: int
    rows: int
    dense: Float32s
    keys: Int64s
    multi: dict[str, Int64s]
    label: Float32s
    weight: Float32s


class BatchReader:
    """Reads batches by number, in any order, from any thread.

    Args:
        dataset: the training rows. numbering: made for it.
        validation_dataset: other rows to evaluate on, all of them in their order; None: the held-out rows.

    Raises:
        BadInput: the numbering is of another number of rows, or the validation rows have other columns.
    """

    def __init__(self, dataset: Dataset, numbering: Numbering, validation_dataset: Dataset | None = None) -> None:
        if numbering.rows != dataset.rows:
            raise BadInput("numbering", numbering.rows, f"the dataset has {dataset.rows} rows; number those")
        if validation_dataset is not None and validation_dataset.columns != dataset.columns:
            different = _difference(dataset, validation_dataset)
            remedy = "is read differently from the training rows; give rows with the same columns"
            raise BadInput("--validation", different, remedy)
        self._dataset = dataset
        self._numbering = numbering
        self._other = None if validation_dataset is None else validation_dataset.standardised_as(dataset)

    @property
    def evaluation_batches(self) -> int:
        """Batches that `evaluate` knows: of the validation dataset where there is one, else of the held-out rows."""
        if self._other is None:
            return self._numbering.evaluation_batches
        return -(-self._other.rows // self._numbering.batch_size)

    def train(self, number: int) -> Batch:
        """Training batch `number`, 0 .. numbering.batches-1."""
        return self._read(self._dataset, number, self._numbering.rows_of(number))

    def evaluate(self, number: int) -> Batch:
        """Evaluation batch `number`, 0 .. evaluation_batches-1."""
        if self._other is None:
            return self._read(self._dataset, number, self._numbering.evaluation_rows_of(number))
        if not 0 <= number < self.evaluation_batches:
            raise BadInput("batch number", number, f"numbers go from 0 to {self.evaluation_batches - 1}")
        first = number * self._numbering.batch_size
        last = min(first + self._numbering.batch_size, self._other.rows)
        return self._read(self._other, number, np.arange(first, last, dtype=np.int64))

    def _read(self, dataset: Dataset, number: int, rows: Int64s) -> Batch:
        size, columns, real = self._numbering.batch_size, dataset.columns, len(rows)
        multi = columns.multi
        dense, keys, label, weight, *lists = aligned(
            ((size, len(columns.dense)), np.float32),
            ((size, len(columns.single)), np.int64),
            ((size,), np.float32),
            ((size,), np.float32),
            *(((size, column.length), np.int64) for column in multi),
        )
        ids = {column.name: array for column, array in zip(multi, lists, strict=True)}
        dataset.read_into(rows, Rows(dense, keys, ids, label, weight))
        if real < size:
            for array in (dense, keys, label, *lists):
                array[real:] = array[real - 1]
            weight[real:] = 0.0
        return Batch(number, real, dense, keys, ids, label, weight)


def aligned(*wanted: tuple[tuple[int, ...], Any]) -> list[npt.NDArray[Any]]:
    """Uninitialised arrays of the given shapes and types, each 64-byte aligned, in one fresh allocation."""
    sizes = [int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in wanted]
    room = [(size // ALIGNMENT + 1) * ALIGNMENT for size in sizes]
    arena = np.empty(sum(room) + ALIGNMENT, np.uint8)
    at = -arena.ctypes.data % ALIGNMENT
    found: list[npt.NDArray[Any]] = []
    for (shape, kind), step in zip(wanted, room, strict=True):
        found.append(np.ndarray(shape, kind, arena, at))  # a view, at this very address also when it is empty
        at += step
    return found


def _difference(one: Dataset, other: Dataset) -> str:
    """The first column that differs, for a message."""
    mine, theirs = one.columns, other.columns
    for a, b in zip(mine.names, theirs.names, strict=False):
        if a != b:
            return f"{b} instead of {a}"
    if mine.names != theirs.names:
        return f"{len(theirs.names)} columns instead of {len(mine.names)}"
    for dense, its in zip(mine.dense, theirs.dense, strict=False):
        if dense != its:
            return dense.name
    return next((a.name for a, b in zip(mine.categorical, theirs.categorical, strict=False) if a != b), "the order")
