"""Reading a file that somebody else is still writing: every line once and whole, whatever is done to the file.

A log is rotated (moved away, a new one begun) or cut (copied away, then truncated in place), and its writer may not
notice for a while. So a file is read through its descriptor and not by its name; one that was moved is read on while a
new one lies in its place, and one that was cut begins anew, also when it has grown beyond the old place meanwhile: the
last bytes that were read tell (case 36).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_MARK = 64  # bytes before the place that is read next
_CHUNK = 1 << 20
_LONGEST = 1 << 20  # of a line that has no end yet
_MOST_OLD = 4  # files that were moved away and are still read


class _Reading:
    """One open file and how far it was read."""

    def __init__(self, path: Path, last: int | None = None) -> None:
        self.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._at = 0
        self._mark = b""
        self._part = b""
        if last is not None:
            self._skip(last)

    def lines(self) -> list[str]:
        """Whole lines that have come since."""
        if self._was_cut():
            self._at, self._mark = 0, b""  # what was begun is kept: its end stands at the new beginning
        found: list[str] = []
        while True:
            data = os.pread(self.handle, _CHUNK, self._at)
            if not data:
                return found
            self._at += len(data)
            self._mark = (self._mark + data)[-_MARK:]
            *whole, self._part = (self._part + data).split(b"\n")
            if len(self._part) > _LONGEST:
                whole, self._part = [*whole, self._part], b""
            found += [_text(line) for line in whole]

    def rest(self) -> list[str]:
        """What stands after the last line's end."""
        part, self._part = self._part, b""
        return [_text(part)] if part else []

    def is_at(self, path: Path) -> bool:
        """Whether the file still lies there; also when nothing does, for then it may come back."""
        try:
            there, here = path.stat(), os.fstat(self.handle)
        except OSError:
            return True
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def close(self) -> None:
        """Give it up."""
        os.close(self.handle)

    def _skip(self, last: int) -> None:
        """Begin before the last lines: a log may be larger than the memory of who looks at its end."""
        at = os.fstat(self.handle).st_size
        ends = -1  # the end of the last line is not one before it
        while at > 0:
            begin = max(0, at - _CHUNK)
            data = os.pread(self.handle, at - begin, begin)
            found = data.count(b"\n")
            if ends + found >= last:
                place = len(data)
                for _ in range(last - ends):
                    place = data.rindex(b"\n", 0, place)
                self._at = begin + place + 1
                before = max(0, self._at - _MARK)
                self._mark = os.pread(self.handle, self._at - before, before)
                return
            ends, at = ends + found, begin

    def _was_cut(self) -> bool:
        if os.fstat(self.handle).st_size < self._at:
            return True
        return os.pread(self.handle, len(self._mark), self._at - len(self._mark)) != self._mark


class Tail:
    """The lines of the file at `path`, which need not be there yet.

    Args:
        path: of the file. last: of what it holds already, read so many lines at the end only (about: one more where
            the very last has no end yet); None: all.
    """

    def __init__(self, path: Path, last: int | None = None) -> None:
        self._path, self._last = path, last
        self._files: list[_Reading] = []  # the last one lies at the path, the others have lain there

    def read(self) -> list[str]:
        """Whole lines that have come since the last call; [] when the file cannot be read."""
        found: list[str] = []
        with suppress(OSError):
            for file in self._files:
                found += file.lines()
            if not self._files or not self._files[-1].is_at(self._path):
                fresh = _Reading(self._path, None if self._files else self._last)
                if self._files:
                    found += self._files[-1].lines()  # what came between
                self._files.append(fresh)
                found += fresh.lines()
            while len(self._files) > _MOST_OLD:
                found += self._files[0].lines() + self._files[0].rest()
                self._files.pop(0).close()
        return found

    def rest(self) -> list[str]:
        """What no line's end has come for; call it when nothing will come any more."""
        return [line for file in self._files for line in file.rest()]

    def close(self) -> None:
        """Give the files up."""
        while self._files:
            self._files.pop().close()


def _text(line: bytes) -> str:
    """Without what a writer that does not append leaves before a place that was cut."""
    return line.lstrip(b"\0").rstrip(b"\r").decode(errors="replace")
