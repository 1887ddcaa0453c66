"""How a row lies in memory, in copies and on disk: value, then slots, then a counter.

Value and slots side by side mean one cache miss per updated row, and a copy of a row is a copy of its optimizer state
without a second structure that could disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import OptimizerSpec, TableSpec
from trimtab.core.errors import BadInput

_SLOTS = {"sgd": 0, "add": 0, "adagrad": 1, "adam": 2}


@dataclass(frozen=True)
class RowLayout:
    """Floats of one row.

    Attributes:
        dim: of the value.
        slots: slot floats after it (dim per slot variable).
        slot_value: what a newborn row's slots hold.
        width: all floats of a row, the counter included: what copies carry.
        stride: floats between rows in memory (a power of two below 16, else a multiple of 16: whole cache lines).
    """

    dim: int
    slots: int
    slot_value: float
    width: int
    stride: int


def layout_of(table: TableSpec) -> RowLayout:
    """The layout of a table's rows.

    Raises:
        BadInput: the optimizer is not one of sgd, add, adagrad, adam.
    """
    optimizer: OptimizerSpec = table.optimizer
    if optimizer.kind not in _SLOTS:
        raise BadInput("optimizer", optimizer.kind, f"table '{table.name}' can use {', '.join(_SLOTS)}")
    slots = _SLOTS[optimizer.kind] * table.dim
    width = table.dim + slots + (1 if optimizer.kind == "adam" else 0)
    stride = 1 << (width - 1).bit_length() if width < 16 else (width + 15) & ~15
    initial = optimizer.initial_accumulator if optimizer.kind == "adagrad" else 0.0
    return RowLayout(table.dim, slots, initial, width, stride)


def newborn_rows(table: TableSpec, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows [n, width] with the given values [n, dim] and fresh slots."""
    layout = layout_of(table)
    rows = np.zeros((len(values), layout.width), np.float32)
    rows[:, : layout.dim] = values
    rows[:, layout.dim : layout.dim + layout.slots] = layout.slot_value
    return rows
