"""The one answer to "should the plan change?", from the question alone.

In this order: a change that was measured to be wrong is taken back; a table that will not fit is given room; else the
best plan of the lattice is compared with the present one by the guard; and where the law is blind at what decides, one
step is taken to look, if enough work is left for it to pay. Every answer says why, with its numbers, also "keep".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trimtab.core.domain.plan import Plan, within
from trimtab.core.domain.quantities import format_memory
from trimtab.core.domain.records import Considered, Decision, Range
from trimtab.core.optimizer import guard, words
from trimtab.core.optimizer.choice import Choice, make_choice
from trimtab.core.optimizer.lattice import needed_ps, same, table_to_hold
from trimtab.core.optimizer.missed_limits import told_limits, told_miss, told_possible
from trimtab.core.optimizer.question import Question
from trimtab.core.perf.fit import Fit, fit
from trimtab.core.perf.iteration import Setting
from trimtab.core.perf.ranges import scored

MOST_PROBES = 3
_PROBE_FACTOR = 4.0  # what a probe may earn against what it costs
_PROBE_GAIN = 0.12  # in scores: less could not be told from noise in a few windows
_LEAST_OBSERVED_SECONDS = 1.5
_PROBE_ODDS = 4.0  # times what a step to look may lose by the worst form of the law, it must promise


def decide(question: Question) -> Decision:
    """The decision for `question`: kind hold, grow, shrink or replace, not numbered yet. Pure."""
    setting = Setting(question.cpu_enforced, question.limits.cpu or math.inf, question.period_seconds)
    fitted = fit(
        question.observations, question.prior, question.plan, question.batch_size, question.time_seconds,
        guard.changes(question), setting, scored(question.decisions),
    )  # fmt: skip
    if fitted is None:
        return _bare_hold(question, f"{question.plan} has not been measured yet: keep it until it has.")
    return _Deciding(question, fitted).answer()


def _bare_hold(question: Question, reason: str) -> Decision:
    plan = question.plan
    return Decision(question.time_seconds, "hold", plan, reason, action=f"Keep {plan}", before=plan)


@dataclass(frozen=True)
class _Deciding:
    question: Question
    fit: Fit

    def answer(self) -> Decision:
        question, fit = self.question, self.fit
        choice = make_choice(question, fit)
        needed = needed_ps(question)
        if needed > question.plan.ps.replicas:
            return self._room_for_table(choice, needed)
        if fit.present is None or fit.present.observed_seconds < _LEAST_OBSERVED_SECONDS:
            return self._hold(choice, f"{question.plan} has not been measured since it came into force: keep it.")
        wrong = guard.gone_wrong(question, fit)
        if wrong is not None and not self._needed(choice, wrong) and not self._forced(wrong):
            return self._go_back(choice, wrong)
        if choice.missing():
            return self._keep_limits(choice)
        open_ = guard.unproven(question, fit)
        if open_ is not None:
            then, now = (words.rate(one.measured_throughput) for one in (open_.earlier, open_.now))
            reason = f"The last change has not shown yet what it brings: {now} samples/s now, {then} before."
            return self._hold(choice, reason)
        return self._compare(choice)

    def _compare(self, choice: Choice) -> Decision:
        question = self.question
        if choice.present is None:
            return self._hold(choice, f"{question.plan} is outside the caps; it stays until it is changed by hand.")
        left = guard.seconds_left(question, choice.throughput[choice.present])
        gains, cautious = choice.gains(), choice.cautious_gains()
        allowed = choice.allowed()
        pays = guard.worths(cautious, left) > guard.SWITCH_MARGIN * choice.switch
        enough = allowed & (gains >= guard.LEAST_GAIN) & (cautious > 0)
        best = choice.best(allowed)
        if best is not None and (enough & pays)[best]:
            return self._change(choice, best, left)
        sure = choice.best(enough & pays, cautious)
        if sure is not None:
            return self._change(choice, sure, left)
        if best is None or gains[best] < guard.LEAST_GAIN:
            return self._hold(choice, self._nothing_better(choice, best))
        probe = self._probe(choice, allowed, gains, left)
        if probe is not None:
            return self._change(choice, probe, left, probe=True)
        return self._hold(choice, self._not_worth(choice, best, float(cautious[best]), float(gains[best]), left))

    def _needed(self, choice: Choice, wrong: guard.Verdict) -> bool:
        """Whether going back would miss budget or deadline by more than the plan in force does."""
        missed = choice.spending.missed
        there = missed[same(wrong.back_to, choice.shapes)]
        return choice.present is not None and bool(np.any(there > missed[choice.present] + choice.slack))

    def _forced(self, wrong: guard.Verdict) -> bool:
        """Whether the plan before had to be left, because it is over the caps now, and nobody promised anything."""
        return wrong.change.predicted is None and not within(wrong.back_to, self.question.limits)

    def _keep_limits(self, choice: Choice) -> Decision:
        """The best plan that keeps budget and deadline, where the present one does not; else the least miss."""
        assert choice.present is not None, "asked for only where the present plan is in the lattice"
        missed, possible = choice.spending.missed, choice.possible()
        index = choice.best(choice.keeping(possible))
        said = told_miss(self.question, choice)
        if index is None or missed[index] > max(0.0, missed[choice.present] - guard.LEAST_GAIN):
            return self._hold(choice, f"{said}; {self._possible()}. No change would miss by less now.")
        plan = choice.lattice.plan(index)
        predicted, now = self.fit.range(plan), self.fit.range(self.question.plan)
        brings = words.expectation(predicted, predicted.middle / now.middle)
        if missed[index] > 1e-12:
            said += f"; {self._possible()}; this should bring {brings} and miss by less"
        else:
            said += f"; this should bring {brings} and keep {told_limits(self.question)}"
        return self._made(choice, plan, said + ".", index)

    def _possible(self) -> str:
        return told_possible(self.question, make_choice(self.question, self.fit, everything=True))

    def _probe(self, choice: Choice, allowed: np.ndarray, gains: np.ndarray, left: float) -> int | None:
        """One step to look at, where what decides is held and the work that is left may earn it back."""
        question, fit = self.question, self.fit
        if sum(one.probe for one in question.decisions) >= MOST_PROBES or question.batches_left <= 0:
            return None
        visited = {row.plan for row in fit.rows}
        blind = len(visited) < 2 or self._uses() is None
        held_ps = any(one.endswith("per PS") for one in fit.held)
        steps = allowed & choice.one_step() & (gains >= _PROBE_GAIN)
        if not blind:
            steps &= (choice.shapes.ps != question.plan.ps.replicas) & held_ps
        steps &= guard.worths(gains, left) > _PROBE_FACTOR * choice.switch
        steps &= gains + _PROBE_ODDS * choice.doubt > 0
        index = choice.best(steps)
        return None if index is None or choice.lattice.plan(index) in visited else index

    def _change(self, choice: Choice, index: int, left: float, probe: bool = False) -> Decision:
        question = self.question
        before, plan = question.plan, choice.lattice.plan(index)
        predicted = self.fit.range(plan)
        now = self.fit.range(before)
        brings = words.expectation(predicted, predicted.middle / now.middle)
        wanted = words.target(before, plan)
        cost = question.prices.per_hour(plan) / max(1e-300, question.prices.per_hour(before))
        if probe:
            reason = (
                f"{self._limit()}; whether {wanted} help is not known yet: the law says {brings}, "
                f"and {words.seconds(left)} of work are left to find out"
            )
        elif predicted.middle < now.middle:
            loss = words.more_or_less(predicted.middle / now.middle)
            reason = f"{self._limit()}; this should bring {loss} for {words.more_or_less(cost)} cost"
        else:
            reason = f"{self._limit()}; this should bring {brings}"
        return self._made(choice, plan, reason + ".", index, probe=probe)

    def _go_back(self, choice: Choice, wrong: guard.Verdict) -> Decision:
        question = self.question
        left = guard.seconds_left(question, wrong.now.throughput)
        cost = guard.switch_cost(question, wrong.back_to)
        then, now = (words.rate(one.measured_throughput) for one in (wrong.earlier, wrong.now))
        measured = f"{wrong.now.plan} brings {now} samples/s, {wrong.back_to} brought {then}"
        if wrong.now.throughput > wrong.earlier.throughput:
            measured += f": too little for {words.more_or_less(self._cost_ratio(wrong))} cost"
        fits = _within(question, wrong.back_to)
        if not fits or guard.worth(wrong.difference, left) <= guard.SWITCH_MARGIN * cost:
            why = "is outside the caps now" if not fits else f"would not pay with {words.seconds(left)} of work left"
            return self._hold(choice, f"{measured}; going back {why}.")
        tried = "The step to look did not pay" if wrong.change.probe else "The change did not pay"
        return self._made(choice, wrong.back_to, f"{tried}: {measured}. Back to {wrong.back_to}.", None)

    def _cost_ratio(self, wrong: guard.Verdict) -> float:
        prices = self.question.prices
        return prices.per_hour(wrong.now.plan) / max(1e-300, prices.per_hour(wrong.back_to))

    def _room_for_table(self, choice: Choice, needed: int) -> Decision:
        question = self.question
        table = format_mebi(table_to_hold(question))
        reason = f"The table will reach {table}; {words.count(needed, 'PS')} of the present size hold it"
        index = choice.best(choice.keeping(choice.possible() & (choice.shapes.ps > question.plan.ps.replicas)))
        if index is None:
            return self._hold(choice, f"{reason}, but the caps do not allow more PSs: raise --max-ps or --max-memory.")
        return self._made(choice, choice.lattice.plan(index), reason + ".", index)

    def _nothing_better(self, choice: Choice, best: int | None) -> str:
        better = choice.best(choice.possible() & ~choice.worse)  # but for budget and deadline
        if better is not None and better != best and choice.gains()[better] >= guard.LEAST_GAIN:
            plan = choice.lattice.plan(better)
            predicted, present = self.fit.range(plan), self.fit.range(self.question.plan)
            brings = words.expectation(predicted, predicted.middle / present.middle)
            misses = self._misses(choice, plan).removeprefix("; ").replace("; would", " and")
            if misses:
                return f"{plan} would bring {brings}, but {misses}, by the low end of what is predicted."
        if best is None or choice.present is None or best == choice.present:
            return f"No other plan within the caps is predicted to be better than {self.question.plan}."
        plan = choice.lattice.plan(best)
        ratio = choice.throughput[best] / choice.throughput[choice.present]
        cost = choice.lattice.cost[best] / max(1e-300, choice.lattice.cost[choice.present])
        trade = f"{words.more_or_less(ratio)} throughput for {words.more_or_less(cost)} cost"
        cap = self.question.limits.cpu or math.inf
        full = f"The cap of {cap:g} cores is used up; the" if self.question.plan.cpu > 0.95 * cap else "The"
        return f"{full} best other plan, {plan}, would bring {trade}: too little for a change."

    def _not_worth(self, choice: Choice, best: int, cautious: float, gain: float, left: float) -> str:
        plan = choice.lattice.plan(best)
        predicted = self.fit.range(plan)
        present = self.fit.range(self.question.plan)
        brings = words.expectation(predicted, predicted.middle / present.middle)
        if cautious <= 0:
            return f"{plan} may bring {brings}, but that is not sure enough for a change."
        cost = float(choice.switch[best])
        saves = max(0.0, guard.worth(gain, left))
        return (
            f"{plan} would bring {brings}, but {words.seconds(left)} of work are left: "
            f"it would save {words.seconds(saves)} at most and cost {words.seconds(cost)}."
        )

    def _hold(self, choice: Choice, reason: str) -> Decision:
        return self._made(choice, self.question.plan, reason, choice.present)

    def _made(self, choice: Choice, plan: Plan, reason: str, index: int | None, probe: bool = False) -> Decision:
        question, fit = self.question, self.fit
        present = fit.range(question.plan)
        return Decision(
            question.time_seconds, words.kind_of(question.plan, plan), plan, reason,
            action=words.action(question.plan, plan), before=question.plan, evidence=self._evidence(plan),
            considered=self._considered(choice, plan, index), predicted=fit.range(plan), present=present,
            held=fit.held, probe=probe, law=fit.law_text,
        )  # fmt: skip

    def _considered(self, choice: Choice, plan: Plan, index: int | None) -> tuple[Considered, ...]:
        question, fit = self.question, self.fit
        plans = [plan, *([question.plan] if plan != question.plan else [])]
        plans += [one for one in choice.alternatives(index) if one not in plans]
        chosen = fit.range(plan)
        found = []
        for one in plans[:5]:
            predicted = fit.range(one)
            cost = question.prices.per_hour(one)
            why = "" if one == plan else self._why_not(choice, one, predicted, cost, plan, chosen)
            found.append(Considered(one, predicted, cost, one == plan, why))
        return tuple(found)

    def _misses(self, choice: Choice, one: Plan) -> str:
        found = np.flatnonzero(same(one, choice.shapes))
        if not len(found):
            return ""
        index, plans = int(found[0]), choice.spending
        text = ""
        if plans.late[index] > 0:
            text += f"; would end {words.seconds(plans.ends[index] - (self.question.deadline_seconds or 0))} too late"
        if plans.dear[index] > 0:
            text += f"; would cost {words.money(float(plans.costs[index]), self.question.prices.currency)} in all"
        return text

    def _why_not(self, choice: Choice, one: Plan, predicted: Range, cost: float, plan: Plan, chosen: Range) -> str:
        row = self.fit.measured(one)
        faster = predicted.middle / chosen.middle
        dearer = cost / max(1e-300, self.question.prices.per_hour(plan))
        text = f"{words.more_or_less(faster, 'faster', 'slower')} for {words.more_or_less(dearer)} cost"
        if row is not None:
            text += f" (measured {words.rate(row.measured_throughput)} samples/s)"
        text += self._misses(choice, one)
        if one != self.question.plan and guard.reverses(self.question, one):
            text += "; would turn a recent change round"
        return text

    def _limit(self) -> str:
        """What holds the job back, as measured: the busier role's use of its cores."""
        uses = self._uses()
        if uses is None:
            return "How much CPU the pods use is not known"
        worker, ps = uses
        if not self.question.cpu_enforced:
            used = worker * self.question.plan.worker.replicas + ps * self.question.plan.ps.replicas
            return f"The pods use {used:.1f} of {self.question.limits.cpu or 0:g} cores"
        plan = self.question.plan
        worker, ps = worker / plan.worker.cpu, ps / plan.ps.cpu
        return f"{'Workers' if worker >= ps else 'PSs'} use {words.share(max(worker, ps))} of their cores"

    def _uses(self) -> tuple[float, float] | None:
        """Cores that one worker and one PS of the plan in force used, None where not known."""
        row = self.fit.present
        if row is None or row.worker_cpu is None or row.ps_cpu is None:
            return None
        return row.worker_cpu / row.seconds, row.plan.worker.replicas * row.ps_cpu / row.seconds / row.plan.ps.replicas

    def _evidence(self, plan: Plan) -> tuple[str, ...]:
        question, fit = self.question, self.fit
        found = []
        row = fit.present
        if row is not None:
            windows = words.count(row.windows, "window")
            measured = f"{words.rate(row.throughput)} samples/s in {windows} ({words.seconds(row.observed_seconds)})"
            found.append(f"{row.plan} measured: {measured}")
            left = words.seconds(guard.seconds_left(question, row.throughput))
            found.append(f"{left} of work left at this pace")
        uses = self._uses()
        if uses is not None:
            limits = question.plan
            for name, used, cores in (("worker", uses[0], limits.worker.cpu), ("PS", uses[1], limits.ps.cpu)):
                of = f", {words.share(used / cores)} of its share" if question.cpu_enforced else ""
                found.append(f"each {name} used {used:.2f} cores{of}")
        if plan != question.plan:
            found.append(f"the change costs about {words.seconds(guard.switch_cost(question, plan))} of training")
        plans = len({row.plan for row in fit.rows})
        past = " and past runs" if question.prior else ""
        found.append(f"the law rests on {words.count(plans, 'plan')} of this job{past}")
        found.extend(fit.notes)
        return tuple(found)


def format_mebi(memory_bytes: float) -> str:
    """Bytes rounded up to a MiB, as a quantity."""
    return format_memory(max(1, math.ceil(memory_bytes / 2**20)) * 2**20)


def _within(question: Question, plan: Plan) -> bool:
    return within(plan, question.limits) and plan.ps.replicas >= needed_ps(question)
