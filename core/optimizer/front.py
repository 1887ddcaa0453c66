"""The front: the candidates that nobody beats in cost and throughput at once.

The lattice of plans is small enough to enumerate, so the front is exact. Two faults of search libraries are kept out
by construction (case 54): a dominated twin never stays because it equals another, and what is not finite never counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

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
    usable = [one for one in candidates if math.isfinite(one.cost) and math.isfinite(one.throughput)]
    found: list[Candidate] = []
    best = -math.inf
    for one in sorted(usable, key=lambda one: (one.cost, -one.throughput)):  # stable: the first given comes first
        if one.throughput > best:
            found.append(one)
            best = one.throughput
    return tuple(found)
