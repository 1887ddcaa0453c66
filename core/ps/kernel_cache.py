"""Where compiled kernels live between processes.

numba compiles a kernel in about a second, and a parameter server must start in a fraction of one. numba's own cache
lies beside the sources and is keyed by their modification times, so a fresh clone or a read-only install has none.
Here every version of the kernels gets a directory of its own under TRIMTAB_HOME, filled once (`make` does it, or the
first job), under a lock so that processes that start together do not compile the same thing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from trimtab.core.errors import JobFailed

_CORE = Path(__file__).resolve().parent.parent
_SOURCES = (_CORE / "ps" / "kernels.py", _CORE / "ps" / "update_kernels.py", _CORE / "training" / "kernels.py")
_DONE = "complete"


def directory() -> Path:
    """The cache of exactly these kernels, this interpreter, this numba and this processor."""
    chosen = os.environ.get("TRIMTAB_KERNEL_CACHE")
    home = Path(os.environ.get("TRIMTAB_HOME") or Path.home() / ".trimtab")
    base = Path(chosen) if chosen else home / "cache" / "kernels"
    mark = hashlib.blake2b(digest_size=8)
    for text in (sys.version, metadata.version("numba"), platform.machine(), _processor(), str(_CORE)):
        mark.update(text.encode() + b"\0")
    for source in _SOURCES:
        mark.update(source.read_bytes())
    return base / mark.hexdigest()


def use() -> None:
    """Point numba at the cache; called by each kernel module before it declares a kernel."""
    import numba

    where = directory()
    where.mkdir(parents=True, exist_ok=True)
    numba.config.CACHE_DIR = str(where)  # type: ignore[attr-defined]


def is_warm() -> bool:
    """Whether every kernel has been compiled into the cache."""
    return (directory() / _DONE).exists()


def warm() -> None:
    """Compile every kernel once, in a process of its own, unless that was done before.

    Raises:
        JobFailed: the compilation failed; the message ends with what the compiler said.
    """
    if is_warm():
        return
    where = directory()
    where.mkdir(parents=True, exist_ok=True)
    with (where / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_warm():
            return
        done = subprocess.run(
            [sys.executable, "-m", "trimtab.core.ps.warm_kernels"],
            capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise JobFailed(f"kernels could not be compiled (exit {done.returncode}): {done.stderr.strip()[-500:]}")
        (where / _DONE).touch()


def _processor() -> str:
    """The processor's model: compiled code is tuned to it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU part")):
                return line
    except OSError:
        pass
    return platform.processor()


if __name__ == "__main__":
    warm()
