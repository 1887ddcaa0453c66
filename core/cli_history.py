"""`trimtab history` and `trimtab ui`: past jobs as a table, and MLflow's pages over them.

The table is made by pure functions from records. When the store does not answer, the records that lie in this
machine's job directories are shown instead, and it is said: what a person asks for is there, wherever it lies.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from trimtab.core.cli_display import say
from trimtab.core.clock import SystemClock
from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import TrimtabError
from trimtab.core.history.base import History, HistoryAway
from trimtab.core.history.outbox import FOLDER, Delivered, deliver_waiting
from trimtab.core.history.record_file import FILE, read_record

_UNKNOWN = "–"
_HEADS = ("run", "family", "state", "when", "wall", "samples/s", "changes", "plan: first → last", "AUC", "warm from")


def history(job_name: str | None, limit: int, *, as_json: bool) -> int:
    """Show past jobs, the last written first; delivers first what waits in the outbox.

    Args:
        job_name: only this family; None: all.
        limit: how many at most.
        as_json: one JSON object instead of a table.
    """
    from trimtab.core.controller.lost import close_lost
    from trimtab.core.controller.places import home
    from trimtab.core.history.open import open_history

    close_lost(home() / "jobs", home() / FOLDER)
    store = open_history(home())
    delivered = deliver_waiting(lambda: store, home() / FOLDER)
    records, problem = past_jobs(store, home(), job_name, limit)
    links = {} if problem else {record.run_id: _link(store, record.run_id) for record in records}
    if as_json:
        runs = [summary(record, links.get(record.run_id, "")) for record in records]
        found = {"runs": runs, "delivered": delivered.count, "waiting": delivered.left, "error": problem or None}
        say(json.dumps(found, allow_nan=False))
        return 0
    for line in (problem, waiting_line(delivered)):
        if line:
            say(line, err=True)
    if store.skipped and not problem:
        left_out = "is left out" if store.skipped == 1 else "are left out"
        say(f"{_runs(store.skipped)} of the store could not be read and {left_out}", err=True)
    say(table(records) if records else _nothing(job_name))
    return 0


def ui(host: str, port: int) -> int:
    """Serve MLflow's pages until interrupted; with a server of one's own, just say where it is.

    Raises:
        BadInput: the port is taken. TrimtabError: the server did not start.
    """
    from trimtab.core.controller.places import home
    from trimtab.core.controller.signals import stops_in_order
    from trimtab.core.history.mlflow.server import serve_pages
    from trimtab.core.history.open import open_history

    store = open_history(home())
    if store.place.server:
        say(f"MLFLOW_TRACKING_URI is a server: {store.experiment_link()}")
        return 0
    stop = threading.Event()
    say("starting MLflow's pages; this takes some seconds", err=True)
    with stops_in_order(stop, lambda: True, always=True):
        deliver_waiting(lambda: store, home() / FOLDER)
        serve_pages(store, home(), host, port, SystemClock(), stop, _say_ready)
    return 0


def past_jobs(store: History, home: Path, job_name: str | None, limit: int) -> tuple[Sequence[JobRecord], str]:
    """The records to show, and a sentence when they are not the store's (it is away)."""
    try:
        return store.fetch({} if job_name is None else {"job_name": job_name}, limit), ""
    except HistoryAway as error:
        return local_jobs(home, job_name, limit), f"{error}; shown are the runs under {home / 'jobs'}"


def local_jobs(home: Path, job_name: str | None, limit: int) -> list[JobRecord]:
    """Records in this machine's job directories, the newest run first; what cannot be read is passed over."""
    found: list[JobRecord] = []
    for path in sorted((home / "jobs").glob(f"*/{FILE}"), reverse=True):
        try:
            record = read_record(path)
        except (TrimtabError, OSError):
            continue
        if job_name is None or record.job_name == job_name:
            found.append(record)
        if len(found) == limit:
            break
    return found


def summary(record: JobRecord, link: str = "") -> dict[str, object]:
    """One run as `--json` shows it."""
    warm = record.warm_start
    return {
        "run_id": record.run_id,
        "job_name": record.job_name,
        "state": str(record.state),
        "started_at": record.started_at or None,
        "wall_seconds": wall_seconds(record),
        "samples_per_second": record.figures.get("samples_per_second"),
        "changes": changes(record),
        "first_plan": record.plans[0].plan.as_dict() if record.plans else None,
        "last_plan": record.plans[-1].plan.as_dict() if record.plans else None,
        "auc": record.figures.get("auc"),
        "warm_from": [run.run_id for run in warm.runs] if warm is not None else [],
        "job_dir": record.job_dir or None,
        "mlflow": link or None,
    }


def table(records: Sequence[JobRecord]) -> str:
    """The runs as text in columns, as wide as their content."""
    rows = [_HEADS, *(_cells(record) for record in records)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def wall_seconds(record: JobRecord) -> float | None:
    """How long the job took in seconds; None when it runs or its end is not known."""
    if "wall_seconds" in record.figures:
        return record.figures["wall_seconds"]
    return record.ended_at - record.started_at if record.ended_at is not None and record.started_at else None


def changes(record: JobRecord) -> int:
    """How often the plan in force became another one."""
    return sum(one.plan != before.plan for before, one in zip(record.plans, record.plans[1:], strict=False))


def waiting_line(delivered: Delivered) -> str:
    """What became of records that had waited for the store; "" when none had."""
    parts = []
    if delivered.count:
        parts.append(f"{_runs(delivered.count)} that waited {'was' if delivered.count == 1 else 'were'} delivered")
    if delivered.left:
        parts.append(f"{_runs(delivered.left)} still {'waits' if delivered.left == 1 else 'wait'} for the store")
    return "; ".join(parts)


def _cells(record: JobRecord) -> tuple[str, ...]:
    warm = record.warm_start
    wall = wall_seconds(record)
    return (
        record.run_id,
        record.job_name,
        str(record.state),
        _when(record.started_at),
        _UNKNOWN if wall is None else _duration(wall),
        _number(record.figures.get("samples_per_second"), ",.0f"),
        str(changes(record)),
        _plans(record),
        _number(record.figures.get("auc"), ".4f"),
        _UNKNOWN if warm is None else ", ".join(run.run_id for run in warm.runs) or "cold",
    )


def _plans(record: JobRecord) -> str:
    if not record.plans:
        return _UNKNOWN
    first, last = record.plans[0].plan, record.plans[-1].plan
    return str(first) if first == last else f"{first} → {last}"


def _when(seconds: float) -> str:
    """The local date and minute."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M") if seconds else _UNKNOWN


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _number(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _nothing(job_name: str | None) -> str:
    return "no runs yet" if job_name is None else f"no runs of {job_name} yet"


def _link(store: History, run_id: str) -> str:
    try:
        return store.link(run_id)
    except HistoryAway:
        return ""


def _say_ready(link: str) -> None:
    say(link)
    say("press Ctrl-C to end it", err=True)
