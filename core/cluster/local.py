"""Pods as processes of this machine.

A pod is a session of its own, started by command line or forked from a zygote; either way it is this process's child,
so its exit code and CPU time are the kernel's. `apply` and `observe` never wait: what takes time (a zygote's imports,
a pod's end) is looked at by the next call. Shares are control groups where the machine allows them. Nothing relies on
the parent's death being noticed by the kernel: pods end by themselves after `orphan_grace` when their controller is
gone, and a zygote when its channel is.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.cluster.base import FAILED, LEAVING_CPU, PENDING, RUNNING, SUCCEEDED, PodSpec, PodStatus
from trimtab.core.cluster.cgroups import open_shares
from trimtab.core.cluster.processes import Process, open_log, reap_group, start
from trimtab.core.cluster.shares import Shares
from trimtab.core.cluster.subreaper import SUBREAPER
from trimtab.core.cluster.zygotes import Zygotes

log = logging.getLogger(__name__)

NOT_STARTED = 127  # exit code of a pod whose command could not be run, as a shell has it
PIDS_FILE = "pids.json"
_POLL_SECONDS = 0.01
_CLEAN_SECONDS = 2.0  # for killed stragglers and emptied groups to be gone
_LOOK_SECONDS = 0.5  # between two looks at what pods use of memory
_DYING_SECONDS = 10.0  # from a kill for want of memory to the end: giving gigabytes back takes a small share its time
_KILLED = 128 + signal.SIGKILL


@dataclass
class _Pod:
    """A pod whose name is used.

    `process` is None while a zygote is to fork it (`pending`), and when its command could not be run.
    """

    spec: PodSpec
    process: Process | None
    started_at: float | None
    share: float
    pending: bool = False
    ended: bool = False
    exit_code: int | None = None  # of an ended one; None when somebody else has reaped it
    kill_at: float | None = None  # set when it was told to end
    killed: bool = False
    kills: int = 0  # of its processes, for want of memory, and when the last one was seen
    killed_at: float = -math.inf
    out_of_memory: bool = False
    limit: int = 0
    used: int = 0

    @property
    def stays(self) -> bool:
        """Whether it lives and was not told to end."""
        return not self.ended and self.kill_at is None


class LocalCluster:
    """The `Cluster` of processes on this machine.

    Args:
        directory: the job's directory; gets `pids.json` with the names and process ids of the living pods.
        clock: for the grace.
        grace_seconds: between SIGTERM and SIGKILL.
        cap_cpu, cap_memory: cores and bytes that all pods and zygotes together may use; None: no limit.
        shares: what pods are held to; by default the machine's control groups, where they can be used.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        grace_seconds: float = 5.0,
        cap_cpu: float | None = None,
        shares: Shares | None = None,
        cap_memory: int | None = None,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._grace = grace_seconds
        self._cap_cpu, self._cap_memory = cap_cpu, cap_memory
        self._recapped = False
        self._opened = shares
        self._zygotes: Zygotes | None = None
        self._reaps = False
        self._pods: dict[str, _Pod] = {}
        self._used: set[str] = set()
        self._groups: list[int] = []
        self._noted: dict[str, int] = {}
        self._cpu_seconds = 0.0
        self._looked_at = -math.inf
        self._closed = False
        self._never = threading.Event()

    def apply(self, desired: Sequence[PodSpec]) -> None:
        """Make it so, in the order of the contract; never waits."""
        wanted = {pod.name: pod for pod in desired}
        self._poll()
        staying = [pod for name, pod in self._pods.items() if name in wanted and pod.stays]
        for pod in staying:
            new = wanted[pod.spec.name]
            pod.spec = replace(pod.spec, cpu=new.cpu, memory_bytes=new.memory_bytes)
            self._give(pod, min(pod.share, pod.spec.cpu))
            if pod.spec.memory_bytes < pod.limit:
                self._hold(pod)
        for name, pod in self._pods.items():
            if name not in wanted and not pod.ended:
                # When nobody stays nobody needs what it has, and it ends sooner.
                self._give(pod, LEAVING_CPU if wanted else pod.spec.cpu)
                self._end(pod)
        for name, spec in wanted.items():
            if name not in self._used and not self._closed:
                self._used.add(name)
                self._pods[name] = self._start(spec)
        for pod in staying:
            self._give(pod, pod.spec.cpu)
            self._hold(pod)
        for name in [name for name, pod in self._pods.items() if name not in wanted and pod.ended]:
            del self._pods[name]
        self._note_pids()

    def observe(self) -> tuple[PodStatus, ...]:
        """Reap what has ended, kill what outlived its grace, and tell."""
        self._poll()
        over = [name for name, pod in self._pods.items() if pod.kill_at is not None and pod.ended]
        shown = [self._pods[name] for name in over if self._pods[name].out_of_memory]
        for name in over:
            del self._pods[name]
        self._note_pids()
        return tuple(_status(pod) for pod in sorted((*self._pods.values(), *shown), key=lambda pod: pod.spec.name))

    def set_caps(self, cpu: float | None, memory_bytes: int | None) -> None:
        """Change the limits of the job's own groups, in place."""
        self._cap_cpu, self._cap_memory, self._recapped = cpu, memory_bytes, True
        if self._opened is not None:
            self._opened.caps(cpu, memory_bytes)

    def cpu_seconds(self) -> float:
        """CPU time of ended pods and zygotes, with their children, as the kernel counted it."""
        return self._cpu_seconds + (self._zygotes.cpu_seconds if self._zygotes is not None else 0.0)

    def cpu_note(self) -> str:
        """Empty where shares are enforced, else one sentence why not."""
        return self._shares.note

    def memory_note(self) -> str:
        """Empty where pods are held to their memory, else one sentence why not."""
        return self._shares.memory_note

    def close(self) -> None:
        """End every pod and wait for it, at most the grace and then as long as a kill takes."""
        self._closed = True
        self.apply(())
        if self._zygotes is not None:
            self._zygotes.end()
        while self.observe():
            self._clock.wait(self._never, _POLL_SECONDS)
        end = self._clock.now() + self._grace + _CLEAN_SECONDS
        while not self._is_clean() and self._clock.now() < end:
            self._clock.wait(self._never, _POLL_SECONDS)
        if self._zygotes is not None:
            self._zygotes.close()
        if self._reaps:
            SUBREAPER.leave()
            self._reaps = False
        self._noted = {}
        with suppress(OSError):
            (self._directory / PIDS_FILE).unlink(missing_ok=True)

    @property
    def _shares(self) -> Shares:
        """Made when first needed: a cluster that starts nothing leaves nothing to be closed."""
        if self._opened is None:
            self._opened = open_shares(self._cap_cpu, self._cap_memory)
        return self._opened

    def _is_clean(self) -> bool:
        """Whether the last of zygotes, stragglers and groups is gone."""
        self._poll()
        waiting = bool(self._groups) or (self._zygotes is not None and self._zygotes.busy())
        return not waiting and (self._opened is None or self._opened.close())

    def _start(self, spec: PodSpec) -> _Pod:
        if spec.zygote and self._can_fork():
            assert self._zygotes is not None
            open_log(spec.log_path).close()  # what is wrong with it shows here, as for a cold start
            if self._zygotes.take(spec):
                return _Pod(spec, None, None, spec.cpu, pending=True)
        return self._start_cold(spec)

    def _start_cold(self, spec: PodSpec) -> _Pod:
        now = self._clock.now()
        self._shares.give(spec.name, spec.cpu)
        self._shares.hold(spec.name, spec.memory_bytes)
        with open_log(spec.log_path) as output:
            try:
                process = start(spec.argv, output)
            except OSError as error:
                output.write(f"{spec.argv[0]} could not be started: {error}\n".encode())
                self._shares.drop(spec.name)
                return _Pod(spec, None, now, spec.cpu, ended=True, exit_code=NOT_STARTED)
        self._shares.enter(spec.name, process.pid)
        return _Pod(spec, process, now, spec.cpu, limit=self._shares.limit(spec.name))

    def _can_fork(self) -> bool:
        """Whether pods of a zygote can become children of this process."""
        if self._zygotes is None:
            if not SUBREAPER.take():
                return False
            self._reaps = True
            self._zygotes = Zygotes(self._clock, self._shares)
        return True

    def _give(self, pod: _Pod, cpu: float) -> None:
        if cpu != pod.share:
            pod.share = cpu
            if not pod.pending:
                self._shares.give(pod.spec.name, cpu)

    def _hold(self, pod: _Pod) -> None:
        if not pod.pending:
            self._shares.hold(pod.spec.name, pod.spec.memory_bytes)
            pod.limit = self._shares.limit(pod.spec.name)

    def _end(self, pod: _Pod) -> None:
        """Tell it to end, once; one that no process came of yet is over."""
        if pod.kill_at is not None:
            return
        pod.kill_at = self._clock.now() + self._grace
        if not pod.pending:
            self._signal(pod, signal.SIGTERM)
        elif self._zygotes is not None and self._zygotes.cancel(pod.spec.name):
            pod.pending, pod.ended = False, True

    def _poll(self) -> None:
        now = self._clock.now()
        self._take_forks(now)
        look = now - self._looked_at >= _LOOK_SECONDS
        self._looked_at = now if look else self._looked_at
        if look and self._recapped and self._opened is not None and not self._closed:
            # A cap of memory that could not fall at once, because so much was used, may by now.
            self._opened.caps(self._cap_cpu, self._cap_memory)
        for pod in self._pods.values():
            if pod.process is None or pod.ended:
                continue
            if look:
                self._look_at(pod, now)
            try:
                if pod.process.has_ended():
                    pod.exit_code, seconds = pod.process.reap()
                    self._cpu_seconds += seconds
                    self._bury(pod, pod.process, now)
            except ChildProcessError:  # the program ignores SIGCHLD, or one of its threads has reaped it
                self._signal(pod, signal.SIGKILL)
                pod.process.forget()
                self._bury(pod, pod.process, now)
            if not pod.ended and pod.kill_at is not None and now >= pod.kill_at and not pod.killed:
                self._signal(pod, signal.SIGKILL)
                pod.killed = True
        for group in list(self._groups):
            gone, seconds = reap_group(group)
            self._cpu_seconds += seconds
            if gone:
                self._groups.remove(group)

    def _take_forks(self, now: float) -> None:
        """Processes that zygotes have forked, and pods that they could not fork."""
        for fork in self._zygotes.poll() if self._zygotes is not None else ():
            name = fork.spec.name
            pod = self._pods[name]
            pod.pending = False
            if fork.pid is not None:
                pod.process, pod.started_at = Process(fork.pid), now
                self._shares.enter(name, fork.pid)
                self._shares.give(name, pod.share)  # it may have changed meanwhile
                self._hold(pod)
                if pod.kill_at is not None:
                    self._signal(pod, signal.SIGTERM)
            elif pod.kill_at is not None or self._closed:
                pod.ended = True
                self._shares.drop(name)
            else:
                self._pods[name] = self._start_cold(pod.spec)

    def _look_at(self, pod: _Pod, now: float, used: bool = True) -> None:
        """See whether the kernel has killed in its group, and what it uses of memory."""
        killed = self._shares.kills(pod.spec.name)
        if killed > pod.kills:
            pod.kills, pod.killed_at = killed, now
        if used:
            pod.used = self._shares.used(pod.spec.name)

    def _bury(self, pod: _Pod, process: Process, now: float) -> None:
        pod.ended = True
        # That a child of its own was killed is no end of a pod. What the group knows goes with it.
        self._look_at(pod, now, used=False)
        lately = now - pod.killed_at < _DYING_SECONDS
        pod.out_of_memory = lately and (pod.exit_code is None or pod.exit_code == _KILLED)
        self._groups.append(process.pid)  # what was left of it comes here as orphans, if this process collects them
        self._shares.drop(pod.spec.name)

    def _signal(self, pod: _Pod, number: signal.Signals) -> None:
        if pod.process is not None:
            pod.process.signal(number)

    def _note_pids(self) -> None:
        """Keep the list of living pods on disk, for a person who must clean up after a controller's kill -9."""
        alive = {name: pod.process.pid for name, pod in self._pods.items() if pod.process and not pod.ended}
        alive |= self._zygotes.pids() if self._zygotes is not None else {}
        if alive == self._noted:
            return
        self._noted = alive
        target = self._directory / PIDS_FILE
        beside = target.with_suffix(".tmp")
        try:
            beside.write_text(json.dumps(alive), encoding="utf-8")
            beside.replace(target)
        except OSError as error:  # a full disk must not keep pods from being started, or worse, from being ended
            log.warning("%s cannot be written: %s", target, error)


def _status(pod: _Pod) -> PodStatus:
    spec = pod.spec
    pid = pod.process.pid if pod.process is not None else None
    phase, code = PENDING if pod.pending else RUNNING, None
    if pod.ended:
        phase, code = SUCCEEDED if pod.exit_code == 0 else FAILED, pod.exit_code
    return PodStatus(
        spec.name, spec.role, phase, code, pid, pod.started_at, pod.share, pod.out_of_memory, pod.limit, pod.used
    )
