"""A space of plans as four axes, without writing the plans down.

Workers, parameter servers (PSs), cores per worker and cores per PS span millions of plans; their arrays would take
gigabytes. So a plan is a number here, and cost, cores and memory are sums of a worker side and a PS side, which is what
lets `front` judge blocks of plans by their sides alone. Memory per pod is no axis: less than the forecast ends in an
OOM kill, more costs and brings nothing, so it follows from the number of PSs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trimtab.core.domain.plan import Limits, Plan, Prices, RolePlan
from trimtab.core.errors import BadInput
from trimtab.core.perf.iteration import Array, Shapes

GIB = float(2**30)
_ROUNDING = 1e-9  # cores: sums of tenths miss a cap by less


@dataclass(frozen=True)
class Side:
    """One role's part of many plans: cores, memory in bytes and cost per hour, all pods of the role together."""

    cpu: Array
    memory: Array
    cost: Array


@dataclass(frozen=True)
class Space:
    """All combinations of four axes, within two caps.

    Plan number i is at `numpy.unravel_index(i, shape)` of (ps, workers, worker_cpu, ps_cpu).

    Attributes:
        workers, ps: numbers of pods. worker_cpu, ps_cpu: cores per pod.
        worker_memory: bytes per worker. ps_memory: bytes per PS, one for each of `ps`.
        cpu_cap, memory_cap: cores and bytes of all pods together.
        prices: of cores and memory.
    """

    workers: Array
    worker_cpu: Array
    ps: Array
    ps_cpu: Array
    worker_memory: float
    ps_memory: Array
    cpu_cap: float = math.inf
    memory_cap: float = math.inf
    prices: Prices = field(default_factory=Prices)

    def __post_init__(self) -> None:
        """Refuses axes and prices that mean nothing.

        Raises:
            BadInput: an axis is empty or not finite and above 0, memory does not fit the axis, or a price is negative.
        """
        for name in ("workers", "worker_cpu", "ps", "ps_cpu", "ps_memory"):
            values = np.asarray(getattr(self, name), float)
            if values.ndim != 1 or not len(values) or not np.all(np.isfinite(values) & (values > 0)):
                raise BadInput(f"space.{name}", values.tolist(), "give at least one finite number above 0")
            object.__setattr__(self, name, values)
        if len(self.ps_memory) != len(self.ps):
            raise BadInput("space.ps_memory", self.ps_memory.tolist(), "give bytes per PS for each number of PSs")
        if not (math.isfinite(self.worker_memory) and self.worker_memory > 0):
            raise BadInput("space.worker_memory", self.worker_memory, "give bytes above 0")
        for name in ("core_hour", "gib_hour"):
            price = getattr(self.prices, name)
            if not (math.isfinite(price) and price >= 0):
                raise BadInput(f"prices.{name}", price, "give a finite price of at least 0")
        for name in ("cpu_cap", "memory_cap"):
            if not getattr(self, name) > 0:
                raise BadInput(f"space.{name}", getattr(self, name), "give a number above 0")

    @staticmethod
    def of(
        limits: Limits,
        workers: int,
        ps: int,
        worker_cpu: Sequence[float],
        ps_cpu: Sequence[float],
        worker_memory: float,
        ps_memory: Callable[[int], float],
        prices: Prices | None = None,
    ) -> Space:
        """The space of up to `workers` workers and `ps` PSs, cut by `limits`.

        Args:
            limits: caps; what is None does not bind.
            workers, ps: most pods of each role.
            worker_cpu, ps_cpu: the cores a pod may have.
            worker_memory: bytes per worker.
            ps_memory: forecast of the bytes that the fullest of so many PSs needs.
            prices: of cores and memory; the default ones if None.
        """
        most_workers = min(workers, limits.workers if limits.workers is not None else workers)
        most_ps = min(ps, limits.ps if limits.ps is not None else ps)
        return Space(
            np.arange(1, most_workers + 1, dtype=float), np.array(worker_cpu, float),
            np.arange(1, most_ps + 1, dtype=float), np.array(ps_cpu, float),
            worker_memory, np.array([ps_memory(one) for one in range(1, most_ps + 1)], float),
            limits.cpu if limits.cpu is not None else math.inf,
            float(limits.memory_bytes) if limits.memory_bytes is not None else math.inf,
            prices or Prices(),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.ps) * self.rows * len(self.ps_cpu)

    @property
    def rows(self) -> int:
        """Pairs of workers and their cores: one worker side for each."""
        return len(self.workers) * len(self.worker_cpu)

    def worker_axes(self, rows: slice = slice(None)) -> tuple[Array, Array]:
        """Workers and cores per worker of `rows`."""
        workers = np.repeat(self.workers, len(self.worker_cpu))[rows]
        return workers, np.tile(self.worker_cpu, len(self.workers))[rows]

    def worker_side(self, workers: Array, worker_cpu: Array) -> Side:
        """What so many workers with so many cores each take."""
        return self._side(workers, worker_cpu, np.full(len(workers), self.worker_memory))

    def ps_side(self, number: int) -> Side:
        """What the PSs take, `ps[number]` of them, for each of `ps_cpu`."""
        ps = np.full(len(self.ps_cpu), self.ps[number])
        return self._side(ps, self.ps_cpu, np.full(len(ps), self.ps_memory[number]))

    def shapes(self, index: np.ndarray) -> Shapes:
        """Replicas and cores of the plans with these numbers."""
        p, w, worker_cpu, ps_cpu = self._places(index)
        return Shapes(self.workers[w], self.worker_cpu[worker_cpu], self.ps[p], self.ps_cpu[ps_cpu])

    def cost(self, index: np.ndarray) -> Array:
        """Currency per hour of the plans with these numbers."""
        worker, ps = self._sides(index)
        return np.asarray(worker.cost + ps.cost)

    def within(self, index: np.ndarray) -> np.ndarray:
        """Which of the plans with these numbers keep both caps."""
        worker, ps = self._sides(index)
        return self.fits(worker.cpu + ps.cpu, worker.memory + ps.memory)

    def count_within(self) -> int:
        """How many plans keep both caps."""
        worker, found = self.worker_side(*self.worker_axes()), 0
        for number in range(len(self.ps)):
            ps = self.ps_side(number)
            cpu, memory = (np.add.outer(*pair) for pair in ((worker.cpu, ps.cpu), (worker.memory, ps.memory)))
            found += int(np.count_nonzero(self.fits(cpu, memory)))
        return found

    def fits(self, cpu: Array, memory: Array) -> np.ndarray:
        """Whether so many cores and bytes keep both caps."""
        return np.asarray((cpu <= self.cpu_cap + _ROUNDING) & (memory <= self.memory_cap))

    def plan(self, index: int) -> Plan:
        """The plan with this number."""
        p, w, worker_cpu, ps_cpu = (int(one) for one in self._places(np.array(index)))
        return Plan(
            RolePlan(int(self.ps[p]), float(self.ps_cpu[ps_cpu]), math.ceil(self.ps_memory[p])),
            RolePlan(int(self.workers[w]), float(self.worker_cpu[worker_cpu]), math.ceil(self.worker_memory)),
        )

    def _places(self, index: np.ndarray) -> tuple[np.ndarray, ...]:
        return np.unravel_index(index, (len(self.ps), len(self.workers), len(self.worker_cpu), len(self.ps_cpu)))

    def _sides(self, index: np.ndarray) -> tuple[Side, Side]:
        p, w, worker_cpu, ps_cpu = self._places(index)
        worker = self.worker_side(self.workers[w], self.worker_cpu[worker_cpu])
        return worker, self._side(self.ps[p], self.ps_cpu[ps_cpu], self.ps_memory[p])

    def _side(self, pods: Array, cpu: Array, memory: Array) -> Side:
        each = cpu * self.prices.core_hour + memory / GIB * self.prices.gib_hour
        return Side(pods * cpu, pods * memory, pods * each)
