"""What the controller asks of a place where pods run, and nothing more.

The controller says what should be, again and again, and reads what is; the place works on the difference. Nothing
here waits for a pod: a slow death is driven by the next `apply` or `observe`. One rule carries the promise that
nothing is ever started twice: a name is used once. Names carry the controller's term and a generation, so a
replacement has a new name, a finished pod stays finished (case 6), and a late or repeated `apply` starts nothing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

PS, WORKER = "ps", "worker"
LEAVING_CPU = 0.05  # cores of a pod that was told to end, so that others can have what it had
PENDING, RUNNING, SUCCEEDED, FAILED = "pending", "running", "succeeded", "failed"


@dataclass(frozen=True)
class PodSpec:
    """One pod as it should be.

    Attributes:
        name: unique for ever, also after the pod has ended.
        role: ps | worker.
        argv: command line; the first item is an executable's path or a name on PATH.
        log_path: file that gets standard output and error; kept after the pod's end.
        cpu: cores the pod may use. memory_bytes: bytes it may use. Both may change while the pod lives.
        zygote: command line of a process that can fork this pod (`argv` is then `(python, "-m", module, *arguments)`,
            and the zygote runs the same module); (): start it cold. A place may start it cold all the same.
    """

    name: str
    role: str
    argv: tuple[str, ...]
    log_path: str
    cpu: float
    memory_bytes: int
    zygote: tuple[str, ...] = ()


@dataclass(frozen=True)
class PodStatus:
    """One pod as it is.

    Attributes:
        name, role: as in its `PodSpec`.
        phase: pending | running | succeeded | failed.
        exit_code: of an ended pod, as Kubernetes counts: 128 + signal for a killed one; None while it lives,
            and where nobody knows.
        pid: of a local process, else None.
        started_at: the clock's seconds when it began to run; None while pending.
        cpu: cores given to it at present; only a limit where the place enforces shares.
        out_of_memory: an ended pod that the kernel killed because it went over its memory; False where nobody knows.
        memory_bytes: the limit that is enforced at present, 0 where none is.
        memory_used: bytes that it uses and can't give back, 0 where nobody knows.
    """

    name: str
    role: str
    phase: str
    exit_code: int | None = None
    pid: int | None = None
    started_at: float | None = None
    cpu: float = 0.0
    out_of_memory: bool = False
    memory_bytes: int = 0
    memory_used: int = field(default=0, compare=False)

    @property
    def ended(self) -> bool:
        """Whether the pod is over, well or not."""
        return self.phase in (SUCCEEDED, FAILED)


class Cluster(Protocol):
    """A place where pods run. Every method may be called from one thread at a time."""

    def apply(self, desired: Sequence[PodSpec]) -> None:
        """Make it so: start what is missing, end what is not desired; idempotent, and never waits.

        A pod that is not desired gets a polite signal first and is killed after a grace. A name that was ever used is
        not started again, whatever became of it. A living name with another `cpu` gets that share in place, one with
        another `memory_bytes` that limit, as far as it does not fall below what the pod uses. So that the sum never
        rises on the way, the order is: what falls; pods that leave, which keep `LEAVING_CPU` while others stay, and
        their memory; starts; what rises.
        """
        ...

    def observe(self) -> tuple[PodStatus, ...]:
        """Every desired pod, and those that are still ending, by name. An ended pod is shown while it is desired.

        One that the kernel killed for want of memory is shown once more even if it was told to end (case 24).
        """
        ...

    def set_caps(self, cpu: float | None, memory_bytes: int | None) -> None:
        """What all pods, and what forks them, may use together from now on; None: no limit."""
        ...

    def cpu_seconds(self) -> float:
        """CPU seconds of the pods that have ended so far, and of what was started to fork them."""
        ...

    def cpu_note(self) -> str:
        """Empty where shares are enforced, else one sentence why not."""
        ...

    def memory_note(self) -> str:
        """Empty where pods are held to their memory, else one sentence why not."""
        ...

    def close(self) -> None:
        """End every pod, waiting at most the grace and a little; afterwards nothing is left. May be called twice."""
        ...
