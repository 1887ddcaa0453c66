"""Single decisions: what every one of them keeps, and what each kind says."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_questions import BATCH, GIB, LARGE, SMALL, SWITCH, plan, question, window, windows

from trimtab.core.domain.job import Objective
from trimtab.core.domain.plan import Limits, Prices, table_room, within
from trimtab.core.domain.records import Decision, Observation, Range
from trimtab.core.optimizer.decide import MOST_PROBES, decide
from trimtab.core.optimizer.guard import reverses
from trimtab.core.perf.fit import fit
from trimtab.core.perf.iteration import Setting


def changed(before, after, at, settled=1.5, **more):
    return Decision(at, "grow", after, "it pays.", 1, before=before, switch_seconds=settled, **more)


# ---------------------------------------------------------------- properties

PLANS = st.builds(
    plan, st.integers(1, 4), st.sampled_from([0.2, 0.5, 1.0]), st.integers(1, 3), st.sampled_from([0.1, 0.3, 0.8])
)
CPU = st.none() | st.floats(1e-4, 0.2) | st.just(math.nan) | st.just(0.0)


@st.composite
def questions(draw):
    plans = draw(st.lists(PLANS, min_size=1, max_size=3))
    limits = Limits(
        draw(st.floats(0.3, 12)), draw(st.integers(GIB, 24 * GIB)), draw(st.integers(1, 8)), draw(st.integers(1, 4))
    )
    at, seen, decisions = 0.0, [], []
    for before, one in zip([None, *plans], plans, strict=False):
        if before is not None and one != before:
            decisions.append(changed(before, one, at, draw(st.sampled_from([None, 0.0, 2.0]))))
            at += 2.5
        for _ in range(draw(st.integers(0, 3))):
            at += 3.0
            rate = draw(st.floats(1e3, 1e6) | st.sampled_from([0.0, math.nan]))
            seen.append(Observation(one, rate, draw(CPU), draw(CPU), BATCH, at, 3.0, 50))
    table = draw(st.integers(0, 3 * GIB))
    return question(
        time_seconds=at, plan=plans[-1], observations=tuple(seen), limits=limits, decisions=tuple(decisions),
        objective=draw(st.sampled_from(list(Objective))), batches_left=draw(st.integers(0, 10**7)),
        cpu_enforced=draw(st.booleans()), table_bytes=table, table_bytes_at_end=draw(st.sampled_from([0, 2 * table])),
        switch_seconds=draw(st.sampled_from([SWITCH, {}, {"worker": math.nan}])),
    )  # fmt: skip


@settings(max_examples=150)
@given(questions(), st.none() | st.floats(1e-3, 1e3), st.floats(0, 10), st.none() | st.floats(0.1, 1e4))
def test_every_decision_keeps_the_caps_and_can_be_read(asked, budget, spent, deadline):
    asked = replace(asked, budget=budget, spent=spent, deadline_seconds=deadline)
    made = decide(asked)
    assert made == decide(asked), "the same question, the same answer"
    assert made.kind in ("hold", "grow", "shrink", "replace")
    assert (made.kind == "hold") == (made.plan == asked.plan) and made.before == asked.plan
    if made.plan != asked.plan:
        limits = asked.limits
        assert made.plan.cpu <= limits.cpu + 1e-9 and made.plan.memory_bytes <= limits.memory_bytes
        assert made.plan.worker.replicas <= limits.workers and made.plan.ps.replicas <= limits.ps
        assert made.plan.worker.replicas <= 2 * asked.plan.worker.replicas or _been(asked, made.plan)
        assert made.predicted is not None and math.isfinite(made.predicted.middle)
    assert made.reason.endswith(".") and made.action and "nan" not in made.reason and "inf" not in made.reason
    assert made.time_seconds == asked.time_seconds
    assert len(made.considered) <= 5
    if made.considered:
        assert [one.plan for one in made.considered if one.chosen] == [made.plan]
        assert asked.plan in [one.plan for one in made.considered]
        assert all(one.chosen or one.why_not for one in made.considered)
        assert all(math.isfinite(one.throughput.middle) for one in made.considered)


def _been(asked, one):
    return any(decision.before == one for decision in asked.decisions)


@settings(max_examples=80)
@given(questions())
def test_a_dominated_plan_is_never_chosen(asked):
    """No plan that was looked at is at once cheaper and faster than the one that was changed to."""
    made = decide(asked)
    if made.kind == "hold" or "Back to" in made.reason or "table" in made.reason:
        return
    barred = {row.plan for row in asked.observations}
    for one in made.considered:
        if one.plan != made.plan and one.plan not in barred and "turn a recent change round" not in one.why_not:
            mine = next(other for other in made.considered if other.chosen)
            cheaper = one.cost_per_hour <= mine.cost_per_hour
            assert not (cheaper and one.throughput.middle > mine.throughput.middle * (1 + 1e-9)), made.reason


# ---------------------------------------------------------------- kinds


def test_growth_says_what_limits_what_comes_and_how_sure_it_is():
    made = decide(question())
    assert (made.kind, str(made.plan), made.probe) == ("grow", "2 × 0.8 + 1 × 0.4", False)
    assert made.action == "Add 1 worker: 1 → 2; cores per worker 1 → 0.8; cores per PS 0.3 → 0.4"
    start = "Workers use 77 % of their cores; this should bring 8"
    assert made.reason.startswith(start) and " % more (" in made.reason
    assert made.predicted.low < made.predicted.middle < made.predicted.high
    assert made.present.middle == pytest.approx(BATCH / 0.0235, rel=0.02)
    assert any("measured: 44 k samples/s in 3 windows (9 s)" in one for one in made.evidence)
    assert any("costs about 2 s" in one for one in made.evidence)
    assert {one.plan for one in made.considered} >= {SMALL, made.plan}
    assert any("slower for" in one.why_not for one in made.considered if one.plan == SMALL)


def test_the_objective_decides():
    wide = {"limits": Limits(6.0, 24 * GIB, 8, 3)}
    made = {each: decide(question(objective=Objective(each), **wide)) for each in ("fastest", "balanced", "cheapest")}
    rates = [one.predicted.middle for one in made.values()]
    assert rates == sorted(rates, reverse=True)
    per_sample = [Prices().per_hour(one.plan) / one.predicted.middle for one in made.values()]
    assert per_sample == sorted(per_sample, reverse=True)
    assert made["fastest"].plan != made["cheapest"].plan


@pytest.mark.parametrize("objective", list(Objective))
def test_the_currency_does_not_matter(objective):
    """A price of 4e-14 is one in another currency."""
    plain, tiny = (
        decide(question(objective=objective, limits=Limits(6.0, 24 * GIB, 8, 3), prices=Prices(0.04 * by, 0.005 * by)))
        for by in (1.0, 1e-12)
    )
    assert tiny.plan == plain.plan and tiny.reason == plain.reason


def test_nothing_measured_means_hold():
    assert "has not been measured yet" in decide(question(observations=())).reason
    made = decide(question(plan=LARGE, decisions=(changed(SMALL, LARGE, 13.0),)))
    assert made.kind == "hold" and "has not been measured since it came into force" in made.reason
    only_past = decide(question(observations=(), prior=windows(SMALL, 0.0235, 3.0)))
    assert only_past.kind == "hold", "past runs alone change nothing"


def test_windows_taken_while_the_plan_changed_say_nothing():
    """Case 32: the new plan's first window fell into the change; judged by it, the job would go back at once."""
    seen = (*windows(SMALL, 0.0235, 3.0), window(LARGE, 0.2, 16.0), *windows(LARGE, 0.0245, 16.5, 2))
    made = decide(
        question(plan=LARGE, observations=seen, time_seconds=23.0, decisions=(changed(SMALL, LARGE, 13.0, 3.4),))
    )
    assert made.kind == "hold" and "did not pay" not in made.reason


def test_what_was_measured_worse_is_taken_back_and_not_tried_again():
    seen = (*windows(SMALL, 0.0235, 3.0), *windows(LARGE, 0.05, 15.0))
    grown = changed(SMALL, LARGE, 13.0)
    back = decide(question(plan=LARGE, observations=seen, time_seconds=24.5, decisions=(grown,)))
    assert (back.kind, back.plan) == ("shrink", SMALL)
    assert back.reason == (
        "The change did not pay: 2 × 0.8 + 1 × 0.4 brings 41 k samples/s, 1 × 1 + 1 × 0.3 brought 44 k. "
        "Back to 1 × 1 + 1 × 0.3."
    )
    after = (*seen, *windows(SMALL, 0.0235, 27.0, 8))
    for later in (0.0, 500.0):  # within the look-back, and long after it
        again = decide(
            question(
                observations=(*after, *windows(SMALL, 0.0235, 51.0 + later, 3)), time_seconds=60.5 + later,
                decisions=(grown, replace(back, switch_seconds=1.5)),
            )
        )  # fmt: skip
        assert again.plan != LARGE
        assert again.kind == "hold", again.reason


def test_a_probe_that_went_wrong_says_so():
    seen = (*windows(SMALL, 0.0235, 3.0), *windows(LARGE, 0.05, 15.0))
    probe = changed(SMALL, LARGE, 13.0, probe=True)
    back = decide(question(plan=LARGE, observations=seen, time_seconds=24.5, decisions=(probe,)))
    assert back.plan == SMALL and back.reason.startswith("The step to look did not pay: ")


def test_a_promise_that_was_broken_is_taken_back_even_if_nothing_was_lost():
    """Balanced: 22 % more for 53 % more cost is no better, and 90 % had been promised."""
    seen = (*windows(SMALL, 0.0235, 3.0), *windows(LARGE, 0.0385, 15.0, 8))
    grown = changed(SMALL, LARGE, 13.0, predicted=Range(85_000.0), present=Range(44_000.0))
    back = decide(question(plan=LARGE, observations=seen, time_seconds=39.5, decisions=(grown,)))
    assert back.plan == SMALL and "too little for" in back.reason and "more cost" in back.reason
    kept = replace(grown, predicted=Range(54_000.0))
    assert decide(question(plan=LARGE, observations=seen, time_seconds=39.5, decisions=(kept,))).plan != SMALL


def test_a_change_is_not_turned_round_within_the_look_back():
    """Measured equally good, the law prefers the larger one again; within a minute that would be thrashing."""
    shrunk = Decision(13.0, "shrink", SMALL, "cheaper.", 1, before=LARGE, switch_seconds=1.5)
    seen = windows(SMALL, 0.0235, 15.0)
    soon = decide(question(observations=seen, time_seconds=25.0, decisions=(shrunk,)))
    assert soon.plan.worker.replicas == 1
    late = decide(question(observations=windows(SMALL, 0.0235, 80.0), time_seconds=90.0, decisions=(shrunk,)))
    assert late.plan.worker.replicas == 2


def test_a_step_that_went_too_far_is_made_finer_but_never_undone_within_the_look_back():
    """Cores per PS went from 0.3 to 0.6: 0.4 and 0.5 are open, 0.3 and 0.2 are not; workers alike, the other way."""
    before, now = plan(2, 0.8, 1, 0.3), plan(2, 0.7, 1, 0.6)
    change = Decision(13.0, "replace", now, "more for the PS.", 1, before=before, switch_seconds=0.2)
    asked = question(plan=now, observations=windows(now, 0.02, 15.0), time_seconds=25.0, decisions=(change,))
    steps = ((0.2, True), (0.3, True), (0.4, False), (0.5, False), (0.7, False))
    for ps_cpu, turned in steps:
        assert reverses(asked, plan(2, 0.7, 1, ps_cpu)) is turned, ps_cpu
    for worker_cpu, turned in ((0.6, False), (0.75, False), (0.8, True), (0.9, True)):
        assert reverses(asked, plan(2, worker_cpu, 1, 0.6)) is turned, worker_cpu


def test_too_little_work_left_means_hold_with_both_numbers():
    made = decide(question(batches_left=100))
    assert made.kind == "hold"
    assert "2.4 s of work are left" in made.reason and "cost 2 s" in made.reason
    assert decide(question(batches_left=0)).kind == "hold"


def test_a_dear_change_is_not_made():
    assert decide(question(batches_left=2000)).kind == "grow"
    dear = decide(question(batches_left=2000, switch_seconds={"worker": 60.0, "ps": 60.0, "cpu": 60.0}))
    assert dear.kind == "hold"


def test_a_step_to_look_is_one_step_marked_and_bounded():
    """Without CPU figures or shares, one plan says nothing about two workers; half an hour of work is worth a look."""
    blind = tuple(replace(one, worker_cpu_seconds=None, ps_cpu_seconds=None) for one in windows(SMALL, 0.0235, 3.0))
    tight = {"observations": blind, "cpu_enforced": False, "objective": Objective.FASTEST}
    made = decide(question(**tight))
    assert made.probe and made.kind in ("grow", "replace")
    added = made.plan.worker.replicas - 1 + made.plan.ps.replicas - 1
    assert added <= 1 and "is not known yet" in made.reason and "to find out" in made.reason
    assert decide(question(batches_left=200, **tight)).kind == "hold"
    enough = tuple(replace(changed(SMALL, LARGE, 1.0), advised=True, probe=True) for _ in range(MOST_PROBES))
    assert decide(question(decisions=enough, **tight)).kind == "hold"


def test_a_step_to_look_is_not_taken_where_it_would_lose_as_much_as_it_may_win():
    """Balanced, a second worker costs half as much more: if the machine is what holds it back, all of that is lost."""
    blind = tuple(replace(one, worker_cpu_seconds=None, ps_cpu_seconds=None) for one in windows(SMALL, 0.0235, 3.0))
    made = decide(question(observations=blind, cpu_enforced=False))
    assert made.kind == "hold" and "not sure enough" in made.reason


def test_a_table_that_will_not_fit_gets_another_server_at_any_price():
    each = table_room(GIB)
    made = decide(question(batches_left=100, table_bytes=each // 2, table_bytes_at_end=each))
    assert made.plan.ps.replicas == 2 and made.kind in ("grow", "replace")
    assert made.reason.startswith("The table will reach 692Mi; 2 PSs of the present size hold it")
    capped = question(table_bytes=each // 2, table_bytes_at_end=each, limits=Limits(2.0, 6 * GIB, 4, 1))
    assert decide(capped).kind == "hold" and "raise --max-ps or --max-memory" in decide(capped).reason
    roomy = decide(question(table_bytes=each // 4, table_bytes_at_end=each // 2))
    assert "table" not in roomy.reason


def test_servers_that_could_not_take_their_tables_over_are_not_asked_for_again():
    back = Decision(10.0, "memory", SMALL, "no room.", 2, before=plan(1, 1.0, 2, 0.3), switch_seconds=1.0, barred=True)
    seen = windows(SMALL, 0.0235, 100.0)
    each = table_room(GIB)
    asked = question(observations=seen, time_seconds=110.0, table_bytes=each // 2, table_bytes_at_end=each)
    assert decide(asked).plan.ps.replicas == 2
    made = decide(replace(asked, decisions=(back,)))
    assert made.plan.ps.replicas == 1 and "raise" in made.reason
    free = decide(replace(asked, decisions=(back,), table_bytes=0, table_bytes_at_end=0))
    assert free.plan.ps.replicas == 1 and all(not one.chosen or one.plan.ps.replicas == 1 for one in free.considered)


def test_a_plan_that_had_to_be_left_for_others_is_not_mourned_while_it_does_not_fit():
    """Other jobs came, and the plan was cut to the new caps: that it is slower now is no news."""
    cut = plan(2, 0.2, 1, 0.6)  # workers have too little of what there is
    forced = replace(changed(LARGE, cut, 13.0), kind="shrink")
    seen = (*windows(LARGE, 0.025, 0.0), *windows(cut, 0.095, 15.0))
    few = Limits(1.0, 6 * GIB, 4, 4)
    asked = question(plan=cut, observations=seen, decisions=(forced,), time_seconds=30.0, limits=few)
    made = decide(asked)
    assert "Back" not in made.reason and "going back" not in made.reason and "did not pay" not in made.reason
    assert within(made.plan, asked.limits)
    roomy = decide(replace(asked, limits=Limits(2.0, 6 * GIB, 4, 4)))
    assert roomy.plan == LARGE and "Back to 2 × 0.8 + 1 × 0.4" in roomy.reason


def test_a_plan_outside_the_caps_is_left_to_its_owner():
    made = decide(question(plan=plan(4, 1.0, 1, 0.3), observations=windows(plan(4, 1.0, 1, 0.3), 0.03, 3.0)))
    assert made.kind == "hold" and "outside the caps" in made.reason


def test_where_shares_do_not_hold_it_speaks_of_the_machine():
    made = decide(question(cpu_enforced=False))
    assert made.plan.worker.replicas == 2
    assert made.reason.startswith("The pods use 0.9 of 2 cores; ")


def test_an_advised_change_has_changed_nothing():
    advised = replace(changed(SMALL, LARGE, 13.0), advised=True)
    assert decide(question(decisions=(advised,))).plan == decide(question()).plan


def test_the_law_beside_the_decision_is_the_rooms_own():
    asked = question()
    fitted = fit(asked.observations, (), SMALL, BATCH, 15.0, (), Setting(True, 2.0, 0.02))
    made = decide(asked)
    assert made.predicted == fitted.range(made.plan) and made.held == fitted.held
    assert made.law == fitted.law_text and made.law.startswith("quota law")
