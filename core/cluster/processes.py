"""Processes of this machine as pods are made of them: started, signalled and reaped by group.

Each is a session of its own, so that a Ctrl-C in the terminal reaches only the controller, and so that a whole pod can
be ended by one signal to its group. One that has ended is looked at before it is reaped: while the zombie holds the
process id, the group's id can't belong to anybody else, and the rest of the group is killed safely.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "PYTHONUNBUFFERED": "1",
}
# TensorFlow's import takes four times as long when Python may not keep its byte code.
_NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE",)


@dataclass
class Process:
    """The first process of a session, a child of this one.

    Attributes:
        pid: also of its group.
        popen: where this process has started it itself; kept, for a dropped one would be reaped behind our back.
    """

    pid: int
    popen: subprocess.Popen[bytes] | None = None

    def has_ended(self) -> bool:
        """Whether it waits to be reaped.

        Raises:
            ChildProcessError: somebody else has reaped it.
        """
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap(self) -> tuple[int, float]:
        """Kill the rest of its group, then take its exit code (128 + signal for a killed one) and CPU seconds."""
        self.signal(signal.SIGKILL)
        _, status, used = os.wait4(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self.forget(code)
        return code if code >= 0 else 128 - code, used.ru_utime + used.ru_stime

    def forget(self, code: int = 0) -> None:
        """It has been reaped: `Popen` must not look for it again."""
        if self.popen is not None:
            self.popen.returncode = code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its whole group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
            return


def start(argv: tuple[str, ...], log: IO[bytes], stdin: int = subprocess.DEVNULL) -> Process:
    """Start one with the environment of pods.

    Raises:
        OSError: the command can't be run.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED} | _ENVIRONMENT
    popen = subprocess.Popen(
        argv, stdin=stdin, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    )
    return Process(popen.pid, popen)


def open_log(path: str) -> IO[bytes]:
    """The file at `path` for appending, with its directory; nowhere when the disk takes nothing more.

    Raises:
        OSError: there can be no such file, whatever the disk's state.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return Path(path).open("ab")
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        log.warning("%s: a process starts without a log: %s", path, error)
        return Path(os.devnull).open("ab")


def reap_group(group: int) -> tuple[bool, float]:
    """Reap those of a killed group that have come to this process as orphans.

    Returns:
        Whether none is left, and the CPU seconds of the reaped.
    """
    seconds = 0.0
    while True:
        try:
            pid, _, used = os.wait4(-group, os.WNOHANG)
        except ChildProcessError:
            return True, seconds
        if pid == 0:
            return False, seconds
        seconds += used.ru_utime + used.ru_stime
