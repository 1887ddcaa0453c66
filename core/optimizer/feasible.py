"""Whether a budget and a deadline can be kept at all, as past runs tell before a job starts.

A limit that no plan within the caps can keep is refused before anything is started, with the least that is possible.
But a prediction from past runs can be wrong, and a job that would have been in time must not be refused. So only what
is certain is refused: a limit that would be missed even if every plan were `OPTIMISM` times as fast as predicted, which
is three standard deviations of what such predictions were off by on another day (0.14 of the machine's drift and 0.11
of the law, in logarithms). Anything nearer is said, and tried.
"""

from __future__ import annotations

import math

from trimtab.core.errors import BadInput
from trimtab.core.optimizer.outlook import Outlook, Preview
from trimtab.core.optimizer.question import Question

OPTIMISM = math.exp(3 * math.hypot(0.14, 0.11))  # 1.7


def in_time(question: Question, one: Outlook) -> bool:
    """Whether a plan is predicted to keep the deadline; True where that is not known."""
    deadline = question.deadline_seconds
    return deadline is None or one.seconds is None or one.seconds <= deadline


def keeps_limits(question: Question, one: Outlook) -> bool:
    """Whether a plan is predicted to keep deadline and budget; True where that is not known."""
    dear = question.budget is not None and one.cost is not None and one.cost > question.budget
    return in_time(question, one) and not dear


def check_feasible(found: Preview, free: bool = True) -> None:
    """See that budget and deadline can be kept by some plan that the job may have.

    Args:
        found: of the job. free: whether its plan may change; else only the first plan counts.

    Raises:
        BadInput: past runs make it certain that one cannot; names the fastest, or the cheapest, that is possible.
    """
    question = found.question
    if found.stated:  # nothing is certain
        return
    fastest, cheapest = (found.fastest, found.cheapest) if free else (found.first, found.first)
    deadline, budget, currency = question.deadline_seconds, question.budget, question.prices.currency
    if deadline is not None and fastest.seconds is not None and fastest.seconds > deadline * OPTIMISM:
        needs = f"{_which('fastest', fastest, free)} is predicted to need {duration(fastest.seconds)}"
        remedy = f"{needs}; give at least that, {'raise the caps, ' if free else ''}or train fewer rows"
        raise BadInput("--deadline", time_text(deadline), remedy)
    if budget is not None and cheapest.cost is not None and cheapest.cost > budget * OPTIMISM:
        needs = f"{_which('cheapest', cheapest, free)} is predicted to cost {money(cheapest.cost, currency)}"
        raise BadInput("--budget", money(budget, currency), f"{needs}; give at least that, or train fewer rows")


def _which(word: str, one: Outlook, free: bool) -> str:
    if not free:
        return f"the plan that this mode keeps, {one.plan},"
    return f"no plan within the caps can keep it: the {word}, {one.plan},"


def limits_said(found: Preview) -> tuple[str, ...]:
    """What becomes of deadline and budget, by the predictions; one sentence each."""
    question, said = found.question, []
    if question.deadline_seconds is not None:
        known = (found.first.seconds, found.fastest.seconds)
        said.append(_said("deadline", question.deadline_seconds, known, found.fastest, "fastest", ""))
    if question.budget is not None:
        known = (found.first.cost, found.cheapest.cost)
        said.append(_said("budget", question.budget, known, found.cheapest, "cheapest", question.prices.currency))
    return tuple(said)


def _said(
    name: str, given: float, known: tuple[float | None, float | None], extreme: Outlook, word: str, currency: str
) -> str:
    first, most = known
    if first is None or most is None:
        return f"Whether the {name} can be kept is not known: no similar past run has been measured."

    def show(value: float) -> str:
        return money(value, currency) if currency else duration(value)

    needs = f"The first plan is predicted to need {show(first)} of the {name} of {show(given)}"
    if first <= given:
        return f"{needs}."
    keeps = "keeps it" if most <= given else "does not keep it either, by the middle of what is predicted"
    return f"{needs}, too much; the {word} plan within the caps, {extreme.plan}, needs {show(most)} and {keeps}."


def duration(seconds: float) -> str:
    """'45 s', '21 min', '2 h 7 min', rounded up."""
    if seconds < 120:
        return f"{math.ceil(seconds - 1e-9)} s"
    minutes = math.ceil(seconds / 60 - 1e-9)
    if minutes < 120:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h" + (f" {rest} min" if rest else "")


def time_text(seconds: float) -> str:
    """Seconds as an option takes them: '2h', '45m', '90s'."""
    for unit, letter in ((3600, "h"), (60, "m")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds // unit:g}{letter}"
    return f"{seconds:g}s"


def money(amount: float, currency: str) -> str:
    """'$0.042', '1.50 EUR': three significant digits below 1."""
    text = f"{amount:.2f}" if amount >= 1 else f"{amount:.3g}"
    return f"{currency}{text}" if len(currency) == 1 else f"{text} {currency}"
