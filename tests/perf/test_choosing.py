"""The member is chosen by configurations that it did not see, and left-out errors are honest."""

import math
import random
from dataclasses import replace

import pytest
from perf_rows import LOCAL, measured, plan, row

from trimtab.core.perf.choosing import choose, configuration, log_errors, rmsle
from trimtab.core.perf.demand import RoleDemand
from trimtab.core.perf.quota import QuotaLaw, fit_quota_laws

TRUE = QuotaLaw(RoleDemand(3e-3, 4e-3, 1e-3, 0.5e-3), RoleDemand(1e-3, 2e-3, 1.5e-3, 0.5e-3), 1.04, False)
PLANS = [
    plan(w, cw, p, cp)
    for w, cw in ((1, 0.5), (2, 0.25), (3, 0.15), (4, 0.1)) for p, cp in ((1, 0.1), (2, 0.2), (3, 0.1))
]  # fmt: skip


class Sum:
    """A true law that is a sum: what quotas do not do, and whole cores nearly do."""

    def __init__(self):
        self.demands = TRUE.demands

    def seconds(self, shapes, batch, setting):
        worker, ps = self.demands(shapes, batch, setting)
        return 0.5 * worker + shapes.workers * 3 * ps / shapes.ps + 0.02


def test_jobs_under_quotas_get_a_law_of_quotas():
    for seed in range(5):
        chosen = choose(measured(TRUE, PLANS, 0.05, random.Random(seed)), (), LOCAL)
        assert isinstance(chosen.law, QuotaLaw)
        assert min(chosen.scores.values()) == pytest.approx(chosen.scores[chosen.law.name], rel=0.15)


def test_where_quotas_are_not_how_it_is_another_family_takes_over():
    rows = measured(Sum(), PLANS, 0.03, random.Random(1))
    chosen = choose(rows, (), LOCAL)
    assert not isinstance(chosen.law, QuotaLaw)
    assert chosen.scores[chosen.law.name] < 0.7 * chosen.scores["quota law"]


def test_with_few_configurations_the_preferred_member_stands_and_nothing_is_scored():
    chosen = choose(measured(TRUE, PLANS[:3], 0.05, random.Random(1)), (), LOCAL)
    assert chosen.law.name == "quota law" and chosen.scores == {}
    assert all(miss is not None for miss in chosen.left_out)
    assert choose([], (), LOCAL) is None


def test_all_repeats_of_a_configuration_are_left_out_together():
    rows = measured(TRUE, PLANS[:6], 0.0, random.Random(1))
    off = [replace(one, seconds=one.seconds * 2, worker_cpu=one.worker_cpu * 2, ps_cpu=one.ps_cpu * 2) for one in rows]
    repeats = [*rows[:5], off[5], off[5], off[5]]
    chosen = choose(repeats, (), LOCAL)
    misses = chosen.left_out[5:]
    assert misses[0] == misses[1] == misses[2]
    assert misses[0] > 0.5, "none of its twins gave it away"


def test_left_out_errors_are_those_of_refits():
    rows = measured(TRUE, PLANS[:6], 0.08, random.Random(4))
    chosen = choose(rows, (), LOCAL)
    whole = fit_quota_laws(rows, (), LOCAL)[0]
    overheads = (whole.worker.overhead_seconds, whole.ps.overhead_seconds)
    for at, one in enumerate(rows):
        without = fit_quota_laws([*rows[:at], *rows[at + 1 :]], (), LOCAL, overheads)
        law = next(made for made in without if made.name == chosen.law.name)
        assert chosen.left_out[at] == pytest.approx(log_errors(law, [one], LOCAL)[0])
    groups = {configuration(one): [(0, miss)] for one, miss in zip(rows, chosen.left_out, strict=True)}
    assert rmsle(groups) == pytest.approx(chosen.scores[chosen.law.name])
    assert rmsle({}) is None


def test_an_anchor_is_taken_off_and_not_left_out_itself():
    rows = measured(TRUE, PLANS[:6], 0.0, random.Random(4))
    slow = [one.slower(1.2) for one in rows[1:]]
    chosen = choose([rows[0], *slow], (), LOCAL, anchor=rows[0], trust=1.0)
    assert chosen.left_out[0] is None
    plain = choose([rows[0], *slow], (), LOCAL)
    assert chosen.left_out[1] > plain.left_out[1] + 0.05, "what misses the anchor as well is not the plan's doing"


def test_members_are_compared_over_configurations_that_both_were_refitted_without():
    """Only one plan has several servers; without it none but the sum is fitted, and so none but the sum misses it."""
    rows = [row(plan(w, 1, 1, 1), 0.05 + 0.01 * w) for w in (1, 2, 3, 4, 5, 6, 8)]
    rows.append(row(plan(2, 1, 4, 1), (0.05 + 0.01 * 2) / 4))
    chosen = choose(rows, (), LOCAL)
    assert min(chosen.scores, key=chosen.scores.get) != "additive law"
    assert chosen.law.name == "additive law", "it is exact where the others were asked as well"


def test_a_time_without_cpu_is_fitted_on_time_alone():
    rows = [replace(one, worker_cpu=None) for one in measured(TRUE, PLANS, 0.05, random.Random(1))]
    chosen = choose(rows, (), LOCAL)
    assert not isinstance(chosen.law, QuotaLaw) and math.isfinite(rmsle_of(chosen))
    assert choose([row(PLANS[0], 0.1)], (), LOCAL).law.name == "additive law"


def rmsle_of(chosen):
    return chosen.scores[chosen.law.name]
