"""The law for when CPU is not known."""

import numpy as np
import pytest

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Observation
from trimtab.core.perf.additive import fit_additive
from trimtab.core.perf.iteration import Setting, Shapes
from trimtab.core.perf.rows import rows_of

SETTING = Setting()


def plan(workers, worker_cpu, ps, ps_cpu):
    return Plan(RolePlan(ps, ps_cpu, 2**30), RolePlan(workers, worker_cpu, 2**30))


def truth(one, batch=512):
    """A law that is additive indeed."""
    return (
        0.004 * batch / 512 / one.worker.cpu
        + 0.002 * one.worker.replicas * batch / 512 / (one.ps.replicas * one.ps.cpu)
        + 0.001 / one.ps.replicas
        + 0.003
    )


def rows(plans):
    return rows_of(
        [Observation(one, one.worker.replicas * 512 / truth(one), None, None, 512, 20.0 * (i + 1), 10.0)
         for i, one in enumerate(plans)]
    )  # fmt: skip


PLANS = [
    plan(1, 1, 1, 1), plan(4, 1, 1, 1), plan(4, 2, 1, 1), plan(4, 2, 2, 1), plan(8, 1, 2, 2), plan(2, 0.5, 4, 0.5),
    plan(8, 4, 1, 4),
]  # fmt: skip


def test_an_additive_job_is_found_from_its_times():
    fitted = fit_additive(rows(PLANS), SETTING)
    assert fitted.held == ()
    asked = [plan(6, 2, 3, 1), plan(2, 1, 1, 0.5)]
    found = fitted.seconds(Shapes.of(asked), 512, SETTING)
    assert found == pytest.approx([truth(one) for one in asked], rel=0.12)


def test_one_plan_is_met_and_everything_is_held():
    fitted = fit_additive(rows(PLANS[:1]), SETTING)
    assert len(fitted.held) == 4
    assert fitted.seconds(Shapes.of(PLANS[:1]), 512, SETTING)[0] == pytest.approx(truth(PLANS[0]), rel=1e-6)
    assert len(fit_additive(rows(PLANS[:2]), SETTING).held) == 3
    assert fit_additive((), SETTING) is None


def test_without_enforced_shares_the_machine_is_a_bound():
    free = Setting(enforced=False, machine_cpu=2.0)
    fitted = fit_additive(rows(PLANS[:1]), free)
    few, many = fitted.seconds(Shapes.of([plan(1, 1, 1, 1), plan(16, 1, 16, 1)]), 512, free)
    worker, ps = fitted.coefficients[:2]
    assert many == pytest.approx(16 * (worker + ps) / 2) and many > few
    assert np.isfinite(many)
