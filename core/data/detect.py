"""Which column is what, where nobody said so.

Guesses are made from names and the first rows by a few stated rules (docs/data.md), always shown, and never silent
about what is left out. A wrong guess costs a person one look at `trimtab data describe`; an id that is unique per row
taken as a feature would cost a model, so such a column is never one unless it is named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trimtab.core.data.columns import OPTION, CategoricalColumn, Columns, DenseColumn
from trimtab.core.data.keys import hex_keys, spans
from trimtab.core.data.raw import is_text, plain
from trimtab.core.data.text import NULLS
from trimtab.core.errors import BadInput

LABELS = ("label", "click", "clicked", "is_click", "is_clicked", "target", "y", "converted", "conversion")
WEIGHTS = ("weight", "sample_weight", "example_weight")
_CRITEO_DENSE = re.compile(r"^I([1-9]|1[0-3])$", re.IGNORECASE)
_CRITEO_KEYS = re.compile(r"^C([1-9]|1[0-9]|2[0-6])$", re.IGNORECASE)
_ID_NAME = re.compile(r"(^|_)(id|ids|uuid|guid|key|code|type|category|hash)$", re.IGNORECASE)
_ROW_NAME = re.compile(r"^(id|row_?id|row|index|uuid|guid|__index_level_\d+__)$", re.IGNORECASE)
_INTEGER = r"^[+-]?[0-9]{1,18}$"
_ENOUGH_ROWS = 50  # below it "all different" says nothing
_LARGE = 2**31  # whole numbers whose median lies beyond are ids, not counts


@dataclass(frozen=True)
class Detection:
    """Columns and, for what is not used, the reason: (name, reason) pairs."""

    columns: Columns
    ignored: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Facts:
    """A column in the sample. kind: empty, whole, fraction, text, list or other."""

    kind: str
    unique: bool = False
    negative: bool = False
    large: bool = False
    listed: bool = False  # text with '|' in it


def detect(sample: Any) -> Detection:
    """Roles from a sample's names and values.

    Raises:
        BadInput: no column looks like the label, or nothing is left as a feature.
    """
    names: list[str] = sample.schema.names
    lowered = {name.lower(): name for name in reversed(names)}
    label = next((lowered[name] for name in LABELS if name in lowered), None)
    if label is None:
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise BadInput(OPTION, shown, "none looks like the label; name it in a columns file, as in 'label: bought'")
    weight = next((lowered[name] for name in WEIGHTS if name in lowered), None)
    dense: list[DenseColumn] = []
    categorical: list[CategoricalColumn] = []
    ignored: list[tuple[str, str]] = []
    for name in names:
        if name in (label, weight):
            continue
        facts = _facts(sample.column(name))
        if _CRITEO_DENSE.match(name) and facts.kind in ("whole", "fraction", "empty"):
            dense.append(DenseColumn(name))
        elif _CRITEO_KEYS.match(name) and facts.kind in ("whole", "text", "empty"):
            categorical.append(CategoricalColumn(name))
        elif reason := _unused(name, facts):
            ignored.append((name, reason))
        elif facts.kind == "fraction":
            dense.append(DenseColumn(name, "standard" if facts.negative else "log1p"))
        elif facts.kind == "text" or facts.large or _ID_NAME.search(name):
            categorical.append(CategoricalColumn(name))
        else:
            dense.append(DenseColumn(name))
    if not dense and not categorical:
        raise BadInput(OPTION, ", ".join(names[:10]), "no column looks like a feature; name them in a columns file")
    columns = Columns(label, weight, tuple(dense), tuple(categorical))
    return Detection(resolve(columns, sample), tuple(ignored))


def resolve(columns: Columns, sample: Any) -> Columns:
    """`columns` with every categorical column's `values` decided from the sample where it is "auto"."""
    resolved = [
        column
        if column.values != "auto" or column.name not in sample.schema.names
        else replace(column, values=_values(sample.column(column.name), column))
        for column in columns.categorical
    ]
    return replace(columns, categorical=tuple(resolved))


def _values(array: Any, column: CategoricalColumn) -> str:
    """How a categorical column's text is read: hex, integer or text."""
    array = plain(array)
    if column.length > 1 and not is_text(array.type) and hasattr(array, "flatten"):
        array = plain(array.flatten())
    if not is_text(array.type):
        return "integer"
    if column.length > 1:
        array = pc.split_pattern(array.cast(pa.string()), "|").flatten()
    _, _, lengths = spans(array)
    array = array.filter(pa.array(lengths > 0))
    if not len(array):
        return "hex" if _CRITEO_KEYS.match(column.name) else "text"
    _, valid = hex_keys(array)
    sizes = np.unique(lengths[lengths > 0])
    if valid.all():
        letters = bool(pc.any(pc.match_substring_regex(array.cast(pa.string()), "[a-fA-F]")).as_py())
        if _CRITEO_KEYS.match(column.name) or (letters and len(sizes) == 1 and sizes[0] in (8, 16)):
            return "hex"
    return "integer" if _all_match(array, _INTEGER) else "text"


def _unused(name: str, facts: _Facts) -> str:
    """Why a column is no feature unless named; "" when it may be one."""
    if facts.kind == "empty":
        return "has no value in the first rows"
    if facts.kind == "list" or facts.listed:
        return "holds lists; name it under multi_hot with a length to use it"
    if facts.kind == "other":
        return "has a type that is neither number nor text"
    if facts.kind != "fraction" and (facts.unique or _ROW_NAME.match(name)):
        return "is different in every row, like a row's id; name it to use it"
    return ""


def _facts(array: Any) -> _Facts:
    array = plain(array)
    kind = array.type
    if is_text(kind):
        try:
            texts = array.cast(pa.string())
        except pa.ArrowInvalid:  # bytes that are no UTF-8: opaque values
            return _Facts("text", unique=_unique(array))
        texts = texts.filter(pc.invert(pc.fill_null(pc.is_in(texts, pa.array(NULLS)), True)))
        if not len(texts):
            return _Facts("empty")
        if _all_match(texts, _INTEGER):
            return _number_facts(texts.cast(pa.int64()), _unique(texts))
        try:
            return _number_facts(texts.cast(pa.float64()), _unique(texts))
        except pa.ArrowInvalid:
            listed = pc.mean(pc.cast(pc.match_substring(texts, "|"), pa.float64())).as_py() > 0.1
            return _Facts("text", unique=_unique(texts), listed=listed)
    array = array.drop_null()
    if not len(array):
        return _Facts("empty")
    if pa.types.is_boolean(kind):
        return _Facts("text")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _number_facts(array, _unique(array))
    if pa.types.is_decimal(kind):
        return _number_facts(array.cast(pa.float64()), _unique(array))
    return _Facts("list" if pa.types.is_nested(kind) and not pa.types.is_struct(kind) else "other")


def _number_facts(numbers: Any, unique: bool) -> _Facts:
    values = numbers.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
        if not len(values):
            return _Facts("empty")
    whole = values.dtype.kind in "iu" or bool((np.floor(values) == values).all())
    large = whole and float(np.median(np.abs(values.astype(np.float64)))) > _LARGE
    return _Facts("whole" if whole else "fraction", unique, bool(values.min() < 0), large)


def _unique(array: Any) -> bool:
    return len(array) >= _ENOUGH_ROWS and pc.count_distinct(array).as_py() == len(array)


def _all_match(array: Any, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(array.cast(pa.string()), pattern)).as_py())
