"""A table's law, how far off each candidate was where it could not look, and predictions of other configurations.

A table has no recent observation: nothing says that the machine is today as it was when the table was made, and the
same plans have been 14 % slower half an hour later. So there is no anchor here, and a range says only what one more row
of this table would have been. Ranges come from configurations that a refit did not see, and there is none where there
is no such configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from trimtab.core.errors import BadInput
from trimtab.core.perf.choosing import choose, configuration, log_errors
from trimtab.core.perf.iteration import Setting, Shapes
from trimtab.core.perf.law import Law
from trimtab.core.perf.quota import QuotaLaw, fit_quota_laws
from trimtab.core.perf.ranges import half_width
from trimtab.core.perf.rows import Row
from trimtab.core.perf.table import SHAPE, Shape, Table, of
from trimtab.core.perf.time_laws import fit_time_laws

MOST_CONFIGURATIONS = 120  # a refit for each of them takes seconds; more say little more
THINNED = "of configurations beyond the {} that are fitted, evenly chosen"
RANGE_NOTE = "ranges (80 %) hold for the conditions of the table: nothing recent says how the machine is now"
NO_RANGE_NOTE = "no ranges: with one configuration nothing can be left out to see how far off a prediction is"


@dataclass(frozen=True)
class Record:
    """How far off a member was for configurations that its refits did not see.

    Attributes:
        law: the member's name.
        rmsle: root mean square of ln(measured / predicted) over configurations.
        median, worst: of |predicted - measured| / measured throughput over configurations.
        configurations: how many could be left out.
    """

    law: str
    rmsle: float
    median: float
    worst: float
    configurations: int


@dataclass(frozen=True)
class Compared:
    """One configuration: measured (geometric mean of repeats), predicted by the fit, and by a refit without it."""

    shape: Shape
    repeats: int
    measured: float
    predicted: float
    left_out: float | None


@dataclass(frozen=True)
class Prediction:
    """Samples per second of one configuration; no bounds where nothing could be left out.

    Attributes:
        outside: columns with a value below or above all that were measured.
    """

    shape: Shape
    throughput: float
    low: float | None
    high: float | None
    outside: tuple[str, ...]


@dataclass(frozen=True)
class TableFit:
    """The law of a table. Made by `fit_table`.

    Attributes:
        records: of every member that could be left out of, the one in use first.
        half_width: of the 80 % range in logs; None where nothing could be left out.
        dropped: rows left out before the fit, by reason.
    """

    table: Table
    law: Law
    setting: Setting
    records: tuple[Record, ...]
    compared: tuple[Compared, ...]
    half_width: float | None
    dropped: Mapping[str, int]

    @property
    def range_note(self) -> str:
        """What a range means here, or why there is none."""
        return NO_RANGE_NOTE if self.half_width is None else RANGE_NOTE

    def predict(self, shapes: Sequence[Shape]) -> tuple[Prediction, ...]:
        """Samples per second of each of `shapes`, in their order."""
        measured = {column: [of(row, column) for row in self.table.rows] for column in SHAPE}
        seen = {column: (min(values), max(values)) for column, values in measured.items()}
        return tuple(self._one(shape, seen) for shape in shapes)

    def _one(self, shape: Shape, seen: Mapping[str, tuple[float, float]]) -> Prediction:
        middle = _throughput(self.law, shape, self.setting)
        outside = tuple(column for column, (low, high) in seen.items() if not low <= of(shape, column) <= high)
        if self.half_width is None:
            return Prediction(shape, middle, None, None, outside)
        low, high = middle * math.exp(-self.half_width), middle * math.exp(self.half_width)
        return Prediction(shape, middle, low, high, outside)


def fit_table(table: Table, setting: Setting | None = None) -> TableFit:
    """The law of `table`, chosen by leaving configurations out.

    Args:
        table: at least one row.
        setting: what holds pods back; None: cores per pod are taken as shares that hold.

    Raises:
        BadInput: no member can be fitted to these numbers.
    """
    setting = setting or Setting()
    rows, thinned = _thinned(table.rows)
    dropped = {**table.dropped, **({THINNED.format(MOST_CONFIGURATIONS): thinned} if thinned else {})}
    chosen = choose(rows, (), setting)
    if chosen is None:
        raise BadInput("table", f"{len(rows)} rows", "no law can be fitted to these numbers; look for absurd values")
    misses = _misses(rows, setting)
    left_out = misses.get(chosen.law.name, [None] * len(rows))
    records = [one for name, found in misses.items() if (one := _record(name, rows, found)) is not None]
    records.sort(key=lambda one: (one.law != chosen.law.name, one.rmsle))
    by_shape = _by_configuration(rows, left_out)
    known = [_root_mean_square(found) for _, found in by_shape if found]
    half = half_width(known, not isinstance(chosen.law, QuotaLaw)) if known else None
    compared = tuple(_compared(chosen.law, own, found, table, setting) for own, found in by_shape)
    return TableFit(table, chosen.law, setting, tuple(records), compared, half, dropped)


def _thinned(rows: Sequence[Row]) -> tuple[tuple[Row, ...], int]:
    """Rows of at most so many configurations, evenly spread over the table, and how many rows that leaves out."""
    every = list(dict.fromkeys(configuration(row) for row in rows))
    if len(every) <= MOST_CONFIGURATIONS:
        return tuple(rows), 0
    step = (len(every) - 1) / (MOST_CONFIGURATIONS - 1)
    kept = {every[round(at * step)] for at in range(MOST_CONFIGURATIONS)}
    found = tuple(row for row in rows if configuration(row) in kept)
    return found, len(rows) - len(found)


def _misses(rows: Sequence[Row], setting: Setting) -> dict[str, list[float | None]]:
    """By member ln(measured / predicted) seconds of each row by a refit without its configuration."""
    found: dict[str, list[float | None]] = {}
    for one in dict.fromkeys(configuration(row) for row in rows):
        kept = [row for row in rows if configuration(row) != one]
        left = [at for at, row in enumerate(rows) if configuration(row) == one]
        for law in (*fit_quota_laws(kept, (), setting), *fit_time_laws(kept, setting)):
            mine = found.setdefault(law.name, [None] * len(rows))
            for at, miss in zip(left, log_errors(law, [rows[at] for at in left], setting), strict=True):
                mine[at] = miss
    return found


def _by_configuration(rows: Sequence[Row], misses: Sequence[float | None]) -> list[tuple[list[Row], list[float]]]:
    found: dict[object, tuple[list[Row], list[float]]] = {}
    for row, miss in zip(rows, misses, strict=True):
        own, known = found.setdefault(configuration(row), ([], []))
        own.append(row)
        if miss is not None:
            known.append(miss)
    return list(found.values())


def _record(name: str, rows: Sequence[Row], misses: Sequence[float | None]) -> Record | None:
    known = [found for _, found in _by_configuration(rows, misses) if found]
    if not known:
        return None
    # ln(measured / predicted) seconds is ln(predicted / measured) samples per second.
    errors = [abs(math.expm1(sum(found) / len(found))) for found in known]
    rmsle = _root_mean_square([_root_mean_square(found) for found in known])
    return Record(name, rmsle, median(errors), max(errors), len(known))


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(sum(one**2 for one in values) / len(values))


def _compared(law: Law, rows: Sequence[Row], misses: Sequence[float], table: Table, setting: Setting) -> Compared:
    first = rows[0]
    shape = Shape(first.plan, first.batch_size, table.lines[table.rows.index(first)])
    measured = math.exp(sum(math.log(row.throughput) for row in rows) / len(rows))
    left_out = measured * math.exp(sum(misses) / len(misses)) if misses else None
    return Compared(shape, len(rows), measured, _throughput(law, shape, setting), left_out)


def _throughput(law: Law, shape: Shape, setting: Setting) -> float:
    seconds = float(law.seconds(Shapes.of([shape.plan]), shape.batch_size, setting)[0])
    return shape.plan.worker.replicas * shape.batch_size / seconds
