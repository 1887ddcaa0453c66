"""A copy: one vshard's rows, slots, counters and applied set at one instant, as bytes.

Every copy is true about itself and needs no other file to be understood: it names its vshard, its tenure, its sets and
its tables. Copies that one parameter server writes together share a file (one sync instead of 512); a `CopyEntry` says
where each lies and what its checksum is. Files are written beside, synced, linked into place and never overwritten; a
copy is loaded whole or not at all. The layout is frozen in docs/formats.md.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.model_spec import TableSpec
from trimtab.core.errors import CorruptCopy
from trimtab.core.ps.layout import layout_of
from trimtab.core.ps.rows import VshardRows
from trimtab.core.wire.messages import CopiesWritten, CopyEntry, CopySet

VERSION = 1
_MAGIC = b"TTCP"
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


def decode_copy(data: bytes, tables: tuple[TableSpec, ...]) -> VshardCopy:
    """The copy in `data`.

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
            keys.append(np.frombuffer(data, "<i8", count, at).astype(np.int64))
            at += 8 * count
            rows.append(np.frombuffer(data, "<f4", count * width, at).astype(np.float32).reshape(count, width))
            at += 4 * count * width
    except (struct.error, ValueError) as error:
        raise CorruptCopy(f"copy is cut short or damaged: {error}") from error
    if at != len(data):
        raise CorruptCopy(f"copy has {len(data)} bytes, its counts ask for {at}")
    return VshardCopy(vshard, since, sets[0], sets[1], VshardRows(tuple(keys), tuple(rows)))


def checksum(data: bytes) -> str:
    """BLAKE2b, 16 bytes, as hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write_copies(
    path: Path, copies: Iterable[VshardCopy], tables: tuple[TableSpec, ...], order_id: int
) -> CopiesWritten:
    """Write the copies one after the other into a new file at `path`, durable when this returns.

    Raises:
        OSError: the disk refused; nothing is left at `path`. FileExistsError: `path` exists.
    """
    beside = path.with_name(path.name + ".part")
    entries: list[CopyEntry] = []
    sets: dict[CopySet, int] = {}
    try:
        with beside.open("xb") as out:
            for copy in copies:
                data = encode_copy(copy, tables)
                held = CopySet(copy.applied.intervals, copy.skipped.intervals)
                number = sets.setdefault(held, len(sets))
                entries.append(
                    CopyEntry(copy.vshard, copy.since, str(path), out.tell(), len(data), checksum(data), number)
                )
                out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.link(beside, path)  # unlike a rename, never over an existing file
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)
    return CopiesWritten(order_id, tuple(entries), tuple(sets))


def read_copy(entry: CopyEntry, tables: tuple[TableSpec, ...]) -> VshardCopy:
    """The copy that `entry` points to.

    Raises:
        CorruptCopy: missing, or its length, checksum or vshard is not the entry's.
    """
    try:
        with Path(entry.file).open("rb") as source:
            source.seek(entry.offset)
            data = source.read(entry.length)
    except OSError as error:
        raise CorruptCopy(f"copy of vshard {entry.vshard} in {entry.file} cannot be read: {error}") from error
    if len(data) != entry.length or checksum(data) != entry.checksum:
        raise CorruptCopy(f"copy of vshard {entry.vshard} in {entry.file}: length or checksum is wrong")
    copy = decode_copy(data, tables)
    if copy.vshard != entry.vshard:
        raise CorruptCopy(f"copy in {entry.file} is of vshard {copy.vshard}, not {entry.vshard}")
    return copy


def sync_directory(directory: Path) -> None:
    """Make a new name in `directory` survive a power loss."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
