"""`trimtab export`: a finished run's model as a plain Keras model, and its entry in the history's store.

The files come first: a store that is away costs the entry and a line that says so, never the export.
"""

from __future__ import annotations

import difflib
import json
import logging
from pathlib import Path

from trimtab.core.cli_display import Line, say
from trimtab.core.errors import BadInput
from trimtab.core.training.export_client import Exported, export_job

log = logging.getLogger(__name__)


def run(name: str, out: str, *, as_json: bool) -> int:
    """Export the run called `name` to `out` and say what was written; returns the exit code.

    Args:
        name: a run id under TRIMTAB_HOME/jobs, or the directory of a job.
        out: a new or an empty directory.

    Raises:
        TrimtabError: there is no such finished run, or its model cannot be exported.
    """
    from trimtab.core.controller.places import home

    job_dir = find_job(name, home() / "jobs")
    with Line() as line:
        found = export_job(job_dir, Path(out), home() / "cache" / "data", line.show)
        line.show("writing it to the history")
        link, problem = log_to_history(found, home())
    if as_json:
        say(json.dumps({**found.as_dict(), "mlflow": link or None, "note": problem}, allow_nan=False))
    else:
        say(closing_lines(found, link))
    if problem:
        say(f"trimtab: {problem}", err=True)
    return 0


def find_job(name: str, jobs: Path) -> Path:
    """The directory of a run, by its id under `jobs` or by its path.

    Raises:
        BadInput: there is none; names the nearest ids.
    """
    if name and "/" not in name and (jobs / name).is_dir():
        return jobs / name
    if name and Path(name).is_dir():
        return Path(name)
    known = sorted((path.name for path in jobs.iterdir() if path.is_dir()), reverse=True) if jobs.is_dir() else []
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known[:3]
    hint = f"choose among {', '.join(near)}" if near else "there is none yet"
    raise BadInput("RUN", name, f"no such run or job directory; {hint}")


def log_to_history(found: Exported, home: Path) -> tuple[str, str]:
    """Log the model with its signature; its link ("" where there is none), and what went wrong ("" if nothing)."""
    try:
        from trimtab.core.history.open import open_history

        return open_history(home).log_model(found.run_id, found.directory, found.signature), ""
    except Exception as error:  # whatever the store and its client raise: the files are there
        log.debug("the model could not be logged", exc_info=True)
        said = " ".join(str(error).split()) or type(error).__name__
        return "", f"the model is exported, but not in the history: {said[:200]}"


def closing_lines(found: Exported, link: str) -> str:
    """What was written, for a person."""
    rows = sum(found.rows.values())
    lines = [
        f"{found.directory}: the model of run {found.run_id}, {len(found.rows)} embeddings with {rows} rows",
        f"  {len(found.signature['inputs'])} inputs, one per column; output \"score\" (signature.json)",
        "  load it with keras.models.load_model, or score rows: python predict.py < rows.jsonl",
    ]
    return "\n".join([*lines, f"  {link}"] if link else lines)
