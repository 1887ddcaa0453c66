"""NSGA-II as a reference: what pymoo does wrong never comes through (case 54)."""

import math
import sys

import numpy as np
import pytest

from trimtab.core.domain.plan import Limits
from trimtab.core.errors import BadInput, TrimtabError
from trimtab.core.optimizer.front import exact_front, front_of, hypervolume
from trimtab.core.optimizer.nsga2 import nsga2_front
from trimtab.core.optimizer.space import Space

GIB = 2**30
SIZES = [0.25, 0.5, 1.0, 2.0]


def space(limits=None, workers=8, ps=4, sizes=SIZES):
    return Space.of(limits or Limits(), workers, ps, sizes, sizes, GIB, lambda ps: GIB)


def speed(shapes):
    return 100 * np.minimum(shapes.workers * shapes.worker_cpu, 3 * shapes.ps * shapes.ps_cpu)


def worth(found, exact):
    return hypervolume(found.cost, found.throughput, (float(exact.cost.max()), float(exact.throughput.min())))


def test_it_finds_most_of_the_front_and_never_more():
    plans = space(Limits(cpu=12.0))
    exact = exact_front(plans, speed)
    for seed in (1, 2, 3):
        found = nsga2_front(plans, speed, 40, 50, seed)
        assert 0.9 * worth(exact, exact) < worth(found, exact) <= worth(exact, exact) * (1 + 1e-12)
        assert 40 < found.evaluated <= 2000


def test_what_it_returns_is_feasible_and_nothing_beats_anything():
    plans = space(Limits(cpu=12.0))
    found = nsga2_front(plans, speed, 20, 10)
    assert len(found) > 3
    assert len(set(found.index.tolist())) == len(found)
    assert front_of(found.cost, found.throughput) == list(range(len(found)))
    assert plans.within(found.index).all()
    assert all(one.plan.cpu <= 12.0 for one in found.candidates())


def test_the_same_seed_finds_the_same_and_another_one_looks_elsewhere():
    plans = space(workers=32, ps=16, sizes=np.arange(1, 31) / 10)
    first, second, other = (nsga2_front(plans, speed, 12, 4, seed) for seed in (7, 7, 8))
    assert first.index.tolist() == second.index.tolist()
    assert first.index.tolist() != other.index.tolist()


def test_nothing_feasible_is_an_empty_answer():
    """pymoo answers None there."""
    found = nsga2_front(space(Limits(cpu=0.1)), speed, 10, 3)
    assert len(found) == 0 and found.candidates() == () and found.evaluated >= 10


def test_a_space_of_one_plan():
    plans = space(workers=1, ps=1, sizes=[1.0])
    assert [str(one.plan) for one in nsga2_front(plans, speed, 10, 3).candidates()] == ["1 × 1 + 1 × 1"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_returned(bad):
    plans = space()

    def broken(shapes):
        return np.where(shapes.workers > 2, bad, speed(shapes))

    found = nsga2_front(plans, broken, 40, 10)
    assert len(found) and np.isfinite(found.throughput).all() and plans.shapes(found.index).workers.max() <= 2
    nothing = nsga2_front(plans, lambda shapes: np.full(len(shapes.workers), bad), 10, 3)
    assert len(nothing) == 0


def test_equal_plans_come_once():
    found = nsga2_front(space(), lambda shapes: np.ones(len(shapes.workers)), 40, 10)
    assert len(found) == 1


def test_without_pymoo_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymoo.optimize", None)
    with pytest.raises(TrimtabError, match=r"trimtab\[reference\]"):
        nsga2_front(space(), speed)


@pytest.mark.parametrize("field", ["population", "generations"])
def test_a_search_of_nothing_is_refused(field):
    with pytest.raises(BadInput) as raised:
        nsga2_front(space(), speed, **{field: 0})
    assert raised.value.field == field
