"""What is told of a job before it starts, as plain data: plans with what each would bring, and what that rests on.

It is apart from how it is made, so that page, picture, table and the refusal of a limit that cannot be kept all read
the same numbers. A number that nothing measured supports is not in it: a preview without a level has ratios only.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Decision, Range
from trimtab.core.optimizer.question import Question


@dataclass(frozen=True)
class Outlook:
    """What one plan would bring over the whole job.

    Attributes:
        plan: the plan. batch_size: rows per batch.
        cost_per_hour: in the job's currency.
        throughput: samples per second; a multiple of the first plan's where the preview is `relative`.
        seconds, cost: of training all rows with it, the start not counted; None where the preview is `relative`.
        within: whether it keeps the caps.
        held: what about it alone could not be told from past runs.
    """

    plan: Plan
    batch_size: int
    cost_per_hour: float
    throughput: Range
    seconds: float | None
    cost: float | None
    within: bool = True
    held: tuple[str, ...] = ()


@dataclass(frozen=True)
class WhatIf:
    """A plan that someone asks about: what it names differs from the first plan."""

    workers: int | None = None
    ps: int | None = None
    worker_cpu: float | None = None
    ps_cpu: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class Preview:
    """A job before its start.

    Attributes:
        question: what was asked; its plan is the first plan. decision: for that plan, with its reason.
        rows: that the job trains on, all epochs together.
        relative: throughputs are multiples of the first plan's, for no past run gives a level.
        stated: ratios of plans are the stated ones; no window of a past run supports them.
        first: the first plan. best: the plan of the front that the objective, the budget and the deadline ask for.
        front: plans that no other one beats in cost and throughput, by rising cost. tried: plans that were compared.
        cloud: (cost per hour, throughput) of some of these.
        law: what predictions rest on, in a few words. rests_on: the same in sentences, with all else that was assumed.
        held: names of coefficients that past runs could not identify.
        notes: budget, deadline, and what went wrong on the way.
        what_if: plans that were asked about.
    """

    question: Question
    decision: Decision
    rows: int
    relative: bool
    stated: bool
    first: Outlook
    best: Outlook
    front: tuple[Outlook, ...]
    tried: int
    cloud: tuple[tuple[float, float], ...]
    law: str
    rests_on: tuple[str, ...]
    held: tuple[str, ...]
    notes: tuple[str, ...]
    what_if: tuple[Outlook, ...]

    @property
    def fastest(self) -> Outlook:
        """The fastest plan within the caps."""
        return self.front[-1] if self.front else self.first

    @property
    def cheapest(self) -> Outlook:
        """The plan that trains all rows for the least money."""
        return min((*self.front, self.first), key=lambda one: one.cost_per_hour / one.throughput.middle)
