"""The way to a running job's controller, for whoever wants something of it, and what to say when there is none.

The job's directory names the controller with its private directory, where its socket is and the secret that only the
job's owner can read. A controller that died, lives on another machine, belongs to somebody else or does not answer in
time is no mystery to a person then, but a sentence with what to do; how the job stands is told from its files.
"""

from __future__ import annotations

import logging
import stat
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.controller.lost import Controller, controller_of
from trimtab.core.controller.places import called, home
from trimtab.core.controller.status import DIED, ELSEWHERE, ENDED, PREPARING, SILENT, Status
from trimtab.core.controller.status_files import OVER, RESULT, STATE, left_of, status_of_files
from trimtab.core.controller.store import FileStore
from trimtab.core.errors import JobFailed, Refused, TrimtabError, WireError
from trimtab.core.wire.commands import JobAnswer, JobCommand
from trimtab.core.wire.secrets import read_secret

if TYPE_CHECKING:
    from trimtab.core.wire.control import JobStub

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.1  # between two tries
ANSWER_SECONDS = 10.0  # a controller is busy for a fraction of a second at most, and so is a healthy machine


class NoAnswer(JobFailed):
    """Nobody answers for the job.

    Attributes:
        word: what became of its controller, as the status says it; `preparing` for one that does not answer yet, `over`
            for one that does not any more.
    """

    def __init__(self, word: str, text: str) -> None:
        self.word = word
        super().__init__(text)


class _BrokeOff(Exception):
    """No answer this time; `silent` says what it means if it stays so."""

    def __init__(self, silent: NoAnswer) -> None:
        self.silent = silent
        super().__init__(str(silent))


class JobLine:
    """A line to whoever controls a job at the time; use as a context manager.

    Args:
        job_dir: of the job. seconds: how long to wait for an answer. clock: the machine's by default.
    """

    def __init__(self, job_dir: Path, seconds: float = ANSWER_SECONDS, clock: Clock | None = None) -> None:
        self._job_dir, self._seconds = job_dir, seconds
        self._clock = clock if clock is not None else SystemClock()
        self._job_id = ""
        self._stub: JobStub | None = None
        self._private: Path | None = None  # of the controller that the stub leads to

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()

    @property
    def controller(self) -> Controller | None:
        """Whom the job's directory names now."""
        return controller_of(self._job_dir)

    def ask(self, command: Literal["status", "stop", "checkpoint"] = "status", *, now: bool = False) -> JobAnswer:
        """Ask the controller; see `JobCommand`.

        One that breaks off (it may be ending, or another one takes its place) is looked for again and asked again,
        until the time is up: being asked twice changes nothing.

        Raises:
            NoAnswer: nobody answers; says why, and what to do.
        """
        never, until = threading.Event(), self._clock.now() + self._seconds
        while True:
            try:
                return self._ask(JobCommand("", command, now), max(until - self._clock.now(), _PAUSE_SECONDS))
            except _BrokeOff as error:
                if self._clock.now() + _PAUSE_SECONDS >= until:
                    raise error.silent from error
                self._clock.wait(never, _PAUSE_SECONDS)

    def _ask(self, wish: JobCommand, seconds: float) -> JobAnswer:
        """Ask once whoever is the controller now."""
        controller = self.controller
        if controller is None or not controller.alive:
            raise self._nobody(controller)
        stub = self._dial(controller)
        from trimtab.core.wire.control import Unreachable

        try:
            return stub.command(replace(wish, job_id=self._id()), seconds)
        except Refused as error:
            raise NoAnswer(SILENT, f"job {called(self._job_dir)}: {error}") from error
        except Unreachable as error:
            self._hang_up()
            raise _BrokeOff(self._silent(controller, error)) from error
        except WireError as error:
            self._hang_up()
            raise self._silent(controller, error) from error

    def _dial(self, controller: Controller) -> JobStub:
        from trimtab.core.wire.control import JobStub

        name, private = called(self._job_dir), controller.private
        if self._stub is not None and self._private == private:
            return self._stub
        self._hang_up()
        address = private / "controller.sock" if private is not None else None
        if private is None or address is None or not _there(address):
            if private is not None and (self._job_dir / RESULT).exists():
                raise NoAnswer(OVER, f"job {name} has ended and writes its record")
            raise NoAnswer(PREPARING, f"job {name} is being prepared and does not answer yet")
        try:
            secret = read_secret(private / "secret")
        except PermissionError:
            text = f"job {name} belongs to another user (process {controller.pid}): only they can ask it"
            raise NoAnswer(SILENT, text) from None
        except (OSError, Refused) as error:
            raise NoAnswer(SILENT, f"job {name}: its secret cannot be read: {error}") from error
        self._stub, self._private = JobStub(str(address), secret), private
        return self._stub

    def _id(self) -> str:
        """The job's id, which its directory need not be called by."""
        if not self._job_id:
            with suppress(OSError, TrimtabError):
                document = FileStore(self._job_dir / STATE).read()
                self._job_id = document.job_id if document is not None else ""
        return self._job_id or self._job_dir.name

    def _nobody(self, controller: Controller | None) -> NoAnswer:
        name = called(self._job_dir)
        if controller is not None and not controller.here:
            where = f"on {controller.host or 'another machine'}, or in another container"
            return NoAnswer(ELSEWHERE, f"job {name}: its controller runs {where} (process {controller.pid}); ask there")
        if status_of_files(left_of(self._job_dir), 0.0)["controller"] == ENDED:
            return NoAnswer(ENDED, f"job {name} has ended")
        return NoAnswer(DIED, f"job {name}: its controller has died; `trimtab resume {name}` goes on with it")

    def _silent(self, controller: Controller, error: WireError) -> NoAnswer:
        name, pid, present = called(self._job_dir), controller.pid, self.controller
        if present is None or not present.alive:
            return self._nobody(present)
        log.debug("%s", error)
        if present.private is None or not _there(present.private / "controller.sock"):
            return NoAnswer(OVER, f"job {name} has ended and writes its record")
        if "not accepted" in str(error):
            return NoAnswer(SILENT, f"job {name}: another version of trimtab runs it ({error}); use that one")
        text = f"job {name}: its controller (process {pid}) did not answer within {self._seconds:g} s. Try again; if it"
        return NoAnswer(SILENT, f"{text} hangs, `kill -9 {pid}` ends it, and `trimtab resume {name}` goes on")

    def _hang_up(self) -> None:
        stub, self._stub = self._stub, None
        if stub is not None:
            stub.close()


def look_at(line: JobLine, job_dir: Path, clock: Clock) -> Status:
    """How the job stands: from its controller, or from its files when that is not to be had.

    Args:
        line: to its controller. job_dir: of the job. clock: tells the age of what is read.
    """
    try:
        return line.ask().status
    except NoAnswer as error:
        told = status_of_files(left_of(job_dir, waiting_jobs(clock)), clock.wall())
        if error.word == SILENT and told["controller"] == SILENT:
            told["message"] = str(error)
        return told


def waiting_jobs(clock: Clock) -> frozenset[str]:
    """Directories of the jobs that stand in line for a share of this machine."""
    from trimtab.core.controller.capacity import Capacity

    with suppress(OSError):
        return frozenset(one.job_dir for one in Capacity(home(), clock).read().leases if one.waits)
    return frozenset()


def _there(address: Path) -> bool:
    """Whether a socket is there, or may be where only another user can look."""
    try:
        return stat.S_ISSOCK(address.stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False
