"""Running one module in a process of its own that nothing outlives: user code and TensorFlow stay out of the caller.

The probe and the export are such processes. Whatever happens to them (a deadline, Ctrl-C, an interpreter that
crashed), the caller gets an exit code and a log, and no process is left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path


def run_apart(module: str, request: Path, log: Path, deadline_seconds: float) -> int | None:
    """Exit code of `python -m MODULE REQUEST`, or None if it was killed at the deadline. Never leaves it running.

    Args:
        module: dotted name.
        request: its one argument.
        log: gets all that it prints.
        deadline_seconds: wall time.
    """
    # Bytecode caches make TensorFlow's import four times as fast; a variable that forbids them is meant for tools.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", module, str(request)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
    try:
        return process.wait(deadline_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def ending(code: int) -> str:
    """How a process with this exit code ended, in words."""
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"


def last_words(log: Path) -> str:
    """The log's last line as a clause, for a message: the log may go with the directory that it lies in."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return f" after saying: {lines[-1]}" if lines else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and whatever the user's code started in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; macOS says the latter of zombies
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
