"""TFRecord files of ``tf.train.Example``: the framing with its checksums, checked.

A record is: length (8 bytes), masked CRC-32C of the length, the data, masked CRC-32C of the data. Both checksums are
verified, so damage is named with file and byte offset instead of turning into wrong rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from trimtab.core.data.columns import Columns
from trimtab.core.data.crc32c import Bytes, crc32c_ranges, masked, padded
from trimtab.core.data.example import Feature, Malformed, parse_examples
from trimtab.core.data.keys import Int64s
from trimtab.core.data.readers import Chunk, Report
from trimtab.core.data.sources import TFRECORD, SourceFile
from trimtab.core.data.streams import ByteStream
from trimtab.core.errors import DataError

_PIECE = 8 * 2**20
_SAMPLE = 2000  # records looked at for detection
_SAMPLE_BYTES = 8 * 2**20
_AT_ONCE = 4096  # messages parsed together


class TFRecordReader:
    """Reads files of Examples, plain or gzip."""

    format = TFRECORD

    def __init__(self, files: list[SourceFile]) -> None:
        self.files = files

    def sample(self) -> Any:
        """The first rows with every feature that occurs in them: scalars where no row has more than one value."""
        for file in self.files:
            for data, starts, ends, base in _pieces(file, _SAMPLE_BYTES):
                starts, ends = starts[:_SAMPLE], ends[:_SAMPLE]
                features = _parsed(file, data, starts, ends, base)
                arrays = {
                    name: feature.lists() if (feature.counts > 1).any() else feature.scalar()
                    for name, feature in features.items()
                }
                return pa.table(arrays)
        raise DataError(self.files[0].name, "0 rows", "there are no records; give a file with rows")

    def chunks(self, columns: Columns, report: Report) -> Iterator[Chunk]:
        """All rows."""
        total = sum(file.size for file in self.files)
        lists = {column.name for column in columns.multi}
        done = 0
        for file in self.files:
            row = 0
            for data, all_starts, all_ends, base in _pieces(file, _PIECE):
                for at in range(0, len(all_starts), _AT_ONCE):
                    starts, ends = all_starts[at : at + _AT_ONCE], all_ends[at : at + _AT_ONCE]
                    features = _parsed(file, data, starts, ends, base)
                    try:
                        arrays = [_column(features.get(name), name in lists, len(starts)) for name in columns.names]
                    except Malformed as error:
                        place = f"{file.name}: {self.where(file, row + error.index)}"
                        raise DataError(place, str(error), "name such a feature under multi_hot") from None
                    yield Chunk(file, row, pa.RecordBatch.from_arrays(arrays, names=list(columns.names)))
                    row += len(starts)
                report(min(1.0, (done + base + len(data)) / max(1, total)))
            done += file.size

    def where(self, file: SourceFile, row: int) -> str:
        """Records are counted from 1."""
        return f"row {row + 1}"


def looks_like_records(head: bytes) -> bool:
    """Whether a file's first bytes are the frame of a record."""
    return len(head) >= 12 and _length_ok(head[:12])


def frame(payload: Bytes, lengths: Int64s) -> bytes:
    """Records, framed: `payload` is (made by `padded`) the records' data one after another."""
    starts = np.cumsum(lengths) - lengths
    head = np.zeros((len(lengths), 12), np.uint8)
    head[:, :8] = lengths.astype("<u8").view(np.uint8).reshape(-1, 8)
    flat = padded(memoryview(head[:, :8].ravel()))
    eight = np.full(len(lengths), 8, np.int64)
    head[:, 8:] = _four(masked(crc32c_ranges(flat, np.arange(len(lengths)) * 8, eight)))
    tail = _four(masked(crc32c_ranges(payload, starts, lengths)))
    found = np.empty(int(lengths.sum()) + 16 * len(lengths), np.uint8)
    at = starts + 16 * np.arange(len(lengths))
    body = np.ones(len(found), np.bool_)
    for byte in range(12):
        found[at + byte] = head[:, byte]
        body[at + byte] = False
    for byte in range(4):
        found[at + 12 + lengths + byte] = tail[:, byte]
        body[at + 12 + lengths + byte] = False
    found[body] = payload[: int(lengths.sum())]
    return found.tobytes()


def _four(crc: Any) -> Bytes:
    return np.asarray(crc.astype("<u4").view(np.uint8).reshape(-1, 4))


def _column(feature: Feature | None, listed: bool, rows: int) -> Any:
    if feature is None:
        return pa.nulls(rows, pa.list_(pa.int64()) if listed else pa.null())
    return feature.lists() if listed else feature.scalar()


def _parsed(file: SourceFile, data: Bytes, starts: Int64s, ends: Int64s, base: int) -> dict[str, Feature]:
    try:
        return parse_examples(data, starts, ends)
    except Malformed as error:
        place = f"{file.name}: byte {base + int(starts[error.index]) - 12}"
        remedy = "write records of tf.train.Example with one type per feature"
        raise DataError(place, f"the record {error}", remedy) from None


def _pieces(file: SourceFile, piece: int) -> Iterator[tuple[Bytes, Int64s, Int64s, int]]:
    """Buffers of whole records: bytes, where the records' data start and end, and the buffer's offset in the stream."""
    with ByteStream(file) as stream:
        base, rest = 0, b""
        while True:
            more = stream.read(piece)
            data = rest + more
            starts, ends, used = _walk(data)
            if starts:
                buffer = padded(data)
                first, last = np.array(starts, np.int64), np.array(ends, np.int64)
                _verify(file, buffer, first, last, base)
                yield buffer, first, last, base
            rest = data[used:]
            base += used
            if len(rest) >= 12 and not _length_ok(rest[:12]):
                place = f"{file.name}: byte {base}"
                raise DataError(place, "damaged record length", "the TFRecord data is damaged; write or copy it again")
            if not more:
                break
        if rest:
            place = f"{file.name}: byte {base}"
            raise DataError(place, "truncated record", "the TFRecord file ends too early; write or copy it again")


def _walk(data: bytes) -> tuple[list[int], list[int], int]:
    """Data ranges of the whole records in `data`, and the bytes that they use."""
    starts: list[int] = []
    ends: list[int] = []
    at, size = 0, len(data)
    unpack = struct.Struct("<Q").unpack_from
    while at + 16 <= size:
        end = at + 12 + unpack(data, at)[0]
        if end + 4 > size:
            break
        starts.append(at + 12)
        ends.append(end)
        at = end + 4
    return starts, ends, at


def _verify(file: SourceFile, data: Bytes, starts: Int64s, ends: Int64s, base: int) -> None:
    """Checks both checksums of every record."""
    stored = np.ndarray((len(data) - 3,), "<u4", buffer=data, strides=(1,))
    heads = masked(crc32c_ranges(data, starts - 12, np.full(len(starts), 8, np.int64))) != stored[starts - 4]
    bodies = masked(crc32c_ranges(data, starts, ends - starts)) != stored[ends]
    bad = np.flatnonzero(heads | bodies)
    if len(bad):
        place = f"{file.name}: byte {base + int(starts[bad[0]]) - 12}"
        raise DataError(place, "a record's checksum is wrong", "the TFRecord data is damaged; write or copy it again")


def _length_ok(head: bytes) -> bool:
    crc = masked(crc32c_ranges(padded(head[:8]), np.zeros(1, np.int64), np.full(1, 8, np.int64)))
    return int(crc[0]) == int.from_bytes(head[8:12], "little")
