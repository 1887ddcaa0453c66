"""Budget and deadline: by how much each plan would miss them.

Both are of the whole job, so what was spent and what has passed counts. A plan that would have to be changed to is
judged by the low end of its prediction, the pause of the change included; the plan in force by what it measures now.
That difference is the hysteresis: a plan is changed to for the deadline's sake only with a margin, and left only when
it is late in the middle of what is predicted.

Misses are logarithms, of the whole cost over the budget and of the whole time over the deadline, and they add up. So
they stay finite when the budget is spent or the deadline has passed, and "the least miss" still means something.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.core.optimizer.lattice import Lattice
from trimtab.core.optimizer.question import Question
from trimtab.core.perf.iteration import Array

SLACK = 0.02  # by so much, in logs, the plan in force may seem to miss before anything is done: windows scatter


@dataclass(frozen=True)
class Spending:
    """What each plan of a lattice would need for the whole job.

    Attributes:
        ends: seconds since the job's start at which it would be done. costs: money in all.
        late, dear: ln(ends / deadline) and ln(costs / budget) where above 0; 0 where there is no such limit.
    """

    ends: Array
    costs: Array
    late: Array
    dear: Array

    @property
    def missed(self) -> Array:
        """By how much both limits are missed together; 0: kept."""
        return np.asarray(self.late + self.dear)

    def kept(self) -> np.ndarray:
        """Which plans keep both."""
        return np.asarray(self.missed <= 1e-12)


def spending(question: Question, plans: Lattice, throughput: Array, caution: Array, switch: Array) -> Spending:
    """`Spending` of the plans of a lattice.

    Args:
        question: with budget and deadline, or without.
        plans: the lattice.
        throughput: samples per second in the middle.
        caution: how much less it may be, in logs; 0 for the plan in force.
        switch: seconds of lost training to get there.
    """
    low = throughput * np.exp(-caution)
    with np.errstate(divide="ignore", over="ignore"):
        left = switch + max(0, question.batches_left) * question.batch_size / np.maximum(low, 1e-300)
    left = np.where(np.isfinite(left), left, 1e300)
    ends = question.time_seconds + left
    costs = max(0.0, question.spent) + plans.cost * (left / 3600)
    none = np.zeros(len(left))
    late = none if question.deadline_seconds is None else _over(ends, question.deadline_seconds)
    dear = none if question.budget is None else _over(costs, question.budget)
    return Spending(ends, costs, late, dear)


def _over(values: Array, limit: float) -> Array:
    return np.asarray(np.maximum(0.0, np.log(np.maximum(values, 1e-300) / limit)))
