"""What better means, as one number per plan.

    score = ln(throughput) - weight ln(cost per hour)

`fastest` gives cost next to no weight (it only parts equals), `cheapest` gives it all but all, which makes the score
the logarithm of samples per unit of money. `balanced` stands in between with 0.5: a plan is better if it brings at
least half as much more throughput, in percent, as it costs more. That is the point of diminishing returns on the front.
The distance to the chord between the front's ends was not taken: where throughput is nearly linear in cost, as with
few cores, every distance is nearly 0 and the knee is wherever the noise puts it; and the chord moves with the caps, so
that a larger machine would change the answer for the same job.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trimtab.core.domain.job import Objective

COST_WEIGHT = {Objective.FASTEST: 0.005, Objective.BALANCED: 0.5, Objective.CHEAPEST: 0.995}
_LEAST_COST = 1e-300  # where nothing has a price, everything costs the same; a price may be as small as it likes


def scores(throughput: np.ndarray[Any, Any], cost: np.ndarray[Any, Any], objective: Objective) -> np.ndarray[Any, Any]:
    """The score of each plan; the largest is the best. A difference of 0.05 is 5 % in the objective's own measure."""
    weight = COST_WEIGHT[objective]
    return np.asarray(np.log(np.maximum(throughput, 1e-300)) - weight * log_cost(cost))


def log_cost(cost: np.ndarray[Any, Any] | float) -> np.ndarray[Any, Any]:
    """Logarithm of costs per hour, finite also where nothing has a price."""
    return np.asarray(np.log(np.maximum(cost, _LEAST_COST)))


def score(throughput: float, cost: float, objective: Objective) -> float:
    """`scores` of one plan."""
    return math.log(max(throughput, 1e-300)) - COST_WEIGHT[objective] * math.log(max(cost, _LEAST_COST))
