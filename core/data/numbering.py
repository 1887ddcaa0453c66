"""Which rows a batch number means.

One number from 0 to N-1 names a batch of the whole job, over all epochs, and everything that must happen exactly once
is said of these numbers. So what a number means is a pure function of the data's size and the job's settings, the
same in every process and after every restart, and cheap to ask in any order: nothing is read, and opening costs the
same for a thousand rows as for a thousand million.

Frozen rules (golden tests). Blocks are `BLOCK_ROWS` consecutive rows. *Held out*: a row's draw is the rank of
splitmix64(row, seed) among the rows of its block, plus a half, over the block's rows; it is held out when its draw is
below the fraction. A rank rather than the bare hash makes the number of held-out rows of every block known without
hashing. *Shuffle*: each epoch orders the blocks, and the training rows within each block, by splitmix64 under a key of
(seed, epoch); within a block by its upper 48 bits, then by row. Splitmix64 is a bijection: no other ties exist.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np

from trimtab.core.data.keys import Bools, Int64s, UInt64s, mix, splitmix64
from trimtab.core.data.store import BLOCK_ROWS
from trimtab.core.domain.job import JobSpec
from trimtab.core.errors import BadInput

_SPLIT, _BLOCKS, _ROWS = 1, 2, 3  # purposes of a derived key
_PLACE = np.uint64(0xFFFF)
_T = TypeVar("_T")
_KEPT = 4  # orders of blocks' rows that are remembered: successive batches share one or two


def numbering_of(spec: JobSpec, rows: int) -> Numbering:
    """Batch number → row numbers of a job on a dataset of `rows` rows, as every process of the job must see it."""
    fraction = 0.0 if isinstance(spec.validation, str) else spec.validation
    return Numbering(rows, spec.batch_size, spec.epochs, spec.seed, fraction)


@dataclass(frozen=True)
class Numbering:
    """Batch number → row numbers, for one dataset and one job.

    Attributes:
        rows: rows of the dataset. batch_size: rows per batch.
        epochs: passes over the training rows. seed: decides split and shuffle.
        validation: fraction held out; 0.0 when none is, or other rows are used for it.
        block_rows: rows per block, at most `BLOCK_ROWS`; smaller only in tests.

    Raises:
        BadInput: a value out of range, a batch larger than the training rows, no training or no held-out rows.
    """

    rows: int
    batch_size: int
    epochs: int = 1
    seed: int = 0
    validation: float = 0.0
    block_rows: int = BLOCK_ROWS
    _memory: _Memory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("--batch-size", self.batch_size), ("--epochs", self.epochs)):
            if value < 1:
                raise BadInput(name, value, "give a whole number of at least 1")
        if not (math.isfinite(self.validation) and 0 <= self.validation < 1):
            raise BadInput("--validation", self.validation, "give a share of at least 0 and below 1")
        object.__setattr__(self, "_memory", _Memory())
        if self.validation > 0 and self.validation_rows == 0:
            least = 1 / min(self.rows, self.block_rows)
            remedy = f"holds out none of {self.rows} rows; give 0, or at least {least:.6f}"
            raise BadInput("--validation", self.validation, remedy)
        if self.train_rows == 0:
            raise BadInput("--validation", self.validation, f"leaves none of {self.rows} rows to train on; give less")
        if self.batch_size > self.train_rows:
            remedy = f"there are only {self.train_rows} training rows; give at most that"
            raise BadInput("--batch-size", self.batch_size, remedy)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.rows // self.block_rows)

    @property
    def validation_rows(self) -> int:
        """Rows held out."""
        return (self.blocks - 1) * self._held(0) + self._held(self.blocks - 1)

    @property
    def train_rows(self) -> int:
        """Rows of one epoch."""
        return self.rows - self.validation_rows

    @property
    def batches_per_epoch(self) -> int:
        """Batches of one epoch; the last may be short."""
        return -(-self.train_rows // self.batch_size)

    @property
    def batches(self) -> int:
        """N: batches of all epochs."""
        return self.batches_per_epoch * self.epochs

    @property
    def evaluation_batches(self) -> int:
        """Batches of the held-out rows."""
        return -(-self.validation_rows // self.batch_size)

    def rows_of(self, number: int) -> Int64s:
        """Row numbers of training batch `number`, int64[1 .. batch_size]; every epoch has each training row once.

        Raises:
            BadInput: a number outside 0 .. N-1.
        """
        epoch, batch = divmod(self._checked(number, self.batches), self.batches_per_epoch)
        order, ends = self._epoch(epoch)
        at = batch * self.batch_size
        end = min(at + self.batch_size, self.train_rows)
        parts: list[Int64s] = []
        while at < end:
            place = int(np.searchsorted(ends, at, side="right"))
            start = int(ends[place - 1]) if place else 0
            take = min(end, int(ends[place])) - at
            parts.append(self._shuffled(epoch, int(order[place]))[at - start : at - start + take])
            at += take
        return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

    def evaluation_rows_of(self, number: int) -> Int64s:
        """Row numbers of evaluation batch `number`, in the order of the data; all batches have each held-out row once.

        Raises:
            BadInput: a number outside 0 .. evaluation_batches-1.
        """
        at = self._checked(number, self.evaluation_batches) * self.batch_size
        end = min(at + self.batch_size, self.validation_rows)
        each = self._held(0)  # of every block but the last
        parts: list[Int64s] = []
        while at < end:
            block = min(at // each, self.blocks - 1) if each else self.blocks - 1
            start = block * each
            held = np.flatnonzero(self._split(block)) + block * self.block_rows
            take = min(end, start + len(held)) - at
            parts.append(held[at - start : at - start + take])
            at += take
        return np.concatenate(parts)

    def held_out(self, block: int) -> Bools:
        """Which rows of a block are held out: bool[rows of the block]."""
        return self._split(block).copy()

    def _checked(self, number: int, count: int) -> int:
        if not 0 <= number < count:
            raise BadInput("batch number", number, f"numbers go from 0 to {count - 1}")
        return number

    def _size(self, block: int) -> int:
        return min(self.block_rows, self.rows - block * self.block_rows)

    def _held(self, block: int) -> int:
        """Held-out rows of a block: the ranks r with (r + 1/2) / size below the fraction."""
        size = self._size(block)
        held = math.ceil(self.validation * size - 0.5)
        return max(0, min(size, held))

    def _numbers(self, block: int) -> Int64s:
        first = block * self.block_rows
        return np.arange(first, first + self._size(block), dtype=np.int64)

    def _split(self, block: int) -> Bools:
        return self._memory.get((_SPLIT, 0, block), lambda: self._drawn(block))

    def _drawn(self, block: int) -> Bools:
        held = self._held(block)
        hashes = _under(mix(self.seed, _SPLIT), self._numbers(block))
        if held in (0, len(hashes)):
            return np.full(len(hashes), held > 0)
        below: Bools = hashes < np.partition(hashes, held)[held]
        return below

    def _shuffled(self, epoch: int, block: int) -> Int64s:
        return self._memory.get((_ROWS, epoch, block), lambda: self._ordered(epoch, block))

    def _ordered(self, epoch: int, block: int) -> Int64s:
        rows = self._numbers(block)
        if self._held(block):
            rows = rows[~self._split(block)]
        hashes = _under(mix(self.seed, _ROWS, epoch), rows)
        # Hash and place in one word: a plain sort is four times as fast as an argsort.
        hashes &= ~_PLACE
        hashes |= np.arange(len(rows), dtype=np.uint64)
        hashes.sort()
        return rows[(hashes & _PLACE).astype(np.int64)]

    def _epoch(self, epoch: int) -> tuple[Int64s, Int64s]:
        """Order of the blocks in an epoch, and where each one's rows end in it."""
        return self._memory.get((_BLOCKS, epoch, 0), lambda: self._block_order(epoch))

    def _block_order(self, epoch: int) -> tuple[Int64s, Int64s]:
        order = np.argsort(_under(mix(self.seed, _BLOCKS, epoch), np.arange(self.blocks, dtype=np.int64)))
        counts = np.full(self.blocks, self._size(0) - self._held(0), np.int64)
        last = self.blocks - 1
        counts[order == last] = self._size(last) - self._held(last)
        return order, np.cumsum(counts)


def _under(key: int, numbers: Int64s) -> UInt64s:
    """Hash of numbers under a key: distinct for distinct numbers."""
    return splitmix64(splitmix64(numbers) ^ np.uint64(key))


class _Memory:
    """The latest few results, shared by threads; what is computed twice is the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int, int], object] = OrderedDict()

    def get(self, key: tuple[int, int, int], make: Callable[[], _T]) -> _T:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return cast(_T, self._kept[key])
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > 3 * _KEPT:
                self._kept.popitem(last=False)
        return made

    def __reduce__(self) -> tuple[type[_Memory], tuple[()]]:
        return (_Memory, ())
