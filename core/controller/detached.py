"""Jobs that outlive the shell: a controller in a session of its own, handed over once its job has begun.

The new process looks at everything just as `train` does, so bad input is told in the same words and leaves nothing.
Two pipes hold both together until then: it tells what it does on one, and reads the other, on which nothing is ever
written: when its end comes before the job has begun, whoever submitted it is gone or has lost patience, and nothing is
begun. So there is no moment at which a job runs that nobody has been told of, however the submitting process ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from trimtab.core.controller.places import home
from trimtab.core.controller.progress import Progress, Showing
from trimtab.core.domain.job import JobSpec
from trimtab.core.errors import BadInput, Interrupted, JobFailed, TrimtabError
from trimtab.core.wire.encode import to_json

LOG = "controller.log"  # in the job's logs
_MODULE = "trimtab.core.controller.detached_main"
_SAID_LINES = 12  # of a controller that ended without a word


@dataclass(frozen=True)
class Request:
    """What the new process reads from its standard input.

    Attributes:
        spec: of a new job, None to go on with `job` (its directory).
        options: keyword arguments of `train` or `resume`.
    """

    spec: JobSpec | None = None
    job: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Submitted:
    """A job that was handed over.

    Attributes:
        run_id, job_dir: of the job. pid: of its controller.
        phase: starting, or waiting: it stands in line, and begins by itself.
        message: why it waits, "" otherwise.
    """

    run_id: str
    job_dir: str
    pid: int
    phase: str
    message: str = ""


def submit(spec: JobSpec, progress: Callable[[Progress], None] | None = None) -> str:
    """Start a job that outlives this process, and return its run id once it has begun or stands in line.

    Args:
        spec: the job. progress: hears what is looked at before.

    Raises:
        BadInput: something given cannot be used; nothing was started and nothing is left behind.
        JobFailed: it could not be started.
    """
    return hand_over(Request(spec), progress).run_id


def hand_over(
    request: Request, progress: Callable[[Progress], None] | None = None, directory: Path | None = None
) -> Submitted:
    """Start the controller, and wait until its job has begun or stands in line.

    Args:
        request: what it is to do. progress: hears what is looked at before.
        directory: in which it runs, None: this process's.

    Raises:
        BadInput, JobFailed: as `train` and `resume` raise them. Interrupted: by Ctrl-C; says whether the job goes on.
    """
    show = Showing(progress)
    with ExitStack() as opened:
        said = opened.enter_context(tempfile.TemporaryFile())
        hear, tell = os.pipe()
        news = opened.enter_context(os.fdopen(hear, encoding="utf-8"))
        told, line = os.pipe()
        patience = opened.enter_context(os.fdopen(line, "wb"))
        try:
            command = [sys.executable, "-m", _MODULE, str(tell), str(told)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=said, stderr=said, pass_fds=(tell, told),
                start_new_session=True, cwd=directory, env={**os.environ, "TRIMTAB_HOME": str(home())},
            )  # fmt: skip
        finally:
            os.close(tell)
            os.close(told)
        try:
            process.communicate(to_json(request))  # it lets its own parent go at once, to belong to nobody
            return _heard(news, show, said)
        except KeyboardInterrupt:
            patience.close()
            submitted = None
            with suppress(JobFailed, BadInput, Interrupted):
                submitted = _heard(news, Showing(None), said)
            if submitted is None:
                what = "began; nothing is left of it" if request.spec is not None else "went on; it is as it was"
                raise Interrupted(f"interrupted before the job {what}") from None
            raise Interrupted(f"interrupted, but job {submitted.run_id} had begun and goes on") from None


def _heard(news: IO[str], show: Callable[[Progress], None], said: IO[bytes]) -> Submitted:
    """Listen until the job was handed over or has come to nothing."""
    nothing_came: TrimtabError | None = None
    for text in news:  # up to the other side's end, unless the job has begun: then nothing is left of it for certain
        kind, told = json.loads(text)
        if kind == "progress":
            show(Progress(0, 0, 0.0, None, None, told["phase"], told["message"]))
        elif kind == "begun":
            return Submitted(**told)
        elif kind == "refused":
            nothing_came = BadInput(told["field"], told["value"], told["remedy"])
        else:
            nothing_came = (Interrupted if kind == "interrupted" else JobFailed)(told["message"])
    if nothing_came is not None:
        raise nothing_came
    said.seek(0)
    lines = said.read().decode(errors="replace").splitlines()[-_SAID_LINES:]
    why = "; it said:\n" + "\n".join(lines) if lines else ", as if it was killed"
    raise JobFailed(f"the job's controller ended before the job began{why}")


def as_news(kind: str, told: Mapping[str, object]) -> str:
    """One line of news."""
    return json.dumps([kind, told]) + "\n"
