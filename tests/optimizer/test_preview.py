"""A job before its start: the level is what past runs measured, nothing has a range, nobody beats the front."""

import math
from dataclasses import replace

import numpy as np
import pytest

from trimtab.core.domain.job import Objective
from trimtab.core.domain.plan import Limits, Plan, Prices, RolePlan, ps_memory_for, table_room
from trimtab.core.domain.records import Decision, Observation, Range
from trimtab.core.errors import BadInput
from trimtab.core.optimizer.feasible import OPTIMISM, check_feasible, duration, money, time_text
from trimtab.core.optimizer.lattice import TABLE_SKEW
from trimtab.core.optimizer.outlook import WhatIf
from trimtab.core.optimizer.preview import (
    COLD,
    NO_RANGE,
    OTHER_BATCH,
    STATED_LEVEL,
    front_considered,
    preview,
    start_considered,
)
from trimtab.core.optimizer.preview import thinned as thin
from trimtab.core.optimizer.question import Question
from trimtab.core.perf.iteration import Demand, throughput

MIB = 2**20
BATCH, ROWS = 512, 1_024_000
FIRST = Plan(RolePlan(1, 0.3, 300 * MIB), RolePlan(1, 0.8, 800 * MIB))
WIDE = Plan(RolePlan(1, 0.5, 300 * MIB), RolePlan(2, 0.6, 800 * MIB))
DEMAND = Demand(0.008, 0.003)
LIMITS = Limits(2.0, 8 * 1024 * MIB, 4, 2)


def observation(plan, at, factor=1.0):
    """A window of a past run, as the law says it, on a machine that is `factor` times as fast."""
    speed = factor * throughput(DEMAND, plan, BATCH, 0.02)
    workers = plan.worker.replicas
    assert workers
    return Observation(plan, speed, DEMAND.worker, DEMAND.ps, BATCH, at, 5.0, 50)


def question(prior=True, factor=1.0, **more):
    windows = [observation(plan, 10.0 * (at + 1), factor) for at, plan in enumerate([FIRST] * 3 + [WIDE] * 3)]
    asked = Question(
        0.0, FIRST, BATCH, ROWS // BATCH, (), tuple(windows) if prior else (), LIMITS, Objective.BALANCED, Prices(), (),
        {},
    )  # fmt: skip
    return replace(asked, **more)


def decision(predicted=None):
    return Decision(0.0, "start", FIRST, "because.", 1, f"Start with {FIRST}", predicted=predicted)


def look(asked, predicted=None, **more):
    return preview(asked, decision(predicted), ROWS, ("run-a", "run-b"), **more)


def test_the_level_is_what_past_runs_measured():
    for factor in (0.5, 1.0, 2.0):
        found = look(question(factor=factor))
        measured = factor * throughput(DEMAND, FIRST, BATCH, 0.02)
        assert not found.relative
        assert found.first.throughput.middle == pytest.approx(measured, rel=0.15)
        assert found.first.seconds == pytest.approx(ROWS / found.first.throughput.middle)
        assert found.first.cost == pytest.approx(Prices().per_hour(FIRST) * found.first.seconds / 3600)


def test_what_similar_runs_measured_with_the_first_plan_counts_before_the_law():
    found = look(question(), Range(12_345.0))
    assert found.first.throughput.middle == pytest.approx(12_345.0)
    doubled = look(question(), Range(24_690.0))
    ratios = [b.throughput.middle / a.throughput.middle for a, b in zip(found.front, doubled.front, strict=True)]
    assert ratios == pytest.approx([2.0] * len(ratios)), "one level for all plans"


def test_nothing_has_a_range_and_that_is_said():
    found = look(question(), Range(12_345.0), what_ifs=[WhatIf(workers=2)])
    assert NO_RANGE in found.rests_on and any("run-a, run-b" in text for text in found.rests_on)
    every = (found.first, found.best, *found.front, *found.what_if)
    assert {(one.throughput.low, one.throughput.high) for one in every} == {(None, None)}


def test_without_past_runs_there_are_ratios_and_no_seconds_and_no_money_of_the_whole_job():
    found = look(question(prior=False), what_ifs=[WhatIf(workers=2, ps=1)])
    assert found.relative and found.rests_on[0] == COLD
    assert found.first.throughput.middle == pytest.approx(1.0)
    every = (found.first, found.best, *found.front, *found.what_if)
    assert {(one.seconds, one.cost) for one in every} == {(None, None)}
    assert start_considered(found) == front_considered(found) == ()
    assert found.held, "all that is only stated is named"


def test_past_runs_too_short_for_a_window_give_the_level_and_nothing_is_certain():
    found = look(question(prior=False, deadline_seconds=1e-3, budget=1e-9), Range(5_000.0))
    assert not found.relative and found.stated and found.rests_on[0].startswith(STATED_LEVEL)
    assert NO_RANGE in found.rests_on
    assert found.first.throughput == Range(pytest.approx(5_000.0)) and found.first.seconds == pytest.approx(ROWS / 5e3)
    cold = look(question(prior=False))
    assert found.fastest.throughput.middle == pytest.approx(5_000.0 * cold.fastest.throughput.middle)
    check_feasible(found)


@pytest.mark.parametrize("prior", [True, False])
@pytest.mark.parametrize("enforced", [True, False])
def test_the_front_is_what_nobody_beats_within_the_caps(prior, enforced):
    found = look(question(prior, cpu_enforced=enforced))
    costs = [one.cost_per_hour for one in found.front]
    speeds = [one.throughput.middle for one in found.front]
    assert costs == sorted(costs) and speeds == sorted(speeds) and len(set(speeds)) == len(speeds)
    assert all(one.within for one in found.front)
    cloud = np.array(found.cloud)
    assert len(cloud) == found.tried, "small enough to be shown whole"
    for cost, speed in cloud:
        below = [one.throughput.middle for one in found.front if one.cost_per_hour <= cost + 1e-12]
        assert max(below) >= speed - 1e-9
    assert found.fastest.throughput.middle == pytest.approx(cloud[:, 1].max())


def test_the_front_reaches_the_caps_and_not_only_twice_the_first_plan():
    found = look(question(limits=Limits(8.0, 64 * 1024 * MIB, 8, 2)))
    assert max(one.plan.worker.replicas for one in found.front) > 2 * FIRST.worker.replicas
    assert all(one.plan.worker.memory_bytes == FIRST.worker.memory_bytes for one in found.front)


def test_the_objective_picks_from_the_front():
    fastest = look(question(objective=Objective.FASTEST))
    cheapest = look(question(objective=Objective.CHEAPEST))
    assert fastest.best.throughput.middle >= 0.95 * fastest.fastest.throughput.middle
    assert cheapest.best.cost == pytest.approx(cheapest.cheapest.cost, rel=0.01)
    assert fastest.best.cost_per_hour >= look(question()).best.cost_per_hour >= cheapest.best.cost_per_hour


def test_budget_and_deadline_bound_the_pick():
    free = look(question(objective=Objective.CHEAPEST))
    hurried = look(question(objective=Objective.CHEAPEST, deadline_seconds=1.01 * free.fastest.seconds))
    assert free.best.seconds > 1.01 * free.fastest.seconds, "or the deadline would change nothing"
    assert hurried.best.seconds <= 1.01 * free.fastest.seconds
    rich = look(question(objective=Objective.FASTEST))
    poor = look(question(objective=Objective.FASTEST, budget=1.01 * rich.cheapest.cost))
    assert poor.best.cost <= 1.01 * rich.cheapest.cost
    never = look(question(deadline_seconds=0.9 * free.fastest.seconds))
    assert never.best == never.fastest, "as near as can be"


def test_what_becomes_of_deadline_and_budget_is_said():
    found = look(question())
    for asked, text in (
        (question(deadline_seconds=2 * found.first.seconds), "of the deadline of"),
        (question(deadline_seconds=0.99 * found.first.seconds), f"fastest plan within the caps, {found.fastest.plan}"),
        (question(budget=0.99 * found.first.cost), f"cheapest plan within the caps, {found.cheapest.plan}"),
        (question(prior=False, budget=1.0), "Whether the budget can be kept is not known"),
    ):  # fmt: skip
        assert any(text in note for note in look(asked).notes), text


def test_only_a_limit_that_is_missed_for_certain_is_refused():
    found = look(question())
    for share in (1.2, 0.99, 1.01 / OPTIMISM):
        check_feasible(look(question(deadline_seconds=share * found.fastest.seconds)))
        check_feasible(look(question(budget=share * found.cheapest.cost)))
    with pytest.raises(BadInput) as late:
        check_feasible(look(question(deadline_seconds=0.99 / OPTIMISM * found.fastest.seconds)))
    assert late.value.field == "--deadline"
    assert str(found.fastest.plan) in late.value.remedy and duration(found.fastest.seconds) in late.value.remedy
    with pytest.raises(BadInput) as dear:
        check_feasible(look(question(budget=0.99 / OPTIMISM * found.cheapest.cost)))
    assert dear.value.field == "--budget" and money(found.cheapest.cost, "$") in dear.value.remedy


def test_a_plan_that_stays_is_judged_alone_and_nothing_is_refused_in_the_dark():
    found = look(question())
    between = (found.first.seconds / OPTIMISM + found.fastest.seconds) / 2
    late = look(question(deadline_seconds=min(between, 0.99 * found.first.seconds / OPTIMISM)))
    with pytest.raises(BadInput, match="the plan that this mode keeps"):
        check_feasible(late, free=False)
    check_feasible(look(question(prior=False, deadline_seconds=1e-3, budget=1e-9)))


def test_what_if_a_plan_is_asked_about():
    found = look(question(), what_ifs=[WhatIf(), WhatIf(workers=2, worker_cpu=0.6, ps_cpu=0.5), WhatIf(workers=8)])
    same, wide, beyond = found.what_if
    assert same == found.first
    assert wide.plan == WIDE and wide.within and wide.throughput.middle > found.first.throughput.middle
    assert beyond.plan.worker == replace(FIRST.worker, replicas=8) and not beyond.within


def test_another_batch_size_scales_by_the_stated_share_and_says_so():
    small, large = look(question(), what_ifs=[WhatIf(batch_size=BATCH // 4), WhatIf(batch_size=4 * BATCH)]).what_if
    first = look(question()).first
    assert small.held == large.held == (OTHER_BATCH,)
    assert first.throughput.middle / 4 < small.throughput.middle < first.throughput.middle
    assert first.throughput.middle < large.throughput.middle < 4 * first.throughput.middle, "rows are not free"
    assert large.seconds == pytest.approx(ROWS / large.throughput.middle)


def test_where_shares_do_not_hold_cores_follow_from_the_pods():
    (two,) = look(question(cpu_enforced=False), what_ifs=[WhatIf(workers=2)]).what_if
    assert two.plan.worker.replicas == 2 and two.within
    (given,) = look(question(cpu_enforced=False), what_ifs=[WhatIf(workers=2, worker_cpu=0.4)]).what_if
    assert given.plan.worker.cpu == 0.4


def test_the_first_decision_has_its_candidates():
    found = look(question())
    considered = start_considered(found)
    assert [one.chosen for one in considered] == [True] + [False] * (len(considered) - 1)
    assert considered[0].plan == FIRST and considered[0].why_not == ""
    assert found.best.plan in [one.plan for one in considered] and 2 <= len(considered) <= 5
    assert all("cost per hour" in one.why_not for one in considered[1:])
    for one in considered[1:]:
        goal = one.plan == found.best.plan
        assert ("the job changes to it" in one.why_not) == goal
        assert ("not what objective balanced asks for" in one.why_not) != goal
    kept = start_considered(found, free=False)
    assert all("the mode keeps the first plan" in one.why_not for one in kept[1:])
    front = front_considered(found, 7)
    assert front[0].plan == found.front[0].plan and front[-1].plan == found.fastest.plan and len(front) <= 7


def test_thinning_keeps_ends_and_named_plans():
    front = look(question()).front
    kept = thin(front, 4, (front[5],))
    assert {front[0], front[5], front[-1]} <= set(kept) and len(kept) <= 5
    assert thin(front, len(front)) == front and thin((), 4) == ()


def test_windows_that_say_nothing_are_no_level():
    broken = [replace(one, throughput=math.nan) for one in question().prior]
    found = look(replace(question(), prior=tuple(broken)))
    assert found.relative and found.first.seconds is None


@pytest.mark.parametrize(
    ("seconds", "shown", "typed"),
    [(45.0, "45 s", "45s"), (150.0, "3 min", "150s"), (3600.0, "60 min", "1h"), (7800.0, "2 h 10 min", "130m")],
)
def test_times_are_shown_rounded_up_and_typed_as_options_take_them(seconds, shown, typed):
    assert (duration(seconds), time_text(seconds)) == (shown, typed)


def test_fewer_pss_have_the_memory_that_the_forecast_asks_for():
    """A plan that could not hold its tables is no plan; one whose PSs are larger costs more and has to fit."""
    first = Plan(RolePlan(3, 0.3, 300 * MIB), RolePlan(1, 0.8, 800 * MIB))
    table, limits = 300 * MIB, replace(LIMITS, ps=4)
    asked = question(plan=first, limits=limits, not_started=True, table_bytes_at_end=table)
    found = look(asked, what_ifs=[WhatIf(ps=1), WhatIf(ps=4)])
    for one in (*found.front, *found.what_if):
        memory = one.plan.ps.memory_bytes
        assert table_room(memory) * one.plan.ps.replicas >= table * TABLE_SKEW
        assert memory == max(300 * MIB, ps_memory_for(table * TABLE_SKEW / one.plan.ps.replicas))
        assert one.cost_per_hour == pytest.approx(Prices().per_hour(one.plan))
    assert 1 in {one.plan.ps.replicas for one in found.front}
    assert found.first.plan == first and found.what_if[0].plan.ps.memory_bytes > 600 * MIB
    assert any("the tables may reach 300Mi, so fewer PSs than 3" in text for text in found.rests_on)
    small = replace(limits, memory_bytes=first.memory_bytes)  # one large PS has less room of its own than three
    tight = look(replace(asked, limits=small, table_bytes_at_end=5 * table))
    assert all(one.plan.memory_bytes <= small.memory_bytes for one in tight.front)
    assert 1 not in {one.plan.ps.replicas for one in tight.front}


def test_without_a_forecast_every_ps_has_what_the_first_plan_gives():
    first = Plan(RolePlan(2, 0.3, 300 * MIB), RolePlan(1, 0.8, 800 * MIB))
    found = look(question(plan=first, not_started=True))
    assert {one.plan.ps.memory_bytes for one in found.front} == {300 * MIB}
    assert not any(text.startswith("memory") for text in found.rests_on)
