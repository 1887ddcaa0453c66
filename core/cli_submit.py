"""`trimtab submit` and `trimtab resume --detach`: a job begins, is handed over, and goes on without this shell.

What is looked at before is shown as `trimtab train` shows it. Stdout carries the run's id alone, so that a script can
keep it; what to do with it goes to stderr.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from trimtab.core.cli_display import TrainDisplay, say
from trimtab.core.controller.detached import LOG, Request, Submitted, hand_over
from trimtab.core.domain.job import JobSpec


def run(spec: JobSpec, *, as_json: bool, metrics_port: int | None = None) -> int:
    """Submit `spec`; returns the exit code.

    Args:
        spec: the job. as_json: one JSON object instead of the run's id.
        metrics_port: where figures are served while it runs, None: nowhere.

    Raises:
        TrimtabError: bad input, or the job could not be started.
    """
    return _handed_over(
        Request(spec, options={"metrics_port": metrics_port}), None, "reading rows and model", as_json=as_json
    )


def resume(job: str, *, as_json: bool, metrics_port: int | None = None) -> int:
    """Go on with `job` without this shell; returns the exit code.

    Args:
        job: a run's id, or the path of a job's directory. as_json, metrics_port: as for `run`.

    Raises:
        TrimtabError: there is no such job, or it cannot go on.
    """
    from trimtab.core.controller.places import find_job
    from trimtab.core.controller.preparing import directory_of

    path = find_job(job).path
    began_in = directory_of(path)
    directory = began_in if began_in is not None and os.access(began_in, os.R_OK | os.X_OK) else None
    request = Request(None, str(path), {"metrics_port": metrics_port})
    return _handed_over(request, directory, "looking at the job", as_json=as_json)


def _handed_over(request: Request, directory: Path | None, first: str, *, as_json: bool) -> int:
    display = TrainDisplay()
    with display:
        display.show(first, now=True)
        found = hand_over(request, display.progress, directory)
    if as_json:
        say(json.dumps(as_dict(found), allow_nan=False))
        return 0
    from trimtab.core.controller.places import called

    say(found.run_id)
    name = called(Path(found.job_dir))
    how = f"waits for its turn: {found.message}" if found.message else "has begun"
    say(f"the job {how}; `trimtab status {name}` shows it, `trimtab stop {name}` ends it", err=True)
    return 0


def as_dict(found: Submitted) -> dict[str, object]:
    """What was handed over, as `--json` shows it."""
    log = Path(found.job_dir) / "logs" / LOG
    return {
        "run_id": found.run_id, "state": "running", "phase": found.phase, "message": found.message,
        "job_dir": found.job_dir, "pid": found.pid, "log": str(log),
    }  # fmt: skip
