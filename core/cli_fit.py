"""`trimtab fit`: the law of a table that a person has, and what it says of configurations that were not measured.

Nothing of trimtab need have run: any measurements of workers, parameter servers and throughput will do. What is shown
first is how far off the law was where it could not look, for that decides whether to believe the rest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trimtab.core.cli_display import say
from trimtab.core.errors import BadInput
from trimtab.core.perf.table import SHAPE, Shape, of, read_shapes, read_table
from trimtab.core.perf.table_fit import Compared, Prediction, TableFit, fit_table

SCHEMA = "trimtab.fit/1"
STDIN = "-"
_UNKNOWN = "–"
_MOST_COMPARED = 12  # configurations that are shown, those that were missed most; JSON has all
_HEADS = ("workers", "PSs", "cores per worker", "cores per PS", "batch size")


def run(table: str, predict: str | None, *, as_json: bool) -> int:
    """Fit the table in the file `table` and say what came out; returns the exit code.

    Args:
        table: a CSV file, or "-" for stdin.
        predict: a CSV file with configurations to predict, or "-" for stdin; None: none.
        as_json: one JSON object instead of tables.

    Raises:
        BadInput: a file cannot be read, or has no usable rows; names file, line, column and value.
    """
    if table == predict == STDIN:
        raise BadInput("--predict", STDIN, "stdin is taken by the table; give one of them as a file")
    measured = read_table(_text("TABLE", table), _name(table))
    asked = read_shapes(_text("--predict", predict), _name(predict), measured) if predict is not None else ()
    fitted = fit_table(measured)
    predictions = fitted.predict(asked)
    if as_json:
        say(json.dumps(as_dict(_name(table), fitted, predictions), allow_nan=False))
        return 0
    for title, heads, rows in shown(_name(table), fitted, predictions):
        say(title)
        if heads:
            _draw(heads, rows)
        say("")
    return 0


def as_dict(name: str, fitted: TableFit, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The form of `--json`; null where something is not known."""
    table = fitted.table
    return {
        "schema": SCHEMA,
        "table": name,
        "rows": {
            "read": table.read,
            "used": table.read - sum(fitted.dropped.values()),
            "configurations": len(fitted.compared),
            "dropped": dict(fitted.dropped),
        },
        "ignored_columns": list(table.ignored),
        "law": fitted.law.name,
        "coefficients": dict(fitted.law.coefficients),
        "held": list(fitted.law.held),
        "notes": [*table.notes, *fitted.law.notes],
        "left_out": [asdict(one) for one in fitted.records],
        "configurations": [
            {
                **_values(one.shape), "line": one.shape.line, "repeats": one.repeats, "throughput": one.measured,
                "fitted": one.predicted, "predicted_left_out": one.left_out,
            }
            for one in fitted.compared
        ],
        "predictions": [
            {
                **_values(one.shape), "line": one.shape.line, "throughput": one.throughput, "low": one.low,
                "high": one.high, "outside": list(one.outside),
            }
            for one in predictions
        ],
        "range_note": fitted.range_note,
    }  # fmt: skip


_Rows = list[tuple[str, ...]]


def shown(name: str, fitted: TableFit, predictions: Sequence[Prediction]) -> list[tuple[str, tuple[str, ...], _Rows]]:
    """Title, heads and rows of what a person sees; without heads a title stands alone."""
    law = fitted.law
    parts: list[tuple[str, tuple[str, ...], _Rows]] = [("\n".join(_opening(name, fitted)), (), [])]
    rows = [(key, f"{value:.4g}", "held" if key in law.held else "") for key, value in law.coefficients.items()]
    others = [one for one in law.held if one not in law.coefficients]
    title = f"{law.name}, coefficients" + (f" (held as well: {', '.join(others)})" if others else "")
    parts.append((title, ("coefficient", "value", "identified"), [(*row[:2], row[2] or "yes") for row in rows]))
    records: _Rows = [
        (one.law + (" (used)" if one.law == law.name else ""), f"{one.rmsle:.3f}", f"{one.median:.1%}",
         f"{one.worst:.1%}", str(one.configurations))
        for one in fitted.records
    ]  # fmt: skip
    if records:
        record_heads = ("law", "RMSLE", "median error", "worst error", "configurations")
        parts.append(("Left-out errors: each configuration predicted by a fit without it", record_heads, records))
    if predictions:
        asked: _Rows = [(*_cells(one.shape), *_range(one), ", ".join(one.outside) or _UNKNOWN) for one in predictions]
        heads = (*_HEADS, "samples/s", "low", "high", "outside what was measured")
        parts.append((f"Predictions; {fitted.range_note}", heads, asked))
    else:
        parts.append(_worst(fitted))
    return parts


def _opening(name: str, fitted: TableFit) -> list[str]:
    table = fitted.table
    used = table.read - sum(fitted.dropped.values())
    rows, shapes = f"{used} row{'' if used == 1 else 's'}", len(fitted.compared)
    lines = [f"{name}: {fitted.law.name}, from {rows} of {shapes} configuration{'' if shapes == 1 else 's'}"]
    if fitted.dropped:
        parts = ", ".join(f"{count} {reason}" for reason, count in fitted.dropped.items())
        lines.append(f"left out of {table.read}: {parts}")
    if table.ignored:
        lines.append(f"columns not looked at: {', '.join(table.ignored)}")
    if fitted.law.held:
        lines.append(f"the table cannot tell (held at stated shares): {', '.join(fitted.law.held)}")
    return [*lines, *table.notes, *fitted.law.notes]


def _worst(fitted: TableFit) -> tuple[str, tuple[str, ...], _Rows]:
    def miss(one: Compared) -> float:
        return abs((one.left_out or one.predicted) / one.measured - 1)

    ordered = sorted(fitted.compared, key=miss, reverse=True)[:_MOST_COMPARED]
    rows = [
        (*_cells(one.shape), str(one.repeats), _speed(one.measured), _speed(one.predicted),
         _UNKNOWN if one.left_out is None else _speed(one.left_out),
         _UNKNOWN if one.left_out is None else f"{one.left_out / one.measured - 1:+.1%}")
        for one in ordered
    ]  # fmt: skip
    title = "Configurations" if len(ordered) == len(fitted.compared) else f"The {len(ordered)} that were missed most"
    return title, (*_HEADS, "rows", "samples/s", "fitted", "predicted left out", "error"), rows


def _range(one: Prediction) -> tuple[str, str, str]:
    low, high = (_UNKNOWN if end is None else _speed(end) for end in (one.low, one.high))
    return _speed(one.throughput), low, high


def _speed(value: float) -> str:
    """Samples per second: four digits at least, and no powers of ten, which nobody compares at a glance."""
    return f"{value:,.0f}" if 1000 <= value < 1e15 else f"{value:.4g}"


def _cells(shape: Shape) -> tuple[str, ...]:
    return tuple(f"{of(shape, column):g}" for column in SHAPE)


def _values(shape: Shape) -> Mapping[str, float | int]:
    plan = shape.plan
    return {
        "workers": plan.worker.replicas, "ps": plan.ps.replicas, "worker_cpu": plan.worker.cpu,
        "ps_cpu": plan.ps.cpu, "batch_size": shape.batch_size,
    }  # fmt: skip


def _text(field: str, path: str) -> str:
    try:
        if path == STDIN:
            return sys.stdin.buffer.read().decode("utf-8")
        return Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(field, path, f"byte {error.start} is no UTF-8; save the file as CSV in UTF-8") from error
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadInput(field, path, f"cannot be read ({said}); give the path of a CSV file, or - for stdin") from error


def _name(path: str) -> str:
    return "stdin" if path == STDIN else path


def _draw(heads: tuple[str, ...], rows: _Rows) -> None:
    """With lines on a terminal; plain columns where a program reads."""
    from trimtab.core.cli_ps import columns

    if not sys.stdout.isatty():
        say(columns(heads, rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for at, head in enumerate(heads):
        table.add_column(head, justify="left" if at == 0 and not rows[0][0][:1].isdigit() else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)
