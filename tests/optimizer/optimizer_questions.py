"""A small job and what may be asked about it; a test changes what it is about."""

from trimtab.core.domain.job import Objective
from trimtab.core.domain.plan import Limits, Plan, Prices, RolePlan
from trimtab.core.domain.records import Observation
from trimtab.core.optimizer.question import Question

GIB, BATCH = 2**30, 1024
SWITCH = {"worker": 2.0, "ps": 2.0, "cpu": 0.2}


def plan(workers, worker_cpu, ps, ps_cpu, memory=GIB):
    return Plan(RolePlan(ps, ps_cpu, memory), RolePlan(workers, worker_cpu, memory))


SMALL, LARGE = plan(1, 1.0, 1, 0.3), plan(2, 0.8, 1, 0.4)


def window(of, seconds, at, worker=0.018, ps=0.004, length=3.0):
    return Observation(of, of.worker.replicas * BATCH / seconds, worker, ps, BATCH, at, length, 100)


def windows(of, seconds, start, count=3, worker=0.018, ps=0.004):
    return tuple(window(of, seconds, start + 3.0 * (i + 1), worker, ps) for i in range(count))


def question(**more):
    given = {
        "time_seconds": 15.0, "plan": SMALL, "batch_size": BATCH, "batches_left": 10**5,
        "observations": windows(SMALL, 0.0235, 3.0), "prior": (), "limits": Limits(2.0, 6 * GIB, 4, 4),
        "objective": Objective.BALANCED, "prices": Prices(), "decisions": (), "switch_seconds": SWITCH,
    }  # fmt: skip
    return Question(**{**given, **more})
