"""The controller of a job that outlives the shell: `python -m trimtab.core.controller.detached_main NEWS LINE`.

It belongs to nobody: its parent ends at once, so that no zombie and no terminal is ever tied to it. Until the job has
begun it tells whoever submitted it what it does, and ends without a trace when that one is gone; from then on what it
has to say goes into a file in the job's directory, which is opened anew when somebody rotates it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.controller.detached import LOG, Request, as_news
from trimtab.core.controller.progress import Milestones, Progress
from trimtab.core.controller.result import no_result
from trimtab.core.controller.status_files import RESULT, STATE
from trimtab.core.domain.job import JobState
from trimtab.core.errors import BadInput, Interrupted, TrimtabError
from trimtab.core.wire.encode import from_json

log = logging.getLogger(__name__)

LINE_SECONDS = 30.0  # between two lines of a job that merely goes on
WAITING = "waiting"
_MOST_BYTES = 1 << 24  # of a request


class LogFile:
    """The log of this process: its standard output and error lead there, too. A disk without room ends nothing.

    Args:
        path: of the file, appended to. clock: for the times.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._lead_to(Path(os.devnull))
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            self._lead_to(path)

    def write(self, text: str) -> None:
        """One line, with its time."""
        at = datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="milliseconds")
        with suppress(OSError):
            if not self._is_there():
                self._lead_to(self._path)
            os.write(1, f"{at} {text}\n".encode(errors="replace"))

    def _is_there(self) -> bool:
        """Whether the file is still where it was; it is moved when it is rotated."""
        try:
            there, here = self._path.stat(), os.fstat(1)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    @staticmethod
    def _lead_to(path: Path) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.dup2(handle, 1)
            os.dup2(handle, 2)
        finally:
            os.close(handle)


class Handover:
    """What is told to whom: before the job has begun to the one who submitted it, afterwards to the log.

    Args:
        news: the pipe to the submitting process. line: the pipe that ends with it. clock: for the log.
    """

    def __init__(self, news: TextIO, line: int, clock: Clock) -> None:
        self._news, self._line, self._clock = news, line, clock
        self._lock = threading.Lock()
        self._given_up = self._has_begun = False
        self._job: tuple[str, Path] | None = None
        self._shown: tuple[str, str] = "", ""
        self._decisions = 0
        self._next = 0.0
        self.log: LogFile | None = None
        self.milestones = Milestones(self._claimed, self._begun)

    def watch(self) -> None:
        """Wait for the other side's end; if the job has not begun by then, it is not wanted any more."""
        with suppress(OSError):
            while os.read(self._line, 1):
                pass
        with self._lock:
            if self.log is not None:
                return
            self._given_up = True
        # To the main thread itself: it may wait for a process, and must be woken.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def progress(self, progress: Progress) -> None:
        """What the job does."""
        if self.log is None and progress.phase == WAITING:
            self._hand_over(WAITING, progress.message)
        if self.log is None:
            self._tell("progress", {"phase": progress.phase, "message": progress.message})
            return
        self._write(self.log, progress)

    def ended(self, kind: str, told: Mapping[str, object], text: str) -> None:
        """The job has come to nothing, or to its end; `text` is for the log."""
        if self.log is None:
            self._tell(kind, told)
            return
        if self._job is not None and not self._has_begun and kind != "interrupted":
            _leave_word(self._job[1], text)  # somebody was given its id, and will ask what has become of it
        self.log.write(text)

    def _tell(self, kind: str, told: Mapping[str, object]) -> None:
        """News for the submitting process, if it is still there."""
        with suppress(OSError, ValueError):
            self._news.write(as_news(kind, told))
            self._news.flush()

    def _claimed(self, run_id: str, job_dir: Path) -> None:
        self._job = run_id, job_dir

    def _begun(self) -> None:
        self._has_begun = True
        self._hand_over("starting", "")

    def _hand_over(self, phase: str, message: str) -> None:
        """From here on the job lives, whoever goes."""
        if self._job is None or self.log is not None:
            return
        run_id, job_dir = self._job
        with self._lock:
            if self._given_up:
                return
            sys.stdout.flush()
            sys.stderr.flush()
            self.log = LogFile(job_dir / "logs" / LOG, self._clock)
        self.log.write(f"process {os.getpid()} controls job {run_id}")
        told = {"run_id": run_id, "job_dir": str(job_dir), "pid": os.getpid(), "phase": phase, "message": message}
        self._tell("begun", told)
        with suppress(OSError):
            self._news.close()

    def _write(self, log: LogFile, progress: Progress) -> None:
        """Lines that are worth keeping: decisions, phases, and now and then how far the job is."""
        from trimtab.core.report.sentences import decision_line

        for decision in progress.decisions[self._decisions :]:
            log.write(decision_line(decision))
        self._decisions = max(self._decisions, len(progress.decisions))
        now, new = self._clock.now(), (progress.phase, str(progress.plan))
        if new == self._shown and now < self._next:
            return
        self._shown, self._next = new, now + LINE_SECONDS
        parts = [progress.phase]
        if progress.batches_expected:
            parts.append(f"{progress.batches_done:,} of {progress.batches_expected:,} batches")
        if progress.samples_per_second:
            parts.append(f"{progress.samples_per_second:,.0f} samples/s")
        if progress.loss is not None:
            parts.append(f"loss {progress.loss:.4f}")
        parts += [f"plan {progress.plan}"] if progress.plan is not None else []
        parts += [progress.message] if progress.message else []
        log.write("  ".join(parts))


def _leave_word(job_dir: Path, why: str) -> None:
    """Say in a job's directory, which was cleared when the job could not begin, why it could not.

    One that could not go on has its directory still, with the result of the time before, and that stays.
    """
    if (job_dir / STATE).exists():
        return
    with suppress(OSError):
        (job_dir / "logs").mkdir(parents=True, exist_ok=True)
        told = no_result(JobState.FAILED, why)
        (job_dir / RESULT).write_text(json.dumps(told, allow_nan=False, indent=1) + "\n", encoding="utf-8")


def control(request: Request, handover: Handover) -> int:
    """Run the job to its end; returns the exit code, which nobody may be there to hear."""
    try:
        if request.spec is not None:
            from trimtab.core.controller.run import train

            result = train(request.spec, handover.progress, milestones=handover.milestones, **request.options)
        else:
            from trimtab.core.controller.resume import resume

            result = resume(request.job, handover.progress, milestones=handover.milestones, **request.options)
    except BadInput as error:
        value = error.value if isinstance(error.value, str | int | float | None) else str(error.value)
        handover.ended("refused", {"field": error.field, "value": value, "remedy": error.remedy}, str(error))
        return 2
    except (Interrupted, KeyboardInterrupt) as error:
        handover.ended("interrupted", {"message": str(error) or "interrupted"}, str(error) or "interrupted")
        return 130
    except TrimtabError as error:
        handover.ended("failed", {"message": str(error)}, str(error))
        return 1
    except Exception as error:
        log.exception("the controller met an error of its own")  # standard error leads to where it is looked for
        handover.ended("failed", {"message": f"{type(error).__name__}: {error}"}, f"failed: {error}")
        return 1
    handover.ended(
        "failed", {"message": "it was over at once"}, f"{result.state}: {result.error or 'every batch is in'}"
    )
    return 0


def main(argv: list[str]) -> int:
    """From the arguments and standard input to `control`."""
    news, line = int(argv[0]), int(argv[1])
    request = from_json(Request, sys.stdin.buffer.read(_MOST_BYTES))
    if os.fork():
        os._exit(0)  # the submitting process waits for this one only
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a shell starts what it puts aside with some ignored
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for handle in (news, line):
        os.set_inheritable(handle, False)
    handover = Handover(os.fdopen(news, "w", encoding="utf-8"), line, SystemClock())
    threading.Thread(target=handover.watch, daemon=True).start()
    return control(request, handover)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
