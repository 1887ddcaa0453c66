"""Frames of the data plane: one message carries the push of a batch and the pull of the next.

A step moves about a megabyte; what makes it cheap is that nothing is serialised: a fixed header, then the arrays as
they lie in memory, gradients 64-byte aligned. The parser trusts nobody: every count is checked against the model's
tables and the body's length before a view is made, and views are all it makes. The layout is frozen in
docs/formats.md (version below); golden tests hold it.

Request = header (192 bytes) + body:
    push counts u32[T]            if PUSH         rows per table, in the model's wire order
    pull counts u32[T]            if PULL
    (padding to 64)
    push keys   i64[sum]          if KEYS         (padding to 64)
    gradients   f32[sum n*dim]    if PUSH         (padding to 64)
    pull keys   i64[sum]          if PULL
Reply = header (192 bytes) + body: rows f32[sum n*dim] of the pull, or an error text.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.errors import WireError

VERSION = 1
HEADER_BYTES = 192
COVER_BYTES = 64  # 512 vshards, bit v of the little-endian integer
MAX_BODY_BYTES = 1 << 30

PUSH, PULL, KEYS, SKIPPED, DEFAULTS = 1, 2, 4, 8, 16  # flags
MOVE = 32  # between parameter servers: the body is a MoveRequest, the reply's a MoveReply with rows
HELD = 64  # the body is a HeldRequest, the reply's a HeldReply: nothing is changed
MAX_QUESTION_BYTES = 4096  # of a MoveRequest's or HeldRequest's body
NONE, OK, NEED_KEYS, FAILED = 0, 1, 2, 3  # status of a half

_REQUEST = struct.Struct("<4sHHIIqqQQfIQ64s64s")
_REPLY = struct.Struct("<4sHHHHIQ40s64s64s")
_REQUEST_MAGIC, _REPLY_MAGIC = b"TTRQ", b"TTRP"
assert _REQUEST.size == HEADER_BYTES and _REPLY.size == HEADER_BYTES

Int64s = npt.NDArray[np.int64]
Counts = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """`nbytes` zero bytes that start on a 64-byte boundary (DLPack and vector loads want it)."""
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of 64."""
    return (nbytes + 63) & ~63


@dataclass(frozen=True)
class RequestHeader:
    """Fixed part of a request.

    Attributes:
        flags: PUSH | PULL | KEYS | SKIPPED (an empty push that only marks) | DEFAULTS (absent rows read as default).
        tables: T, must equal the model's.
        push_number: batch number of the push; push_token: of the pull that brought its rows, 0 for none.
        pull_token: under which the PS keeps the pulled rows' places, 0 to keep nothing.
        learning_rate: of the push.
        body_bytes: what follows the header.
        push_cover, pull_cover: the vshards that each half names.
    """

    flags: int
    tables: int
    push_number: int = -1
    push_token: int = 0
    pull_token: int = 0
    learning_rate: float = 0.0
    body_bytes: int = 0
    push_cover: int = 0
    pull_cover: int = 0

    def pack(self) -> bytes:
        """The 192 bytes."""
        return _REQUEST.pack(
            _REQUEST_MAGIC, VERSION, 1, self.flags, self.tables, self.push_number, 0, self.push_token,
            self.pull_token, self.learning_rate, 0, self.body_bytes,
            self.push_cover.to_bytes(COVER_BYTES, "little"), self.pull_cover.to_bytes(COVER_BYTES, "little"),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> RequestHeader:
        """Raises WireError for another magic, version or kind, flags that don't go together, or an oversized body."""
        magic, version, kind, flags, tables, number, none, push_token, pull_token, rate, nil, body, push, pull = (
            _REQUEST.unpack(data)
        )
        if magic != _REQUEST_MAGIC:
            raise WireError(f"frame magic {magic!r} is not {_REQUEST_MAGIC!r}")
        if version != VERSION or kind != 1:
            raise WireError(f"frame version {version}, kind {kind}: this side speaks version {VERSION}, kind 1")
        if body > MAX_BODY_BYTES:
            raise WireError(f"frame body of {body} bytes is beyond {MAX_BODY_BYTES}")
        if none or nil:
            raise WireError("frame has something in its reserved fields")
        _check_flags(flags, body)
        return cls(
            flags, tables, number, push_token, pull_token, rate, body,
            int.from_bytes(push, "little"), int.from_bytes(pull, "little"),
        )  # fmt: skip


@dataclass(frozen=True)
class ReplyHeader:
    """Fixed part of a reply.

    Attributes:
        push_status, pull_status: NONE | OK | NEED_KEYS | FAILED.
        body_bytes: rows, or an error text when a status is FAILED.
        dropped: vshards of the push that had the number already (it changed nothing there).
        push_refused, pull_refused: named vshards that this process does not serve.
    """

    push_status: int
    pull_status: int
    body_bytes: int = 0
    dropped: int = 0
    push_refused: int = 0
    pull_refused: int = 0

    def pack(self) -> bytes:
        """The 192 bytes."""
        return _REPLY.pack(
            _REPLY_MAGIC, VERSION, 1, self.push_status, self.pull_status, self.dropped, self.body_bytes, b"",
            self.push_refused.to_bytes(COVER_BYTES, "little"), self.pull_refused.to_bytes(COVER_BYTES, "little"),
        )  # fmt: skip

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> ReplyHeader:
        """Raises WireError for another magic or version, a status that does not exist, or an oversized body."""
        magic, version, kind, push, pull, dropped, body, reserved, refused, missing = _REPLY.unpack(data)
        if magic != _REPLY_MAGIC or version != VERSION or kind != 1:
            raise WireError(f"reply {magic!r} version {version} is not {_REPLY_MAGIC!r} version {VERSION}")
        if body > MAX_BODY_BYTES:
            raise WireError(f"reply body of {body} bytes is beyond {MAX_BODY_BYTES}")
        if max(push, pull) > FAILED or any(reserved):
            raise WireError(f"reply of status {push}, {pull}, or with something in its reserved bytes")
        return cls(push, pull, body, dropped, int.from_bytes(refused, "little"), int.from_bytes(missing, "little"))


def _check_flags(flags: int, body: int) -> None:
    """Refuse flags that are unknown or have no meaning together: what one side ignores, another might not."""
    if flags & (MOVE | HELD):
        known = flags in (MOVE, HELD)
        if known and body > MAX_QUESTION_BYTES:
            raise WireError(f"question of {body} bytes is beyond {MAX_QUESTION_BYTES}")
    else:
        known = not flags & ~(PUSH | PULL | KEYS | SKIPPED | DEFAULTS)
        known = known and (bool(flags & PUSH) or not flags & (KEYS | SKIPPED))
        known = known and (bool(flags & PULL) or not flags & DEFAULTS)
    if not known:
        raise WireError(f"frame flags {flags:#x} do not go together, or are unknown")


@dataclass(frozen=True)
class RequestBody:
    """Views into a request's body; None where a half or section is absent.

    Attributes:
        push_counts, pull_counts: u32[T], rows per table.
        push_keys, pull_keys: i64, table after table.
        gradients: f32, table after table, row-major.
    """

    push_counts: Counts | None
    pull_counts: Counts | None
    push_keys: Int64s | None
    gradients: Floats | None
    pull_keys: Int64s | None


def parse_body(header: RequestHeader, body: npt.NDArray[np.uint8], dims: Int64s) -> RequestBody:
    """The sections of `body` (exactly `header.body_bytes` bytes, 64-byte aligned), bounds checked.

    Args:
        header: of the same request.
        body: what followed it.
        dims: i64[T], floats per row of each table.

    Raises:
        WireError: counts and length disagree, or the tables are not the model's.
    """
    if header.tables != len(dims):
        raise WireError(f"frame for {header.tables} tables; this job has {len(dims)}")
    if len(body) != header.body_bytes:
        raise WireError(f"frame body of {len(body)} bytes, header says {header.body_bytes}")
    counts_bytes = 4 * len(dims)
    at = 0
    push_counts = pull_counts = None
    for flag in (PUSH, PULL):
        if header.flags & flag:
            if at + counts_bytes > len(body):
                raise WireError("frame is shorter than its counts")
            counts = body[at : at + counts_bytes].view(np.uint32)
            at += counts_bytes
            if flag == PUSH:
                push_counts = counts
            else:
                pull_counts = counts
    at = padded(at)
    push_keys = pull_keys = gradients = None
    if push_counts is not None:
        rows = int(push_counts.sum(dtype=np.int64))
        if rows and header.flags & SKIPPED:
            raise WireError(f"skipped push of {rows} rows: it should only mark its number")
        floats = int(push_counts.astype(np.int64) @ dims)
        if header.flags & KEYS:
            push_keys, at = _section(body, at, rows, np.dtype(np.int64))
            at = padded(at)
        gradients, at = _section(body, at, floats, np.dtype(np.float32))
        at = padded(at) if pull_counts is not None else at
    if pull_counts is not None:
        pull_keys, at = _section(body, at, int(pull_counts.sum(dtype=np.int64)), np.dtype(np.int64))
        reply = 4 * int(pull_counts.astype(np.int64) @ dims)
        if reply > MAX_BODY_BYTES:
            raise WireError(f"pull asks for {reply} bytes of rows, beyond {MAX_BODY_BYTES}")
    if at != len(body):
        raise WireError(f"frame body has {len(body)} bytes, its counts ask for {at}")
    return RequestBody(push_counts, pull_counts, push_keys, gradients, pull_keys)


def _section(body: npt.NDArray[np.uint8], at: int, items: int, kind: np.dtype[np.generic]) -> tuple[npt.NDArray, int]:  # type: ignore[type-arg]
    end = at + items * kind.itemsize
    if end > len(body):
        raise WireError(f"frame counts ask for {end} bytes, the body has {len(body)}")
    return body[at:end].view(kind), end
