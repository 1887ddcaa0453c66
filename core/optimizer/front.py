"""The front: the candidates that nobody beats in cost and throughput at once.

The lattice of plans is small enough to enumerate, so the front is exact. Two faults of search libraries are kept out
by construction (case 54): a dominated twin never stays because it equals another, and what is not finite never counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.domain.plan import Plan


@dataclass(frozen=True)
class Candidate:
    """A plan with what it would cost and bring.

    Attributes:
        plan: the plan.
        cost: currency per hour.
        throughput: samples per second, predicted.
    """

    plan: Plan
    cost: float
    throughput: float


def front(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates that no other one beats, by rising cost and rising throughput.

    One beats another if it is neither dearer nor slower, and better in one of both. Of several with the same cost and
    throughput the first given stays. Candidates with a cost or throughput that is not finite are left out; the answer
    is empty when none is left, which means "keep the present plan".
    """
    given = list(candidates)
    cost = np.array([one.cost for one in given], float)
    return tuple(given[index] for index in front_of(cost, np.array([one.throughput for one in given], float)))


def front_of(cost: np.ndarray[Any, Any], throughput: np.ndarray[Any, Any]) -> list[int]:
    """`front` over arrays: indices of what nobody beats, by rising cost."""
    usable = np.flatnonzero(np.isfinite(cost) & np.isfinite(throughput))
    order = usable[np.lexsort((-throughput[usable], cost[usable]))]  # stable: the first given comes first
    if not len(order):
        return []
    best = np.maximum.accumulate(throughput[order])
    rises = np.concatenate([[True], throughput[order][1:] > best[:-1]])
    return [int(index) for index in order[rises]]
