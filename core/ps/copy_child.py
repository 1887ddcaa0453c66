"""A forked child that writes what its parent's memory held at the instant of the fork.

The fork is one instant under the server's lock, so the child's view of every vshard is true about itself, and training
goes on while it writes. It holds none of the parent's sockets (a worker would wait for a connection that nobody
serves), starts no thread, takes no lock, dies with its parent, is the first that the kernel kills for memory, and has
a deadline: whatever becomes of it, the parent loses a file and nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import select
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.errors import TrimtabError

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.02
_LOOKS_PER_MEASURE = 10
_NICE = 5
_MOST_ANSWER = 64 << 20
_LONGEST_REST_SECONDS = 1.0
_PROGRESS, _LAST = b".", b"!"  # before an answer, which never begins so
_given: int | None = None  # the child's line to its parent
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: a child must not wait for a loader's lock


class ChildFailed(TrimtabError):
    """The child ended without its work done, or had to be killed; the reason says which."""


class ChildTooLarge(ChildFailed):
    """So much changed in its parent meanwhile that the old pages have no room: measured, or the kernel's verdict."""


class CopyChild:
    """A running child; `wait` ends it one way or the other."""

    def __init__(self, pid: int, answer: int) -> None:
        self.pid, self._answer = pid, answer

    def wait(
        self,
        clock: Clock,
        deadline_seconds: float,
        given_up: threading.Event,
        most_bytes: float = math.inf,
        silence_seconds: float = math.inf,
        last_seconds: float = math.inf,
    ) -> bytes:
        """What the child's work returned; no process and no descriptor of it is left when this returns or raises.

        Args:
            clock: measures the deadline.
            deadline_seconds: of the child's whole life.
            given_up: nobody wants the answer any more.
            silence_seconds: without a sign of progress (`progressed`). last_seconds: the same once only a last step is
                left that shows none (`lasting`).
            most_bytes: memory that it may have for itself: old pages of what its parent has changed since the fork.

        Raises:
            ChildTooLarge: it needs more memory, or was killed, as the kernel does for memory.
            ChildFailed: it failed, ended without an answer, took too long, or was given up.
        """
        waiting = select.poll()  # `select` takes no descriptor beyond 1023, and a server has thousands of workers
        waiting.register(self._answer, select.POLLIN)
        began = heard = clock.now()
        held = b""
        why, ended, looks, large = "", False, 0, False
        try:
            while not why:
                found = self._read()
                if found == b"":
                    ended = True
                    break
                if found is not None:
                    heard = clock.now()
                    held += found
                    answer = held.lstrip(_PROGRESS + _LAST)
                    if _LAST in held[: len(held) - len(answer)]:
                        silence_seconds = last_seconds
                    held = answer
                if len(held) > _MOST_ANSWER:
                    why = f"answered with more than {_MOST_ANSWER} bytes"
                elif given_up.is_set():
                    why = "was given up"
                elif clock.now() - began > deadline_seconds:
                    why = f"took more than {deadline_seconds:g} s"
                elif clock.now() - heard > silence_seconds:
                    why = f"made no progress for {silence_seconds:g} s"
                elif found is None:
                    looks += 1
                    large = looks % _LOOKS_PER_MEASURE == 0 and _private_bytes(self.pid) > most_bytes
                    why = f"needs more than {most_bytes:.0f} bytes beside its parent" if large else ""
                    waiting.poll(_LOOK_SECONDS * 1000)
        finally:
            os.close(self._answer)
            if not ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        if large:
            raise ChildTooLarge(f"the child that writes copies {why}")
        if why:
            raise ChildFailed(f"the child that writes copies {why}")
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:  # not ours: the kernel wanted its memory, and would take the next one's, too
            raise ChildTooLarge(f"the child that writes copies was killed (exit code {code})")
        if code != 0:
            text = held.decode(errors="replace") or f"ended with exit code {code}"
            raise ChildFailed(f"copies could not be written: {text}")
        return held

    def _read(self) -> bytes | None:
        """A piece of the answer, empty at its end, None when there is nothing yet."""
        try:
            return os.read(self._answer, 1 << 20)
        except BlockingIOError:
            return None


def fork_child(work: Callable[[], bytes]) -> CopyChild:
    """Start a child that runs `work` on the memory as it is now and answers with what that returns.

    Call it with every lock held that guards what `work` reads; `work` itself must take none of them.

    Raises:
        OSError: no process could be made.
    """
    parent = os.getpid()
    answer, given = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads: the child uses none of theirs
            pid = os.fork()
    except OSError:
        os.close(answer)
        os.close(given)
        raise
    if pid == 0:
        _live(parent, given, work)
    os.close(given)
    os.set_blocking(answer, False)
    return CopyChild(pid, answer)


def _private_bytes(pid: int) -> int:
    """Memory that a process shares with nobody; 0 where that cannot be known."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def progressed() -> None:
    """Tell the parent, in the child, that something got done; nowhere else does it mean anything."""
    if _given is not None:
        os.write(_given, _PROGRESS)


def lasting() -> None:
    """Tell the parent, in the child, that only one step is left, which may take long and shows no progress."""
    if _given is not None:
        os.write(_given, _LAST)


def rest(clock: Clock, seconds: float) -> None:
    """Rest in the child, for as long as a piece of its work took.

    Parent and child share a limit of CPU: a child that took all of it would make training wait for the next period.
    """
    clock.wait(threading.Event(), min(max(seconds, 0.0), _LONGEST_REST_SECONDS))


def _live(parent: int, given: int, work: Callable[[], bytes]) -> None:
    """The child's whole life. Never returns."""
    global _given  # of this process alone
    _given, code = given, 1
    try:
        gc.disable()  # a collection would copy every page that it touches, and run other threads' finalizers
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.closerange(3, given)
        os.closerange(given + 1, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.nice(_NICE)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        data, code = work(), 0
    except BaseException as error:  # noqa: BLE001, the parent has to hear of everything
        data = f"{type(error).__name__}: {error}".encode()
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(given, view) :]
    finally:
        os._exit(code)
