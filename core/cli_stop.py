"""`trimtab stop` and `trimtab checkpoint`: ask a running job's controller for something, and wait until it is done.

What was asked for goes on whoever waits: Ctrl-C ends the waiting and nothing else. A job that is still being prepared
has no socket to be asked at; it gets the signal that Ctrl-C in its own shell would be, and leaves nothing behind.
"""

from __future__ import annotations

import json
import math
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.core.cli_display import Line, say
from trimtab.core.cli_status import show
from trimtab.core.clock import Clock, SystemClock
from trimtab.core.errors import JobFailed

if TYPE_CHECKING:
    from trimtab.core.controller.lost import Controller
    from trimtab.core.controller.reaching import JobLine

INTERRUPTED = 130
POLL_SECONDS = 0.2
LEAVING_SECONDS = 5.0  # that a process may take to end after its job; one that called `train` goes on
SHOW_SECONDS = 1.0  # between two looks at how the job stands meanwhile


def stop(name: str, *, now: bool, as_json: bool, clock: Clock | None = None) -> int:
    """Stop the job `name` and wait until it has ended; returns the exit code.

    Args:
        name: a run's id, the beginning of one, or a job's directory.
        now: without a last checkpoint. as_json: say how it ended as one JSON object.
        clock: the machine's by default.

    Raises:
        BadInput: no such job. JobFailed: nobody can be asked to stop it; says what to do.
    """
    from trimtab.core.controller.places import find_job
    from trimtab.core.controller.reaching import JobLine, NoAnswer
    from trimtab.core.controller.status import DIED, ENDED, PREPARING
    from trimtab.core.controller.status_files import OVER, left_of, status_of_files

    job_dir, clock = find_job(name).path, clock if clock is not None else SystemClock()
    with JobLine(job_dir) as line:
        controller = line.controller
        try:
            line.ask("stop", now=now)
        except NoAnswer as error:
            if error.word in (ENDED, DIED):
                return _told(job_dir, clock, as_json=as_json, first="it does not run: ")
            if error.word == PREPARING and controller is not None and not controller.signal(signal.SIGTERM):
                told = f"{error}; process {controller.pid} prepares it"
                raise JobFailed(f"{told} and is not this command's to stop: stop it there") from error
            if error.word not in (PREPARING, OVER):
                raise
        if not _waited(line, job_dir, controller, clock):
            if as_json:
                say(json.dumps(status_of_files(left_of(job_dir), clock.wall()), allow_nan=False))
            say("trimtab: not waiting any more; the job goes on stopping", err=True)
            return INTERRUPTED
    return _told(job_dir, clock, as_json=as_json)


def checkpoint(name: str, *, as_json: bool, clock: Clock | None = None) -> int:
    """Have a checkpoint of the job `name` written, and wait until it is committed; returns the exit code.

    Args:
        name: a run's id, the beginning of one, or a job's directory.
        as_json: say how the job stands then as one JSON object. clock: the machine's by default.

    Raises:
        BadInput: no such job. JobFailed: it can't be asked, or the checkpoint could not be written.
    """
    from trimtab.core.controller.places import find_job
    from trimtab.core.controller.reaching import JobLine

    job_dir, clock = find_job(name).path, clock if clock is not None else SystemClock()
    with JobLine(job_dir) as line:
        answer = line.ask("checkpoint")
        if answer.refused:
            raise JobFailed(f"job {job_dir.name}: {answer.refused}")
        try:
            told = _committed(line, answer.status, clock)
        except KeyboardInterrupt:
            if as_json:
                say(json.dumps(answer.status, allow_nan=False))
            say("trimtab: not waiting any more; the checkpoint is written all the same", err=True)
            return INTERRUPTED
    saved = told["checkpoint"]
    if saved["error"]:
        raise JobFailed(f"job {job_dir.name}: the checkpoint could not be written: {saved['error']}")
    if as_json:
        say(json.dumps(told, allow_nan=False))
    else:
        say(f"{told['run_id']}: its checkpoint holds {saved['batches']:,d} of {told['batches_expected']:,d} batches")
    return 0


def _committed(line: JobLine, told: Mapping[str, Any], clock: Clock) -> Mapping[str, Any]:
    """How the job stands once what was asked for has come about.

    Raises:
        NoAnswer: the job has ended before, or its controller does not answer.
    """
    never, asked = threading.Event(), told["checkpoint"]["asked"]
    with Line(clock=clock) as shown:
        while told["checkpoint"]["done"] < asked:
            show(shown, told)
            clock.wait(never, POLL_SECONDS)
            told = line.ask().status
    return told


def _waited(line: JobLine, job_dir: Path, controller: Controller | None, clock: Clock) -> bool:
    """Wait until the controller has ended; false when whoever waits has lost patience."""
    from trimtab.core.controller.reaching import look_at

    never, next_look, last = threading.Event(), -math.inf, None
    try:
        with Line(clock=clock) as shown:
            while controller is not None:
                present = line.controller
                if present is None or present.pid != controller.pid:
                    last = clock.now() + LEAVING_SECONDS if last is None else last
                if not controller.runs or (last is not None and clock.now() >= last):
                    return True
                if last is None and clock.now() >= next_look:
                    next_look = clock.now() + SHOW_SECONDS
                    show(shown, look_at(line, job_dir, clock))
                clock.wait(never, POLL_SECONDS)
    except KeyboardInterrupt:
        return False
    return True


def _told(job_dir: Path, clock: Clock, *, as_json: bool, first: str = "") -> int:
    """Say how the job stands now that nobody controls it."""
    from trimtab.core.controller.places import called
    from trimtab.core.controller.status_files import left_of, status_of_files

    if not any(job_dir.glob("*.json")):
        if as_json:
            from trimtab.core.controller.status import nothing_known

            gone = nothing_known(job_dir.name, str(job_dir))
            why = "stopped before anything was started"
            say(json.dumps({**gone, "state": "stopped", "controller": "ended", "phase": "over", "error": why}))
        else:
            say(f"{job_dir.name}: stopped before anything was started; nothing is left of it")
        return 0
    told = status_of_files(left_of(job_dir), clock.wall())
    if as_json:
        say(json.dumps(told, allow_nan=False))
        return 0
    closed, expected = told["checkpoint"]["batches"], told["batches_expected"]
    held = f"; its checkpoint holds {closed:,d} of {expected:,d} batches" if closed is not None and expected else ""
    why = f": {told['error']}" if told["error"] else ""
    how = "" if told["state"] == "finished" else f", and `trimtab resume {called(job_dir)}` goes on"
    say(f"{told['run_id']}: {first}{told['state']}{why if 'checkpoint holds' in why else why + held}{how}")
    return 0
