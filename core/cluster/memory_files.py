"""What a control group's files say and take of memory, in versions 1 and 2.

What counts as used is what a group would still have after giving back all that it can: pages of files that lie on a
disk can go at any time, and a pod that has written a copy or mapped a data set has many of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_FIGURES = re.compile(r"^((?:total_)?(?:cache|file|shmem|dirty|writeback|file_dirty|file_writeback)) (\d+)$", re.M)
_PAGE = 4096
_NO_LIMIT = 1 << 62  # version 1 tells a number beyond any memory
LEAST_MARGIN_BYTES = 32 << 20  # beside what is used, when a limit is lowered
_MARGIN_SHARE = 0.125

Read = Callable[[str], str]  # the text of one of a group's files, "" when it can't be read


def memory_settings(version: int, nbytes: int | None, *, rising: bool = False) -> Iterator[tuple[str, str]]:
    """What holds a group to so many bytes, swap included (None: no limit): file names and texts, in order.

    Args:
        version: 1 | 2. nbytes: the limit.
        rising: the group has a lower one. Version 1 allows no limit of memory beyond that of memory and swap.
    """
    if version == 2:
        yield "memory.max", "max" if nbytes is None else str(nbytes)
        if nbytes is not None:
            yield "memory.swap.max", "0"
        return
    text = "-1" if nbytes is None else str(nbytes)
    pairs = [("memory.limit_in_bytes", text), ("memory.memsw.limit_in_bytes", text)]
    yield from reversed(pairs) if rising or nbytes is None else pairs


def used_bytes(version: int, read: Read, *, at_once: bool = False) -> int:
    """Bytes that a group can't give back; 0 where that is not known.

    Args:
        version: 1 | 2. read: its files.
        at_once: what has still to be written to a disk counts, too. Version 2 kills for a limit that is lowered below
            what it gets back in a few tries.
    """
    usage = _number(read("memory.current" if version == 2 else "memory.usage_in_bytes"))
    figures = dict(_FIGURES.findall(read("memory.stat")))
    files, shared = ("file", "shmem") if version == 2 else ("total_cache", "total_shmem")
    unwritten = ("file_dirty", "file_writeback") if version == 2 else ("total_dirty", "total_writeback")
    kept = sum(_number(figures.get(name, "")) for name in (shared, *(unwritten if at_once else ())))
    return max(0, usage - max(0, _number(figures.get(files, "")) - kept))


def kills(version: int, read: Read) -> int:
    """How many processes of a group the kernel has killed for want of memory; 0 where that is not known."""
    for line in read("memory.events" if version == 2 else "memory.oom_control").splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill":
            return _number(count)
    return 0


def lowered(present: int, wanted: int, used: int) -> int:
    """How far a limit may be lowered now: less than what is used, and a little, would kill or hang (case 25)."""
    least = used + max(LEAST_MARGIN_BYTES, int(used * _MARGIN_SHARE))
    return min(present, max(wanted, -(-least // _PAGE) * _PAGE))


def is_limit(text: str) -> bool:
    """Whether a limit of memory, as either version tells it, is one."""
    return text.strip().isdigit() and int(text) < _NO_LIMIT


def _number(text: str) -> int:
    text = text.strip()
    return int(text) if text.isdigit() else 0
