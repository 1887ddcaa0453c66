"""What a person may ask of a running job, at the controller's side: how it stands, a checkpoint, an end.

A command comes through the same server, secret and bounds as a worker's call, and becomes an input of `step` like
everything else; nothing is done here. Each answer tells how the job stands, so whoever waits for something asks again
until it shows. The socket lies in the private directory, because a socket's path is short; a link in the job's
directory leads to it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trimtab.core.controller.inputs import CheckpointRequested, StopRequested
from trimtab.core.controller.state import Phase, State
from trimtab.core.controller.status import StatusBoard
from trimtab.core.errors import Refused
from trimtab.core.wire.commands import CHECKPOINT, STOP, JobAnswer, JobCommand

SOCKET = "control.sock"  # in the job's directory: a link to the controller's socket
Ask = Callable[..., tuple[State, float, str]]  # takes inputs; the state after them, the time, and what is shown


class Commands:
    """Answers commands about one job.

    Args:
        ask: hands inputs to the driver. board: tells how the job stands.
    """

    def __init__(self, ask: Ask, board: StatusBoard) -> None:
        self._ask, self._board = ask, board

    def answer(self, request: JobCommand) -> JobAnswer:
        """One call, in one of the server's threads.

        Raises:
            Refused: it is about another job.
        """
        state, now, message = self._ask()
        if request.job_id != state.settings.job_id:
            raise Refused(f"this is the controller of job {state.settings.job_id}")
        refused = why_not(request, state)
        wanted = () if refused else inputs_of(request)
        if wanted:
            state, now, message = self._ask(*wanted)
        return JobAnswer(request.job_id, refused, self._board.status(state, now, message))


def inputs_of(request: JobCommand) -> tuple[StopRequested | CheckpointRequested, ...]:
    """What `step` is told."""
    if request.command == STOP:
        return (StopRequested("stopped by `trimtab stop`", now=request.now),)
    return (CheckpointRequested(),) if request.command == CHECKPOINT else ()


def why_not(request: JobCommand, state: State) -> str:
    """Why it can't be done now, "" when it can. A stop is never refused: who asks twice has lost patience."""
    if request.command != CHECKPOINT:
        return ""
    if state.phase is Phase.OVER:
        return "it has ended"
    return "it is being stopped, and writes its last checkpoint" if state.stop is not None else ""


def link_socket(job_dir: Path, address: str) -> None:
    """Lead from the job's directory to the controller's socket, where the file system has links."""
    with suppress(OSError):
        (job_dir / SOCKET).unlink(missing_ok=True)
        (job_dir / SOCKET).symlink_to(address)


def unlink_socket(job_dir: Path) -> None:
    """The controller answers no more."""
    with suppress(OSError):
        (job_dir / SOCKET).unlink(missing_ok=True)
