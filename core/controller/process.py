"""Whether a process that a file names is still the one that was meant.

A process id is used again, means nothing in another process namespace, and nothing after a restart of the machine. So
files name the machine, its start and the namespace beside it, and the moment at which the process began: counted from
the machine's start, because a wall clock that is set would make another process of every one.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

import psutil

_SINCE_1970 = 1e9  # what is larger counts from then: an earlier version wrote it, or there is no /proc


def process_place() -> dict[str, str]:
    """The machine, its start, and the namespace in which a process id means something."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    return {"host": platform.node(), "boot": boot, "namespace": namespace}


def process_began(pid: int) -> float:
    """When a process began: seconds since the machine's start, or since 1970 where that is not told.

    Raises:
        psutil.NoSuchProcess: there is none.
    """
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(told.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return float(psutil.Process(pid).create_time())


def process_runs(pid: int, began: float) -> bool:
    """Whether the process with this id is there, has not ended, and is the one that began then."""
    try:
        process = psutil.Process(pid)
        alive = process.status() != psutil.STATUS_ZOMBIE
        present = process.create_time() if began > _SINCE_1970 else process_began(pid)
        return alive and bool(abs(present - began) <= 1.0)
    except psutil.NoSuchProcess:
        return False
