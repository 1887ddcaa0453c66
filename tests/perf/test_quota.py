"""The quota law: its bounds, the busiest server, and both members from one fit of the demands."""

import math
import random

import numpy as np
import pytest
from perf_rows import LOCAL, measured, plan, row

from trimtab.core.perf.demand import STATED_PS, STATED_WORKER, RoleDemand
from trimtab.core.perf.iteration import Shapes
from trimtab.core.perf.quota import USUAL_SKEW, QuotaLaw, fit_quota_laws, skew_of

TRUE = QuotaLaw(RoleDemand(3e-3, 4e-3, 1e-3, 0.5e-3), RoleDemand(1e-3, 2e-3, 1.5e-3, 0.5e-3), 1.1, False)
PLANS = [plan(w, cw, p, cp) for w, cw in ((1, 0.5), (2, 0.2), (4, 0.1)) for p, cp in ((1, 0.1), (2, 0.2), (3, 0.1))]


def test_no_step_is_shorter_than_a_quota_allows():
    shapes = Shapes.of(PLANS)
    worker, ps = TRUE.demands(shapes, 1024, LOCAL)
    for law in (TRUE, QuotaLaw(TRUE.worker, TRUE.ps, 1.1, True)):
        seconds = law.seconds(shapes, 1024, LOCAL)
        assert np.all(seconds >= worker / shapes.worker_cpu * (1 - 1e-12))
        busiest = np.where(shapes.ps > 1, 1.1, 1.0)
        assert np.all(seconds >= shapes.workers * ps * busiest / (shapes.ps * shapes.ps_cpu) * (1 - 1e-12))


def test_the_bottleneck_law_is_the_largest_bound_and_the_quota_law_a_little_more():
    shapes = Shapes.of(PLANS)
    sharp = QuotaLaw(TRUE.worker, TRUE.ps, 1.1, True).seconds(shapes, 1024, LOCAL)
    calibrated = TRUE.seconds(shapes, 1024, LOCAL)
    assert np.all(calibrated >= sharp) and np.all(calibrated <= 3 ** (1 / 3) * sharp)


def test_a_busier_server_slows_only_plans_that_have_several():
    one, three = plan(2, 0.5, 1, 0.1), plan(2, 0.5, 3, 0.1)
    hot = QuotaLaw(TRUE.worker, TRUE.ps, 1.5, True)
    for which, ratio in ((one, 1.0), (three, 1.5 / 1.1)):
        shapes = Shapes.of([which])
        even = QuotaLaw(TRUE.worker, TRUE.ps, 1.1, True).seconds(shapes, 1024, LOCAL)[0]
        assert hot.seconds(shapes, 1024, LOCAL)[0] == pytest.approx(ratio * even)


def test_the_skew_is_measured_where_there_are_several_servers():
    assert skew_of([]) == USUAL_SKEW
    alone = row(plan(1, 0.5, 1, 0.1), 0.1, skew=1.0)
    assert skew_of([alone] * 9) == USUAL_SKEW
    hot = row(plan(1, 0.5, 3, 0.1), 0.1, skew=1.6, length=40.0)
    assert 1.4 < skew_of([hot]) < 1.6
    assert skew_of([row(plan(1, 0.5, 3, 0.1), 0.1, skew=math.nan)]) == USUAL_SKEW


def test_both_members_come_from_one_fit_and_predict_what_they_did_not_see():
    chance = random.Random(2)
    seen = measured(TRUE, PLANS, 0.0, chance)
    quota, bottleneck = fit_quota_laws(seen, (), LOCAL)
    assert (quota.name, bottleneck.name) == ("quota law", "bottleneck law")
    assert (quota.worker, quota.ps) == (bottleneck.worker, bottleneck.ps)
    new = Shapes.of([plan(3, 0.15, 2, 0.15), plan(1, 0.3, 1, 0.3), plan(4, 0.25, 2, 0.1)])
    assert quota.seconds(new, 1024, LOCAL) == pytest.approx(TRUE.seconds(new, 1024, LOCAL), rel=0.08)
    assert all(value >= 0 and math.isfinite(value) for value in quota.coefficients.values())


def test_without_the_cpu_of_a_role_there_is_no_quota_law():
    assert fit_quota_laws([row(PLANS[0], 0.1, worker=0.01)], (), LOCAL) == ()
    assert fit_quota_laws([], (), LOCAL) == ()
    past = [row(PLANS[0], 0.1, worker=0.01, ps=0.005)]
    (first, _) = fit_quota_laws([row(PLANS[0], 0.1)], past, LOCAL)
    assert "workers' CPU per step: from past runs" in first.held


def test_what_one_plan_cannot_tell_is_held_and_named():
    (law, _) = fit_quota_laws([row(PLANS[0], 0.1, 0.012, 0.006)], (), LOCAL)
    assert {"workers' CPU per row", "PSs' CPU per PS"} <= set(law.held)
    for found, stated in ((law.worker, STATED_WORKER), (law.ps, STATED_PS)):
        rest = (found.fixed + 2 * found.per_rows) / (stated.fixed + 2 * stated.per_rows)  # 1024 rows
        assert found.per_ps / stated.per_ps == pytest.approx(rest, rel=1e-6), "the stated shape, scaled"
