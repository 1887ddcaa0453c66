"""The lattice with what each plan would bring, and which of them may be chosen.

Only plans on the front are ever chosen: among plans with the same cost, or the same throughput, the others lose by
definition, whatever the objective. What was measured worse than the present plan, and what would turn a recent change
round, is not allowed; both are found here, so that a decision has one place that says "not this one".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.core.domain.plan import Plan
from trimtab.core.optimizer import guard
from trimtab.core.optimizer.front import front_of
from trimtab.core.optimizer.lattice import Lattice, lattice, same
from trimtab.core.optimizer.objective import scores
from trimtab.core.optimizer.question import Question
from trimtab.core.perf.fit import Fit
from trimtab.core.perf.iteration import Array, Shapes


@dataclass(frozen=True)
class Choice:
    """Plans that may follow, with predictions.

    Attributes:
        question, lattice: as asked. throughput: samples per second in the middle. score: by the objective.
        caution: how much less a plan may bring, in logs. switch: seconds of lost training to get there.
        barred: measured worse, turning a recent change round, or without room for the tables when it was tried.
    """

    question: Question
    lattice: Lattice
    throughput: Array
    score: Array
    caution: Array
    switch: Array
    barred: np.ndarray

    @property
    def shapes(self) -> Shapes:
        """Replicas and cores of the plans."""
        return self.lattice.shapes

    @property
    def present(self) -> int | None:
        """Where the plan in force is."""
        return self.lattice.present

    def gains(self) -> Array:
        """Scores less that of the present plan."""
        return np.asarray(self.score - self.score[self._present()])

    def cautious_gains(self) -> Array:
        """The same with the low end of each plan's throughput."""
        return np.asarray(self.gains() - self.caution)

    def allowed(self) -> np.ndarray:
        """What may be changed to."""
        open_ = ~self.barred & np.isfinite(self.throughput)
        if self.present is not None:
            open_[self.present] = False
        return np.asarray(open_)

    def best(self, among: np.ndarray, by: Array | None = None) -> int | None:
        """The plan on the front of `among` with the highest score (or `by`); None where there is none."""
        index = np.flatnonzero(among)
        on_front = [int(index[one]) for one in front_of(self.lattice.cost[index], self.throughput[index])]
        values = self.score if by is None else by
        return max(on_front, key=lambda one: values[one]) if on_front else None

    def one_step(self) -> np.ndarray:
        """Plans that differ by one worker, or by one PS, or in cores alone."""
        plan, shapes = self.question.plan, self.shapes
        worker, ps = shapes.workers - plan.worker.replicas, shapes.ps - plan.ps.replicas
        return np.asarray(np.abs(worker) + np.abs(ps) <= 1)

    def alternatives(self, chosen: int | None) -> list[Plan]:
        """Plans a person would ask about: the next ones in workers and PSs, the fastest and the cheapest."""
        if not len(self.lattice):
            return []
        plan, shapes = self.question.plan, self.shapes
        if chosen is not None:
            plan = self.lattice.plan(chosen)
        everything = np.isfinite(self.throughput)
        same_ps, same_workers = shapes.ps == plan.ps.replicas, shapes.workers == plan.worker.replicas
        picks = [
            self.best(everything & same_ps & (shapes.workers == plan.worker.replicas + 1)),
            self.best(everything & same_workers & (shapes.ps == plan.ps.replicas + 1)),
            self.best(everything & same_ps & (shapes.workers == plan.worker.replicas - 1)),
            self.best(everything & same_workers & (shapes.ps == plan.ps.replicas - 1)),
            self.best(self.allowed()),
            self.best(everything, self.throughput),
        ]
        return [self.lattice.plan(one) for one in dict.fromkeys(picks) if one is not None]

    def _present(self) -> int:
        assert self.present is not None, "asked for only where the present plan is in the lattice"
        return self.present


def make_choice(question: Question, fit: Fit) -> Choice:
    """All plans that may follow `question.plan`, judged by `fit`."""
    plans = lattice(question)
    throughput = fit.throughput(plans.shapes)
    caution = fit.caution(plans.shapes)
    barred = np.zeros(len(plans), bool)
    for row in guard.measured_worse(question, fit):
        barred |= same(row.plan, plans.shapes)
    for one in question.decisions:
        before = one.before
        if not one.barred or before is None:
            continue
        # So many pods were asked for and could not be had: not again in this job.
        if before.ps.replicas > one.plan.ps.replicas:
            barred |= plans.shapes.ps >= before.ps.replicas
        if before.ps.replicas < one.plan.ps.replicas:  # so few could not hold the table
            barred |= plans.shapes.ps <= before.ps.replicas
        if before.worker.replicas > one.plan.worker.replicas:
            barred |= plans.shapes.workers >= before.worker.replicas
    shapes = plans.shapes
    barred |= guard.turned_round(question, shapes.workers, shapes.worker_cpu, shapes.ps, shapes.ps_cpu)
    return Choice(
        question, plans, throughput, scores(throughput, plans.cost, question.objective), caution,
        _switch_seconds(question, plans.shapes), barred,
    )  # fmt: skip


def _switch_seconds(question: Question, shapes: Shapes) -> Array:
    """`guard.switch_cost` of each plan; there are four cases."""
    plan = question.plan
    workers, ps = shapes.workers != plan.worker.replicas, shapes.ps != plan.ps.replicas
    cost = np.zeros(len(workers))
    for kind, here in (("worker", workers), ("ps", ps), ("cpu", ~workers & ~ps & ~same(plan, shapes))):
        cost += here * guard.seconds_of(question, kind)
    return cost
