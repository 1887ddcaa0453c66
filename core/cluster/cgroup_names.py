"""Names of a job's control groups, which say whose they are.

A job that was killed can't remove its groups; whoever comes next may, if it can tell that the owner is gone. A process
id alone does not tell: ids come again, and in another process namespace they mean another process.
"""

from __future__ import annotations

import os
from pathlib import Path

PREFIX = "trimtab-"


def group_name(kind: str = "job") -> str:
    """A new name that says whose it is: process namespace, process, when that began, and chance."""
    pid = os.getpid()
    return f"{PREFIX}{kind}-{_namespace()}-{pid}-{_began(pid)}-{int.from_bytes(os.urandom(4))}"


def is_leftover(name: str) -> bool:
    """Whether a group's owner is gone. Of another process namespace nobody here can tell, so it is not."""
    parts = name.split("-")
    if not name.startswith(PREFIX) or len(parts) != 6 or not all(part.isdigit() for part in parts[2:]):
        return False
    return parts[2] == _namespace() and parts[4] != _began(int(parts[3]))


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks; "" when there is none. The same id later has another value."""
    fields = file_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def file_text(path: Path) -> str:
    """What the file says; "" when it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
