"""A job's record as a file: the form that outlives processes, stores and versions.

The same bytes are the record in a job's directory and the artifact that a store reads back, so that no store's own
types, limits or rounding stand between what was measured and what the next job starts from. The file is replaced as
a whole (write beside, sync, rename), because a reader may come at any time and a job may be killed at any time.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import BadInput, CorruptCopy, WireError
from trimtab.core.history.sieve import sieve
from trimtab.core.wire.encode import from_json, to_json

FORMAT = 1
FILE = "record.json"


@dataclass(frozen=True)
class _Head:
    format: int


@dataclass(frozen=True)
class _File:
    format: int
    record: JobRecord


def encode_record(record: JobRecord) -> bytes:
    """`record` as the bytes of a record file; what is not finite is left out."""
    return to_json(_File(FORMAT, sieve(record)[0]))


def decode_record(data: bytes, name: str) -> JobRecord:
    """The record in the bytes of a record file; `name` is said in errors.

    Raises:
        BadInput: a newer format than this version knows.
        CorruptCopy: no record file, or one that was cut or changed.
    """
    try:
        head = from_json(_Head, data)
    except WireError as error:
        raise CorruptCopy(f"{name}: is no job record ({error})") from error
    if head.format > FORMAT:
        raise BadInput(name, f"format {head.format}", f"this version reads format {FORMAT}; use a newer trimtab")
    try:
        return from_json(_File, data).record
    except WireError as error:
        raise CorruptCopy(f"{name}: is no job record of format {FORMAT} ({error})") from error


def write_record(path: Path, record: JobRecord) -> None:
    """Write `record` to `path`, replacing what was there as a whole (raises OSError)."""
    write_whole(path, encode_record(record))


def read_record(path: Path) -> JobRecord:
    """The record in the file at `path`.

    Raises:
        OSError: it cannot be read. BadInput, CorruptCopy: see `decode_record`.
    """
    return decode_record(path.read_bytes(), str(path))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new one and nothing between."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
