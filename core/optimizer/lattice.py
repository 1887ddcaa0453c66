"""Every plan that may follow the present one, as arrays.

The lattice is small enough to enumerate (10^5 plans on 64 cores), so nothing is searched and nothing is missed. Cores
go in steps of 0.1 up to one core, the resolution at which measured plans differed; a worker has as many TensorFlow
threads as it had cores, rounded up, when it started, so a running job keeps that number. A parameter server applies
under one lock and cannot use a second core. Memory per pod stays: a process cannot be given more while it runs.

Where CPU shares do not hold, cores are only what the plan says of a pod. So they follow from the numbers of pods alone:
a worker's threads and a third of a core per PS, shrunk evenly below the cap. Were they free, the cheapest shares would
win without anything being saved, and the way back to a plan would not lead to the same plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trimtab.core.domain.plan import SMALLEST_CPU, Plan, RolePlan, ps_memory_for, table_room
from trimtab.core.optimizer.question import Question
from trimtab.core.optimizer.space import Space
from trimtab.core.perf.iteration import Array, Shapes

PS_SHARE = 3.0  # a worker's cores over those of a PS: the measured ratio of CPU per step
TABLE_SKEW = 1.2  # the fullest PS against the mean, until it is measured
_MOST_FACTOR = 2  # at most so many times the workers and the PSs in one decision
_LAST_FINE_CORE = 1.0
_MOST_PAIRS = 4096  # numbers of workers with numbers of PSs: a hundred plans each, half a second for the law


@dataclass(frozen=True)
class Lattice:
    """Plans within the caps, the present one at `present` (None where it is outside them).

    Attributes:
        shapes: their replicas and cores. cost: currency per hour each.
        ps_memory: bytes per PS, one for each of `shapes`. worker_memory: bytes per worker, the same in all.
    """

    shapes: Shapes
    cost: Array
    ps_memory: Array
    worker_memory: int
    present: int | None

    def __len__(self) -> int:
        return len(self.cost)

    def plan(self, index: int) -> Plan:
        """The plan at `index`."""
        shapes = self.shapes
        return Plan(
            RolePlan(int(shapes.ps[index]), float(shapes.ps_cpu[index]), int(self.ps_memory[index])),
            RolePlan(int(shapes.workers[index]), float(shapes.worker_cpu[index]), self.worker_memory),
        )


def lattice(question: Question, everything: bool = False) -> Lattice:
    """The plans that may follow `question.plan`; the present one is always among them, unless a cap excludes it.

    Args:
        question: what is asked.
        everything: also those more than one decision away, up to the caps. Very many numbers of pods are a selection,
            one step from the present plan always in it.
    """
    plan, limits = question.plan, question.limits
    least_ps = min(needed_ps(question), 2 * plan.ps.replicas, limits.ps or 2**31)
    workers = np.arange(1, _most(plan.worker.replicas, limits.workers, limits.cpu, everything) + 1, dtype=float)
    ps = np.arange(least_ps, max(least_ps, _most(plan.ps.replicas, limits.ps, limits.cpu, everything)) + 1, dtype=float)
    if len(workers) * len(ps) > _MOST_PAIRS:
        workers, ps = _thinned(workers, plan.worker.replicas), _thinned(ps, plan.ps.replicas)
    if question.cpu_enforced:
        grid = np.meshgrid(workers, _worker_cores(plan.worker.cpu), ps, _ps_cores(plan.ps.cpu), indexing="ij")
        w, worker_cpu, p, ps_cpu = (one.ravel() for one in grid)
    else:
        w, p = (one.ravel() for one in np.meshgrid(workers, ps, indexing="ij"))
        worker_cpu, ps_cpu = _said_cores(question, w, p)
    mine = _is(plan, w, worker_cpu, p, ps_cpu)
    # A plan that users gave may have shares below the smallest; it may stay.
    usable = mine | ((worker_cpu >= SMALLEST_CPU - 1e-9) & (ps_cpu >= SMALLEST_CPU - 1e-9))
    usable &= w * worker_cpu + p * ps_cpu <= (limits.cpu or math.inf) + 1e-9
    each = ps_memory(question, p)
    memory = w * plan.worker.memory_bytes + p * each
    usable &= memory <= (limits.memory_bytes or math.inf)
    usable &= w <= (limits.workers or math.inf)
    usable &= p <= (limits.ps or math.inf)
    shapes = Shapes(w[usable], worker_cpu[usable], p[usable], ps_cpu[usable])
    prices = question.prices
    cost = shapes.cpu * prices.core_hour + memory[usable] / 2**30 * prices.gib_hour
    found = np.flatnonzero(mine[usable])
    present = int(found[0]) if len(found) else None
    return Lattice(shapes, cost, each[usable], plan.worker.memory_bytes, present)


def space(question: Question) -> Space:
    """All plans within the caps as axes, however many they are; for where CPU shares hold and cores are an axis.

    Memory per worker is that of `question.plan` in all of them, and so is a PS's once the job has started.
    """
    plan, limits = question.plan, question.limits
    least = min(needed_ps(question), limits.ps or 2**31)
    ps = np.arange(least, max(least, _most(plan.ps.replicas, limits.ps, limits.cpu, True)) + 1, dtype=float)
    return Space(
        np.arange(1, _most(plan.worker.replicas, limits.workers, limits.cpu, True) + 1, dtype=float),
        _worker_cores(plan.worker.cpu), ps, _ps_cores(plan.ps.cpu),
        plan.worker.memory_bytes, ps_memory(question, ps),
        limits.cpu or math.inf, float(limits.memory_bytes or math.inf), question.prices,
    )  # fmt: skip


def needed_ps(question: Question) -> int:
    """How many PSs of the present memory hold the tables as they are and as they are expected to be.

    The fullest of them decides (case 11): as it was measured for so many PSs as there are, else as it may become.
    Where the limits of those that are there can rise as far as the tables need, no more of them are needed.
    """
    if question.not_started:
        return 1
    table, present = table_to_hold(question), question.plan.ps.replicas
    each = table_room(question.plan.ps.memory_bytes)
    needed = max(1, math.ceil(table * max(TABLE_SKEW, question.table_skew) / each))
    if question.table_skew and table * question.table_skew <= present * each:
        return min(needed, present)
    raised = table_room(max(question.ps_memory_bytes, question.plan.ps.memory_bytes))
    if question.ps_memory_bytes and table * (question.table_skew or TABLE_SKEW) <= present * raised:
        return min(needed, present)
    return needed


def ps_memory(question: Question, ps: Array) -> Array:
    """Bytes per PS of plans with so many PSs: those of the present plan, which a job that runs gives to each new one.

    Where it has not started, fewer PSs have as much more as the forecast of the fullest one's table asks for.
    """
    present = float(question.plan.ps.memory_bytes)
    table = table_to_hold(question) * max(TABLE_SKEW, question.table_skew) if question.not_started else 0
    if not table:
        return np.full(len(ps), present)
    return np.array([max(present, float(ps_memory_for(table / one))) for one in ps])


def table_to_hold(question: Question) -> int:
    """Bytes of all tables together that the PSs must have room for."""
    return max(question.table_bytes, question.table_bytes_at_end, question.table_bytes_high)


def same(plan: Plan, shapes: Shapes) -> np.ndarray:
    """Which of `shapes` are `plan`."""
    return _is(plan, shapes.workers, shapes.worker_cpu, shapes.ps, shapes.ps_cpu)


def _is(plan: Plan, w: Array, worker_cpu: Array, p: Array, ps_cpu: Array) -> np.ndarray:
    replicas = (w == plan.worker.replicas) & (p == plan.ps.replicas)
    cores = (np.abs(worker_cpu - plan.worker.cpu) < 1e-6) & (np.abs(ps_cpu - plan.ps.cpu) < 1e-6)
    return np.asarray(replicas & cores)


def _said_cores(question: Question, w: Array, p: Array) -> tuple[Array, Array]:
    """Cores per worker and per PS where they do not hold; the present numbers of pods keep what they have."""
    plan = question.plan
    threads = float(max(1, math.ceil(plan.worker.cpu - 1e-9)))
    factor = np.minimum(1.0, (question.limits.cpu or math.inf) / (w * threads + p * threads / PS_SHARE))
    here = (w == plan.worker.replicas) & (p == plan.ps.replicas)
    worker_cpu = np.where(here, plan.worker.cpu, np.floor(20 * factor * threads + 1e-6) / 20)
    ps_cpu = np.where(here, plan.ps.cpu, np.floor(20 * factor * threads / PS_SHARE + 1e-6) / 20)
    return worker_cpu, ps_cpu


def _most(present: int, cap: int | None, cpu: float | None, everything: bool) -> int:
    if everything and cap is not None:
        fed = cap if cpu is None or math.isinf(cpu) else int(cpu / SMALLEST_CPU + 1e-6)
        return max(1, min(cap, fed), present)
    return max(1, min(_MOST_FACTOR * present, cap if cap is not None else 2**31))


def _thinned(counts: Array, present: int) -> Array:
    """Some of `counts` in even ratios, the first and the last among them, and the nearest to `present`."""
    some = np.round(np.geomspace(counts[0], counts[-1], math.isqrt(_MOST_PAIRS)))
    return np.intersect1d(counts, [*some, present - 1, present, present + 1])


def _worker_cores(present: float) -> Array:
    """Shares that leave a worker the threads it started with, the present one among them."""
    threads = max(1, math.ceil(present - 1e-9))
    steps = np.arange(1, 11) / 10 if threads == 1 else np.array([threads - 0.5, float(threads)])
    return _with(steps, present)


def _ps_cores(present: float) -> Array:
    more = np.arange(_LAST_FINE_CORE + 0.5, present, 0.5) if present > _LAST_FINE_CORE else np.array([])
    return _with(np.concatenate([np.arange(1, 11) / 10, more]), present)


def _with(steps: Array, present: float) -> Array:
    kept = [float(one) for one in steps if abs(one - present) > 1e-6]
    return np.array(sorted([*kept, present]))
