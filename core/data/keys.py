"""How a categorical value becomes a 64-bit key.

A key decides which embedding row a value trains, so the rules here are frozen (docs/data.md, golden tests): the
same value gives the same key in every file format, process and release. Whole numbers and hexadecimal ids are used as
they are, because hashing them would only add collisions; text is hashed by BLAKE2b, which any language can repeat in
one line. One key, the smallest int64, is reserved for a missing value; a genuine value that equals it is moved to
another place. No modulus is taken unless a column asks for buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

MISSING_KEY = -(2**63)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1

_DIGITS = b"0123456789abcdef"
_NOT_HEX = 256


def _pairs() -> npt.NDArray[np.uint16]:
    """For every two characters (as a little-endian word) their value as hexadecimal, or `_NOT_HEX`."""
    one = np.full(256, _NOT_HEX, np.int64)
    for digits in (_DIGITS, _DIGITS.upper()):
        one[np.frombuffer(digits, np.uint8)] = np.arange(16)
    first, second = one[np.arange(65_536) & 255], one[np.arange(65_536) >> 8]
    found = np.where((first < 16) & (second < 16), first * 16 + second, _NOT_HEX)
    return found.astype(np.uint16)


_PAIRS = _pairs()


def splitmix64(values: UInt64s | Int64s) -> UInt64s:
    """The splitmix64 output function of each value: a bijection of 64-bit words; the product's frozen integer hash."""
    x = values.astype(np.uint64)  # a copy, worked on in place
    x += _GOLDEN
    return finalise(x)


def finalise(x: UInt64s) -> UInt64s:
    """splitmix64's last three steps on `x`, in place: what spreads rows over vshards, too."""
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= _MIX_1
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= _MIX_2
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    return x


def mix(*parts: int) -> int:
    """One 64-bit word from several whole numbers, in order: the frozen way to derive a key from (seed, epoch, ...)."""
    word = 0
    for part in parts:
        word = _splitmix(word ^ (part & _MASK))
    return word


def text_key(value: bytes) -> int:
    """Key of one text: the first 8 bytes of BLAKE2b (digest size 8), little-endian, as a signed number."""
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "little", signed=True)


def text_keys(values: Sequence[bytes]) -> Int64s:
    """`text_key` of each value; the caller passes distinct values where there are repeats."""
    return np.frombuffer(b"".join([blake2b(value, digest_size=8).digest() for value in values]), "<i8").astype(np.int64)


def spans(array: Any) -> tuple[npt.NDArray[np.uint8], Int64s, Int64s]:
    """The bytes of a binary or string Arrow array, and each value's start and length in them (null: length 0)."""
    import pyarrow as pa

    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offsets_buffer is None:
        return np.zeros(0, np.uint8), np.zeros(len(array), np.int64), np.zeros(len(array), np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    starts = offsets[:-1].astype(np.int64)
    lengths = offsets[1:].astype(np.int64) - starts
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return data, starts, lengths


def hex_keys(array: Any) -> tuple[Int64s, Bools]:
    """Keys of hexadecimal text of 1 to 16 digits, and which values are such text.

    A value of 64 bits wraps to its signed twin. Values that are no hexadecimal number have a meaningless key and
    False; the caller hashes those as text.

    Args:
        array: a binary or string Arrow array of n values.

    Returns:
        int64[n], bool[n]
    """
    data, starts, lengths = spans(array)
    keys = np.zeros(len(lengths), np.uint64)
    valid = np.zeros(len(lengths), np.bool_)
    present = np.bincount(np.minimum(lengths, 17), minlength=18)
    for length in range(1, 17):
        if not present[length]:
            continue
        at = slice(None) if present[length] == len(lengths) else np.flatnonzero(lengths == length)
        first = starts[at]
        width = 8 if length <= 8 else 16
        # Arrow packs values end to end, so those of one length nearly always are one run of bytes.
        if first[-1] - first[0] == (len(first) - 1) * length:
            text = data[first[0] : first[0] + len(first) * length].reshape(len(first), length)
        else:
            text = data[first[:, None] + np.arange(length)]
        if length < width:
            text = np.concatenate([np.full((len(text), width - length), ord("0"), np.uint8), text], axis=1)
        pairs = _PAIRS[np.ascontiguousarray(text).view("<u2")]
        good = True if pairs.max() < _NOT_HEX else (pairs < _NOT_HEX).all(axis=1)
        packed = pairs.astype(np.uint8)
        keys[at] = packed.view(">u4" if width == 8 else ">u8").ravel()
        valid[at] = good
    return keys.view(np.int64), valid


def float_keys(values: npt.NDArray[np.float64]) -> Int64s:
    """Keys of numbers that were stored as floats: whole ones as they are, others by splitmix64 of their bits."""
    whole = (np.floor(values) == values) & (np.abs(values) < 2.0**63)
    keys = splitmix64(values.view(np.uint64)).view(np.int64)
    keys[whole] = values[whole].astype(np.int64)
    return keys


def finish_keys(keys: Int64s, missing: Bools, buckets: int | None) -> Int64s:
    """The last step of every key: genuine reserved values moved away, buckets, the reserved key where missing.

    Args:
        keys: int64[n], changed in place. missing: bool[n].
        buckets: keys become (as unsigned numbers) the remainder by it; None: no modulus.
    """
    reserved = keys == MISSING_KEY
    if reserved.any():
        keys[reserved] = splitmix64(keys[reserved]).view(np.int64)
    if buckets is not None:
        keys[:] = (keys.view(np.uint64) % np.uint64(buckets)).view(np.int64)
    keys[missing] = MISSING_KEY
    return keys


def _splitmix(value: int) -> int:
    word = (value + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
