"""A cluster in one thread, for tests and the simulator: nothing runs, everything is scripted.

It obeys the same contract as the real places (one suite runs over all of them) and moves only with the clock it is
given, so hours of pods coming and going take microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trimtab.core.clock import Clock
from trimtab.core.cluster.base import FAILED, LEAVING_CPU, PENDING, RUNNING, SUCCEEDED, PodSpec, PodStatus

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
    stopping: bool = False


class FakeCluster:
    """The scripted `Cluster`.

    Args:
        clock: usually a `ManualClock`.
        outcome: the script of each pod, asked once when it starts; by default it runs until told to end.
        grace_seconds: between the polite signal and the kill.
        note: what `cpu_note` answers.
    """

    def __init__(
        self,
        clock: Clock,
        outcome: Callable[[PodSpec], Outcome] | None = None,
        grace_seconds: float = 5.0,
        note: str = "",
    ) -> None:
        self._clock = clock
        self._outcome = outcome or (lambda _: Outcome())
        self._grace = grace_seconds
        self._pods: dict[str, _Pod] = {}
        self._used: set[str] = set()
        self._note = note
        self._closed = False
        self.started: list[PodSpec] = []  # every start in order, for tests
        self.shares: list[tuple[str, float]] = []  # every change of a share in order, starts with theirs, for tests

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
            self._pods[name] = _Pod(spec, starts, ends, script.exit_code, script.stop_seconds, spec.cpu)
            self._used.add(name)
            self.started.append(spec)
            self.shares.append((name, spec.cpu))
        for pod in staying:
            self._give(pod, pod.spec.cpu)
        self._forget(now)

    def observe(self) -> tuple[PodStatus, ...]:
        """What the scripts say at the clock's present time."""
        now = self._clock.now()
        self._forget(now)
        return tuple(_status(self._pods[name], now) for name in sorted(self._pods))

    def cpu_seconds(self) -> float:
        """Nothing runs, so nothing is used."""
        return 0.0

    def cpu_note(self) -> str:
        """The note it was made with."""
        return self._note

    def memory_note(self) -> str:
        """What the test says of CPU shares, too."""
        return self._note

    def close(self) -> None:
        """End every pod at once."""
        self._closed = True
        self._pods.clear()

    def kill(self, name: str, exit_code: int = KILLED) -> None:
        """Let a pod end now with `exit_code`, as a crash, a kill -9 or its own exit would."""
        pod, now = self._pods[name], self._clock.now()
        if not _ended(pod, now):
            pod.starts_at = min(pod.starts_at, now)
            pod.ends_at, pod.exit_code = now, exit_code

    def evict(self, name: str) -> None:
        """Remove a pod with its record, as an eviction or a deletion by hand does on Kubernetes."""
        self._pods.pop(name, None)

    def _give(self, pod: _Pod, share: float) -> None:
        if share != pod.share:
            pod.share = share
            self.shares.append((pod.spec.name, share))

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
            del self._pods[name]


def _ended(pod: _Pod, now: float) -> bool:
    return pod.ends_at is not None and now >= pod.ends_at


def _status(pod: _Pod, now: float) -> PodStatus:
    spec = pod.spec
    if _ended(pod, now):
        phase = SUCCEEDED if pod.exit_code == 0 else FAILED
        return PodStatus(spec.name, spec.role, phase, pod.exit_code, None, pod.starts_at, pod.share)
    if now < pod.starts_at:
        return PodStatus(spec.name, spec.role, PENDING, cpu=pod.share)
    return PodStatus(spec.name, spec.role, RUNNING, None, None, pod.starts_at, pod.share)
