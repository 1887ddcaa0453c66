"""Figures gathered in one pass and little memory: distinct keys, mean and deviation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trimtab.core.data.keys import Int64s, UInt64s, splitmix64

_STEP = 8192
_KEPT = 1024  # smallest hashes kept: about 3 % error


class DistinctSketch:
    """How many distinct keys a column has: exact up to 1,024, within about 3 % beyond (k minimum values)."""

    def __init__(self) -> None:
        self._smallest: UInt64s = np.zeros(0, np.uint64)

    def add(self, keys: Int64s) -> None:
        """Sees more keys."""
        hashes = splitmix64(keys.ravel())
        for at in range(0, len(hashes), _STEP):  # small steps: the first few already drop most of what follows
            part = hashes[at : at + _STEP]
            if len(self._smallest) == _KEPT:
                part = part[part < self._smallest[-1]]
            if len(part):
                merged = np.concatenate([self._smallest, part])
                merged.sort()  # and no np.unique: for integers it hashes, which is slower here
                self._smallest = merged[np.append(True, merged[1:] != merged[:-1])][:_KEPT]

    def estimate(self) -> int:
        """The number of distinct keys seen."""
        if len(self._smallest) < _KEPT:
            return len(self._smallest)
        return round((_KEPT - 1) / (float(self._smallest[-1]) / 2.0**64))


class Moments:
    """Count, mean and deviation of a column, merged block by block (Chan's formula)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.shift = 0.0  # mean of the first block: what stored values are relative to
        self._squares = 0.0

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Sees more finite values."""
        if not len(values):
            return
        count, mean = len(values), float(values.mean())
        squares = float(((values - mean) ** 2).sum())
        if self.count == 0:
            self.shift = mean
        delta, total = mean - self.mean, self.count + count
        self._squares += squares + delta * delta * self.count * count / total
        self.mean += delta * count / total
        self.count = total

    @property
    def deviation(self) -> float:
        """Standard deviation; 1 for a column without spread, which stays 0 everywhere."""
        spread = (self._squares / self.count) ** 0.5 if self.count else 0.0
        return spread if spread > 0 else 1.0
