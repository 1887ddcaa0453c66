"""A data set of Criteo's shape with a planted signal, for first steps, tests and benchmarks.

Real click logs cannot be shipped, and noise teaches nothing about whether training works. These rows look like
Criteo's (13 counts with gaps and a few negatives, 26 hexadecimal ids of very uneven popularity, a quarter clicked),
and the click is drawn from a logistic law of the dense values and of a fixed effect per id. So the best possible AUC
is known, about `BEST_AUC`, and a run that stays far below it is wrong.

Every value is a hash of (seed, column, row): the same seed gives the same bytes, however many rows are made at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.data.keys import Bools, UInt64s, mix, splitmix64

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

BEST_AUC = 0.80  # of the true probabilities on large samples, to two places; a test measures it
CHUNK_ROWS = 65_536

# Criteo's distinct ids per column, the largest cut to what a sample of a million rows can show something of.
VOCABULARY = (
    1460, 583, 200_000, 120_000, 305, 24, 12_517, 633, 3, 93_145, 5683, 150_000, 3194, 27, 14_992, 100_000, 10, 5652,
    2173, 4, 130_000, 18, 15, 60_000, 105, 40_000,
)  # fmt: skip
_SKEW = 1.1  # exponent of the bounded Zipf law of an id's popularity
_DENSE_MISSING = (0.45, 0.0, 0.21, 0.22, 0.03, 0.22, 0.04, 0.0005, 0.04, 0.45, 0.04, 0.76, 0.22)
_KEYS_MISSING = (
    0.0, 0.0, 0.03, 0.03, 0.0, 0.12, 0.0, 0.0, 0.0, 0.0, 0.0, 0.03, 0.0, 0.0, 0.0, 0.03, 0.0, 0.0, 0.44, 0.44, 0.03,
    0.76, 0.0, 0.03, 0.44, 0.44,
)  # fmt: skip
# Counts are exp(location + scale * z) - 1, rounded down; the second column reaches below zero as Criteo's does.
_LOCATION = (0.6, 2.2, 1.6, 1.5, 7.0, 3.5, 1.5, 2.0, 3.8, 0.3, 0.9, 0.3, 1.7)
_SCALE = (1.0, 1.8, 1.3, 0.9, 2.2, 1.7, 1.3, 0.9, 1.4, 0.4, 0.8, 0.7, 1.0)
_DENSE_EFFECT = (0.35, 0.10, -0.12, -0.15, -0.25, -0.30, 0.30, 0.05, 0.10, 0.20, 0.20, 0.05, -0.15)
_BIAS = -1.78  # for a click rate of a quarter


@dataclass(frozen=True)
class SampleRows:
    """Rows of the sample.

    Attributes:
        label: int8[n]. probability: float64[n], the true chance of a click.
        dense: int64[n, 13]; dense_missing: bool[n, 13].
        keys: int64[n, 26], ids below 2^32; keys_missing: bool[n, 26].
    """

    label: npt.NDArray[np.int8]
    probability: Float64s
    dense: Int64s
    dense_missing: Bools
    keys: Int64s
    keys_missing: Bools


def sample_rows(seed: int, first: int, count: int) -> SampleRows:
    """Rows first .. first+count-1 of the sample that `seed` names."""
    rows = np.arange(first, first + count, dtype=np.uint64)
    logit = np.full(count, _BIAS)
    dense = np.empty((count, 13), np.int64)
    dense_missing = np.empty((count, 13), np.bool_)
    for at in range(13):
        z, dense_missing[:, at] = _normal(seed, at, rows, _DENSE_MISSING[at])
        size = np.exp(_LOCATION[at] + _SCALE[at] * z)
        value = size.astype(np.int64) - 1
        dense[:, at] = value - (size < 0.5) if at == 1 else np.maximum(value, 0)
        z[dense_missing[:, at]] = 0.0
        logit += _DENSE_EFFECT[at] * z
    keys = np.empty((count, 26), np.int64)
    keys_missing = np.empty((count, 26), np.bool_)
    for at, vocabulary in enumerate(VOCABULARY):
        uniform, keys_missing[:, at] = _uniform(seed, 200 + at, rows, _KEYS_MISSING[at])
        rank = _popularity(uniform, vocabulary)
        keys[:, at] = _id(at, rank)
        effect = _effect(at, rank)
        effect[keys_missing[:, at]] = 0.0
        logit += effect
    probability = 1.0 / (1.0 + np.exp(-logit))
    label = (_uniform(seed, 400, rows)[0] < probability).astype(np.int8)
    return SampleRows(label, probability, dense, dense_missing, keys, keys_missing)


def sample_chunks(seed: int, rows: int) -> Iterator[SampleRows]:
    """All `rows` rows, a chunk at a time."""
    for first in range(0, rows, CHUNK_ROWS):
        yield sample_rows(seed, first, min(CHUNK_ROWS, rows - first))


class AucCounter:
    """AUC of true probabilities in bounded memory: labels counted in fine bins of the score (error below 1e-4)."""

    _BINS = 1 << 14

    def __init__(self) -> None:
        self._counts = np.zeros((2, self._BINS), np.int64)

    def add(self, probability: Float64s, label: npt.NDArray[np.int8]) -> None:
        """Sees more rows."""
        bins = np.minimum((probability * self._BINS).astype(np.int64), self._BINS - 1)
        for value in (0, 1):
            self._counts[value] += np.bincount(bins[label == value], minlength=self._BINS)

    def value(self) -> float | None:
        """The AUC; None while there is only one label."""
        negative, positive = self._counts.astype(np.float64)
        pairs = negative.sum() * positive.sum()
        if pairs == 0:
            return None
        below = np.cumsum(negative) - negative / 2
        return float((positive * below).sum() / pairs)


def best_auc(seed: int, rows: int) -> float | None:
    """AUC of the true probabilities on exactly these rows: no model can be expected to do better."""
    counter = AucCounter()
    for chunk in sample_chunks(seed, rows):
        counter.add(chunk.probability, chunk.label)
    return counter.value()


def _uniform(seed: int, stream: int, rows: UInt64s, missing: float = 0.0) -> tuple[Float64s, Bools]:
    """A hash of (seed, stream, row): its upper 53 bits as float64[n] in (0, 1), its lower 11 as "is missing"."""
    bits = splitmix64(rows ^ np.uint64(mix(seed, stream)))
    gap = (bits & np.uint64(2047)) < np.uint64(round(missing * 2048))
    bits >>= np.uint64(11)
    found = bits.astype(np.float64)
    found += 0.5
    found *= 2.0**-53
    return found, gap


def _normal(seed: int, stream: int, rows: UInt64s, missing: float) -> tuple[Float64s, Bools]:
    """Standard normal values (Box-Muller), and which are missing."""
    radius, gap = _uniform(seed, stream, rows, missing)
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    angle, _ = _uniform(seed, 50 + stream, rows)
    angle *= 2.0 * np.pi
    radius *= np.cos(angle, out=angle)
    return radius, gap


def _popularity(uniform: Float64s, size: int) -> UInt64s:
    """Ranks 0 .. size-1 by a bounded Zipf law, through the inverse of its continuous distribution."""
    power = 1.0 - _SKEW
    rank = (1.0 + uniform * ((size + 1.0) ** power - 1.0)) ** (1.0 / power)
    found: UInt64s = np.minimum(rank.astype(np.uint64) - np.uint64(1), np.uint64(size - 1))
    return found


def _id(column: int, rank: UInt64s) -> Int64s:
    """The 32-bit id of a rank: a bijection (MurmurHash3's finalizer), so that no two ranks share one."""
    word = (rank + np.uint64(column * 1_000_003)).astype(np.uint32)
    word ^= word >> np.uint32(16)
    word *= np.uint32(0x85EBCA6B)
    word ^= word >> np.uint32(13)
    word *= np.uint32(0xC2B2AE35)
    word ^= word >> np.uint32(16)
    return word.astype(np.int64)


def _effect(column: int, rank: UInt64s) -> Float64s:
    """What an id adds to the logit: fixed per id, of the same law in every sample, weaker in large vocabularies."""
    bits = splitmix64(rank + np.uint64(mix(7, column))) >> np.uint64(11)
    spread = 0.40 if VOCABULARY[column] <= 1000 else 0.18
    found: Float64s = (bits.astype(np.float64) * 2.0**-53 - 0.5) * (spread * 12.0**0.5)
    return found
