"""The append-only events file: what happened, when, in words and plain values; and the ends of pods' logs.

The state document stays small because the story is here. One line is one JSON object; a line is written whole or, after
a crash, missing, and nothing is ever rewritten.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trimtab.core.clock import Clock

_TAIL_LINES, _TAIL_BYTES = 8, 4096


class EventLog:
    """Appends to one file; not for several threads at once.

    Args:
        path: of the file. clock: for the times. began: the clock's seconds at the job's start.
        also: hears (seconds since the start, kind, text) of each event.
    """

    def __init__(
        self, path: Path, clock: Clock, began: float, also: Callable[[float, str, str], None] = lambda *_: None
    ) -> None:
        self._file = path.open("a", encoding="utf-8")
        if not _ends_well(path):  # a machine that went down may have cut the last line
            self._file.write("\n")
        self._clock = clock
        self._began = began
        self._also = also

    def append(self, kind: str, text: str, **data: object) -> None:
        """One event; values that JSON can't hold become words."""
        line = {
            "time": datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="milliseconds"),
            "seconds": round(self._clock.now() - self._began, 3),
            "kind": kind,
            "text": text,
        } | {name: _plain(value) for name, value in data.items()}
        self._also(round(self._clock.now() - self._began, 3), kind, text)
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Give the file up."""
        self._file.close()


def _ends_well(path: Path) -> bool:
    """Whether a new line can begin at the file's end."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        return file.read() in (b"", b"\n")


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else str(value)


def last_lines(path: str) -> str:
    """The last lines of a pod's log, short enough for a message; empty when there is none."""
    try:
        with Path(path).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines[-_TAIL_LINES:] if line.strip())
