"""Hashes that decide where a row lies: frozen, because every copy and every process depends on them.

The 64-bit finaliser of splitmix64 over `key XOR salt(table)`; its top 9 bits are the vshard, its low bits the place
within the vshard's index segment. `kernels.mix` is the compiled twin of `mix`; golden tests hold both.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from trimtab.core.data.keys import UInt64s, finalise

VSHARD_SHIFT = 64 - 9  # 512 vshards


def salt(table: str) -> int:
    """The table's 64-bit salt: the first 8 bytes of BLAKE2b of its name, little-endian."""
    return int.from_bytes(hashlib.blake2b(table.encode(), digest_size=8).digest(), "little")


def mix(values: UInt64s) -> UInt64s:
    """splitmix64's finaliser, element by element."""
    return finalise(values.astype(np.uint64))


def vshards(table: str, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The vshard of each key of one table."""
    hashed = mix(keys.view(np.uint64) ^ np.uint64(salt(table)))
    return (hashed >> np.uint64(VSHARD_SHIFT)).astype(np.int64)
