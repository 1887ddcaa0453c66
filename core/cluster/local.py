"""Pods as processes of this machine.

Each pod is a session of its own, so that a Ctrl-C in the terminal reaches only the controller, and so that a whole
pod (a PS with its snapshot child) can be ended by one signal to its group. A pod that has ended is looked at before it
is reaped: while the zombie holds the process id, the group's id can't belong to anybody else, and the rest of the
group is killed safely. Nothing relies on the parent's death being noticed by the kernel: pods end by themselves
after `orphan_grace` when their controller is gone.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.cluster.base import FAILED, RUNNING, SUCCEEDED, PodSpec, PodStatus

log = logging.getLogger(__name__)

NOT_STARTED = 127  # exit code of a pod whose command could not be run, as a shell has it
PIDS_FILE = "pids.json"
_POLL_SECONDS = 0.01
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "PYTHONUNBUFFERED": "1",
}
# TensorFlow's import takes four times as long when Python may not keep its byte code.
_NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE",)


@dataclass
class _Pod:
    """A started pod; `process` is None when its command could not be run."""

    spec: PodSpec
    process: subprocess.Popen[bytes] | None
    started_at: float
    ended: bool = False
    exit_code: int | None = None  # of an ended one; None when somebody else has reaped it
    kill_at: float | None = None  # set when the polite signal was sent
    killed: bool = False


class LocalCluster:
    """The `Cluster` of processes on this machine.

    Args:
        directory: the job's directory; gets `pids.json` with the names and process ids of the living pods.
        clock: for the grace.
        grace_seconds: between SIGTERM and SIGKILL.
    """

    def __init__(self, directory: Path, clock: Clock, grace_seconds: float = 5.0) -> None:
        self._directory = directory
        self._clock = clock
        self._grace = grace_seconds
        self._pods: dict[str, _Pod] = {}
        self._used: set[str] = set()
        self._noted: dict[str, int] = {}
        self._cpu_seconds = 0.0
        self._closed = False
        self._never = threading.Event()

    def apply(self, desired: Sequence[PodSpec]) -> None:
        """Start what is missing, and ask what is not desired to end; never waits."""
        wanted = {pod.name: pod for pod in desired}
        self._poll()
        for name, spec in wanted.items():
            if name not in self._used and not self._closed:
                self._used.add(name)
                self._pods[name] = self._start(spec)
        for name, pod in self._pods.items():
            if name not in wanted and not pod.ended and pod.kill_at is None:
                self._signal(pod, signal.SIGTERM)
                pod.kill_at = self._clock.now() + self._grace
        for name in [name for name, pod in self._pods.items() if name not in wanted and pod.ended]:
            del self._pods[name]
        self._note_pids()

    def observe(self) -> tuple[PodStatus, ...]:
        """Reap what has ended, kill what outlived its grace, and tell."""
        self._poll()
        for name in [name for name, pod in self._pods.items() if pod.kill_at is not None and pod.ended]:
            del self._pods[name]
        self._note_pids()
        return tuple(_status(self._pods[name]) for name in sorted(self._pods))

    def cpu_seconds(self) -> float:
        """CPU time of ended pods, with their children, as the kernel counted it."""
        return self._cpu_seconds

    def close(self) -> None:
        """End every pod and wait for it, at most the grace and then as long as a kill takes."""
        self._closed = True
        self.apply(())
        while self.observe():
            self._clock.wait(self._never, _POLL_SECONDS)
        with suppress(OSError):
            (self._directory / PIDS_FILE).unlink(missing_ok=True)

    def _start(self, spec: PodSpec) -> _Pod:
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED} | _ENVIRONMENT
        log = Path(spec.log_path)
        log.parent.mkdir(parents=True, exist_ok=True)
        now = self._clock.now()
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    spec.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                output.write(f"{spec.argv[0]} could not be started: {error}\n".encode())
                return _Pod(spec, None, now, ended=True, exit_code=NOT_STARTED)
        return _Pod(spec, process, now)

    def _poll(self) -> None:
        now = self._clock.now()
        for pod in self._pods.values():
            if pod.process is None or pod.ended:
                continue
            try:
                ended = os.waitid(os.P_PID, pod.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
                if ended:
                    self._reap(pod, pod.process)
            except ChildProcessError:  # the program ignores SIGCHLD, or one of its threads has reaped it
                self._signal(pod, signal.SIGKILL)
                pod.ended, pod.process.returncode, ended = True, 0, True  # Popen must not look for it again
            if ended:
                continue
            if pod.kill_at is not None and now >= pod.kill_at and not pod.killed:
                self._signal(pod, signal.SIGKILL)
                pod.killed = True

    def _reap(self, pod: _Pod, process: subprocess.Popen[bytes]) -> None:
        self._signal(pod, signal.SIGKILL)  # the rest of its group, while the zombie still holds the id
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        pod.exit_code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        pod.ended = True
        self._cpu_seconds += used.ru_utime + used.ru_stime

    def _signal(self, pod: _Pod, number: signal.Signals) -> None:
        if pod.process is not None:
            try:
                os.killpg(pod.process.pid, number)
            except (ProcessLookupError, PermissionError):  # macOS answers EPERM for a group of zombies
                return

    def _note_pids(self) -> None:
        """Keep the list of living pods on disk, for a person who must clean up after a controller's kill -9."""
        alive = {name: pod.process.pid for name, pod in self._pods.items() if pod.process and not pod.ended}
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
    if not pod.ended:
        return PodStatus(spec.name, spec.role, RUNNING, None, pid, pod.started_at)
    phase = SUCCEEDED if pod.exit_code == 0 else FAILED
    return PodStatus(spec.name, spec.role, phase, pod.exit_code, pid, pod.started_at)
