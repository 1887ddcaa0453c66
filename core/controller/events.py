"""The append-only events file: what happened, when, in words and plain values; and the ends of pods' logs.

The state document stays small because the story is here. One line is one JSON object; a line is written whole or, after
a crash, missing, and nothing is ever rewritten. No event is worth a job: lines that can't be written wait in memory, in
order, until they can, and whoever moves the file away or cuts it (log rotation) finds what was written until then, and
the next lines in a new file. Times are the job's own, counted from its start, so that a clock that is set does not turn
the order of things around.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.controller.aside import Aside

_TAIL_LINES, _TAIL_BYTES = 8, 4096
MOST_WAITING = 10_000  # lines in memory, some megabytes; the oldest go first


class EventLog:
    """Appends to one file.

    Args:
        path: of the file. clock: for the times. began: the clock's seconds at the job's start.
        also: hears (seconds since the start, kind, text) of each event.
        started_at: seconds since 1970 at the job's start; by default as the clock has it now.
        aside: writes the lines; without it `append` does.

    Raises:
        OSError: the file can't be made. Later on nothing raises.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        began: float,
        also: Callable[[float, str, str], None] = lambda *_: None,
        started_at: float | None = None,
        aside: Aside | None = None,
    ) -> None:
        self._path, self._clock, self._began, self._also, self._aside = path, clock, began, also, aside
        self._started_at = clock.wall() - (clock.now() - began) if started_at is None else started_at
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()  # of what waits
        self._writing = threading.Lock()  # of the file
        self._ragged = False  # the file ends within a line
        self._problem, self._lost, self._closed = "", 0, False
        self._file = self._open()
        self._ragged = not _ends_well(path)  # a machine that went down may have cut the last line

    def append(self, kind: str, text: str, **data: object) -> None:
        """One event; values that JSON can't hold become words."""
        seconds = round(self._clock.now() - self._began, 3)
        self._also(seconds, kind, text)
        line = self._line(seconds, kind, text, data)
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self._lost += 1
            self._waiting.append(line)
        if self._aside is None:
            self.write_out()
        else:
            self._aside.do("events", self.write_out)

    def trouble(self) -> str:
        """Why events wait to be written, "" when none does for that reason."""
        return self._problem

    def write_out(self) -> None:
        """Write all that waits, as far as that is possible now."""
        with self._writing:
            try:
                self._tell_lost()
                while (line := self._first()) is not None:
                    self._write(line)
                    with self._lock:
                        if self._waiting and self._waiting[0] is line:
                            self._waiting.popleft()
                self._problem = ""
            except OSError as error:
                self._problem = str(error)

    def close(self) -> None:
        """Write what waits, if that is possible, and give the file up."""
        self.write_out()
        with self._writing, suppress(OSError):
            if not self._closed:
                self._closed = True
                os.close(self._file)

    def _first(self) -> bytes | None:
        """The next line to write."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def _tell_lost(self) -> None:
        """A line in the place of those that could not be kept."""
        with self._lock:
            lost = self._lost
        if lost:
            text = f"{lost} events could not be kept: the disk took none for too long"
            self._write(self._line(round(self._clock.now() - self._began, 3), "events_lost", text, {}))
            with self._lock:
                self._lost -= lost

    def _line(self, seconds: float, kind: str, text: str, data: dict[str, object]) -> bytes:
        time = datetime.fromtimestamp(self._started_at + seconds, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "seconds": seconds, "kind": kind, "text": text}
        line |= {name: _plain(value) for name, value in data.items()}
        return json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def _write(self, line: bytes) -> None:
        """Write one line whole; of one that the disk has no room for nothing stays, or else its end is marked."""
        if self._closed:
            raise OSError("the events file is closed")
        self._follow()
        data = b"\n" + line if self._ragged else line
        written = os.write(self._file, data)
        if written == len(data):
            self._ragged = False
            return
        size = os.fstat(self._file).st_size
        try:
            os.ftruncate(self._file, size - written)
        except OSError:
            self._ragged = True
        raise OSError("No space left on device")

    def _follow(self) -> None:
        """Open the file anew when its name leads elsewhere by now: somebody has moved or removed it."""
        ours = os.fstat(self._file)
        try:
            named = self._path.stat()
        except FileNotFoundError:
            named = None
        if named is None or (named.st_ino, named.st_dev) != (ours.st_ino, ours.st_dev):
            new = self._open()
            os.close(self._file)
            self._file, self._ragged = new, not _ends_well(self._path)


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
