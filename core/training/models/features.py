"""What all built-in models start and end with: the inputs, one embedding per categorical column, a stack of layers.

A layer's name is its table's name on the parameter servers, so embeddings are called after their columns. Multi-hot
columns become the mean of their ids' rows; the padding of short lists counts for nothing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import layers, ops

from trimtab.core.data.columns import MISSING_KEY, Columns
from trimtab.core.errors import ModelError

VOCABULARY = 2**31 - 1  # Keras asks for one; trimtab's tables are open, whatever stands here
HIDDEN = (64, 32)  # of the deep part


@dataclass
class Features:
    """The inputs of a built-in model over any columns.

    Attributes:
        inputs: Keras inputs, named as trimtab feeds them: "dense", "categorical", and each multi-hot column.
        dense: the numbers, [B, D], or None without dense columns.
    """

    columns: Columns
    inputs: list[Any] = field(default_factory=list)
    dense: Any = None
    _ids: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = self.columns
        if columns.dense:
            self.dense = keras.Input((len(columns.dense),), name="dense")
            self.inputs.append(self.dense)
        if columns.single:
            ids = keras.Input((len(columns.single),), name="categorical", dtype="int64")
            self.inputs.append(ids)
            self._ids |= {column.name: ids[:, place] for place, column in enumerate(columns.single)}
        for column in columns.multi:
            self._ids[column.name] = keras.Input((column.length,), name=column.name, dtype="int64")
            self.inputs.append(self._ids[column.name])

    def embed(self, dim: int, prefix: str = "embedding", initializer: str = "uniform") -> list[Any]:
        """Each categorical column as float [B, dim]; the tables are called PREFIX_COLUMN."""
        return [
            self._embedded(name, ids, layers.Embedding(
                VOCABULARY, dim, embeddings_initializer=initializer, name=layer_name(prefix, name)
            ))
            for name, ids in self._ids.items()
        ]  # fmt: skip

    def require_categorical(self, model: str) -> None:
        """Raises ModelError when there is nothing to embed."""
        if not self._ids:
            raise ModelError("--model", model, "needs at least one categorical column; name it with --columns")

    def _embedded(self, name: str, ids: Any, layer: Any) -> Any:
        rows = layer(ids)
        if len(ids.shape) == 1:
            return rows
        present = ops.cast(ops.not_equal(ids, MISSING_KEY), "float32")[:, :, None]
        return ops.sum(rows * present, axis=1) / ops.maximum(ops.sum(present, axis=1), 1.0)


def layer_name(prefix: str, column: str) -> str:
    """A layer's name for a column: TensorFlow allows few characters; a column that has others gets a hash as well."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", column)
    told_apart = "" if plain == column else f"_{hashlib.sha256(column.encode()).hexdigest()[:8]}"
    return f"{prefix}_{plain}{told_apart}"


def stack(inputs: Any, units: tuple[int, ...], name: str) -> Any:
    """Dense layers with rectifiers, one after another."""
    for place, width in enumerate(units):
        inputs = layers.Dense(width, activation="relu", name=f"{name}_{place}")(inputs)
    return inputs


def together(parts: list[Any]) -> Any:
    """The parts side by side, [B, sum of widths]."""
    parts = [part for part in parts if part is not None]
    return parts[0] if len(parts) == 1 else layers.Concatenate()(parts)
