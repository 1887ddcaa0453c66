"""How long one step takes under a plan: the law that measured best on real configurations.

Under CPU quotas below a core, a process spends its period's quota in a burst and rests; the other side works in that
rest. So the times of workers and parameter servers overlap although a worker's step is serial, and the step is close
to the *maximum* of both sides' demands over their cores, not to their sum (a sum missed by 30 % in the median). The
law is a p-norm of three bounds, with an exponent that a simulation of CPU quotas gave (constants below):

    T = (A^n + (w S)^n + L^n)^(1/n)
    A = D_w / c_w            CPU bound of a worker
    w S = w D_p / (p c_p)    CPU bound of the parameter servers, with all workers pulling at them
    L = D_w + D_p / p        the serial path of a step at full speed

with w workers of c_w cores, p servers of c_p cores, D_w CPU seconds of a worker and D_p of all servers together per
step of one worker. It is a plain function: fitting D from observations, and ranges, are the room's next pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trimtab.core.domain.plan import Plan
from trimtab.core.errors import BadInput

CFS_PERIOD_SECONDS = 0.1  # Kubernetes' default
_LEAST_EXPONENT, _MOST_EXPONENT = 3.0, 60.0
_INTERCEPT, _WORKERS, _SMALLER, _LARGER = 2.584, 0.852, -0.340, -0.578


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
    worker_bound = demand.worker / plan.worker.cpu
    one_worker_at_ps = demand.ps / (plan.ps.replicas * plan.ps.cpu)
    ps_bound = plan.worker.replicas * one_worker_at_ps
    serial = demand.worker + demand.ps / plan.ps.replicas
    n = exponent(worker_bound, one_worker_at_ps, plan.worker.replicas, period_seconds)
    largest = max(worker_bound, ps_bound, serial)
    # Divided by the largest before raising to n (up to 60), so that nothing overflows or vanishes.
    total: float = sum((bound / largest) ** n for bound in (worker_bound, ps_bound, serial))
    return float(largest * total ** (1 / n))


def throughput(demand: Demand, plan: Plan, batch_size: int, period_seconds: float = CFS_PERIOD_SECONDS) -> float:
    """Samples per second of all workers together under `plan`, with `batch_size` rows per step."""
    return plan.worker.replicas * batch_size / iteration_seconds(demand, plan, period_seconds)


def exponent(worker_bound: float, one_worker_at_ps: float, workers: int, period_seconds: float) -> float:
    """How sharply the larger bound wins: from 3 (many periods per step: towards a sum) to 60 (nearly a maximum)."""
    small, large = sorted((worker_bound / period_seconds, one_worker_at_ps / period_seconds))
    power = _INTERCEPT + _WORKERS * math.log(workers) + _SMALLER * math.log(small) + _LARGER * math.log(large)
    # exp overflows beyond 700, far above where the cap already holds.
    return min(_MOST_EXPONENT, max(_LEAST_EXPONENT, 1 + math.exp(min(power, 50.0))))
