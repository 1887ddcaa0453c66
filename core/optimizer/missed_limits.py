"""Words for a budget or a deadline that is missed, with what would be possible.

A job that cannot keep a limit goes on, for its owner may rather have it late than not at all. But it must be said while
something can still be done about it: by how much it is missed, and the fastest or cheapest that the caps allow.
"""

from __future__ import annotations

import numpy as np

from trimtab.core.optimizer import words
from trimtab.core.optimizer.choice import Choice
from trimtab.core.optimizer.question import Question


def told_limits(question: Question) -> str:
    """'the deadline', 'the budget of $5.00', or both."""
    found = []
    if question.budget is not None:
        found.append(f"the budget of {words.money(question.budget, question.prices.currency)}")
    if question.deadline_seconds is not None:
        found.append("the deadline")
    return " and ".join(found)


def told_miss(question: Question, choice: Choice) -> str:
    """How the plan in force misses its limits, as the beginning of a sentence."""
    assert choice.present is not None, "asked for only where the present plan is in the lattice"
    found, here, plans = [], choice.present, choice.spending
    if plans.late[here] > 0 and question.deadline_seconds is not None:
        if question.time_seconds >= question.deadline_seconds:
            found.append("the deadline has passed")
        else:
            found.append(f"at this pace the job ends {_late(question, float(plans.ends[here]))}")
    if plans.dear[here] > 0 and question.budget is not None:
        budget = words.money(question.budget, question.prices.currency)
        if question.spent >= question.budget:
            found.append(f"the budget of {budget} is spent")
        else:
            cost = words.money(float(plans.costs[here]), question.prices.currency)
            pace = "" if found else "at this pace "
            found.append(f"{pace}the whole job costs {cost}, more than the budget of {budget}")
    text = " and ".join(found)
    return text[:1].upper() + text[1:]


def told_possible(question: Question, choice: Choice) -> str:
    """Whether a plan of `choice`, of all within the caps, keeps the limits, and what is possible at the most if not.

    By the low end of what is predicted.
    """
    kept = choice.best(choice.possible() & choice.spending.kept())
    if kept is not None:
        return f"{choice.lattice.plan(kept)} would keep {told_limits(question)}, more than one decision away"
    plans, usable = choice.spending, choice.possible()
    if choice.present is not None:
        usable[choice.present] = True
    index = np.flatnonzero(usable)
    fastest, cheapest = (int(index[int(np.argmin(each[index]))]) for each in (plans.ends, plans.costs))
    end = _late(question, float(plans.ends[fastest])) if question.deadline_seconds is not None else ""
    cost = words.money(float(plans.costs[cheapest]), question.prices.currency)
    fast, cheap = choice.lattice.plan(fastest), choice.lattice.plan(cheapest)
    none = "no plan within the caps keeps"
    if question.budget is None:
        return f"{none} the deadline: the fastest possible, {fast}, ends {end}"
    if question.deadline_seconds is None:
        budget = words.money(question.budget, question.prices.currency)
        return f"{none} the budget of {budget}: the cheapest possible, {cheap}, costs {cost}"
    dear = words.money(float(plans.costs[fastest]), question.prices.currency)
    late = _late(question, float(plans.ends[cheapest]))
    return (
        f"{none} both budget and deadline: the fastest possible, {fast}, ends {end} and costs {dear}; "
        f"the cheapest possible, {cheap}, ends {late} and costs {cost}"
    )


def _late(question: Question, ends: float) -> str:
    over = ends - (question.deadline_seconds or 0.0)
    return f"{words.seconds(over)} after the deadline" if over > 0 else "in time"
