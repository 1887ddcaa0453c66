"""Budget and deadline, and what other forms of the law say: the parts of a decision that keep a job from harm."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_questions import BATCH, GIB, LARGE, SMALL, plan, question, windows

from trimtab.core.domain.job import Objective
from trimtab.core.domain.plan import Limits, Prices
from trimtab.core.domain.records import Decision
from trimtab.core.optimizer import guard
from trimtab.core.optimizer.decide import decide
from trimtab.core.optimizer.doubt import least_gain
from trimtab.core.optimizer.lattice import lattice
from trimtab.core.optimizer.spending import spending
from trimtab.core.perf.fit import fit
from trimtab.core.perf.iteration import Setting, Shapes

WIDE = Limits(6.0, 24 * GIB, 8, 3)


def fitted(asked, changes=()):
    setting = Setting(asked.cpu_enforced, asked.limits.cpu or math.inf, asked.period_seconds)
    return fit(asked.observations, (), asked.plan, BATCH, asked.time_seconds, changes, setting)


# ---------------------------------------------------------------- deadline and budget


def needs(asked, one):
    """Seconds from the job's start and money, by the low end of the prediction, the pause included."""
    predicted = fitted(asked)
    shapes = Shapes.of([one])
    low = float(predicted.throughput(shapes)[0] * np.exp(-predicted.caution(shapes)[0]))
    left = guard.switch_cost(asked, one) + asked.batches_left * BATCH / low
    return asked.time_seconds + left, asked.spent + asked.prices.per_hour(one) * left / 3600


@pytest.mark.parametrize("objective", list(Objective))
def test_a_job_that_would_be_late_speeds_up_whatever_its_objective(objective):
    asked = question(limits=WIDE, objective=objective, deadline_seconds=1700.0)
    made = decide(asked)
    assert made.kind in ("grow", "replace")
    assert made.reason.startswith("At this pace the job ends 11 min after the deadline; this should bring ")
    assert made.reason.endswith("and keep the deadline.")
    assert needs(asked, made.plan)[0] <= 1700.0
    assert "too late" in next(one.why_not for one in made.considered if one.plan == SMALL)


def test_cheapest_takes_the_cheapest_plan_that_meets_the_deadline():
    """Late at 1 GiB-hour prices that make every further worker dearer per sample."""
    dear = {"limits": WIDE, "prices": Prices(0.04, 1.0), "objective": Objective.CHEAPEST}
    now = plan(2, 0.5, 1, 0.5)
    seen = windows(now, 0.037, 3.0, worker=0.018, ps=0.004)
    asked = question(plan=now, observations=seen, **dear, deadline_seconds=1500.0)
    made = decide(asked)
    assert made.kind != "hold" and needs(asked, made.plan)[0] <= 1500.0
    plans = lattice(asked)
    prices = asked.prices
    rate = fitted(asked).throughput(plans.shapes)
    mine = prices.per_hour(made.plan) / made.predicted.middle
    keep = [i for i in range(len(plans)) if needs(asked, plans.plan(i))[0] <= 1500.0]
    assert mine <= min(plans.cost[i] / rate[i] for i in keep) * 1.02


def test_a_plan_over_the_budget_is_not_chosen_while_one_within_it_exists():
    free = decide(question(limits=WIDE, objective=Objective.FASTEST))
    cost = needs(question(limits=WIDE), free.plan)[1]
    asked = question(limits=WIDE, objective=Objective.FASTEST, budget=0.95 * cost)
    tight = decide(asked)
    assert tight.plan not in (free.plan, SMALL)
    assert needs(asked, tight.plan)[1] <= asked.budget
    assert any("in all" in one.why_not for one in tight.considered)


def test_a_deadline_that_no_plan_keeps_is_missed_by_the_least_and_said():
    made = decide(question(deadline_seconds=600.0, objective=Objective.CHEAPEST))
    assert made.plan == LARGE
    assert "no plan within the caps keeps the deadline: the fastest possible, 2 × 0.8 + 1 × 0.4, ends " in made.reason
    assert made.reason.endswith("and miss by less.")
    there = question(plan=LARGE, observations=windows(LARGE, 0.0245, 3.0), deadline_seconds=600.0)
    stays = decide(there)
    assert stays.kind == "hold" and "the fastest possible, " in stays.reason
    assert stays.reason.endswith("No change would miss by less now.")


def test_growth_towards_a_plan_that_keeps_the_deadline_says_that_it_is_a_step():
    """Three times the speed are more than one decision away: at most twice the workers at a time."""
    made = decide(question(limits=Limits(16.0, 64 * GIB, 16, 6), deadline_seconds=900.0))
    assert made.plan.worker.replicas == 2
    assert "would keep the deadline, more than one decision away; this should bring " in made.reason


def test_a_budget_that_is_spent_and_a_deadline_that_has_passed_are_said_and_the_job_goes_on():
    spent = decide(question(budget=0.01, spent=0.02))
    assert spent.reason.startswith("The budget of $0.010 is spent; no plan within the caps keeps the budget of $0.01")
    assert "the cheapest possible, " in spent.reason
    passed = decide(question(deadline_seconds=10.0))
    assert passed.reason.startswith("The deadline has passed; no plan within the caps keeps the deadline")


def test_limits_that_exclude_each_other_are_said_together():
    made = decide(question(budget=0.03, deadline_seconds=1000.0))
    assert "no plan within the caps keeps both budget and deadline: the fastest possible, " in made.reason
    assert "; the cheapest possible, " in made.reason and " and costs $0.03" in made.reason
    assert made.reason.startswith("At this pace the job ends ") and "and the whole job costs $0.041" in made.reason


def test_a_better_plan_that_the_budget_excludes_is_named():
    now = plan(2, 0.8, 1, 0.4)
    asked = question(plan=now, observations=windows(now, 0.0245, 3.0), limits=WIDE, objective=Objective.FASTEST)
    better = decide(asked)
    assert better.kind != "hold"
    present = needs(asked, now)[1]
    kept = decide(replace(asked, budget=1.05 * present))
    assert kept.plan == now or needs(asked, kept.plan)[1] <= 1.05 * present
    assert "in all" in kept.reason or kept.plan != now


def test_a_change_for_the_deadline_is_not_taken_back_for_its_score():
    """Cheapest: twice the speed for three times the cost is worse, but it is what keeps the deadline."""
    dear = plan(2, 1.0, 1, 1.0)
    seen = (*windows(SMALL, 0.0235, 3.0), *windows(dear, 0.026, 15.0, 6))
    grown = Decision(13.0, "grow", dear, "late.", 1, before=SMALL, switch_seconds=1.5)
    asked = question(
        plan=dear, observations=seen, time_seconds=34.0, decisions=(grown,), objective=Objective.CHEAPEST,
        prices=Prices(0.4, 0.0001), limits=WIDE,
    )  # fmt: skip
    assert decide(asked).plan == SMALL, "without a deadline it is taken back"
    assert decide(replace(asked, deadline_seconds=1800.0)).plan != SMALL


def test_without_limits_nothing_is_missed():
    asked = question()
    plans = lattice(asked)
    ones = np.ones(len(plans))
    found = spending(asked, plans, 1e4 * ones, 0.1 * ones, ones)
    assert not found.missed.any() and found.kept().all()
    assert np.all(found.costs > 0) and np.all(found.ends > asked.time_seconds)


@settings(max_examples=30, deadline=None)
@given(
    st.none() | st.floats(1e-4, 10), st.floats(0, 10), st.none() | st.floats(1, 1e5), st.sampled_from(list(Objective)),
    st.booleans(), st.integers(0, 10**6),
)  # fmt: skip
def test_a_chosen_plan_keeps_the_limits_while_one_does(budget, spent, deadline, objective, knows, left):
    seen = windows(SMALL, 0.0235, 3.0)
    if not knows:
        seen = tuple(replace(one, worker_cpu_seconds=None, ps_cpu_seconds=None) for one in seen)
    asked = question(
        budget=budget, spent=spent, deadline_seconds=deadline, objective=objective, limits=WIDE, observations=seen,
        batches_left=left,
    )  # fmt: skip
    made = decide(asked)
    assert made.reason.endswith(".") and "nan" not in made.reason and "inf" not in made.reason
    if made.plan == SMALL:
        return

    def missed(one):
        ends, costs = needs(asked, one)
        late = max(0.0, math.log(ends / deadline)) if deadline else 0.0
        return late + (max(0.0, math.log(costs / budget)) if budget else 0.0)

    plans = lattice(asked)
    some = [plans.plan(index) for index in range(0, len(plans), 37)]
    least = min(missed(one) for one in some if one != SMALL)
    assert missed(made.plan) <= least + 1e-6


# ---------------------------------------------------------------- other forms of the law


def test_without_cpu_figures_only_what_keeps_the_proportions_cannot_lose():
    blind = tuple(replace(one, worker_cpu_seconds=None, ps_cpu_seconds=None) for one in windows(SMALL, 0.0235, 3.0))
    asked = question(observations=blind, limits=WIDE)
    shapes = Shapes.of([plan(2, 1.0, 2, 0.3), plan(2, 1.0, 1, 0.3), plan(1, 1.0, 2, 0.3), plan(1, 0.5, 1, 0.3)])
    both, workers, ps, slower = least_gain(fitted(asked), shapes)
    assert both == pytest.approx(math.log(2)), "twice of everything is twice as fast"
    assert workers == pytest.approx(0.0), "the servers may have been what held it back"
    assert ps == pytest.approx(0.0), "or the workers"
    assert slower == pytest.approx(-math.log(2))


def test_a_balanced_job_of_unknown_cpu_grows_in_proportion():
    blind = tuple(replace(one, worker_cpu_seconds=None, ps_cpu_seconds=None) for one in windows(SMALL, 0.0235, 3.0))
    made = decide(question(observations=blind, limits=WIDE))
    assert (made.plan.worker.replicas, made.plan.ps.replicas) == (2, 2)


def test_cpu_that_explains_half_of_the_time_leaves_open_what_the_other_half_is():
    """Steps take twice what the CPU needs: four workers may bring four times as much, or hardly more than one."""
    shapes = Shapes.of([plan(4, 1.0, 1, 1.0), plan(1, 1.0, 1, 1.0)])
    explained = least_gain(fitted(question(limits=WIDE)), shapes)
    half = least_gain(fitted(question(limits=WIDE, observations=windows(SMALL, 0.06, 3.0))), shapes)
    assert half[0] < explained[0] - 0.2
    assert half[1] >= -1e-9


def test_what_another_plan_measured_contradicts_has_no_say():
    """Without CPU figures, two workers were measured twice as fast as one: the servers do not hold it back."""
    pair = plan(2, 1.0, 1, 0.3)
    seen = (*windows(pair, 0.0235, 3.0), *windows(SMALL, 0.0235, 15.0))
    blind = tuple(replace(one, worker_cpu_seconds=None, ps_cpu_seconds=None) for one in seen)
    asked = question(observations=blind, limits=WIDE, time_seconds=25.0)
    alone = replace(asked, observations=blind[3:])
    shapes = Shapes.of([pair])
    assert least_gain(fitted(alone), shapes)[0] == pytest.approx(0.0)
    assert least_gain(fitted(asked, ((13.0, 14.5),)), shapes)[0] > 0.4


def test_what_was_measured_in_another_hour_contradicts_less():
    """In between the machine may have changed by as much as a form misses the other plan."""
    pair, gains = plan(2, 1.0, 1, 0.3), []
    for now in (15.0, 1500.0):
        seen = (*windows(pair, 0.030, 3.0, 8), *windows(SMALL, 0.0235, now + 15.0, 8))
        blind = tuple(replace(one, worker_cpu_seconds=None, ps_cpu_seconds=None) for one in seen)
        asked = question(observations=blind, limits=WIDE, time_seconds=now + 40.0)
        gains.append(least_gain(fitted(asked, ((28.0, 29.5),)), Shapes.of([pair]))[0])
    assert gains[0] > 0.25 and gains[1] < 0.2


def test_without_a_recent_window_there_is_nothing_to_rest_on():
    asked = question(plan=LARGE)
    assert np.all(np.isneginf(least_gain(fitted(asked), Shapes.of([SMALL, LARGE]))))


def test_the_verdict_on_a_change_does_not_move_with_the_machine():
    """Half an hour later everything is faster, or slower: the plans were measured side by side before."""
    grown, found = Decision(13.0, "grow", LARGE, "it pays.", 1, before=SMALL, switch_seconds=1.5), []
    seen = (*windows(SMALL, 0.0235, 3.0), *windows(LARGE, 0.040, 15.0, 20))
    for factor in (None, 0.7, 1.0, 1.4):
        late = windows(LARGE, 0.040 * (factor or 1), 1600.0, 10, 0.018 * (factor or 1), 0.004 * (factor or 1))
        observed = (*seen, *late) if factor else seen
        asked = question(
            plan=LARGE, observations=observed, time_seconds=observed[-1].time_seconds, decisions=(grown,)
        )  # fmt: skip
        found.append(guard.judged(asked, fitted(asked, ((13.0, 14.5),))).difference)
    assert found[0] > 0.05
    assert found[1:] == pytest.approx([found[0]] * 3, abs=0.02)


def test_the_way_back_needs_more_than_one_unlucky_window():
    """Two windows 19 % below what was before, in scores, are within what windows scatter; eight are not."""
    grown = Decision(13.0, "grow", LARGE, "it pays.", 1, before=SMALL, switch_seconds=1.5)
    few = (*windows(SMALL, 0.0235, 3.0), *windows(LARGE, 0.0460, 15.0, 2))
    many = (*windows(SMALL, 0.0235, 3.0), *windows(LARGE, 0.0460, 15.0, 8))
    asked = question(plan=LARGE, observations=few, time_seconds=21.5, decisions=(grown,))
    assert decide(asked).plan == LARGE
    assert decide(replace(asked, observations=many, time_seconds=39.5)).plan == SMALL
