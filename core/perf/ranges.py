"""How sure a prediction is: from what refits missed, from how old the anchor is, and from what came true before.

An 80 % range is honest only where something recent anchors it: without a row of the last minutes, ranges that held 80 %
of the truths of their own day held a third of another day's. And whatever the calculation says, predictions that were
made and turned out wrong say more: they widen the ranges of those that follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trimtab.core.domain.records import Decision
from trimtab.core.perf.rows import WINDOW_NOISE

# log sd of a prediction before anything says otherwise: noise .063, law .035 and demand .08 together; 6 degrees
PRIOR_SD, PRIOR_SD_TIME, PRIOR_FREEDOM = 0.11, 0.20, 6
LAW_SHARE = math.sqrt(0.035**2 + 0.08**2) / PRIOR_SD  # the part of it that is not noise of the measurement
DAY_SD = 0.14  # log sd of what half an hour, or a day, changed on one machine
FORGET_SECONDS = 1800.0  # after so long the machine counts as another one
TO_80 = 1.2816  # sd to the half-width of 80 %
MOST_SCORED = 20  # predictions that came true, the newest
_WIDENING_FREEDOM = 4  # predictions that the calculation itself counts for
_MOST_WIDENING = 4.0


def half_width(misses: Sequence[float], time_only: bool) -> float:
    """Half the 80 % range in logs: t(0.9, n + 6) sqrt((6 sd^2 + sum r^2) / (n + 6)).

    Args:
        misses: r, log errors of predictions for configurations that their fits did not see, each anchored as
            predictions are.
        time_only: whether the law rests on time alone: its errors are larger before any is known.
    """
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    sd = PRIOR_SD_TIME if time_only else PRIOR_SD
    freedom = len(misses) + PRIOR_FREEDOM
    spread = math.sqrt((PRIOR_FREEDOM * sd**2 + sum(one**2 for one in misses)) / freedom)
    return float(stdtrit(freedom, 0.9)) * spread


def moved_sd(seconds: float) -> float:
    """Log sd of what changed on the machine within so many seconds; the day-to-day term at its full size in the end."""
    return DAY_SD * min(1.0, max(0.0, seconds) / FORGET_SECONDS)


def with_noise(half: float) -> float:
    """The half-width for one more measurement, from that for the middle."""
    return math.hypot(half, TO_80 * WINDOW_NOISE)


def scored(decisions: Sequence[Decision]) -> tuple[float, ...]:
    """How far off predictions of changes were, in half-widths as calculated (1: at the edge), oldest first.

    A prediction of the plan that stays is none: it is anchored on itself. What earlier scores had widened is taken off
    again: else a range that was rightly widened would speak for narrower ones.
    """
    found: list[float] = []
    for one in decisions:
        predicted, measured = one.predicted, one.measured
        if not one.changes_plan or predicted is None or predicted.low is None or predicted.high is None:
            continue
        if measured is None or not (math.isfinite(measured) and measured > 0 and 0 < predicted.low < predicted.high):
            continue
        half = math.log(predicted.high / predicted.low) / 2 / widening(found[-MOST_SCORED:])
        found.append(math.log(measured / predicted.middle) / half)
    return tuple(found[-MOST_SCORED:])


def widening(scores: Sequence[float]) -> float:
    """By what ranges grow after predictions missed by `scores` half-widths as calculated; never below 1.

    The larger of two answers: the spread of the scores, in which the calculation counts as four predictions that were
    just right, and, once ten came true, the 80 % quantile of their sizes.
    """
    if not scores:
        return 1.0
    squares = sum((TO_80 * one) ** 2 for one in scores)
    factor = math.sqrt((_WIDENING_FREEDOM + squares) / (_WIDENING_FREEDOM + len(scores)))
    if len(scores) >= 10:
        sizes = sorted(abs(one) for one in scores)
        factor = max(factor, sizes[math.ceil(0.8 * len(sizes)) - 1])
    return min(_MOST_WIDENING, max(1.0, factor))
