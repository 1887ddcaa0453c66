"""The present plan cut down until it fits smaller caps, without a prediction.

When another job of the machine waits for room there is no time to measure anything first, and perhaps nothing has been
measured yet. So this is arithmetic: pods of the role that has more of them go until memory fits, then all give the same
part of their cores, and pods go again where that would leave them less than the least. Nothing ever grows here; the
optimizer finds the best plan within the new caps afterwards, as it always does.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trimtab.core.domain.plan import SMALLEST_CPU, Limits, Plan

_DUST = 1e-9


def smaller(plan: Plan, limits: Limits, least_ps: int = 1) -> Plan | None:
    """`plan` if it is within `limits`, else the same cut down; None where nothing of it fits.

    Args:
        plan: in force. limits: that it must fit.
        least_ps: parameter servers that hold the tables.
    """
    cores = math.inf if limits.cpu is None else limits.cpu
    memory = math.inf if limits.memory_bytes is None else limits.memory_bytes
    least_ps = min(least_ps, plan.ps.replicas)
    workers = min(plan.worker.replicas, plan.worker.replicas if limits.workers is None else limits.workers)
    servers = min(plan.ps.replicas, plan.ps.replicas if limits.ps is None else limits.ps)
    if servers < least_ps:
        return None
    while True:
        cut = Plan(replace(plan.ps, replicas=servers), replace(plan.worker, replicas=workers))
        if cut.memory_bytes <= memory:
            fitted = _cut_cores(cut, cores)
            if fitted is not None:
                return fitted
        if workers > 1 and (workers >= servers or servers <= least_ps):
            workers -= 1
        elif servers > least_ps:
            servers -= 1
        else:
            return None


def _cut_cores(plan: Plan, cores: float) -> Plan | None:
    """The same pods with the same part of their cores each; None where that is too little for one of them."""
    if plan.cpu <= cores + _DUST:
        return plan
    worker, ps = (_milli(one.cpu * cores / plan.cpu) for one in (plan.worker, plan.ps))
    # Who would come below the least gets that, or what it has if it has less already; the other role gives it.
    least_worker, least_ps = min(SMALLEST_CPU, plan.worker.cpu), min(SMALLEST_CPU, plan.ps.cpu)
    if worker < least_worker:
        worker = least_worker
        ps = min(plan.ps.cpu, _milli((cores - plan.worker.replicas * worker) / plan.ps.replicas))
    elif ps < least_ps:
        ps = least_ps
        worker = min(plan.worker.cpu, _milli((cores - plan.ps.replicas * ps) / plan.worker.replicas))
    if worker < least_worker or ps < least_ps:
        return None
    return Plan(replace(plan.ps, cpu=ps), replace(plan.worker, cpu=worker))


def _milli(cores: float) -> float:
    return math.floor(cores * 1000 + 1e-6) / 1000
