"""What a job is given: plans, limits and prices.

A `Plan` is the one object that everything else is about: the optimizer proposes it, the controller makes it true,
history remembers it. It is immutable, comparable and has one dictionary form, the one that JSON outputs show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trimtab.core.domain.quantities import format_cpu, format_memory
from trimtab.core.errors import BadInput

SMALLEST_CPU = 0.1  # cores: below this a TensorFlow worker does not get through its import within a minute
SMALLEST_PS_MEMORY = 256 * 2**20  # bytes: interpreter, kernels, an empty table
PS_BASE_BYTES = 160 * 2**20  # bytes of a PS that its table cannot have: interpreter, kernels, buffers
SNAPSHOT_SHARE = 0.25  # of a table: pages that change while a forked child writes the table are there twice
SMALLEST_WORKER_MEMORY = 768 * 2**20  # bytes: TensorFlow imported (0.6 GB measured) and a small batch


def table_room(ps_memory_bytes: int) -> int:
    """Bytes that the table of a PS with so much memory may have: what is left beside the process and its snapshots."""
    return max(PS_BASE_BYTES // 2, int((ps_memory_bytes - PS_BASE_BYTES) / (1 + SNAPSHOT_SHARE)))


def ps_memory_for(table_bytes: float) -> int:
    """The least memory of a PS whose table may become so large, in whole MiB: `table_room` the other way round."""
    return _floor_mebi(math.ceil(PS_BASE_BYTES + table_bytes * (1 + SNAPSHOT_SHARE)) + 2**20 - 1)


@dataclass(frozen=True)
class RolePlan:
    """Replicas of one role and what each of them gets.

    Attributes:
        replicas: how many pods.
        cpu: cores per pod (fractions allowed).
        memory_bytes: bytes per pod.
    """

    replicas: int
    cpu: float
    memory_bytes: int

    def as_dict(self) -> dict[str, object]:
        """The form that JSON outputs show: quantities in Kubernetes' notation."""
        return {"replicas": self.replicas, "cpu": format_cpu(self.cpu), "memory": format_memory(self.memory_bytes)}


@dataclass(frozen=True)
class Plan:
    """Parameter servers and workers of a job at one time."""

    ps: RolePlan
    worker: RolePlan

    @property
    def cpu(self) -> float:
        """Cores of all pods together."""
        return self.ps.replicas * self.ps.cpu + self.worker.replicas * self.worker.cpu

    @property
    def memory_bytes(self) -> int:
        """Bytes of all pods together."""
        return self.ps.replicas * self.ps.memory_bytes + self.worker.replicas * self.worker.memory_bytes

    def as_dict(self) -> dict[str, object]:
        """The form that JSON outputs show."""
        return {"ps": self.ps.as_dict(), "worker": self.worker.as_dict()}

    def __str__(self) -> str:
        """`workers × cores + PSs × cores`, the notation of every page and line."""
        worker, ps = self.worker, self.ps
        return f"{worker.replicas} × {worker.cpu:g} + {ps.replicas} × {ps.cpu:g}"


@dataclass(frozen=True)
class Limits:
    """Caps that hold at every instant, overlaps of replacements included. None: the machine decides.

    Attributes:
        cpu: cores of all pods together.
        memory_bytes: bytes of all pods together.
        workers: most workers.
        ps: most parameter servers.
    """

    cpu: float | None = None
    memory_bytes: int | None = None
    workers: int | None = None
    ps: int | None = None


def within(plan: Plan, limits: Limits) -> bool:
    """Whether a plan keeps every cap that is given."""
    return (
        plan.cpu <= (limits.cpu if limits.cpu is not None else math.inf) + 1e-9
        and plan.memory_bytes <= (limits.memory_bytes if limits.memory_bytes is not None else math.inf)
        and plan.worker.replicas <= (limits.workers if limits.workers is not None else math.inf)
        and plan.ps.replicas <= (limits.ps if limits.ps is not None else math.inf)
    )


@dataclass(frozen=True)
class Prices:
    """What a core-hour and a GiB-hour cost, and in which currency."""

    core_hour: float = 0.04
    gib_hour: float = 0.005
    currency: str = "$"

    def per_hour(self, plan: Plan) -> float:
        """Cost of one hour of `plan`."""
        return plan.cpu * self.core_hour + plan.memory_bytes / 2**30 * self.gib_hour


def cold_plan(
    limits: Limits, machine_cpu: float, machine_memory_bytes: int, *, workers: int | None, ps: int | None
) -> Plan:
    """The stated default where no past job says better: as many workers as whole cores, one PS for four workers.

    Cores are shared out so that the caps hold: a PS gets a third of what a worker gets, which is the ratio of CPU
    per step measured for DLRM with Adagrad (worker 3.5 ms, PS 1.2 ms).

    Args:
        limits: the caller's caps; None fields fall back on the machine.
        machine_cpu: cores of the machine.
        machine_memory_bytes: bytes that may be used on it.
        workers, ps: fixed numbers of replicas, or None to choose.

    Raises:
        BadInput: the caps are below the smallest plan, or below what `workers` and `ps` need.
    """
    cpu = limits.cpu if limits.cpu is not None else machine_cpu
    memory = limits.memory_bytes if limits.memory_bytes is not None else machine_memory_bytes
    most_workers, most_ps = limits.workers, limits.ps
    for name, wanted, most in (("--workers", workers, most_workers), ("--ps", ps, most_ps)):
        if wanted is not None and most is not None and wanted > most:
            raise BadInput(name, wanted, f"the cap {name.replace('--', '--max-')} is {most}; raise it or ask for less")
    w = workers if workers is not None else max(1, int(min(cpu, machine_cpu)))
    w = w if workers is not None or most_workers is None else min(w, most_workers)
    p = ps if ps is not None else max(1, w // 4)
    p = p if ps is not None or most_ps is None else min(p, most_ps)
    share = cpu / (w + p / 3)
    worker_cpu, ps_cpu = _floor_milli(share), _floor_milli(share / 3)
    if min(worker_cpu, ps_cpu) < SMALLEST_CPU:
        worker_cpu = _floor_milli((cpu - p * SMALLEST_CPU) / w)
        ps_cpu = SMALLEST_CPU
    if worker_cpu < SMALLEST_CPU:
        need = (w + p) * SMALLEST_CPU
        raise BadInput("--max-cpu", cpu, f"{w} worker(s) and {p} PS(s) need at least {need:g} cores")
    need_memory = w * SMALLEST_WORKER_MEMORY + p * SMALLEST_PS_MEMORY
    if memory < need_memory:
        text = format_memory(need_memory)
        raise BadInput("--max-memory", format_memory(memory), f"{w} worker(s) and {p} PS(s) need at least {text}")
    spare = memory - need_memory
    ps_memory = SMALLEST_PS_MEMORY + _floor_mebi(spare // 2 // p)
    worker_memory = SMALLEST_WORKER_MEMORY + _floor_mebi(spare // 4 // w)
    return Plan(RolePlan(p, ps_cpu, ps_memory), RolePlan(w, worker_cpu, worker_memory))


def _floor_mebi(memory_bytes: int) -> int:
    return memory_bytes >> 20 << 20


def _floor_milli(cores: float) -> float:
    return int(cores * 1000 + 1e-6) / 1000
