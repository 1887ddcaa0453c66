"""A copy: one vshard's rows, slots, counters and applied set at one instant, as bytes.

Every copy is true about itself and needs no other file to be understood: it names its vshard, its tenure, its sets and
its tables. Copies that one parameter server writes together share a file (one sync instead of 512); a `CopyEntry` says
where each lies and what its checksum is. Files are there whole or not at all and never overwritten (`storage`); a copy
is loaded whole or not at all. The layout is frozen in docs/formats.md.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.model_spec import TableSpec
from trimtab.core.errors import CorruptCopy
from trimtab.core.ps import storage
from trimtab.core.ps.layout import layout_of
from trimtab.core.ps.rows import VshardRows
from trimtab.core.wire.messages import CopiesWritten, CopyEntry, CopySet

VERSION = 1
_READ_BYTES = 16 << 20
_MAGIC = b"TTCP"
_QUICK = "crc32:"
_HEAD = struct.Struct("<4sHHIIIq")  # magic, version, vshard, tables, applied intervals, skipped intervals, since
_TABLE = struct.Struct("<QII")  # rows, width, dim


@dataclass(frozen=True)
class VshardCopy:
    """One vshard at one instant."""

    vshard: int
    since: int
    applied: IntervalSet
    skipped: IntervalSet
    content: VshardRows


def encode_copy(copy: VshardCopy, tables: tuple[TableSpec, ...]) -> bytes:
    """The copy's bytes."""
    applied, skipped = copy.applied.intervals, copy.skipped.intervals
    parts = [_HEAD.pack(_MAGIC, VERSION, copy.vshard, len(tables), len(applied), len(skipped), copy.since)]
    for one in (copy.applied, copy.skipped):
        parts.append(np.array(one.intervals, "<i8").tobytes())
    for table, keys, rows in zip(tables, copy.content.keys, copy.content.rows, strict=True):
        parts.append(_TABLE.pack(len(keys), rows.shape[1], table.dim))
        parts.append(keys.astype("<i8", copy=False).tobytes())
        parts.append(rows.astype("<f4", copy=False).tobytes())
    return b"".join(parts)


def decode_copy(data: bytes | memoryview, tables: tuple[TableSpec, ...]) -> VshardCopy:
    """The copy in `data`; where that can be written to, the rows are views of it.

    Raises:
        CorruptCopy: cut short, of another version, or of other tables.
    """
    try:
        magic, version, vshard, n_tables, n_applied, n_skipped, since = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != VERSION:
            raise CorruptCopy(f"copy {magic!r} version {version} is not {_MAGIC!r} version {VERSION}")
        if n_tables != len(tables):
            raise CorruptCopy(f"copy of {n_tables} tables; the model has {len(tables)}")
        at = _HEAD.size
        sets = []
        for count in (n_applied, n_skipped):
            pairs = np.frombuffer(data, "<i8", 2 * count, at).reshape(-1, 2)
            sets.append(IntervalSet((int(lo), int(hi)) for lo, hi in pairs))
            at += 16 * count
        keys, rows = [], []
        for table in tables:
            count, width, dim = _TABLE.unpack_from(data, at)
            at += _TABLE.size
            wanted = layout_of(table).width
            if width != wanted or dim != table.dim:
                raise CorruptCopy(f"copy's table '{table.name}' has rows of {width} floats, not {wanted}")
            keys.append(_own(np.frombuffer(data, "<i8", count, at)))
            at += 8 * count
            rows.append(_own(np.frombuffer(data, "<f4", count * width, at)).reshape(count, width))
            at += 4 * count * width
    except (struct.error, ValueError) as error:
        raise CorruptCopy(f"copy is cut short or damaged: {error}") from error
    if at != len(data):
        raise CorruptCopy(f"copy has {len(data)} bytes, its counts ask for {at}")
    return VshardCopy(vshard, since, sets[0], sets[1], VshardRows(tuple(keys), tuple(rows)))


def _own(view: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`view`, or a copy where kernels could not take it."""
    return view if view.flags.writeable and view.flags.aligned else view.astype(view.dtype.newbyteorder("="))


def checksum(data: bytes | memoryview) -> str:
    """BLAKE2b, 16 bytes, as hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def quick_checksum(data: bytes | memoryview) -> str:
    """CRC-32: four times as fast, and enough for a file that is read on its own node or not at all."""
    return f"{_QUICK}{zlib.crc32(data):08x}"


def write_copies(
    path: str | os.PathLike[str],
    copies: Iterable[VshardCopy],
    tables: tuple[TableSpec, ...],
    order_id: int,
    durable: bool = True,
) -> CopiesWritten:
    """Write the copies one after the other into a new file, one in memory at a time; nothing is left on failure.

    Args:
        path: path or URL of the file.
        copies: what it holds.
        tables: of the model, in wire order.
        order_id: goes into the answer.
        durable: whether the file has to survive a power loss when this returns.

    Raises:
        OSError: the store refused. FileExistsError: `path` exists.
    """
    file = storage.absolute(os.fspath(path))
    mark = checksum if durable else quick_checksum
    entries: list[CopyEntry] = []
    sets: dict[CopySet, int] = {}

    def encoded() -> Iterator[bytes]:
        at = 0
        for copy in copies:
            data = encode_copy(copy, tables)
            held = CopySet(copy.applied.intervals, copy.skipped.intervals)
            number = sets.setdefault(held, len(sets))
            entries.append(CopyEntry(copy.vshard, copy.since, file, at, len(data), mark(data), number))
            at += len(data)
            yield data

    storage.write_new(file, encoded(), durable)
    return CopiesWritten(order_id, tuple(entries), tuple(sets))


def read_copy(entry: CopyEntry, tables: tuple[TableSpec, ...]) -> VshardCopy:
    """The copy that `entry` points to.

    Raises:
        CorruptCopy: missing, or its length, checksum or vshard is not the entry's.
    """
    return _copy_in(entry, _read(entry, entry.offset, entry.length), tables)


def read_copies(entries: Iterable[CopyEntry], tables: tuple[TableSpec, ...]) -> Iterator[VshardCopy]:
    """The copies that `entries` point to, in their order.

    Neighbours in a file are fetched together, up to 16 MiB at once: a store at a distance takes its time for each
    request, and a small model has 512 copies of a few kilobytes.

    Raises:
        CorruptCopy: as `read_copy`, at the first that is not right.
    """
    run: list[CopyEntry] = []
    for entry in entries:
        if run and not _adjoins(run, entry):
            yield from _run_of(run, tables)
            run = []
        run.append(entry)
    if run:
        yield from _run_of(run, tables)


def _adjoins(run: list[CopyEntry], entry: CopyEntry) -> bool:
    first, last = run[0], run[-1]
    near = entry.file == last.file and entry.offset == last.offset + last.length
    return near and entry.offset + entry.length - first.offset <= _READ_BYTES


def _run_of(run: list[CopyEntry], tables: tuple[TableSpec, ...]) -> Iterator[VshardCopy]:
    start, last = run[0].offset, run[-1]
    data = _read(run[0], start, last.offset + last.length - start)
    for entry in run:
        yield _copy_in(entry, data[entry.offset - start :][: entry.length], tables)


def _read(entry: CopyEntry, offset: int, length: int) -> memoryview:
    """These bytes, fewer where the file ends before; they can be written to."""
    try:
        return storage.read_into(entry.file, offset, length)
    except OSError as error:
        raise CorruptCopy(f"copy of vshard {entry.vshard} in {entry.file} cannot be read: {error}") from error


def _copy_in(entry: CopyEntry, data: memoryview, tables: tuple[TableSpec, ...]) -> VshardCopy:
    mark = quick_checksum if entry.checksum.startswith(_QUICK) else checksum
    if len(data) != entry.length or mark(data) != entry.checksum:
        raise CorruptCopy(f"copy of vshard {entry.vshard} in {entry.file}: length or checksum is wrong")
    copy = decode_copy(data, tables)
    if copy.vshard != entry.vshard:
        raise CorruptCopy(f"copy in {entry.file} is of vshard {copy.vshard}, not {entry.vshard}")
    return copy
