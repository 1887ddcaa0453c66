"""The process between an Airflow task and its job: `python -m trimtab.airflow_plugin.keeper GRACE COMMAND...`.

Airflow ends a task by SIGTERM and, five seconds later, by SIGKILL; a worker that is evicted or runs out of memory gets
no signal at all. A job needs longer than that to wind down its processes in order, and it takes a second signal as
impatience. So the task holds the writing end of this process' standard input and nothing else: when it closes it, or
dies in whatever way, the command gets SIGTERM once, and SIGKILL only if it is still there after GRACE seconds. Both
run in sessions of their own, out of reach of signals that are meant for Airflow's worker. Standard output and error are
the command's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType


def keep(command: Sequence[str], grace_seconds: float, source: int) -> int:
    """Run `command` until it ends, or until `source` does; returns its exit code (128 + n for signal n).

    Args:
        command: program and arguments.
        grace_seconds: between SIGTERM and SIGKILL.
        source: file descriptor whose end means that nobody wants the command any more.
    """
    unwanted = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=unwanted.set, daemon=True).start()  # a handler may run inside a wait on this event

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, ask)
    # After the handlers: a signal between the two would end this process and leave the command to nobody.
    process = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_watch, args=(source, unwanted), daemon=True).start()
    threading.Thread(target=_end, args=(process, unwanted, grace_seconds), daemon=True).start()
    code = process.wait()
    return 128 - code if code < 0 else code


def _watch(source: int, unwanted: threading.Event) -> None:
    """Reads until the other side is gone."""
    with contextlib.suppress(OSError):
        while os.read(source, 4096):
            pass
    unwanted.set()


def _end(process: subprocess.Popen[bytes], unwanted: threading.Event, grace_seconds: float) -> None:
    unwanted.wait()
    process.terminate()
    try:
        process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def main(argv: list[str]) -> int:
    """From the arguments to `keep`; standard input is the line to the task."""
    return keep(argv[1:], float(argv[0]), sys.stdin.fileno())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
