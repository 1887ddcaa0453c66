"""A cluster in one thread, for tests and the simulator: nothing runs, everything is scripted.

It obeys the same contract as the real places (one suite runs over all of them) and moves only with the clock it is
given, so hours of pods coming and going take microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimtab.core.clock import Clock
from trimtab.core.cluster.base import FAILED, LEAVING_CPU, PENDING, RUNNING, SUCCEEDED, PodSpec, PodStatus
from trimtab.core.domain.values import replace

KILLED, TERMINATED = 137, 143  # exit codes of a pod ended by SIGKILL and SIGTERM


@dataclass(frozen=True)
class Outcome:
    """What becomes of a fake pod.

    Attributes:
        start_seconds: how long it is pending.
        run_seconds: how long it runs by itself; None: until it is told to end.
        exit_code: of that end.
        stop_seconds: how long it takes to obey SIGTERM; None: it does not obey.
    """

    start_seconds: float = 0.0
    run_seconds: float | None = None
    exit_code: int = 0
    stop_seconds: float | None = 0.0


@dataclass
class _Pod:
    """A pod's script and where it stands in it; times are the clock's."""

    spec: PodSpec
    starts_at: float
    ends_at: float | None
    exit_code: int
    stop_seconds: float | None
    share: float
    limit: int
    used: int = 0
    out_of_memory: bool = False
    stopping: bool = False


class FakeCluster:
    """The scripted `Cluster`.

    Args:
        clock: usually a `ManualClock`.
        outcome: the script of each pod, asked once when it starts; by default it runs until told to end.
        grace_seconds: between the polite signal and the kill.
        note: what `cpu_note` answers. memory_note: what `memory_note` answers; "": pods are held to their memory.
    """

    def __init__(
        self,
        clock: Clock,
        outcome: Callable[[PodSpec], Outcome] | None = None,
        grace_seconds: float = 5.0,
        note: str = "",
        memory_note: str = "",
    ) -> None:
        self._clock = clock
        self._outcome = outcome or (lambda _: Outcome())
        self._grace = grace_seconds
        self._pods: dict[str, _Pod] = {}
        self._used: set[str] = set()
        self._note, self._memory_note = note, memory_note
        self._closed = False
        self._told: list[PodStatus] = []  # of pods that are gone, to be shown once
        self.started: list[PodSpec] = []  # every start in order, for tests
        self.shares: list[tuple[str, float]] = []  # every change of a share in order, starts with theirs, for tests
        self.limits: list[tuple[str, int]] = []  # the same of limits of memory
        self.caps: tuple[float | None, int | None] = (None, None)  # as last set, for tests

    def apply(self, desired: Sequence[PodSpec]) -> None:
        """Start what is missing, end what is not desired, and change shares, in the order of the contract."""
        now = self._clock.now()
        wanted = {pod.name: pod for pod in desired}
        for name in wanted:
            if (pod := self._pods.get(name)) is not None and not pod.stopping:
                pod.spec = replace(pod.spec, cpu=wanted[name].cpu, memory_bytes=wanted[name].memory_bytes)
        staying = [pod for pod in self._pods.values() if not pod.stopping and pod.spec.name in wanted]
        for pod in staying:
            self._give(pod, min(pod.share, pod.spec.cpu))
            self._hold(pod, min(pod.limit, max(pod.spec.memory_bytes, pod.used)))
        for name, pod in self._pods.items():
            if name not in wanted:
                self._give(pod, LEAVING_CPU if wanted else pod.spec.cpu)
                self._end(pod, now)
        for name, spec in wanted.items():
            if name in self._used or self._closed:
                continue
            script = self._outcome(spec)
            starts = now + script.start_seconds
            ends = None if script.run_seconds is None else starts + script.run_seconds
            self._pods[name] = _Pod(
                spec, starts, ends, script.exit_code, script.stop_seconds, spec.cpu, spec.memory_bytes
            )
            self._used.add(name)
            self.started.append(spec)
            self.shares.append((name, spec.cpu))
            self.limits.append((name, spec.memory_bytes))
        for pod in staying:
            self._give(pod, pod.spec.cpu)
            self._hold(pod, max(pod.spec.memory_bytes, min(pod.limit, pod.used)))
        self._forget(now)

    def observe(self) -> tuple[PodStatus, ...]:
        """What the scripts say at the clock's present time."""
        now = self._clock.now()
        self._forget(now)
        told = {pod.name: pod for pod in self._told}
        self._told.clear()
        told |= {name: _status(pod, now, enforced=not self._memory_note) for name, pod in self._pods.items()}
        return tuple(told[name] for name in sorted(told))

    def set_caps(self, cpu: float | None, memory_bytes: int | None) -> None:
        """Keep them for the test."""
        self.caps = (cpu, memory_bytes)

    def cpu_seconds(self) -> float:
        """Nothing runs, so nothing is used."""
        return 0.0

    def cpu_note(self) -> str:
        """The note it was made with."""
        return self._note

    def memory_note(self) -> str:
        """The note it was made with."""
        return self._memory_note

    def close(self) -> None:
        """End every pod at once."""
        self._closed = True
        self._pods.clear()
        self._told.clear()

    def kill(self, name: str, exit_code: int = KILLED, *, out_of_memory: bool = False) -> None:
        """Let a pod end now with `exit_code`, as a crash, a kill -9, its own exit or the kernel for memory would."""
        pod, now = self._pods[name], self._clock.now()
        if not _ended(pod, now):
            pod.starts_at = min(pod.starts_at, now)
            pod.ends_at, pod.exit_code, pod.out_of_memory = now, exit_code, out_of_memory

    def use(self, name: str, memory_bytes: int) -> None:
        """Let a pod use so many bytes; more than its limit kills it, where limits hold."""
        pod = self._pods[name]
        pod.used = memory_bytes
        if memory_bytes > pod.limit and not self._memory_note:
            self.kill(name, out_of_memory=True)

    def evict(self, name: str) -> None:
        """Remove a pod with its record, as an eviction or a deletion by hand does on Kubernetes."""
        self._pods.pop(name, None)

    def _give(self, pod: _Pod, share: float) -> None:
        if share != pod.share:
            pod.share = share
            self.shares.append((pod.spec.name, share))

    def _hold(self, pod: _Pod, memory_bytes: int) -> None:
        if memory_bytes != pod.limit:
            pod.limit = memory_bytes
            self.limits.append((pod.spec.name, memory_bytes))

    def _end(self, pod: _Pod, now: float) -> None:
        if pod.stopping:
            return
        pod.stopping = True
        if _ended(pod, now):
            return
        obeys = pod.stop_seconds is not None and pod.stop_seconds < self._grace
        at = now + (pod.stop_seconds if obeys and pod.stop_seconds is not None else self._grace)
        if pod.ends_at is None or at < pod.ends_at:
            pod.ends_at, pod.exit_code = at, TERMINATED if obeys else KILLED

    def _forget(self, now: float) -> None:
        """A pod that is not desired disappears once it has ended; one that ended by itself stays while desired."""
        for name in [name for name, pod in self._pods.items() if pod.stopping and _ended(pod, now)]:
            pod = self._pods.pop(name)
            if pod.out_of_memory:
                self._told.append(_status(pod, now, enforced=not self._memory_note))


def _ended(pod: _Pod, now: float) -> bool:
    return pod.ends_at is not None and now >= pod.ends_at


def _status(pod: _Pod, now: float, *, enforced: bool) -> PodStatus:
    spec = pod.spec
    found = PodStatus(
        spec.name, spec.role, RUNNING, None, None, pod.starts_at, pod.share,
        memory_bytes=pod.limit if enforced else 0, memory_used=pod.used,
    )  # fmt: skip
    if _ended(pod, now):
        phase = SUCCEEDED if pod.exit_code == 0 else FAILED
        return replace(found, phase=phase, exit_code=pod.exit_code, out_of_memory=pod.out_of_memory and enforced)
    return found if now >= pod.starts_at else replace(found, phase=PENDING, started_at=None)
