"""Memory that is reserved once as address space and costs only what is touched; and giving touched memory back.

Nothing that lies in it is ever reallocated: no pause for a copy, no second copy beside the first, and views of it stay
valid for good.
"""

from __future__ import annotations

import contextlib
import mmap
import platform
import sys

import numpy as np

# Python names it from 3.13 on. Without it the kernel refuses to reserve more than it has.
_NORESERVE = 0x4000 if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") else 0


def reserve(nbytes: int, *, huge: bool = True) -> mmap.mmap:
    """Anonymous zeroed address space that costs memory only where it is touched, in huge pages where they are had.

    Raises:
        OSError: the system gives no addresses beyond its memory.
    """
    size = max(nbytes, mmap.PAGESIZE)
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", _NORESERVE)
    space = mmap.mmap(-1, size, flags=flags)
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without transparent huge pages
            space.madvise(mmap.MADV_HUGEPAGE)
    return space


def give_back(space: mmap.mmap, start: int, nbytes: int) -> None:
    """`nbytes` from `start` read as zero; the whole pages among them cost nothing until they are touched again."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    view = np.frombuffer(space, np.uint8)
    if first >= last or sys.platform != "linux":
        view[start : start + nbytes] = 0
        return
    view[start:first] = 0
    view[last : start + nbytes] = 0
    space.madvise(mmap.MADV_DONTNEED, first, last - first)
