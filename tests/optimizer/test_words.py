"""What a decision says: numbers that a person reads, gains down and losses up."""

import pytest

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Range
from trimtab.core.optimizer import words


def plan(workers, worker_cpu, ps, ps_cpu):
    return Plan(RolePlan(ps, ps_cpu, 2**30), RolePlan(workers, worker_cpu, 2**30))


@pytest.mark.parametrize(
    ("value", "text"),
    [(950.4, "950"), (4321, "4.3 k"), (34_211, "34 k"), (999_960, "1.0 M"), (1_234_567, "1.2 M"), (0.0, "0")],
)
def test_rates(value, text):
    assert words.rate(value) == text


def test_a_range_has_one_unit():
    assert words.rates(31_400, 36_900) == "31–37 k"
    assert words.rates(860_000, 1_040_000) == "0.9–1.0 M"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.719, "71 % more"), (0.925, "8 % less"), (1.004, "as much"), (0.996, "as much"), (2.0, "100 % more")],
)
def test_a_gain_is_rounded_down_and_a_loss_up(ratio, text):
    assert words.more_or_less(ratio) == text


@pytest.mark.parametrize(
    ("after", "kind", "action"),
    [
        (plan(2, 1.0, 1, 0.5), "grow", "Add 1 worker: 1 → 2"),
        (plan(2, 0.8, 1, 0.5), "grow", "Add 1 worker: 1 → 2; cores per worker 1 → 0.8"),
        (plan(1, 0.8, 1, 0.5), "shrink", "Cores per worker 1 → 0.8"),
        (plan(1, 0.8, 2, 0.5), "replace", "Add 1 PS: 1 → 2; cores per worker 1 → 0.8"),
        (plan(1, 1.0, 1, 0.5), "hold", "Keep 1 × 1 + 1 × 0.5"),
        (plan(4, 1.0, 3, 0.5), "grow", "Add 3 workers: 1 → 4; Add 2 PSs: 1 → 3"),
    ],
)
def test_what_changes(after, kind, action):
    before = plan(1, 1.0, 1, 0.5)
    assert (words.kind_of(before, after), words.action(before, after)) == (kind, action)
    opposite = {"grow": "shrink", "shrink": "grow"}.get(kind, kind)
    assert words.kind_of(after, before) == opposite


def test_the_target_names_what_the_new_plan_has():
    before = plan(1, 1.0, 1, 0.5)
    assert words.target(before, plan(2, 1.0, 1, 0.5)) == "2 workers"
    assert words.target(before, plan(2, 0.8, 1, 0.4)) == "2 workers with 0.8 cores and 1 PS with 0.4 cores"
    assert words.target(plan(1, 0.5, 1, 0.5), plan(1, 1.0, 1, 0.5)) == "1 worker with 1 core"


def test_an_expectation():
    assert words.expectation(Range(34_000, 31_000, 37_000), 1.719) == "34 k samples/s, 71 % more (31–37 k)"
    assert words.expectation(Range(34_000), 1.719) == "34 k samples/s, 71 % more"


@pytest.mark.parametrize(
    ("value", "text"), [(0.42, "0.5 s"), (9.96, "10 s"), (11.2, "12 s"), (130, "3 min"), (9000, "3 h"), (0, "0 s")]
)
def test_seconds(value, text):
    assert words.seconds(value) == text
