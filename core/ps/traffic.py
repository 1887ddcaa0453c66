"""How many bytes of gradients went to each vshard and table: what the controller spreads vshards by.

Looking at every key of every push would cost a hundredth of it, so every sixteenth push is looked at, and the first one
after each reading; what is read is scaled to the bytes of all pushes, which are counted exactly.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps import kernels
from trimtab.core.ps.table import Found, RowTable

_EVERY = 16
_LEAST_SECONDS = 0.5  # between two readings: a rate over less would be noise
_MEMORY_SECONDS = 3.0  # what was seen before counts less and less: after ten seconds next to nothing


class Traffic:
    """Counts of one server. The caller holds the server's lock."""

    def __init__(self, table: RowTable) -> None:
        self._salts, self._row_bytes = table.index.salts, table.dims * 4.0
        self._sampled = np.zeros(VSHARDS)
        self._by_table = np.zeros(len(table.dims))
        self._bytes = 0
        self._skip = 0

    def add(self, found: Found, nbytes: int) -> None:
        """A push of `nbytes` of gradients for the rows of `found` was applied."""
        self._bytes += nbytes
        if self._skip:
            self._skip -= 1
            return
        self._skip = _EVERY - 1
        kernels.add_weights(found.keys, found.ends, self._salts, self._row_bytes, self._sampled)
        self._by_table += np.diff(found.ends, prepend=0) * self._row_bytes

    def take(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """f64[512] and f64[T], bytes to each vshard and each table since the last call; their sums are exact, their
        shares are sampled.
        """
        total = self._sampled.sum()
        factor = self._bytes / total if total else 0.0
        taken = self._sampled * factor, self._by_table * factor
        self._sampled, self._by_table = np.zeros(VSHARDS), np.zeros(len(self._row_bytes))
        self._bytes = self._skip = 0
        return taken


class Rates:
    """What readings of a server's traffic come to, in bytes per second by vshard and by table, lately."""

    def __init__(self, tables: int, now: float) -> None:
        """`now`: seconds of the clock that `add` is told of."""
        self.rates, self.by_table = np.zeros(VSHARDS), np.zeros(tables)
        self._at = now

    def due(self, now: float) -> bool:
        """Whether so much time has passed since the last reading that another one says something."""
        return now - self._at >= _LEAST_SECONDS

    def add(
        self, taken: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]], served: npt.NDArray[np.bool_], now: float
    ) -> None:
        """Take in a reading of `Traffic.take`; what is not served any more has no traffic."""
        seconds, self._at = now - self._at, now
        weight = 1.0 - math.exp(-seconds / _MEMORY_SECONDS)
        of_vshards, of_tables = taken
        self.rates = np.where(served, self.rates + weight * (of_vshards / seconds - self.rates), 0.0)
        self.by_table += weight * (of_tables / seconds - self.by_table)
