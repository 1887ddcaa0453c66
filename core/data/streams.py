"""Bytes of a file, decompressed on the way, with an account of where they lie.

`gzip.GzipFile` reports a truncated file as a bare EOFError without file or place (case 58). This stream keeps count
of the compressed bytes, so that a damaged download is named with its file and byte offset. Parsers read from it like
from any raw file; it never holds more than a few chunks.
"""

from __future__ import annotations

import io
import zlib
from types import TracebackType
from typing import BinaryIO

from trimtab.core.data.sources import SourceFile
from trimtab.core.errors import DataError

_CHUNK = 2**20
_LARGEST = 16 * 2**20  # one read of a file that is not compressed
_GZIP_MAGIC = b"\x1f\x8b"


class ByteStream:
    """Reads one file forward; gzip (also of several members) is recognised by its first bytes.

    Attributes:
        raw_offset: bytes of the file itself that were consumed: the measure of progress.
    """

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.raw_offset = 0
        self.closed = False
        self._raw: BinaryIO = file.open()
        self._waiting = self._fetch()
        self._inflate = zlib.decompressobj(31) if self._waiting[:2] == _GZIP_MAGIC else None
        self._started = True  # inside a gzip member

    def readable(self) -> bool:
        """True, as pyarrow asks."""
        return True

    def seekable(self) -> bool:
        """False: forward only."""
        return False

    def writable(self) -> bool:
        """False."""
        return False

    def read(self, size: int = -1) -> bytes:
        """`size` bytes, fewer at the end of the file, everything for -1.

        Raises:
            DataError: the compressed data is damaged or ends too early; names file and offset.
        """
        wanted = size if size is not None and size >= 0 else 2**63
        parts: list[bytes] = []
        while wanted > 0:
            part = self._some(wanted if self._inflate is None else min(wanted, 2 * _CHUNK))
            if not part:
                break
            parts.append(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Closes the file."""
        self.closed = True
        self._raw.close()

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fetch(self, size: int = _CHUNK) -> bytes:
        try:
            return self._raw.read(size)
        except (OSError, ValueError) as error:
            place = f"{self.file.name}: byte {self.raw_offset}"
            raise DataError(place, str(error), "cannot be read further; check the disk or network") from None

    def _some(self, most: int) -> bytes:
        """At least one and at most `most` bytes; none at the end."""
        if self._inflate is None:
            if self._waiting:
                part, self._waiting = self._waiting[:most], self._waiting[most:]
            else:
                part = self._fetch(min(most, _LARGEST))
            self.raw_offset += len(part)
            return part
        while True:
            if not self._waiting:
                self._waiting = self._fetch()
            if not self._waiting:
                if self._started:
                    at = self.raw_offset
                    place = f"{self.file.name}: byte {at}"
                    raise DataError(place, "truncated gzip data", "the file ends too early; copy or download it again")
                return b""
            if not self._started:
                if not self._waiting.strip(b"\0"):  # padding after the last member is allowed
                    self._waiting = b""
                    continue
                self._inflate = zlib.decompressobj(31)
                self._started = True
            before = len(self._waiting)
            try:
                part = self._inflate.decompress(self._waiting, most)
            except zlib.error:
                at = self.raw_offset
                place = f"{self.file.name}: byte {at}"
                raise DataError(place, "damaged gzip data", "here or after; copy or download it again") from None
            self._waiting = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            self.raw_offset += before - len(self._waiting)
            self._started = not self._inflate.eof
            if part:
                return part


def head_of(file: SourceFile, size: int) -> bytes:
    """The first `size` bytes of a file after decompression."""
    with ByteStream(file) as stream:
        return stream.read(size)


def text_lines(file: SourceFile) -> io.BufferedReader:
    """A file's lines as bytes: for finding the line of a fault, not for bulk reading."""

    class _Raw(io.RawIOBase):
        def __init__(self) -> None:
            self._stream = ByteStream(file)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            part = self._stream.read(len(buffer))
            buffer[: len(part)] = part
            return len(part)

        def close(self) -> None:
            self._stream.close()
            super().close()

    return io.BufferedReader(_Raw(), _CHUNK)
