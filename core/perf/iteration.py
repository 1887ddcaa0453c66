"""How long one step takes under a plan: the law that measured best on real configurations.

Under CPU quotas below a core, a process spends its period's quota in a burst and rests; the other side works in that
rest. So the times of workers and parameter servers overlap although a worker's step is serial, and the step is close
to the *maximum* of both sides' demands over their cores, not to their sum (a sum missed by 30 % in the median). The
law is a p-norm of three bounds, with an exponent that a simulation of CPU quotas gave (constants below):

    T = (A^n + (w S)^n + L^n)^(1/n)
    A = D_w / c_w            CPU bound of a worker
    w S = w s D_p / (p c_p)  CPU bound of the busiest parameter server, with all workers pulling at it
    L = D_w + D_p / p        the serial path of a step at full speed

with w workers of c_w cores, p servers of c_p cores, s the busiest one's share over the mean (1 for p = 1), D_w CPU
seconds of a worker and D_p of all servers together per step of one worker. Where shares are not enforced, a pod has the
cores of its threads (workers as many as their cores rounded up, servers one, for they apply under one lock), and the
machine is the fourth bound: w (D_w + D_p) / cores.

One function serves one plan and a million: it takes arrays, so that the lattice of plans is judged by the same law
that explains a single one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.core.domain.plan import Plan
from trimtab.core.errors import BadInput

CFS_PERIOD_SECONDS = 0.1  # Kubernetes' default
_LEAST_EXPONENT, _MOST_EXPONENT = 3.0, 60.0
_INTERCEPT, _WORKERS, _SMALLER, _LARGER = 2.584, 0.852, -0.340, -0.578
_FREE_EXPONENT = 8.0  # without quotas: 4.2 % off on the measured rows near whole cores, the best of those tried

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Setting:
    """What holds pods back.

    Attributes:
        enforced: whether CPU shares hold.
        machine_cpu: cores of all pods together where they do not.
        period_seconds: over which the kernel accounts shares.
    """

    enforced: bool = True
    machine_cpu: float = math.inf
    period_seconds: float = CFS_PERIOD_SECONDS


@dataclass(frozen=True)
class Shapes:
    """Many plans as four arrays of one length: replicas and cores per pod."""

    workers: Array
    worker_cpu: Array
    ps: Array
    ps_cpu: Array

    @staticmethod
    def of(plans: Sequence[Plan]) -> Shapes:
        """The shapes of `plans`, in their order."""
        rows = [(one.worker.replicas, one.worker.cpu, one.ps.replicas, one.ps.cpu) for one in plans]
        return Shapes(*np.array(rows, float).reshape(-1, 4).T)

    @property
    def cpu(self) -> Array:
        """Cores of all pods of each plan."""
        return self.workers * self.worker_cpu + self.ps * self.ps_cpu

    def usable(self, setting: Setting) -> Shapes:
        """Cores per pod that a process can use: its share, or its threads where shares do not hold."""
        if setting.enforced:
            return self
        # A server that is planned with more than one core still applies under one lock.
        return Shapes(self.workers, np.ceil(self.worker_cpu), self.ps, np.ones_like(self.ps_cpu))


@dataclass(frozen=True)
class Demand:
    """CPU seconds per step of one worker.

    Attributes:
        worker: of the worker's process.
        ps: of all parameter servers together.
    """

    worker: float
    ps: float

    def __post_init__(self) -> None:
        """Refuses what is not a positive time.

        Raises:
            BadInput: a demand is not finite or not above 0.
        """
        for name, seconds in (("worker", self.worker), ("ps", self.ps)):
            if not (math.isfinite(seconds) and seconds > 0):
                raise BadInput(f"demand.{name}", seconds, "give finite CPU seconds above 0")


def iteration_seconds(demand: Demand, plan: Plan, period_seconds: float = CFS_PERIOD_SECONDS) -> float:
    """Seconds of one step of one worker under `plan`; never below the bounds that a CPU quota sets.

    Args:
        demand: CPU seconds per step.
        plan: workers and servers with their cores, taken as CPU quotas.
        period_seconds: over which the kernel accounts quotas.
    """
    setting = Setting(period_seconds=period_seconds)
    return float(step_seconds(np.array([demand.worker]), np.array([demand.ps]), Shapes.of([plan]), setting)[0])


def step_seconds(
    worker_demand: Array, ps_demand: Array, shapes: Shapes, setting: Setting, skew: float = 1.0, sharp: bool = False
) -> Array:
    """Seconds of one step of one worker for each of `shapes`.

    Args:
        worker_demand: CPU seconds per step of a worker's process, per shape.
        ps_demand: of all servers together, per shape.
        shapes: the plans.
        setting: what holds pods back.
        skew: the busiest server's demand over the mean; servers together are as slow as the busiest.
        sharp: the limit of n towards infinity: the largest bound alone.
    """
    usable = shapes.usable(setting)
    worker_bound = worker_demand / usable.worker_cpu
    one_worker_at_ps = ps_demand / (usable.ps * usable.ps_cpu) * np.where(usable.ps > 1, skew, 1.0)
    serial = worker_demand + ps_demand / usable.ps
    bounds = [worker_bound, usable.workers * one_worker_at_ps, serial]
    n: Array | float = _FREE_EXPONENT
    if setting.enforced and not sharp:
        n = exponents(worker_bound, one_worker_at_ps, usable.workers, setting.period_seconds)
    if not setting.enforced:
        bounds.append(usable.workers * (worker_demand + ps_demand) / setting.machine_cpu)
    largest = np.maximum.reduce(bounds)
    if sharp:
        return np.asarray(largest)
    # Divided by the largest before raising to n (up to 60), so that nothing overflows or vanishes.
    total: Array = np.sum([(bound / largest) ** n for bound in bounds], axis=0)
    return np.asarray(largest * total ** (1 / n))


def throughput(demand: Demand, plan: Plan, batch_size: int, period_seconds: float = CFS_PERIOD_SECONDS) -> float:
    """Samples per second of all workers together under `plan`, with `batch_size` rows per step."""
    return plan.worker.replicas * batch_size / iteration_seconds(demand, plan, period_seconds)


def exponent(worker_bound: float, one_worker_at_ps: float, workers: int, period_seconds: float) -> float:
    """`exponents` for one plan."""
    one = exponents(np.array([worker_bound]), np.array([one_worker_at_ps]), np.array([float(workers)]), period_seconds)
    return float(one[0])


def exponents(worker_bound: Array, one_worker_at_ps: Array, workers: Array, period_seconds: float) -> Array:
    """How sharply the larger bound wins: from 3 (many periods per step: towards a sum) to 60 (nearly a maximum)."""
    small = np.minimum(worker_bound, one_worker_at_ps) / period_seconds
    large = np.maximum(worker_bound, one_worker_at_ps) / period_seconds
    power = _INTERCEPT + _WORKERS * np.log(workers) + _SMALLER * np.log(small) + _LARGER * np.log(large)
    # exp overflows beyond 700, far above where the cap already holds.
    return np.asarray(np.clip(1 + np.exp(np.minimum(power, 50.0)), _LEAST_EXPONENT, _MOST_EXPONENT))
