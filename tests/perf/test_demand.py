"""The demands' fit: what NNLS has done wrong elsewhere (case 53), and what it must give here."""

import math

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.perf.demand import STATED_WORKER, Points, RoleDemand, fit_role, solve
from trimtab.core.perf.iteration import Setting

SHAPE = np.array([3.0, 4.0, 1.0])
LOCAL = Setting(period_seconds=0.02)
FREE = Setting(enforced=False, machine_cpu=8)


def points(rows):
    """(batch, ps, cpu, seconds) each."""
    return Points(*np.array([(*row, 1.0) for row in rows], float).reshape(-1, 5).T)


# Columns from 10^5 to 10^10 in single precision: what kept SciPy 1.12 to 1.15 turning in circles.
WIDE = np.array(
    [[8.5e4, 2.9e9, 5.9e6], [1.8e6, 5.1e9, 4.1e7], [9.3e5, 1.1e10, 2.2e7], [3.3e5, 7.7e8, 1.9e6]], np.float32
)


@pytest.mark.parametrize(
    ("matrix", "target"),
    [
        (WIDE, np.ones(4)),
        (np.array([[1.0, 0.0, 2.0], [2.0, 0.0, 1.0]]), np.ones(2)),  # a column of zeros
        (np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]]), np.array([1.0, 2.0, 3.0])),  # collinear
        (np.array([[1.0, 2.0, 3.0]]), np.ones(1)),  # one row
        (np.array([[1e12, 1.0, 1e-12], [2e12, 3.0, 1e-12]]), np.ones(2)),  # 24 orders of magnitude
        (np.array([[1e-12, 1e-12, 1e-12]]), np.array([1e12])),
    ],
)
def test_hard_matrices_have_an_answer(matrix, target):
    found = solve(matrix.astype(float), target, SHAPE, 0.01)
    assert found is not None and np.all(np.isfinite(found)) and np.all(found >= 0) and np.any(found > 0)
    near = matrix.astype(float) @ found
    assert np.linalg.norm(near - target) <= np.linalg.norm(target) * 1.01


@pytest.mark.parametrize(
    ("matrix", "target"),
    [
        (np.zeros((0, 3)), np.zeros(0)),
        (np.array([[1.0, math.nan, 1.0]]), np.ones(1)),
        (np.array([[1.0, math.inf, 1.0]]), np.ones(1)),
        (np.ones((1, 3)), np.array([math.nan])),
        (np.zeros((2, 3)), np.ones(2)),
    ],
)
def test_where_there_is_no_answer_it_says_so(matrix, target):
    assert solve(matrix, target, SHAPE, 0.01) is None


def forbid_the_other_solver(monkeypatch):
    def fails(*args, **options):
        raise ValueError("no answer")

    monkeypatch.setattr(scipy.optimize, "lsq_linear", fails)


@pytest.mark.parametrize("failure", [RuntimeError("Maximum number of iterations reached."), ValueError("empty")])
def test_when_nnls_raises_the_last_good_fit_is_used_and_said(monkeypatch, failure):
    rows = [(1024, 1, 1.0, 0.018), (1024, 2, 1.0, 0.020), (1024, 3, 1.0, 0.9)]
    good = fit_role(points(rows[:2]), STATED_WORKER, FREE)
    real = scipy.optimize.nnls

    def fails_with_all(matrix, target, *args):
        if len(target) > 2 + 2:  # two rows and two of the ridge
            raise failure
        return real(matrix, target, *args)

    monkeypatch.setattr(scipy.optimize, "nnls", fails_with_all)
    forbid_the_other_solver(monkeypatch)
    found = fit_role(points(rows), STATED_WORKER, FREE)
    assert found.note == "NNLS failed: the last good fit is used"
    assert found.demand == good.demand


@pytest.mark.parametrize("answer", [np.array([math.nan] * 3), np.array([-1.0] * 3), np.zeros(3)])
def test_an_answer_that_is_none_leaves_the_stated_shape(monkeypatch, answer):
    monkeypatch.setattr(scipy.optimize, "nnls", lambda matrix, target: (answer[: matrix.shape[1]], 0.0))
    forbid_the_other_solver(monkeypatch)
    found = fit_role(points([(1024, 1, 1.0, 0.018)]), STATED_WORKER, LOCAL)
    assert "stated" in found.note
    one = np.array([1.0])
    assert found.demand.seconds(1024, one, one, LOCAL)[0] == pytest.approx(0.018, rel=1e-6)


@given(st.floats(1e-4, 1.0), st.integers(1, 8), st.sampled_from([0.1, 0.3, 1.0]), st.integers(16, 65536))
def test_one_point_is_met_whatever_its_size(seconds, ps, cpu, batch):
    found = fit_role(points([(batch, ps, cpu, seconds)]), STATED_WORKER, LOCAL)
    at = found.demand.seconds(batch, np.array([float(ps)]), np.array([cpu]), LOCAL)
    assert at[0] == pytest.approx(seconds, rel=1e-6)
    assert "CPU per row" in found.held and "CPU per PS" in found.held


def test_a_true_demand_is_found_from_enough_points():
    truth = RoleDemand(3e-3, 5e-3, 2e-3, 0.6e-3)
    rows = []
    for batch, ps, cpu in [(256, 1, 0.2), (512, 2, 0.4), (1024, 3, 1.0), (1024, 1, 0.1), (256, 3, 0.6), (512, 1, 1.0)]:
        rows.append((batch, ps, cpu, float(truth.seconds(batch, np.array([ps]), np.array([cpu]), LOCAL)[0])))
    found = fit_role(points(rows), STATED_WORKER, LOCAL)
    assert found.held == ()
    for batch, ps, cpu in [(2048, 2, 0.5), (256, 5, 0.15)]:
        given_ = (batch, np.array([float(ps)]), np.array([cpu]), LOCAL)
        assert found.demand.seconds(*given_)[0] == pytest.approx(truth.seconds(*given_)[0], rel=0.05)


def test_history_pulls_harder_than_what_is_stated():
    """In the past a second server cost nearly as much as everything else, on a machine half as fast."""
    history = points([(1024, 1, 1.0, 0.02), (1024, 2, 1.0, 0.038), (1024, 3, 1.0, 0.056)])
    one = points([(1024, 1, 1.0, 0.02)])
    at = (1024, np.array([3.0]), np.array([1.0]), FREE)
    with_history = fit_role(one, STATED_WORKER, FREE, history).demand.seconds(*at)[0]
    assert with_history == pytest.approx(0.056, rel=0.04), "the rows of the past, a little of what is stated"
    assert fit_role(one, STATED_WORKER, FREE).demand.seconds(*at)[0] < 0.024
    assert fit_role(points([]), STATED_WORKER, FREE) is None


def test_a_wrong_answer_of_nnls_is_noticed_and_another_solver_asked(monkeypatch):
    """scipy#25389: 1.15 returned a point that is not the minimum, without a word."""
    matrix, target = np.array([[3.0, 2.0], [1.0, 1.0]]), np.array([3.0, 2.0])
    right = solve(matrix, target, np.ones(2), 1e-9)
    assert right == pytest.approx([0.0, 1.6], abs=1e-4)
    monkeypatch.setattr(scipy.optimize, "nnls", lambda matrix, target: (np.array([0.8, 0.4]), 0.0))
    assert solve(matrix, target, np.ones(2), 1e-9) == pytest.approx(right, abs=1e-6)
