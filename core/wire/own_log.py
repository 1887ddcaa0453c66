"""A pod's own log, when somebody moves it away: log rotation renames a file, and its writer goes on writing into it.

A pod's standard output and error are one file that its parent has opened, so only the pod itself can open it anew. It
looks at the name every few seconds; what was written until then is in the file that was moved, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from trimtab.core.clock import Clock

LOOK_SECONDS = 2.0
_OUTPUTS = (1, 2)


def follow_log(path: str, clock: Clock) -> bool:
    """Look after the log in a thread of its own, as long as the process lives.

    Args:
        path: of the file that standard error goes to; where it does not, nothing is done.
        clock: between two looks.

    Returns:
        Whether it is looked after.
    """
    try:
        ours = bool(path) and os.path.samestat(Path(path).stat(), os.fstat(_OUTPUTS[-1]))
    except OSError:
        return False
    if ours:
        threading.Thread(target=_follow, args=(path, clock), name="log", daemon=True).start()
    return ours


def reopen_moved(path: str) -> bool:
    """Lead standard output and error into a file of this name, unless they go there already; true when that was done.

    Where the new file can't be made they go on as they are.
    """
    with contextlib.suppress(OSError):
        if Path(path).exists() and os.path.samestat(Path(path).stat(), os.fstat(_OUTPUTS[-1])):
            return False
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            for output in _OUTPUTS:
                os.dup2(handle, output)
        finally:
            os.close(handle)
        return True
    return False


def _follow(path: str, clock: Clock) -> None:
    never = threading.Event()
    while not clock.wait(never, LOOK_SECONDS):
        reopen_moved(path)
