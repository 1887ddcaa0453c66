"""A job's record without anything that is not finite.

One NaN makes a JSON document void and breaks a run page, and it can sit deep in a record: in a prediction's range, in
a sample, in an observation that a fit would later rest on. So a record is sieved as a whole, by the types its fields
are declared with: what may be unknown becomes None, what has a default gets it, an element of a list goes, and
what needs the number goes with it. What went is named, because silence would look like health.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from trimtab.core.domain.records import JobRecord


class _Unfit(Exception):
    """A value that is not finite and that its holder cannot do without."""


def sieve(job: JobRecord) -> tuple[JobRecord, tuple[str, ...]]:
    """`job` with finite numbers only, and the names of what was left out (`figures.auc` is just `auc`)."""
    dropped: list[str] = []
    kept = _object(job, "", dropped)
    return kept, tuple(name.removeprefix("figures.") for name in dropped)


def _object(value: Any, where: str, dropped: list[str]) -> Any:
    changes: dict[str, Any] = {}
    kind: Any = type(value)
    for field, optional in _fields(kind):
        before = getattr(value, field.name)
        path = f"{where}.{field.name}" if where else field.name
        try:
            after = _value(before, path, dropped)
        except _Unfit:
            after = _instead(field, optional)
        if after is not before:
            changes[field.name] = after
    return dataclasses.replace(value, **changes) if changes else value


def _instead(field: dataclasses.Field[Any], optional: bool) -> Any:
    if optional:
        return None
    if field.default is not dataclasses.MISSING:
        return field.default
    raise _Unfit


def _value(value: Any, where: str, dropped: list[str]) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return _number(value, where, dropped)
    if isinstance(value, Mapping):
        kept = {}
        for name, one in value.items():
            try:
                kept[name] = _value(one, f"{where}.{name}", dropped)
            except _Unfit:
                continue
        return value if len(kept) == len(value) and all(kept[name] is one for name, one in value.items()) else kept
    if isinstance(value, tuple | list):
        return _elements(value, where, dropped)
    return _object(value, where, dropped) if dataclasses.is_dataclass(value) else value


def _elements(values: tuple[Any, ...] | list[Any], where: str, dropped: list[str]) -> tuple[Any, ...] | list[Any]:
    kept = []
    for at, one in enumerate(values):
        try:
            kept.append(_value(one, f"{where}.{at}", dropped))
        except _Unfit:
            continue
    same = len(kept) == len(values) and all(a is b for a, b in zip(kept, values, strict=True))
    return values if same else type(values)(kept)


def _number(value: float, where: str, dropped: list[str]) -> float:
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        dropped.append(where)
        raise _Unfit
    return value


@functools.cache
def _fields(kind: type) -> tuple[tuple[dataclasses.Field[Any], bool], ...]:
    """The fields of a dataclass, each with whether it may be None."""
    hints = typing.get_type_hints(kind)
    return tuple((field, _optional(hints[field.name])) for field in dataclasses.fields(kind))


def _optional(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)
