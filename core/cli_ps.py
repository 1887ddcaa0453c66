"""`trimtab ps stats`: what a job's parameter servers hold and take, while it runs and afterwards.

It reads one file that the controller keeps in the job's directory, so it disturbs nobody and works without a secret.
The tables are made by pure functions: drawn with lines on a terminal, plain columns elsewhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.core.cli_display import say
from trimtab.core.clock import SystemClock
from trimtab.core.errors import BadInput, CorruptCopy

_UNKNOWN = "–"
_RUNNING = "running"
Row = tuple[str, ...]


def stats(name: str, *, as_json: bool) -> int:
    """Show the parameter servers of the job `name` on stdout; returns the exit code.

    Args:
        name: a run's id, the beginning of one, or a job's directory.
        as_json: one JSON object instead of tables.

    Raises:
        BadInput: no such job, or it has no figures of its servers. CorruptCopy: its file can't be read as such.
    """
    from trimtab.core.controller.lost import OWNER, silent
    from trimtab.core.controller.places import find_job

    job_dir = find_job(name).path
    found = read(job_dir)
    # Nobody is named there any more once a lost job's record was closed, and the file goes on saying "running".
    live = found["state"] == _RUNNING and (job_dir / OWNER).exists() and not silent(job_dir)
    if as_json:
        say(json.dumps({**found, "live": live}, allow_nan=False))
        return 0
    say(head(found, live=live, wall=SystemClock().wall()))
    for title, heads, rows in tables(found):
        say("")
        say(title)
        if rows:
            _draw(heads, rows)
    return 0


def read(job_dir: Path) -> dict[str, Any]:
    """The job's figures as the controller wrote them.

    Raises:
        BadInput: there are none, or a newer version wrote them. CorruptCopy: the file is damaged.
    """
    from trimtab.core.controller.ps_stats import FILE, SCHEMA

    file = job_dir / FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        remedy = f"has no {FILE}: it has not begun to train (look again when it does), or an older version ran it"
        raise BadInput("JOB", str(job_dir), remedy) from None
    except OSError as error:
        raise BadInput("JOB", str(file), f"cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise CorruptCopy(f"{file}: is no JSON ({error})") from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise BadInput(str(file), str(schema), f"this version reads {SCHEMA}; use the trimtab that ran the job")
    return dict(found)


def head(found: Mapping[str, Any], *, live: bool, wall: float) -> str:
    """What is shown, of when, and how even it is."""
    age = max(0.0, wall - found["written_at"])
    if live:
        when = f"running ({found['phase']}), as of {_ago(age)} ago"
    elif found["state"] == _RUNNING:
        when = f"its controller ended without a word {_ago(age)} ago; this is what it saw last"
    else:
        when = f"{found['state']} {_ago(age)} ago; this is how it ended, traffic as last seen while it trained"
    parts = [f"{found['run']}: {when}"]
    ratio = found["load_ratio"]
    if ratio is not None and len(found["servers"]) > 1:
        parts.append(f"fullest PS: {ratio:.2f} × the mean load")
    if found["moving"]:
        parts.append("vshards are on the move")
    return "\n".join(parts)


def tables(found: Mapping[str, Any]) -> list[tuple[str, Row, list[Row]]]:
    """Title, heads and rows of each table, all text."""
    servers, names = found["servers"], [one["pod"] for one in found["servers"]]
    shown: list[tuple[str, Row, list[Row]]] = []
    heads = ("PS", "vshards", "rows", "bytes", "memory", "pushes", "MB/s", "traffic", "snapshots", "refused")
    rows = [_server(one) for one in servers]
    shown.append(("Parameter servers" if rows else "no parameter server has reported yet", heads, rows))
    errors: list[Row] = [(one["pod"], one["snapshot_error"]) for one in servers if one["snapshot_error"]]
    if errors:
        shown.append(("Snapshots that failed", ("PS", "why"), errors))
    by_table = [_table(one, names) for one in found["tables"] if servers]
    per_server = tuple(f"{name} rows" for name in names) if len(names) > 1 else ()
    if by_table:
        shown.append(("Tables", ("table", "kind", "width", "rows", "bytes", *per_server), by_table))
    hottest = [_vshard(one) for one in found["hottest"]]
    if hottest:
        shown.append(("Hottest vshards", ("vshard", "PS", "MB/s", "traffic", "rows"), hottest))
    elif servers:
        shown.append(("Hottest vshards: no traffic was measured", (), []))
    return shown


def columns(heads: Row, rows: Sequence[Row]) -> str:
    """Text in columns as wide as their content; what looks like a number stands to the right."""
    lines = [heads, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    right = [_numeric([row[at] for row in rows]) for at in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _draw(heads: Row, rows: Sequence[Row]) -> None:
    """With lines on a terminal; plain columns where a program reads."""
    if not sys.stdout.isatty():
        say(columns(heads, rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for at, name in enumerate(heads):
        table.add_column(name, justify="right" if _numeric([row[at] for row in rows]) else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)


def _server(one: Mapping[str, Any]) -> Row:
    snapshots = f"{one['snapshots']:,d}"
    if one["snapshots"]:
        snapshots += f" ({one['snapshot_seconds']:.1f} s)"
    return (
        one["pod"], f"{one['vshards']:,d}", f"{one['rows']:,d}", _bytes(one["bytes"]), _bytes(one["rss_bytes"]),
        f"{one['pushes']:,d}", _rate(one["traffic_bytes_per_second"]), _share(one["traffic_share"]), snapshots,
        f"{one['refused']:,d}",
    )  # fmt: skip


def _table(one: Mapping[str, Any], names: Sequence[str]) -> Row:
    rows = {server["pod"]: server["rows"] for server in one["servers"]}
    each = tuple(f"{rows.get(name, 0):,d}" for name in names) if len(names) > 1 else ()
    return (one["name"], one["kind"], str(one["dim"]), f"{one['rows']:,d}", _bytes(one["bytes"]), *each)


def _vshard(one: Mapping[str, Any]) -> Row:
    rows = _UNKNOWN if one["rows"] is None else f"{one['rows']:,d}"
    rate, share = _rate(one["traffic_bytes_per_second"]), _share(one["traffic_share"])
    return (str(one["vshard"]), one["pod"], rate, share, rows)


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e6:,.2f}"


def _share(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{share:.1%}"


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{seconds:.0f} s"


def _numeric(cells: Sequence[str]) -> bool:
    return all(cell[:1].isdigit() or cell == _UNKNOWN for cell in cells)
