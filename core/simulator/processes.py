"""What simulated workers and parameter servers share: they live, hang, die, and run as fast as their cores allow.

A process knows its surroundings only through `Place`: the clock, the wires, the store, the other servers, and how many
cores its pod has at this moment. That a pod is believed dead changes nothing here; a process is gone when it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from trimtab.core.simulator.loop import DrivenLoop
from trimtab.core.simulator.network import Network
from trimtab.core.simulator.schedules import Schedule
from trimtab.core.simulator.storage import Storage
from trimtab.core.wire.messages import WorkerSync

if TYPE_CHECKING:
    from trimtab.core.simulator.servers import Server
    from trimtab.core.simulator.workers import Worker

LEAST_CORES = 0.01  # of a running process, so that nothing takes for ever


class Place(Protocol):
    """A process's surroundings.

    Attributes:
        loop: time and chance. network: between processes. storage: of copies. schedule: the job's figures.
        servers: by process id, also those that nobody knows of any more.
        failing: how often the next copies still fail. hanging_until: nobody's copy is written before.
    """

    loop: DrivenLoop
    network: Network
    storage: Storage
    schedule: Schedule
    servers: dict[str, Server]
    failing: dict[str, int]
    hanging_until: float

    def cores(self, pod: str) -> float:
        """What a pod has now."""
        ...

    def use(self, pod: str, memory_bytes: int) -> None:
        """A pod uses so many bytes; the kernel kills it when that is more than it may."""
        ...

    @property
    def weights(self) -> tuple[float, ...]:
        """Share of a batch's push that each vshard gets."""
        ...

    def weight(self, mask: int) -> float:
        """Share of a batch's push that these vshards get together."""
        ...

    def called(self, worker: Worker, sync: WorkerSync) -> None:
        """A worker's call has reached the controller's address."""
        ...


class Process:
    """One process.

    Attributes:
        pod: its pod's name. process: its random id. term: of the controller that started it.
        dead: it has ended. hung_until: it reacts to nothing before. slow: times that everything takes.
        cpu_seconds: used so far.
    """

    def __init__(self, world: Place, pod: str, process: str, term: int) -> None:
        self.world = world
        self.pod, self.process, self.term = pod, process, term
        self.dead = False
        self.hung_until = 0.0
        self.slow = 1.0
        self.cpu_seconds = 0.0

    @property
    def hung(self) -> bool:
        """Whether it reacts to nothing now."""
        return self.world.loop.clock.now() < self.hung_until

    def seconds(self, cpu_seconds: float) -> float:
        """How long so much work takes with the cores that its pod has now."""
        return cpu_seconds * self.slow / max(LEAST_CORES, self.world.cores(self.pod))

    def after(self, seconds: float, event: Callable[[], object]) -> None:
        """Run `event` then, or when it has stopped hanging; not at all once it is dead."""

        def due() -> None:
            if self.dead:
                return
            late = self.hung_until - self.world.loop.clock.now()
            if late > 0:
                self.world.loop.after(late, due)
            else:
                event()

        self.world.loop.after(seconds, due)
