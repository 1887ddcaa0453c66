"""Rows and windows for the tests of this room."""

import math

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Observation
from trimtab.core.perf.iteration import Setting, Shapes
from trimtab.core.perf.rows import Row

LOCAL = Setting(True, math.inf, 0.02)


def plan(workers, worker_cpu, ps, ps_cpu):
    return Plan(RolePlan(ps, ps_cpu, 2**30), RolePlan(workers, worker_cpu, 2**30))


def row(one, seconds, worker=None, ps=None, batch=1024, start=0.0, length=10.0, skew=None):
    return Row(one, batch, seconds, worker, ps, length, 3, start, start + length, 0.0, skew)


def window(one, seconds, at, worker=None, ps=None, batch=1024, length=5.0, **more):
    rate = one.worker.replicas * batch / seconds
    return Observation(one, rate, worker, ps, batch, at, length, int(rate * length / batch), **more)


def measured(law, plans, noise, chance, batch=1024, **more):
    """Rows as `law` has them, each off by log-normal noise; CPU figures where the law has demands."""
    rows = []
    for at, one in enumerate(plans):
        shapes = Shapes.of([one])
        seconds = float(law.seconds(shapes, batch, LOCAL)[0]) * math.exp(chance.gauss(0, noise))
        worker, ps = (float(each[0]) for each in law.demands(shapes, batch, LOCAL))
        cpu = [each * math.exp(chance.gauss(0, noise / 2)) for each in (worker, ps)]
        rows.append(row(one, seconds, *cpu, batch, start=12.0 * at, **more))
    return rows
