"""CRC-32C (Castagnoli), for TFRecord's framing, of many byte ranges at once.

The checksum of one range is a chain of table look-ups, slow in Python; but records come by the thousand, so the chains
advance side by side, eight bytes a step (slicing by 8, two bytes to a look-up). No dependency of the product offers
this checksum.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # reversed
_MASK_DELTA = np.uint32(0xA282EAD8)
_PADDING = 32  # also what parsers of the data may look at beyond its end


def padded(data: bytes | bytearray | memoryview) -> Bytes:
    """`data` followed by the zero bytes that may be read past its end."""
    found = np.zeros(len(data) + _PADDING, np.uint8)
    found[: len(data)] = np.frombuffer(data, np.uint8)
    return found


def crc32c_ranges(data: Bytes, starts: Int64s, lengths: Int64s) -> UInt32s:
    """CRC-32C of each range of `data` (made by `padded`): uint32[n]."""
    tables, pairs = _tables()
    order = np.argsort(-lengths, kind="stable")  # longest first: the ranges still at work are a prefix
    at, left = starts[order], lengths[order]
    words = np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))
    crc = np.full(len(order), 0xFFFFFFFF, np.uint32)
    steps = left // 8
    for step in range(int(steps[0]) if len(steps) else 0):
        active = int(np.searchsorted(-steps, -step, side="left"))  # steps > step
        block = (words[at[:active] + 8 * step] ^ crc[:active]).view("<u2").reshape(active, 4)
        found = np.take(pairs[3], block[:, 0])
        for pair in range(1, 4):
            found ^= np.take(pairs[3 - pair], block[:, pair])
        crc[:active] = found
    rest = left - steps * 8
    tail = at + steps * 8
    for byte in range(7):
        lanes = np.flatnonzero(rest > byte)
        if len(lanes):
            value = crc[lanes]
            crc[lanes] = tables[0][(value ^ data[tail[lanes] + byte]) & np.uint32(255)] ^ (value >> np.uint32(8))
    found = np.empty_like(crc)
    found[order] = ~crc
    return found


def masked(crc: UInt32s) -> UInt32s:
    """TFRecord's masked form of a checksum."""
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK_DELTA


@lru_cache(maxsize=1)
def _tables() -> tuple[UInt32s, UInt32s]:
    """Slicing-by-8 tables, uint32[8, 256], and the same for two bytes at a time, uint32[4, 65536]."""
    tables = np.zeros((8, 256), np.uint32)
    value = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        value = (value >> np.uint32(1)) ^ np.where(value & np.uint32(1), np.uint32(_POLYNOMIAL), np.uint32(0))
    tables[0] = value
    for at in range(1, 8):
        previous = tables[at - 1]
        tables[at] = (previous >> np.uint32(8)) ^ tables[0][previous & np.uint32(255)]
    word = np.arange(65_536)
    pairs = np.stack([tables[2 * at + 1][word & 255] ^ tables[2 * at][word >> 8] for at in range(4)])
    return tables, pairs
