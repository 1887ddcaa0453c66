"""What keeps the present plan unless a change pays.

A loop that follows every prediction thrashes: the windows scatter by 6 %, predictions err by more, and each change
costs training (case 32: a controller that looked back further than its own delay answered its own changes). So a
change must bring 5 % in the objective's own measure, its *cautious* gain must earn the cost of the switch within the
batches that are left, a direction is not turned round within the look-back unless both plans were measured, and a plan
that was measured worse than the present one is not asked for again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Decision
from trimtab.core.optimizer.objective import score
from trimtab.core.optimizer.question import Question
from trimtab.core.perf.fit import Fit
from trimtab.core.perf.rows import LAST_WINDOWS, Row

Array = npt.NDArray[np.float64]

LEAST_GAIN = 0.05  # in scores
LOOK_BACK_SECONDS = 60.0
WORSE_BY = 0.03  # in scores: a plan measured so much worse than the one before it is given up
SWITCH_MARGIN = 2.0  # so many times a change's cost must be earned: the next one may cost more than the last
_SURE = 2.3  # standard errors (99 %, one side) by which a change must be worse: it is judged several times
_KEPT_PROMISE = 0.5  # of a predicted gain: what a change must bring at its best, or the law was wrong
DEFAULT_SWITCH_SECONDS = 2.0


@dataclass(frozen=True)
class Verdict:
    """The last change, measured.

    Attributes:
        change: the decision. back_to: the plan before it.
        now: the first windows of its plan. earlier: the last ones of the plan before it.
        difference: of their scores; above 0 it was better before.
    """

    change: Decision
    back_to: Plan
    now: Row
    earlier: Row
    difference: float


def changes(question: Question) -> tuple[tuple[float, float], ...]:
    """When (decided, in force) the job's plan changed."""
    return tuple(
        (one.time_seconds, one.time_seconds + max(0.0, one.switch_seconds or 0.0))
        for one in question.decisions
        if one.changes_plan
    )


def last_change(question: Question) -> Decision | None:
    """The change that brought the plan in force, None while it is the first one."""
    made = [one for one in question.decisions if one.changes_plan]
    return made[-1] if made and made[-1].plan == question.plan else None


def switch_cost(question: Question, plan: Plan) -> float:
    """Seconds of lost training of going to `plan`: each kind of change that it needs once."""
    before = question.plan
    kinds = []
    if plan.worker.replicas != before.worker.replicas:
        kinds.append("worker")
    if plan.ps.replicas != before.ps.replicas:
        kinds.append("ps")
    if not kinds and plan != before:
        kinds.append("cpu")  # beside pods that come and go, shares cost nothing more
    return sum(seconds_of(question, kind) for kind in kinds)


def seconds_of(question: Question, kind: str) -> float:
    """Seconds of lost training of one kind of change: worker, ps or cpu."""
    given = question.switch_seconds.get(kind, DEFAULT_SWITCH_SECONDS)
    return max(0.0, given) if math.isfinite(given) else DEFAULT_SWITCH_SECONDS


def seconds_left(question: Question, throughput: float) -> float:
    """How long the batches that are left take at `throughput` samples per second."""
    return max(0, question.batches_left) * question.batch_size / throughput if throughput > 0 else 0.0


def worth(gain: float, left: float) -> float:
    """Seconds of the present plan that a gain (difference of scores) earns within `left` seconds of it."""
    return left * -math.expm1(-gain)


def worths(gains: Array, left: float) -> Array:
    """`worth` of many gains."""
    return np.asarray(left * -np.expm1(-np.maximum(gains, -700.0)))


def measured_score(question: Question, row: Row) -> float:
    """The score of a plan as it was measured."""
    return score(row.throughput, question.prices.per_hour(row.plan), question.objective)


def judged(question: Question, fit: Fit) -> Verdict | None:
    """The last change beside the plan before it, both as measured; None where one of them is not."""
    change = last_change(question)
    if change is None or change.before is None or fit.present is None:
        return None
    before = [row for row in fit.rows if row.plan == change.before and row.end <= change.time_seconds + 1e-6]
    if not before:
        return None
    now = fit.beside(before[-1])  # its first windows: later the machine may be another one
    difference = measured_score(question, before[-1]) - measured_score(question, now)
    return Verdict(change, change.before, now, before[-1], difference)


def gone_wrong(question: Question, fit: Fit) -> Verdict | None:
    """The last change, if the plan before it was measured better by more than chance and 3 %.

    Also if it broke its promise and is not clearly better: a law that was so wrong has no say, and what is as good
    with the plan before is had there without it.
    """
    found = judged(question, fit)
    if found is None or found.now.windows < 2:
        return None
    chance = _SURE * math.hypot(found.earlier.standard_error, found.now.standard_error)
    if found.difference > max(WORSE_BY, chance):
        return found
    predicted, present = found.change.predicted, found.change.present
    if predicted is None or present is None:
        return None
    promised = score(predicted.middle, question.prices.per_hour(found.change.plan), question.objective)
    promised -= score(present.middle, question.prices.per_hour(found.back_to), question.objective)
    gain = -found.difference
    return found if gain < chance and gain + chance < _KEPT_PROMISE * promised else None


def unproven(question: Question, fit: Fit) -> Verdict | None:
    """The last change, while its windows are few and it does not look better than what was before.

    Another step on top of one that may be wrong could not be told apart from it.
    """
    found = judged(question, fit)
    return found if found is not None and found.difference > 0 and found.now.windows < LAST_WINDOWS else None


def measured_worse(question: Question, fit: Fit) -> tuple[Row, ...]:
    """The latest visits to other plans that were measured no better than the present one in the same minutes."""
    if fit.present is None:
        return ()
    found = []
    for plan in dict.fromkeys(row.plan for row in fit.rows if row.plan != fit.present.plan):
        row = fit.measured(plan)
        if row is not None and measured_score(question, row) <= measured_score(question, fit.beside(row)):
            found.append(row)
    return tuple(found)


def reverses(question: Question, plan: Plan) -> bool:
    """Whether `plan` turns round what a change within the look-back did, for workers or for PSs."""
    shape = tuple(np.array([one]) for one in _numbers(plan))
    return bool(turned_round(question, *shape)[0])


def turned_round(question: Question, workers: Array, worker_cpu: Array, ps: Array, ps_cpu: Array) -> np.ndarray:
    """For each plan, whether it turns round what a change within the look-back did.

    Fewer cores per pod than a moment ago, but more than before that, are no turning round: a step that went too far is
    made finer, and the next one can only be finer still.
    """
    found = np.zeros(len(workers), bool)
    now = _numbers(question.plan)
    for change in question.decisions:
        if not change.changes_plan or question.time_seconds - change.time_seconds > LOOK_BACK_SECONDS:
            continue
        if change.before is None:
            continue
        old, new = _numbers(change.before), _numbers(change.plan)
        for count, cores, then_count, then_cores in ((0, 1, workers, worker_cpu), (2, 3, ps, ps_cpu)):
            found |= (new[count] - old[count]) * (then_count - now[count]) < 0
            if new[count] == old[count]:
                back = (new[cores] - old[cores]) * (then_cores - now[cores]) < -1e-12
                low, high = sorted((old[cores], new[cores]))
                finer = (then_cores > low + 1e-9) & (then_cores < high - 1e-9)
                found |= (then_count == now[count]) & back & ~finer
    return found


def _numbers(plan: Plan) -> tuple[float, float, float, float]:
    return (plan.worker.replicas, plan.worker.cpu, plan.ps.replicas, plan.ps.cpu)
