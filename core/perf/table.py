"""Measurements in a table of one's own: CSV text made into the rows of a fit.

Somebody's table comes from a spreadsheet or a script, so it is read with patience where the meaning is clear (order of
columns, blanks, a byte order mark, semicolons) and with none where it is not: a number that is none is an error with
its line, because a value guessed wrong would still give a law. What cannot be evidence (no speed, a speed of zero, a
repeat far from the others) is left out and counted by reason, never silently.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.errors import BadInput
from trimtab.core.perf.rows import WINDOW_NOISE, Row

WORKERS, PS, WORKER_CPU, PS_CPU = "workers", "ps", "worker_cpu", "ps_cpu"
BATCH_SIZE, THROUGHPUT = "batch_size", "throughput"
WORKER_SECONDS, PS_SECONDS = "worker_cpu_seconds", "ps_cpu_seconds"
SHAPE = (WORKERS, PS, WORKER_CPU, PS_CPU, BATCH_SIZE)
COLUMNS = (*SHAPE, THROUGHPUT, WORKER_SECONDS, PS_SECONDS)
_WHOLE = (WORKERS, PS, BATCH_SIZE)
_DEFAULTS: Mapping[str, float] = {WORKER_CPU: 1.0, PS_CPU: 1.0, BATCH_SIZE: 1.0}
_NEAR = 0.75  # likeness of a column's name from which it is taken for a slip

BLANK, NOT_FINITE, NOT_POSITIVE = "without a throughput", "throughput not finite", "throughput zero or negative"
ABSURD = "with a step of less than a picosecond or more than a million million seconds"
NO_SHAPE, FAR_OFF = "with a blank in {}", "far from the repeats of its configuration"
_MOST = 1e9  # of anything that is counted
_LEAST_SECONDS, _MOST_SECONDS = 1e-12, 1e12  # of a step; beyond them numbers run out of digits
_FEWEST_REPEATS = 3  # of a configuration before one of them can be an outlier
_FAR_DEVIATIONS = 4.0  # of a repeat's log from the others' median; a deviation is never taken for less than usual noise
_MAD_TO_SD = 1.4826
_ROW_SECONDS = 10.0  # a row of a table counts as a usual window


@dataclass(frozen=True)
class Shape:
    """One configuration of a table: a plan without memory, which no law of speed looks at, and rows per batch."""

    plan: Plan
    batch_size: int
    line: int


@dataclass(frozen=True)
class Table:
    """What a table says, cleaned.

    Attributes:
        rows: of the fit, in the table's order. lines: of the file, per row.
        read: lines with values. dropped: how many of them were left out, by reason.
        ignored: columns that are not looked at, as written, each with a hint where it looks like a slip.
        notes: CPU seconds that cannot be, and defaults that were taken.
        constants: columns with one value throughout, defaults among them.
    """

    rows: tuple[Row, ...]
    lines: tuple[int, ...]
    read: int
    dropped: Mapping[str, int]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    constants: Mapping[str, float]

    @property
    def cpu_known(self) -> bool:
        """Whether some row says the CPU seconds of each role."""
        return any(row.worker_cpu for row in self.rows) and any(row.ps_cpu for row in self.rows)


def read_table(text: str, name: str) -> Table:
    """The measurements in `text`.

    Args:
        text: CSV with a header. Needed columns: workers, ps, throughput (samples per second of the whole job).
            Optional: worker_cpu and ps_cpu (cores per pod, default 1), batch_size (rows per step of a worker, default
            1), worker_cpu_seconds and ps_cpu_seconds (CPU seconds per step of one worker: of its process, and of all
            parameter servers together). Rows of one configuration are repeats.
        name: of the file, for messages.

    Raises:
        BadInput: no header, a needed column is missing, a value that is no number or cannot be (names file, line,
            column and value), or no usable row is left.
    """
    lines = _Lines(text, name, needed=(WORKERS, PS, THROUGHPUT))
    dropped: Counter[str] = Counter()
    odd: Counter[str] = Counter()
    found: list[tuple[Row, int]] = []
    read = 0
    for line, values in lines:
        read += 1
        shape = {column: _of(values, lines.present, column) for column in SHAPE}
        blank = next((column for column, value in shape.items() if value is None), None)
        speed = values.get(THROUGHPUT)
        reason = NO_SHAPE.format(blank) if blank else _no_speed(speed)
        if reason or speed is None:
            dropped[reason] += 1
            continue
        cpu = {}
        for column in (WORKER_SECONDS, PS_SECONDS):
            seconds = values.get(column)
            usable = seconds is not None and 0 < seconds < _MOST_SECONDS
            odd[column] += seconds is not None and not usable
            cpu[column] = seconds if usable else None
        plan, batch = _plan(shape), int(shape[BATCH_SIZE] or 1)
        seconds = plan.worker.replicas * batch / speed
        if not _LEAST_SECONDS < seconds < _MOST_SECONDS:
            dropped[ABSURD] += 1
            continue
        at = float(len(found)) * _ROW_SECONDS
        row = Row(plan, batch, seconds, cpu[WORKER_SECONDS], cpu[PS_SECONDS], _ROW_SECONDS, 1, at, at + _ROW_SECONDS, 0)
        found.append((row, line))
    kept = _without_outliers(found, dropped)
    if not kept:
        remedy = f"give rows with a throughput above 0 ({_words(dropped) or 'the file has a header only'})"
        raise BadInput(name, f"{read} rows, none usable", remedy)
    notes = [f"{column}: {count} not above 0: taken as unknown" for column, count in odd.items() if count]
    defaults = [column for column in _DEFAULTS if column not in lines.present]
    notes += [f"no column {column}: taken as 1" for column in defaults]
    rows = tuple(row for row, _ in kept)
    constants = {column: seen.pop() for column in SHAPE if len(seen := {of(row, column) for row in rows}) == 1}
    return Table(rows, tuple(line for _, line in kept), read, dict(dropped), lines.ignored, tuple(notes), constants)


def read_shapes(text: str, name: str, table: Table) -> tuple[Shape, ...]:
    """Configurations to predict: CSV like a table's, without throughput.

    Args:
        text: needed columns workers and ps; another one may be missing where the table has one value of it.
        name: of the file, for messages.
        table: what was measured.

    Raises:
        BadInput: as `read_table`; a blank; a column is missing that varies in the table; no row.
    """
    lines = _Lines(text, name, needed=(WORKERS, PS))
    for column in SHAPE:
        if column not in lines.present and column not in table.constants:
            raise BadInput(f"{name}, line 1", column, "it is needed: the table has several values of it")
    found = []
    for line, values in lines:
        shape = {column: values.get(column) if column in lines.present else table.constants[column] for column in SHAPE}
        blank = next((column for column, value in shape.items() if value is None), None)
        if blank:
            raise BadInput(f"{name}, line {line}, column {blank}", "", "give a value")
        found.append(Shape(_plan(shape), int(shape[BATCH_SIZE] or 1), line))
    if not found:
        raise BadInput(name, "no row", "give a header and a row for each configuration to predict")
    return tuple(found)


def of(row: Row | Shape, column: str) -> float:
    """The value of one of `SHAPE`."""
    plan = row.plan
    values: Mapping[str, float] = {
        WORKERS: plan.worker.replicas, PS: plan.ps.replicas, WORKER_CPU: plan.worker.cpu, PS_CPU: plan.ps.cpu,
        BATCH_SIZE: row.batch_size,
    }  # fmt: skip
    return float(values[column])


class _Lines:
    """Lines with values of a CSV text: the number of the line, and by known column a number or None for a blank."""

    def __init__(self, text: str, name: str, needed: Sequence[str]) -> None:
        self._name = name
        text = text.removeprefix("\ufeff")
        if "\0" in text:
            raise BadInput(name, "NUL bytes", "give CSV text in UTF-8")
        first = next((line for line in text.splitlines() if line.strip()), "")
        delimiter = next((one for one in (",", ";", "\t") if one in first), ",")
        self._reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
        header = next((cells for cells in self._checked() if any(cell.strip() for cell in cells)), None)
        if header is None:
            raise BadInput(name, "empty", f"give CSV with a header; needed columns: {', '.join(needed)}")
        self._start = self._reader.line_num
        names = [re.sub(r"[\s-]+", "_", cell.strip().lower()) for cell in header]
        self.columns = [one if one in COLUMNS else None for one in names]
        self.present = frozenset(one for one in self.columns if one)
        for one in COLUMNS:
            if self.columns.count(one) > 1:
                raise BadInput(f"{name}, line {self._start}", one, "the column is there twice; keep one of them")
        others = [written.strip() for written, column in zip(header, self.columns, strict=True) if not column]
        for one in needed:
            if one not in self.present:
                near = difflib.get_close_matches(one, [_plain(other) for other in others], n=1, cutoff=_NEAR)
                hint = f"did you mean {near[0]}? Rename it" if near else f"the header has {', '.join(header)}"
                raise BadInput(f"{name}, line {self._start}", one, f"this column is needed; {hint}")
        missing = [one for one in COLUMNS if one not in self.present]
        self.ignored = tuple(_ignored(one, missing) for one in others if one)

    def __iter__(self) -> Iterator[tuple[int, dict[str, float | None]]]:
        for cells in self._checked():
            if not any(cell.strip() for cell in cells):
                continue
            line = self._reader.line_num
            if len(cells) > len(self.columns) and any(cell.strip() for cell in cells[len(self.columns) :]):
                remedy = f"the header has {len(self.columns)} columns; quote values that hold the separator"
                raise BadInput(f"{self._name}, line {line}", f"{len(cells)} values", remedy)
            yield (
                line,
                {
                    column: self._number(cell.strip(), column, line)
                    for column, cell in zip(self.columns, cells, strict=False)
                    if column
                },
            )

    def _checked(self) -> Iterator[list[str]]:
        try:
            yield from self._reader
        except csv.Error as error:
            raise BadInput(f"{self._name}, line {self._reader.line_num}", str(error), "give CSV text") from error

    def _number(self, cell: str, column: str, line: int) -> float | None:
        if not cell:
            return None
        where = f"{self._name}, line {line}, column {column}"
        try:
            value = float(cell)
        except ValueError:
            raise BadInput(where, cell, "give a number, with a point before decimals") from None
        if column not in SHAPE:
            return value
        if column in _WHOLE and not (1 <= value <= _MOST and value == int(value)):
            raise BadInput(where, cell, "give a whole number, 1 to a thousand million")
        if not 0 < value <= _MOST:
            raise BadInput(where, cell, "give cores per pod, above 0")
        return value


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.lower())


def _ignored(name: str, missing: Sequence[str]) -> str:
    near = difflib.get_close_matches(_plain(name), COLUMNS, n=1, cutoff=_NEAR)
    return f"{name} (did you mean {near[0]}?)" if near and near[0] in missing else name


def _of(values: Mapping[str, float | None], present: frozenset[str], column: str) -> float | None:
    return values.get(column) if column in present else _DEFAULTS[column]


def _plan(shape: Mapping[str, float | None]) -> Plan:
    workers, ps, worker_cpu, ps_cpu = (float(shape[column] or 1) for column in (WORKERS, PS, WORKER_CPU, PS_CPU))
    return Plan(RolePlan(int(ps), ps_cpu, 0), RolePlan(int(workers), worker_cpu, 0))


def _no_speed(speed: float | None) -> str:
    if speed is None:
        return BLANK
    if not math.isfinite(speed):
        return NOT_FINITE
    return "" if speed > 0 else NOT_POSITIVE


def _without_outliers(found: Sequence[tuple[Row, int]], dropped: Counter[str]) -> list[tuple[Row, int]]:
    by_shape: dict[tuple[Plan, int], list[float]] = {}
    for row, _ in found:
        by_shape.setdefault((row.plan, row.batch_size), []).append(math.log(row.seconds))
    kept = []
    for row, line in found:
        logs = by_shape[row.plan, row.batch_size]
        middle = median(logs)
        deviation = max(WINDOW_NOISE, _MAD_TO_SD * median(abs(one - middle) for one in logs))
        if len(logs) >= _FEWEST_REPEATS and abs(math.log(row.seconds) - middle) > _FAR_DEVIATIONS * deviation:
            dropped[FAR_OFF] += 1
        else:
            kept.append((row, line))
    return kept


def _words(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items())
