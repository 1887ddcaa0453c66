"""The lattice with what each plan would bring, and which of them may be chosen.

Only plans on the front are ever chosen: among plans with the same cost, or the same throughput, the others lose by
definition, whatever the objective. What was measured worse than the present plan, what would turn a recent change
round, and what would miss budget or deadline while another plan keeps them, is not allowed; all of it is found here, so
that a decision has one place that says "not this one".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.core.domain.plan import Plan
from trimtab.core.optimizer import guard
from trimtab.core.optimizer.doubt import least_gain
from trimtab.core.optimizer.front import front_of
from trimtab.core.optimizer.lattice import Lattice, lattice, same
from trimtab.core.optimizer.objective import COST_WEIGHT, log_cost, scores
from trimtab.core.optimizer.question import Question
from trimtab.core.optimizer.spending import SLACK, Spending, spending
from trimtab.core.perf.fit import Fit
from trimtab.core.perf.iteration import Array, Shapes

_STEP_IN_CORES = 0.35  # in logs, per pod


@dataclass(frozen=True)
class Choice:
    """Plans that may follow, with predictions.

    Attributes:
        question, lattice: as asked. throughput: samples per second in the middle. score: by the objective.
        caution: how much less a plan may bring, in logs. switch: seconds of lost training to get there.
        barred: turning a recent change round, or what could not be had when it was tried.
        worse: measured no better than the plan in force.
        spending: what each would need of budget and deadline.
        slack: by how much the plan in force may seem to miss them before anything is done, in logs.
        doubt: the least gain in scores that other forms of the law say.
    """

    question: Question
    lattice: Lattice
    throughput: Array
    score: Array
    caution: Array
    switch: Array
    barred: np.ndarray
    worse: np.ndarray
    spending: Spending
    slack: float
    doubt: Array

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
        """The same with the low end of each plan's throughput, and at most what other forms of the law say."""
        return np.asarray(np.minimum(self.gains() - self.caution, self.doubt))

    def possible(self) -> np.ndarray:
        """What could be changed to at all."""
        open_ = ~self.barred & np.isfinite(self.throughput)
        if self.present is not None:
            open_[self.present] = False
        return np.asarray(open_)

    def allowed(self) -> np.ndarray:
        """What may be changed to for its score: nothing that misses budget or deadline while a plan keeps them."""
        among = self.possible() & ~self.worse
        if self.present is not None and not self.missing():
            return np.asarray(among & self.spending.kept())
        return self.keeping(among)

    def missing(self) -> bool:
        """Whether the plan in force misses budget or deadline, by more than its windows scatter."""
        return self.present is not None and float(self.spending.missed[self.present]) > self.slack

    def keeping(self, among: np.ndarray) -> np.ndarray:
        """Those of `among` that keep budget and deadline; those that miss them by the least where none does."""
        missed = self.spending.missed
        return np.asarray(among & (missed <= float(missed[among].min()) + 1e-12)) if among.any() else among

    def best(self, among: np.ndarray, by: Array | None = None) -> int | None:
        """The plan on the front of `among` with the highest score (or `by`); None where there is none."""
        index = np.flatnonzero(among & np.isfinite(self.throughput))
        if not len(index):
            return None
        if by is None:  # what is beaten in cost or throughput has a lower score: the best one is on the front
            return int(index[np.argmax(self.score[index])])
        on_front = index[front_of(self.lattice.cost[index], self.throughput[index])]
        return int(on_front[np.argmax(by[on_front])])

    def one_step(self) -> np.ndarray:
        """Plans that differ by one worker, or by one PS, or in cores alone, and in cores per pod by little."""
        plan, shapes = self.question.plan, self.shapes
        worker, ps = shapes.workers - plan.worker.replicas, shapes.ps - plan.ps.replicas
        near = np.abs(worker) + np.abs(ps) <= 1
        for cores, now in ((shapes.worker_cpu, plan.worker.cpu), (shapes.ps_cpu, plan.ps.cpu)):
            near &= (np.abs(np.log(cores / now)) <= _STEP_IN_CORES) | (np.abs(cores - now) < 0.1 + 1e-9)
        return np.asarray(near)

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
            self._fastest(everything),
        ]
        return [self.lattice.plan(one) for one in dict.fromkeys(picks) if one is not None]

    def _fastest(self, among: np.ndarray) -> int | None:
        index = np.flatnonzero(among)
        if not len(index):
            return None
        top = index[self.throughput[index] >= self.throughput[index].max()]
        return int(top[np.argmin(self.lattice.cost[top])])

    def _present(self) -> int:
        assert self.present is not None, "asked for only where the present plan is in the lattice"
        return self.present


def make_choice(question: Question, fit: Fit, everything: bool = False) -> Choice:
    """All plans that may follow `question.plan` (or all within the caps), judged by `fit`."""
    plans = lattice(question, everything)
    throughput = fit.throughput(plans.shapes)
    caution = fit.caution(plans.shapes)
    barred, worse = np.zeros(len(plans), bool), np.zeros(len(plans), bool)
    for row in guard.measured_worse(question, fit):
        worse |= same(row.plan, plans.shapes)
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
    doubt = least_gain(fit, shapes)
    if plans.present is not None:
        dearer = log_cost(plans.cost) - log_cost(plans.cost[plans.present])
        doubt = doubt - COST_WEIGHT[question.objective] * dearer
    barred |= guard.turned_round(question, shapes.workers, shapes.worker_cpu, shapes.ps, shapes.ps_cpu)
    switch = _switch_seconds(question, shapes)
    margin = np.where(np.isfinite(caution), caution, 0.0)
    if plans.present is not None:
        margin[plans.present] = 0.0
    return Choice(
        question, plans, throughput, scores(throughput, plans.cost, question.objective), caution,
        switch, barred, worse, spending(question, plans, throughput, margin, switch),
        SLACK + (fit.present.standard_error if fit.present is not None else 0.0), doubt,
    )  # fmt: skip


def _switch_seconds(question: Question, shapes: Shapes) -> Array:
    """`guard.switch_cost` of each plan; there are four cases."""
    plan = question.plan
    workers, ps = shapes.workers != plan.worker.replicas, shapes.ps != plan.ps.replicas
    cost = np.zeros(len(workers))
    for kind, here in (("worker", workers), ("ps", ps), ("cpu", ~workers & ~ps & ~same(plan, shapes))):
        cost += here * guard.seconds_of(question, kind)
    return cost
