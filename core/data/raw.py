"""Reading one Arrow column of whatever type as keys, numbers, labels or lists.

The same value must mean the same whether it came as text, dictionary, integer or float, so all types meet here, and
a type or value that has no meaning is refused with its row rather than guessed at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trimtab.core.data.columns import CategoricalColumn
from trimtab.core.data.keys import Bools, Int64s, float_keys, hex_keys, spans, text_keys

Float32s = npt.NDArray[np.float32]
SEPARATOR = "|"  # between the ids of a multi-hot value in text

_LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1, b"false": 0, b"true": 1}


class RowFault(Exception):
    """A value that cannot be used: the row in the chunk, what was found, and what would be right."""

    def __init__(self, row: int, value: object, remedy: str) -> None:
        super().__init__(remedy)
        self.row, self.value, self.remedy = row, value, remedy


def raw_keys(array: Any, column: CategoricalColumn) -> tuple[Int64s, Bools]:
    """Keys of n values before reserved key and buckets, and which of them are missing: int64[n], bool[n].

    Raises:
        RowFault: the column's type has no keys.
    """
    array = plain(array)
    kind = array.type
    missing = nulls(array)
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.int64), np.ones(len(array), np.bool_)
    if pa.types.is_boolean(kind):
        array, kind = array.cast(pa.uint8()), pa.uint8()
    if pa.types.is_integer(kind):
        filled = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
        return filled.astype(np.uint64 if filled.dtype.kind == "u" else np.int64).view(np.int64), missing
    if pa.types.is_floating(kind):
        values = pc.fill_null(array.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False)
        return float_keys(values), missing | ~np.isfinite(values)
    if not is_text(kind):
        remedy = f"column {column.name} has a type that cannot be categorical; give numbers or text"
        raise RowFault(0, str(kind), remedy)
    _, _, lengths = spans(array)
    missing |= lengths == 0
    if column.values == "hex":
        keys, valid = hex_keys(array)
        rest = ~valid & ~missing
    elif column.values == "integer":
        keys, rest = _integers(array, missing)
    else:
        keys, rest = np.zeros(len(array), np.int64), ~missing
    if rest.any():
        keys[rest] = _hashed(array.filter(pa.array(rest)) if not rest.all() else array)
    return keys, missing


def _integers(array: Any, missing: Bools) -> tuple[Int64s, Bools]:
    """Decimal text as it is; which values are not that (text hash follows)."""
    texts = array.cast(pa.string())
    good = pc.fill_null(pc.match_substring_regex(texts, r"^[+-]?[0-9]{1,18}$"), False).to_numpy(zero_copy_only=False)
    numbers = pc.if_else(pa.array(good), pc.replace_substring(texts, "+", "", max_replacements=1), "0")
    return numbers.cast(pa.int64()).to_numpy().copy(), ~good & ~missing


def _hashed(array: Any) -> Int64s:
    """Text keys, each distinct value hashed once."""
    encoded = array.dictionary_encode()
    distinct: Int64s = text_keys(encoded.dictionary.cast(pa.large_binary()).to_pylist())
    found: Int64s = distinct[encoded.indices.to_numpy(zero_copy_only=False)]
    return found


def flattened(array: Any) -> tuple[Any, Int64s]:
    """The ids of all rows one after another, and how many each row has."""
    array = plain(array)
    if is_text(array.type):
        array = pc.split_pattern(array.cast(pa.string()), SEPARATOR)
        texts = array.flatten()
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        if len(array) and bool(pc.any(pc.equal(texts, "")).as_py()):
            kept = pc.not_equal(texts, "")  # "" and "a||b": nothing between separators is no id
            rows = np.repeat(np.arange(len(lengths)), lengths)[kept.to_numpy(zero_copy_only=False)]
            return texts.filter(kept), np.bincount(rows, minlength=len(lengths)).astype(np.int64)
        return texts, lengths
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or _is_fixed(array.type)):
        return array, np.ones(len(array), np.int64)
    if _is_fixed(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return array.flatten(), lengths


def floats(array: Any, name: str) -> npt.NDArray[np.float64]:
    """Numbers as float64[n], NaN where missing.

    Raises:
        RowFault: a value that is no number, or a type without numbers.
    """
    array = plain(array)
    if is_text(array.type):
        texts = array.cast(pa.string())
        array = pc.if_else(pc.equal(texts, ""), None, texts)
    elif not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)
              or pa.types.is_decimal(array.type) or pa.types.is_null(array.type)):  # fmt: skip
        raise RowFault(0, str(array.type), f"column {name} has a type that cannot be dense; give numbers")
    try:
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.uint8())
        numbers = array.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        row, value = _first_bad(array)
        raise RowFault(row, value, f"column {name} takes a number, or nothing") from None
    return np.array(pc.fill_null(numbers, np.nan).to_numpy(zero_copy_only=False), np.float64)


def _first_bad(array: Any) -> tuple[int, object]:
    for row, value in enumerate(array.to_pylist()):
        try:
            float(value if value is not None else 0)
        except ValueError:
            return row, value
    return 0, "?"


def labels(array: Any, name: str) -> Float32s:
    """Labels as float32[n] of 0 and 1; text may also say false and true.

    Raises:
        RowFault: anything else, a missing label included.
    """
    array = plain(array)
    remedy = f"label column {name} takes 0 or 1"
    if is_text(array.type):
        encoded = array.cast(pa.binary()).dictionary_encode()
        values = [_LABELS.get(value.strip().lower(), np.nan) for value in encoded.dictionary.to_pylist()]
        indices = pc.fill_null(encoded.indices, len(values)).to_numpy(zero_copy_only=False)
        found = np.array([*values, np.nan], np.float64)[indices]
    else:
        found = floats(array, name)
    bad = np.flatnonzero((found != 0) & (found != 1))
    if len(bad):
        value = array[int(bad[0])].as_py()
        raise RowFault(int(bad[0]), value.decode("utf-8", "replace") if isinstance(value, bytes) else value, remedy)
    return np.asarray(found, np.float32)


def weights(array: Any, name: str) -> Float32s:
    """Weights as float32[n], finite and at least 0.

    Raises:
        RowFault: anything else, a missing weight included.
    """
    found = floats(array, name)
    bad = np.flatnonzero(~(np.isfinite(found) & (found >= 0) & (found <= np.finfo(np.float32).max)))
    if len(bad):
        row = int(bad[0])
        raise RowFault(row, array[row].as_py(), f"weight column {name} takes a finite number of at least 0")
    return np.asarray(found, np.float32)


def plain(array: Any) -> Any:
    """One array without dictionary encoding."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def nulls(array: Any) -> Bools:
    """Which values are null: bool[n]."""
    return np.array(array.is_null().to_numpy(zero_copy_only=False)) if array.null_count else np.zeros(len(array), bool)


def is_text(kind: Any) -> bool:
    """Whether an Arrow type holds text (or bytes, as text is read)."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )  # fmt: skip


def _is_fixed(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind))
