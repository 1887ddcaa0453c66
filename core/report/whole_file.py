"""Files that a reader sees whole or not at all.

A report is rewritten while its job runs and read at any time (a browser, MLflow's upload), so it is written beside its
place and renamed. The name beside is drawn anew each time: two threads or processes may write the same report at once.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make the file under another name, then put it in place of `path` (raises OSError)."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        write(beside)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
