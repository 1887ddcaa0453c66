"""How much of this machine a job may use when the caller does not say: what this process itself may use.

A container's limits count, not the machine's size: a plan made for cores that a cgroup withholds would be throttled,
and one made for its memory would be killed.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

MEMORY_SHARE = 0.75  # of what is free: the rest is for the page cache, the controller and surprises
_CGROUP = Path("/sys/fs/cgroup")


def usable_cpu(cgroup: Path = _CGROUP) -> float:
    """Cores that this process may use: affinity, and the quota of its cgroup (version 1 or 2) where there is one."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = float(mine or 1)
    quota, _, period = _first_line(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        cores = min(cores, int(quota) / int(period))
    for group in _groups_v1(cgroup, "cpu"):
        quota, period = _first_line(group / "cpu.cfs_quota_us"), _first_line(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            cores = min(cores, int(quota) / int(period))
    return cores


def usable_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Bytes that a job may take: 75 % of what is available, in the machine and in the cgroup."""
    free = int(psutil.virtual_memory().available)
    limit, used = _first_line(cgroup / "memory.max"), _first_line(cgroup / "memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, max(0, int(limit) - int(used)))
    for group in _groups_v1(cgroup, "memory"):
        limit = _first_line(group / "memory.limit_in_bytes")
        used = _first_line(group / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():  # without a limit the kernel tells a number beyond any memory
            free = min(free, max(0, int(limit) - int(used)))
    return int(free * MEMORY_SHARE)


def _groups_v1(cgroup: Path, controller: str) -> list[Path]:
    """Where a controller of version 1 may tell this process's limits: its own group, and what a container sees."""
    own = ""
    for line in _lines(Path("/proc/self/cgroup")):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number != "0" and controller in names.split(","):
            own = path.lstrip("/")
    root = cgroup / controller
    return list(dict.fromkeys([root / own, root]))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
