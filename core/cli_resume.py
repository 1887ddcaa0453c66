"""`trimtab resume`: a job that was begun goes on, shown and reported as `trimtab train` shows and reports one.

Relative paths of a job are meant against the directory in which it was started, and so is a model of one's own. So the
command goes there first; TRIMTAB_HOME is settled before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from trimtab.core.cli_train import watched

if TYPE_CHECKING:
    from trimtab.core.controller.progress import Progress
    from trimtab.core.controller.result import JobResult


def run(job: str, *, as_json: bool, metrics_port: int | None = None) -> int:
    """Go on with `job`; returns the exit code.

    Args:
        job: a run's id, or the path of a job's directory.
        as_json: the result as one JSON object instead of a table.
        metrics_port: where figures are served while it runs, None: nowhere.

    Raises:
        TrimtabError: there is no such job, it cannot go on, or it was interrupted.
    """
    from trimtab.core.controller.places import find_job, home
    from trimtab.core.controller.preparing import directory_of
    from trimtab.core.controller.resume import resume

    path = find_job(job).path
    os.environ["TRIMTAB_HOME"] = str(home())
    with suppress(OSError):
        os.chdir(directory_of(path) or ".")
    def go_on(progress: Callable[[Progress], None], stop: threading.Event) -> JobResult:
        return resume(str(path), progress=progress, stop=stop, metrics_port=metrics_port)

    return watched(go_on, "looking at the job", as_json=as_json)
