"""NSGA-II by pymoo, as the paper has it: a reference beside the exact front, and nothing that decides.

Nothing of the product asks this module. It is here so that the claim "the exact front is better and costs less" can be
measured again (benchmarks/front.py). What pymoo is known to get wrong is caught here (case 54): it answers None where
no plan is feasible, returns dominated and equal points, and takes a NaN for a point that nobody beats.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.core.errors import BadInput, TrimtabError
from trimtab.core.optimizer.front import Front, Speed, front_of
from trimtab.core.optimizer.space import Space

_CROSSOVER, _CROSSOVER_ETA, _MUTATION_ETA = 0.9, 15, 20
_NOWHERE = 1e300  # as an objective of what has no finite one; with a violated constraint beside it


def nsga2_front(space: Space, throughput: Speed, population: int = 40, generations: int = 50, seed: int = 1) -> Front:
    """What NSGA-II finds of the front of `space`; the same seed finds the same.

    A genome is four whole numbers, the places on the four axes, with SBX (probability 0.9, eta 15), polynomial
    mutation (eta 20) and rounding. Objectives are cost and throughput, the caps are constraints. The answer holds
    feasible, finite plans of which none beats another; it is empty where the search met no feasible one.

    Args:
        space: the plans.
        throughput: samples per second of shapes, as predicted.
        population, generations: size of the search.
        seed: of its random numbers.

    Raises:
        BadInput: `population` or `generations` is below 1.
        TrimtabError: pymoo is not installed.
    """
    for name, value in (("population", population), ("generations", generations)):
        if value < 1:
            raise BadInput(name, value, "give a whole number of at least 1")
    try:
        from pymoo.algorithms.moo.nsga2 import NSGA2
        from pymoo.core.problem import Problem
        from pymoo.operators.crossover.sbx import SBX
        from pymoo.operators.mutation.pm import PM
        from pymoo.operators.repair.rounding import RoundingRepair
        from pymoo.operators.sampling.rnd import IntegerRandomSampling
        from pymoo.optimize import minimize
    except ImportError as problem:
        raise TrimtabError("NSGA-II needs pymoo, which is not installed: pip install 'trimtab[reference]'") from problem

    axes = (len(space.ps), len(space.workers), len(space.worker_cpu), len(space.ps_cpu))

    class Plans(Problem):  # type: ignore[misc]
        """The space as pymoo sees it."""

        def __init__(self) -> None:
            super().__init__(n_var=4, n_obj=2, n_ieq_constr=1, xl=0, xu=np.array(axes) - 1, vtype=int)

        def _evaluate(self, x: np.ndarray, out: dict[str, Any], *_: Any, **__: Any) -> None:
            index = _numbers(x, axes)
            cost, speed = space.cost(index), throughput(space.shapes(index))
            usable = np.isfinite(cost) & np.isfinite(speed)
            out["F"] = np.where(usable[:, None], np.column_stack([cost, -speed]), _NOWHERE)
            out["G"] = np.where(usable & space.within(index), -1.0, 1.0)[:, None]

    algorithm = NSGA2(
        pop_size=population,
        sampling=IntegerRandomSampling(),
        crossover=SBX(prob=_CROSSOVER, eta=_CROSSOVER_ETA, vtype=float, repair=RoundingRepair()),
        mutation=PM(eta=_MUTATION_ETA, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    result = minimize(Plans(), algorithm, ("n_gen", generations), seed=seed, verbose=False)
    evaluated = int(result.algorithm.evaluator.n_eval) if result is not None else 0
    genomes = result.X if result is not None else None
    if genomes is None:
        return Front(space, np.array([], int), np.array([]), np.array([]), evaluated)
    index = np.unique(_numbers(np.atleast_2d(genomes), axes))
    index = index[space.within(index)]
    cost, speed = space.cost(index), throughput(space.shapes(index))
    kept = front_of(cost, speed)
    return Front(space, index[kept], cost[kept], speed[kept], evaluated)


def _numbers(genomes: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    places = np.around(genomes).astype(int).T
    return np.asarray(np.ravel_multi_index(tuple(places), axes))
