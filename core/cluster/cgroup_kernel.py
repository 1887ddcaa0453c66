"""The few calls to the kernel that control groups are made of, and what is done with groups whoever they belong to.

A test puts a made-up kernel in the place of the real one, so that rules of version 2 can be tried where only version 1
is mounted, and refusals where everything is allowed.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from trimtab.core.cluster.cgroup_names import is_leftover


class Kernel:
    """The machine's own."""

    def read(self, path: Path) -> str:
        """The text of a group's file."""
        return path.read_text(encoding="ascii")

    def write(self, path: Path, text: str) -> None:
        """Write a setting; the kernel takes or refuses it in this one call."""
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, text.encode("ascii"))
        finally:
            os.close(file)

    def make(self, path: Path) -> None:
        """A new group."""
        path.mkdir()

    def remove(self, path: Path) -> None:
        """Remove an empty group."""
        path.rmdir()

    def groups(self, path: Path) -> list[str]:
        """The names of the groups in a group."""
        return sorted(one.name for one in path.iterdir() if one.is_dir())


def remove_leftovers(base: Path, kernel: Kernel) -> None:
    """Remove what jobs left that were killed, as far as it is empty: their pods may still be on their way out."""
    with suppress(OSError):
        for name in filter(is_leftover, kernel.groups(base)):
            with suppress(OSError):
                for pod in kernel.groups(base / name):
                    kernel.remove(base / name / pod)
                kernel.remove(base / name)


def kill_all(procs: str) -> None:
    """Kill the processes that a group lists."""
    for word in procs.split():
        if word.isdigit() and int(word) > 1 and int(word) != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(word), signal.SIGKILL)
