"""Which columns of the data are what: the label, the weight, dense numbers and categorical keys.

The same `Columns` describe a job's training rows, its validation rows and its model's inputs, so they are a plain
immutable value with one dictionary form: it is part of the dataset's fingerprint and of its metadata. A person writes
it as a short YAML or JSON file; since a typing error there would quietly train on the wrong thing, everything that
is not understood is refused with the nearest name that would be.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trimtab.core.data.keys import MISSING_KEY as MISSING_KEY
from trimtab.core.errors import BadInput

TRANSFORMS = ("log1p", "standard", "none")
VALUES = ("auto", "integer", "hex", "text")
LONGEST = 1024  # ids of one multi-hot row
OPTION = "--columns"


@dataclass(frozen=True)
class DenseColumn:
    """A number per row. transform: log1p (negative becomes 0 first), standard (mean 0, deviation 1) or none."""

    name: str
    transform: str = "log1p"


@dataclass(frozen=True)
class CategoricalColumn:
    """An id per row, or `length` of them.

    Attributes:
        buckets: keys are taken modulo it; None: 64-bit keys as they are.
        length: 1, or for multi-hot the fixed number of ids per row (shorter lists padded with `MISSING_KEY`).
        values: how text is read: integer, hex, text (hashed), or auto (decided from the first rows).
    """

    name: str
    buckets: int | None = None
    length: int = 1
    values: str = "auto"


@dataclass(frozen=True)
class Columns:
    """The roles of a dataset's columns, in the order of the model's inputs.

    Attributes:
        label: column of 0 and 1. weight: column of non-negative weights, or None for 1 everywhere.
        dense, categorical: features. At least one there is.
    """

    label: str
    weight: str | None = None
    dense: tuple[DenseColumn, ...] = ()
    categorical: tuple[CategoricalColumn, ...] = ()

    @property
    def single(self) -> tuple[CategoricalColumn, ...]:
        """Categorical columns with one id per row: the columns of a batch's `keys`."""
        return tuple(column for column in self.categorical if column.length == 1)

    @property
    def multi(self) -> tuple[CategoricalColumn, ...]:
        """Multi-hot columns."""
        return tuple(column for column in self.categorical if column.length > 1)

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that is read: label, weight, dense, categorical."""
        weight = () if self.weight is None else (self.weight,)
        return (self.label, *weight, *(c.name for c in self.dense), *(c.name for c in self.categorical))

    def as_dict(self) -> dict[str, Any]:
        """The dictionary form, readable by `columns_from_dict`; also what a columns file may contain."""
        found: dict[str, Any] = {"label": self.label}
        if self.weight is not None:
            found["weight"] = self.weight
        found["dense"] = [{"name": c.name, "transform": c.transform} for c in self.dense]
        for key, columns in (("categorical", self.single), ("multi_hot", self.multi)):
            entries: list[dict[str, Any]] = []
            for column in columns:
                entry: dict[str, Any] = {"name": column.name, "values": column.values}
                if column.length > 1:
                    entry["length"] = column.length
                if column.buckets is not None:
                    entry["buckets"] = column.buckets
                entries.append(entry)
            if entries or key == "categorical":
                found[key] = entries
        return found


class _StrictLoader(yaml.SafeLoader):
    """YAML without the silent rule that the last of two equal keys wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for at, key in enumerate(keys):
            if key in keys[:at]:
                raise BadInput(OPTION, str(key), "is named twice; give each entry and column once")
        return super().construct_mapping(node, deep)


def read_columns(path: str) -> Columns:
    """Reads a columns file (YAML or JSON).

    Raises:
        BadInput: the file cannot be read, or something in it is not understood; names the file and the entry.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise BadInput(OPTION, path, f"cannot be read ({reason}); give a YAML or JSON file") from None
    try:
        # JSON is tried by its name only: YAML reads JSON too, but its messages about JSON are poor.
        tree = json.loads(text) if path.endswith(".json") else yaml.load(text, _StrictLoader)  # a SafeLoader
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else getattr(error, "lineno", 1)
        raise BadInput(OPTION, path, f"line {line} is neither valid YAML nor JSON") from None
    return columns_from_dict(tree)


def columns_from_dict(tree: object) -> Columns:
    """Checks and builds `Columns` from the dictionary form.

    Raises:
        BadInput: unknown or missing entries, a column named twice, a transform or number out of range.
    """
    if not isinstance(tree, Mapping):
        raise BadInput(OPTION, tree, "give a mapping with label, dense, categorical and so on (see docs/data.md)")
    _known(tree, ("label", "weight", "dense", "categorical", "multi_hot"), "the columns file")
    label = tree.get("label")
    if label is None:
        raise BadInput(OPTION, "label", "is missing; name the column of 0 and 1, as in 'label: clicked'")
    weight = tree.get("weight")
    columns = Columns(
        label=_name(label, "label"),
        weight=None if weight is None else _name(weight, "weight"),
        dense=tuple(_dense(entry) for entry in _entries(tree, "dense")),
        categorical=(
            *(_categorical(entry, "categorical") for entry in _entries(tree, "categorical")),
            *(_categorical(entry, "multi_hot") for entry in _entries(tree, "multi_hot")),
        ),
    )
    seen: set[str] = set()
    for name in columns.names:
        if name in seen:
            raise BadInput(OPTION, name, "is named twice; give each column one role")
        seen.add(name)
    if not columns.dense and not columns.categorical:
        raise BadInput(OPTION, "dense, categorical, multi_hot", "name at least one feature column")
    return columns


def check_present(wanted: Iterable[str], present: Iterable[str], where: str) -> None:
    """Raises `BadInput` for the first wanted column that the data has not, with the nearest one that it has."""
    have = list(present)
    for name in wanted:
        if name not in have:
            raise BadInput(OPTION, name, f"{where} has no such column{nearest(name, have)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that offers the likeliest of `known` for a misspelt `name`, or lists a few of them."""
    have = list(known)
    lowered = {other.lower(): other for other in reversed(have)}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{lowered[close[0]]}'?"
    shown = ", ".join(have[:8]) + (", ..." if len(have) > 8 else "")
    return f"; choose among {shown}"


def _known(entry: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
    for key in entry:
        if key not in known:
            raise BadInput(OPTION, str(key), f"{where} has no such entry{nearest(str(key), known)}")


def _name(value: object, role: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadInput(OPTION, value, f"{role} takes a column's name as text")
    return value


def _entries(tree: Mapping[Any, Any], role: str) -> list[Mapping[Any, Any]]:
    """The entries of one role: a list of names or mappings, or a mapping of name to settings."""
    value = tree.get(role)
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = [{"name": name, **(settings or {})} for name, settings in value.items() if _settings(name, settings)]
    if not isinstance(value, list):
        raise BadInput(OPTION, value, f"{role} takes a list of column names")
    found: list[Mapping[Any, Any]] = []
    for entry in value:
        if not isinstance(entry, str | Mapping):
            raise BadInput(OPTION, entry, f"an entry of {role} is a column's name, or a mapping with 'name'")
        found.append({"name": entry} if isinstance(entry, str) else entry)
    return found


def _settings(name: object, settings: object) -> bool:
    if settings is not None and not isinstance(settings, Mapping):
        raise BadInput(OPTION, settings, f"the settings of '{name}' are a mapping, as in '{name}: {{buckets: 1000}}'")
    return True


def _dense(entry: Mapping[Any, Any]) -> DenseColumn:
    _known(entry, ("name", "transform"), "an entry of dense")
    name = _name(entry.get("name"), "dense")
    transform = entry.get("transform", "log1p")
    if transform not in TRANSFORMS:
        raise BadInput(OPTION, transform, f"transform of '{name}': choose {', '.join(TRANSFORMS)}")
    return DenseColumn(name, transform)


def _categorical(entry: Mapping[Any, Any], role: str) -> CategoricalColumn:
    many = role == "multi_hot"
    _known(entry, ("name", "buckets", "values", *(("length",) if many else ())), f"an entry of {role}")
    name = _name(entry.get("name"), role)
    buckets = entry.get("buckets")
    if buckets is not None:
        _whole(buckets, f"buckets of '{name}'", 1, 2**62)
    length = entry.get("length", 1)
    if many:
        if "length" not in entry:
            raise BadInput(OPTION, name, f"multi_hot needs the number of ids per row, as in '{name}: {{length: 8}}'")
        _whole(length, f"length of '{name}'", 2, LONGEST)
    values = entry.get("values", "auto")
    if values not in VALUES:
        raise BadInput(OPTION, values, f"values of '{name}': choose {', '.join(VALUES)}")
    return CategoricalColumn(name, buckets, length, values)


def _whole(value: object, what: str, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadInput(OPTION, value, f"{what} is a whole number from {least} to {most}")
