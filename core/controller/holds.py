"""Loans of numbers to workers: who has which data shard, and nothing about what became of the numbers.

A hold only keeps a number from being lent twice at the same time; it is never evidence that a batch was trained. So
ending one, however wrongly, costs at most some repeated work. Training and evaluation share this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trimtab.core.domain.intervals import IntervalSet

FIRST_SHARD = 8  # batches of a worker's first data shard, whose speed is not known yet
SHARD_SECONDS = 1.5  # work in one shard: long against a call, short against a worker's loss
MOST_SHARDS = 2  # per worker: one in work, one in hand
SMALLEST_SHARD = 4  # below, the calls cost more than the wait at the end
LARGEST_SHARD = 4096


@dataclass(frozen=True)
class Hold:
    """One data shard on loan.

    Attributes:
        id: of the grant. kind: train | evaluate | metrics. lo, hi: numbers lo .. hi-1.
        pod: the worker's pod. given_at: when it was first given (seconds).
    """

    id: int
    kind: str
    lo: int
    hi: int
    pod: str
    given_at: float


@dataclass(frozen=True)
class Holds:
    """All loans of one ledger, by grant id; an immutable value."""

    by_id: Mapping[int, Hold] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.by_id)

    def numbers(self) -> IntervalSet:
        """Every number on loan."""
        return IntervalSet((hold.lo, hold.hi) for hold in self.by_id.values())

    def of(self, pod: str) -> tuple[Hold, ...]:
        """What one worker has, oldest first."""
        return tuple(self.by_id[key] for key in sorted(self.by_id) if self.by_id[key].pod == pod)

    def give(self, hold: Hold) -> Holds:
        """These loans and one more."""
        return Holds({**self.by_id, hold.id: hold})

    def end(self, ended: Callable[[Hold], bool]) -> tuple[Holds, tuple[Hold, ...]]:
        """These loans without those for which `ended` is true, and the latter."""
        gone = tuple(hold for hold in self.by_id.values() if ended(hold))
        if not gone:
            return self, ()
        return Holds({key: hold for key, hold in self.by_id.items() if not ended(hold)}), gone


def shard_size(speed: float | None, last: int, left: int, workers: int) -> int:
    """How many batches the next data shard should have.

    About `SHARD_SECONDS` of work at the worker's speed, at most twice its last shard, and near the end no more than
    its part of half of what is left, so that workers end together.

    Args:
        speed: batches per second of this worker, None when not known yet.
        last: size of its last shard, 0 for none.
        left: numbers that can be lent now (at least 1).
        workers: workers that share them (at least 1).
    """
    wanted = FIRST_SHARD if speed is None else max(1, round(speed * SHARD_SECONDS))
    wanted = min(wanted, max(FIRST_SHARD, 2 * last), LARGEST_SHARD)
    share = left if workers <= 1 else -(-left // (2 * workers))
    return max(1, min(left, wanted, max(SMALLEST_SHARD, share)))
