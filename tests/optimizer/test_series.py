"""A series of past runs: smoothing, drift, a new level, strays."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.optimizer.series import SMOOTHING, Point, foresee


def points(values, days=None, rows=None, similar=1.0):
    """Runs of one value (cores), one a day."""
    days = days or range(len(values))
    rows = rows or [None] * len(values)
    return [Point(day, row, similar, (math.log(one),)) for one, day, row in zip(values, days, rows, strict=True)]


def expected(values, **more):
    found = foresee(points(values, **more), len(values), None)
    return math.exp(found.logs[0]), found


def test_one_run_is_what_it_is():
    value, found = expected([7.0])
    assert value == pytest.approx(7.0)
    assert (found.weights, found.drifts, found.level, found.strays) == ((1.0,), (None,), 0, ())


def test_the_newest_weighs_most_and_each_older_one_less_by_the_same_factor():
    _, found = expected([10.0, 10.4, 9.8, 10.1])
    assert sum(found.weights) == pytest.approx(1.0)
    ratios = [old / new for old, new in zip(found.weights, found.weights[1:], strict=False)]
    assert ratios == pytest.approx([1 - SMOOTHING] * 3)


def test_a_less_similar_run_weighs_less():
    series = points([10.0, 10.4, 9.8])
    series[2] = Point(2, None, 0.5, series[2].logs)
    weights = foresee(series, 3, None).weights
    assert weights[2] / weights[1] == pytest.approx(0.5 / (1 - SMOOTHING))


def test_a_drift_over_days_is_carried_on_also_over_a_gap():
    series = points([100 * 1.02**day for day in range(12)])
    for ahead in (12, 15):
        found = foresee(series, ahead, None)
        assert found.drifts[0].by == "days"
        assert math.exp(found.drifts[0].slope) == pytest.approx(1.02)
        assert math.exp(found.logs[0]) == pytest.approx(100 * 1.02**ahead)
    assert found.carried[0] > 0


def test_a_drift_with_the_rows_is_carried_on_to_the_rows_of_today():
    chance = random.Random(4)
    rows = [1e6 * math.exp(chance.gauss(0, 0.3)) for _ in range(12)]
    series = points([math.sqrt(one) / 100 for one in rows], rows=rows)
    found = foresee(series, 12, 2e6)
    assert found.drifts[0].by == "rows" and found.drifts[0].slope == pytest.approx(0.5)
    assert math.exp(found.logs[0]) == pytest.approx(math.sqrt(2e6) / 100)
    assert foresee(series, 12, None).drifts == (None,), "without rows of today only days count"


def test_a_drift_is_carried_no_farther_than_was_looked_back_and_never_beyond_twofold():
    series = points([100 * 1.02**day for day in range(12)])
    assert math.exp(foresee(series, 1e4, None).logs[0]) == pytest.approx(100 * 1.02**22)
    steep = points([10 * 1.2**day for day in range(12)])
    found = foresee(steep, 1e4, None)
    assert found.carried[0] == pytest.approx(math.log(2))


def test_scatter_is_no_drift():
    noticed = 0
    for seed in range(200):
        chance = random.Random(seed)
        series = points([100 * math.exp(chance.gauss(0, 0.05)) for _ in range(14)])
        noticed += foresee(series, 14, None).drifts[0] is not None
    assert noticed < 12, "a slope of 2.5 standard errors, with a spread that is never taken as nothing"


def test_a_drift_of_two_percent_a_day_is_told_from_a_scatter_of_five():
    noticed = 0
    for seed in range(200):
        chance = random.Random(seed)
        series = points([100 * 1.02**day * math.exp(chance.gauss(0, 0.05)) for day in range(14)])
        noticed += foresee(series, 14, None).drifts[0] is not None
    assert noticed > 180


def test_a_jump_is_believed_at_once_and_older_runs_no_longer_count():
    value, found = expected([10.0, 10.2, 9.9, 10.1, 16.0])
    assert value == pytest.approx(16.0) and found.level == 1
    assert found.weights == (0.0, 0.0, 0.0, 0.0, 1.0)
    assert math.exp(found.led_to[0]) == pytest.approx(10.1, rel=0.02)
    value, found = expected([10.0, 10.2, 9.9, 10.1, 16.0, 16.4])
    assert 16.0 < value < 16.4 and found.level == 2 and found.strays == ()


def test_what_did_not_last_was_a_stray():
    value, found = expected([10.0, 10.2, 9.9, 10.1, 16.0, 10.0])
    assert value == pytest.approx(10.04, rel=0.02) and found.strays == (4,) and found.level == 0
    assert found.weights[4] == 0.0
    _, found = expected([10.0, 10.2, 9.9, 10.1, 16.0, 4.0, 10.0])
    assert found.strays == (4, 5)
    _, found = expected([10.0, 10.2, 9.9, 16.0, 10.1, 10.0, 30.0])
    assert found.strays == (3,) and found.level == 1


def test_a_run_that_was_stopped_starts_no_level():
    series = points([10.0, 10.2, 9.9, 10.1])
    stopped = Point(4, None, 1.0, (math.log(2.0),), whole=False)
    found = foresee([*series, stopped], 5, None)
    assert math.exp(found.logs[0]) == pytest.approx(10.05, rel=0.02) and found.strays == (4,)


def test_two_runs_are_no_level_that_a_third_could_leave():
    _, found = expected([10.0, 10.0, 30.0])
    assert found.level == 0 and min(found.weights) > 0


def test_a_drift_goes_on_over_a_jump():
    """The slope is that of all levels; the height is that of the newest."""
    values = [100 * 1.02**day * (1.6 if day >= 10 else 1.0) for day in range(12)]
    value, found = expected(values)
    assert found.level == 2
    assert value == pytest.approx(160 * 1.02**12, rel=0.005)


def test_a_jump_of_one_value_is_one_of_the_run():
    series = [Point(day, None, 1.0, (math.log(10.0), math.log(2.0 if day < 5 else 4.0))) for day in range(6)]
    found = foresee(series, 6, None)
    assert found.level == 1
    assert [math.exp(one) for one in found.logs] == pytest.approx([10.0, 4.0])


def test_wide_scatter_is_no_jump():
    """Four spreads: runs that always scattered by a third are no new level each time."""
    levels = 0
    for seed in range(100):
        chance = random.Random(seed)
        levels += foresee(points([10 * math.exp(chance.gauss(0, 0.35)) for _ in range(10)]), 10, None).level > 0
    assert levels < 12


def test_it_is_nearer_than_plain_smoothing_on_a_month_with_drift_and_a_jump():
    mine, plain = [], []
    for seed in range(20):
        chance = random.Random(seed)
        values = [100 * 1.02**d * (1.6 if d >= 17 else 1) * math.exp(chance.gauss(0, 0.05)) for d in range(30)]
        smooth = values[0]
        for day in range(1, 30):
            series = points(values[max(0, day - 14) : day], days=range(max(0, day - 14), day))
            guess = math.exp(foresee(series, day, None).logs[0])
            mine.append(1 - abs(guess / values[day] - 1))
            plain.append(1 - abs(smooth / values[day] - 1))
            smooth = SMOOTHING * values[day] + (1 - SMOOTHING) * smooth
    assert statistics.mean(mine) > 0.92
    assert statistics.mean(mine) > statistics.mean(plain) + 0.015


LOGS = st.floats(math.log(0.1), math.log(1e4))


@given(st.lists(st.tuples(LOGS, LOGS, st.floats(0, 400), st.floats(1, 1e12), st.floats(0.01, 1)), min_size=1,
                max_size=14), st.floats(0, 500), st.floats(1, 1e12))  # fmt: skip
def test_whatever_the_runs_the_outlook_is_finite_and_near_them(runs, days, rows):
    series = sorted(
        (Point(day, row, similar, (one, other)) for one, other, day, row, similar in runs), key=lambda one: one.days
    )
    found = foresee(series, days, rows)
    assert sum(found.weights) == pytest.approx(1.0) and min(found.weights) >= 0
    for value, log in enumerate(found.logs):
        counting = [one.logs[value] for one, weight in zip(series, found.weights, strict=True) if weight > 0]
        assert min(counting) - math.log(2) - 1e-9 <= log <= max(counting) + math.log(2) + 1e-9
    assert all(found.weights[at] == 0 for at in found.strays)
    assert (found.level > 0) == bool(found.led_to)
