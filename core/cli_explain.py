"""`trimtab explain`: why a job's plan changed, from its record, wherever that lies.

A record is looked for where it is cheapest to find: a path, the job's directory, and only then the store of past jobs,
whose opening takes seconds. A running job is explained as well, as far as it has come.
"""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path

from trimtab.core.cli_display import say
from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import BadInput, TrimtabError

RECORD = "record.json"
_NAMED = 200  # runs that are looked through for a near name
_REMEDY = "give the id of a run (`trimtab history` shows them) or the path of a job's directory"


def run(name: str, html: str | None, *, as_json: bool) -> int:
    """Explain the run `name` on stdout; returns the exit code.

    Args:
        name: a run's id, or the path of a job's directory or of a record.
        html: also write the report page there.
        as_json: the report's data as one JSON object instead of text.

    Raises:
        BadInput: no such run, or the page cannot be written. TrimtabError: its record cannot be read.
    """
    from trimtab.core.report.data import report_data
    from trimtab.core.report.explain import explain

    record = find(name)
    if html is not None:
        _write(record, Path(html))
    say(json.dumps(report_data(record), allow_nan=False) if as_json else explain(record))
    return 0


def find(name: str) -> JobRecord:
    """The record of the run `name`: a path, a job under TRIMTAB_HOME, or a run of the store.

    Raises:
        BadInput: there is none. TrimtabError: there is one that cannot be read.
    """
    from trimtab.core.controller.places import home

    if not name or "\0" in name:
        raise BadInput("RUN_ID", name, _REMEDY)
    jobs = home() / "jobs"
    simple = name not in (".", "..") and os.sep not in name
    places = [jobs / name] if simple else []
    for place in (*places, Path(name)):
        file = place / RECORD if place.is_dir() else place
        if file.is_file():
            return _read(file)
    for place in (*places, Path(name)):
        if place.is_dir():
            remedy = f"{place} has no {RECORD}: the job has not begun to train, or an older version ran it"
            found = _of_store(name, home()) if simple else None
            if found is not None:
                return found
            raise BadInput("RUN_ID", name, remedy)
    found = _of_store(name, home()) if simple else None
    if found is not None:
        return found
    raise BadInput("RUN_ID", name, f"there is no such run{_near(name, jobs)}; {_REMEDY}")


def _read(file: Path) -> JobRecord:
    from trimtab.core.history.record_file import read_record

    try:
        return read_record(file)
    except OSError as error:
        raise BadInput("RUN_ID", str(file), f"cannot be read ({error.strerror or error})") from error


def _of_store(name: str, home: Path) -> JobRecord | None:
    """The store's record; None when there is no store yet, or it does not answer (which is said)."""
    if not os.environ.get("MLFLOW_TRACKING_URI") and not (home / "mlflow.db").exists():
        return None
    from trimtab.core.history.open import open_history

    try:
        return open_history(home).get(name)
    except TrimtabError as error:
        say(f"trimtab: {' '.join(str(error).split())}", err=True)
        return None


def _near(name: str, jobs: Path) -> str:
    try:
        known = sorted((entry.name for entry in jobs.iterdir()), reverse=True)[:_NAMED]
    except OSError:
        known = []
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    near = near or [one for one in known if name in one][:3]
    return f"; near: {', '.join(near)}" if near else ""


def _write(record: JobRecord, path: Path) -> None:
    from trimtab.core.report.page import write_page

    try:
        write_page(record, path)
    except OSError as error:
        raise BadInput("--html", str(path), f"cannot be written ({error.strerror or error})") from error
    say(f"report: {path}", err=True)
