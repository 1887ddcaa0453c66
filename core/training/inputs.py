"""Which column feeds which input of a model: by the input's name, and nothing else to configure.

Batches arrive as a few wide arrays (all dense columns together, all single categorical columns together, each
multi-hot column by itself). The step takes those arrays whole, without a copy, and cuts each input out inside the
graph, where a cut that nobody needs costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.core.data.columns import Columns
from trimtab.core.errors import ModelError
from trimtab.core.training.rules import FIELD

if TYPE_CHECKING:
    from trimtab.core.data.batches import Batch

DENSE, CATEGORICAL = "dense", "categorical"  # the bundles' names


@dataclass(frozen=True)
class Source:
    """One array of a batch: a bundle, or a multi-hot column.

    Attributes:
        name: "dense", "categorical" or the multi-hot column's.
        width: columns of the array.
        dtype: "float32" or "int64".
    """

    name: str
    width: int
    dtype: str

    def of(self, batch: Batch) -> np.ndarray:
        """The array [B, width] of `batch`."""
        if self.name == DENSE:
            return batch.dense
        return batch.keys if self.name == CATEGORICAL else batch.multi[self.name]


@dataclass(frozen=True)
class Binding:
    """How one model input is cut from a source: the whole of it, or one column."""

    source: int
    column: int | None
    rank: int

    def cut(self, source: Any) -> Any:
        """The input's tensor from the source's [B, width]."""
        if self.column is None:
            return source
        return source[:, self.column] if self.rank == 1 else source[:, self.column : self.column + 1]


def sources_of(columns: Columns) -> tuple[Source, ...]:
    """The arrays that a batch of these columns has; empty bundles are left out."""
    found = [Source(DENSE, len(columns.dense), "float32"), Source(CATEGORICAL, len(columns.single), "int64")]
    found += [Source(column.name, column.length, "int64") for column in columns.multi]
    return tuple(source for source in found if source.width)


def bind_inputs(inputs: list[Any], columns: Columns, sources: tuple[Source, ...]) -> tuple[Binding, ...]:
    """Finds each Keras input's column.

    Raises:
        ModelError: for a name that is no column, a shape that does not fit it, a dtype that cannot hold its ids.
    """
    return tuple(_bind(tensor, columns, sources) for tensor in inputs)


def _bind(tensor: Any, columns: Columns, sources: tuple[Source, ...]) -> Binding:
    name, shape = tensor.name, tuple(tensor.shape)
    places = {source.name: place for place, source in enumerate(sources)}
    dense = [column.name for column in columns.dense]
    single = [column.name for column in columns.single]
    if getattr(tensor, "sparse", False) or getattr(tensor, "ragged", False):
        raise ModelError(FIELD, f"input '{name}'", "sparse and ragged inputs are not supported: use a plain Input")
    # A column of the user's wins over a bundle of the same name.
    if name in dense:
        _check_shape(name, shape, [(), (1,)], "a dense column")
        return Binding(places[DENSE], dense.index(name), len(shape))
    if name in single:
        _check_shape(name, shape, [(), (1,)], "a categorical column")
        _check_holds_ids(name, tensor.dtype)
        return Binding(places[CATEGORICAL], single.index(name), len(shape))
    if name not in places:
        names = ", ".join([*dense, *(column.name for column in columns.categorical)]) or "none"
        raise ModelError(
            FIELD, f"input '{name}'", f"an Input is called like a column, or 'dense' or 'categorical' for all of "
            f"a kind; the columns are {names}",
        )  # fmt: skip
    source = sources[places[name]]
    what = f"all {source.width} {name} columns" if name in (DENSE, CATEGORICAL) else "a multi-hot column"
    _check_shape(name, shape, [(source.width,)], what)
    if source.dtype == "int64":
        _check_holds_ids(name, tensor.dtype)
    return Binding(places[name], None, len(shape))


def _check_shape(name: str, shape: tuple[int | None, ...], allowed: list[tuple[int, ...]], what: str) -> None:
    if not shape or shape[0] is not None:
        raise ModelError(FIELD, f"input '{name}' of shape {shape}", "leave the batch size open: keras.Input(shape)")
    if not any(_fits(shape[1:], one) for one in allowed):
        right = " or ".join(f"shape={one}" for one in allowed)
        raise ModelError(FIELD, f"input '{name}' of shape {shape}", f"it is {what}: give {right}")


def _fits(shape: tuple[int | None, ...], right: tuple[int, ...]) -> bool:
    return len(shape) == len(right) and all(a is None or a == b for a, b in zip(shape, right, strict=True))


def _check_holds_ids(name: str, dtype: str) -> None:
    if dtype != "int64":
        raise ModelError(FIELD, f"input '{name}' of dtype {dtype}", "it carries 64-bit ids: give dtype='int64'")
