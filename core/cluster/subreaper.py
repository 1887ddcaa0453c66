"""Making this process the parent of its orphaned descendants, so that pods forked by a zygote are its own children.

Only a parent learns a process's exit code and CPU time from the kernel. The setting (Linux' "child subreaper") is of
the process as a whole while several clusters may live in it, so one object counts who needs it, and puts back what was
before when the last one is done. While it holds, orphans of the caller's own making come here too.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading

log = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # from linux/prctl.h


class Subreaper:
    """Counts who needs the setting of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    def take(self) -> bool:
        """Need it from now on; False where the system has no such thing, then do not call `leave`."""
        with self._lock:
            if self._users == 0:
                before = get()
                if before is None or not put(1):
                    return False
                self._before = before
            self._users += 1
            return True

    def leave(self) -> None:
        """Need it no longer."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                put(self._before)


def get() -> int | None:
    """The setting now; None where there is none."""
    prctl, found = _prctl(), ctypes.c_int(0)
    if prctl is None or prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0) != 0:
        return None
    return found.value


def put(value: int) -> bool:
    """Change the setting."""
    prctl = _prctl()
    return prctl is not None and prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(value), 0, 0, 0) == 0


def _prctl() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None


SUBREAPER = Subreaper()  # of this process, as the setting is
