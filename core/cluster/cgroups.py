"""CPU shares that hold: a control group per job, whose quota is the job's cap, and in it one group per pod.

The cap stands on the job's own group, so it holds at every instant, whatever the pods' shares add up to while they
change, and what forks pods is under it too. The period is 20 ms: with the kernel's 100 ms a chain of small shares
waits twice as long at the tail, and with 5 ms a pod gets more than its quota. A group is named after the process that
made it, so that the next job can remove what a killed one left behind. Whether all this works is found out by doing
it once with a process that does nothing; where it does not, jobs run without limits and say why.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from trimtab.core.cluster.cgroup_names import file_text, group_name, is_leftover
from trimtab.core.cluster.cgroup_places import SELF_CGROUP, SELF_MOUNTS, Place, places

log = logging.getLogger(__name__)

PERIOD_US = 20_000
_LEAST_QUOTA_US = 1_000  # the kernel takes no less
_UNLIMITED = {"cpu.cfs_quota_us": "-1", "cpu.max": f"max {PERIOD_US}"}
_TRIED_OUT = "tried-out"
_ASIDE = "aside"


class Shares(Protocol):
    """The shares of one job's pods. Nothing here raises: what can't be done becomes the note."""

    @property
    def note(self) -> str:
        """Empty while shares are enforced, else one sentence why not."""
        ...

    def give(self, pod: str, cpu: float) -> None:
        """Give a pod `cpu` cores, now and in place; makes its group if it has none."""
        ...

    def door(self, pod: str) -> str:
        """The file to which a process writes "0" to enter the pod's group; "" where there is none."""
        ...

    def enter(self, pod: str, pid: int) -> None:
        """Put a process, with all its threads, into the pod's group."""
        ...

    def drop(self, pod: str) -> None:
        """Remove an ended pod's group, and kill what is still in it."""
        ...

    def close(self) -> bool:
        """Remove everything; False while something is left, then call it again."""
        ...


class NoShares:
    """Shares where the machine allows none."""

    def __init__(self, note: str) -> None:
        self.note = note

    def give(self, pod: str, cpu: float) -> None:
        """Nothing."""

    def door(self, pod: str) -> str:
        """Nowhere."""
        return ""

    def enter(self, pod: str, pid: int) -> None:
        """Nothing."""

    def drop(self, pod: str) -> None:
        """Nothing."""

    def close(self) -> bool:
        """Nothing is left."""
        return True


class Kernel:
    """The few calls that groups are made of; a test puts a made-up kernel in its place."""

    def read(self, path: Path) -> str:
        """The text of a group's file."""
        return path.read_text(encoding="ascii")

    def write(self, path: Path, text: str) -> None:
        """Write a setting; the kernel takes or refuses it in this one call."""
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, text.encode("ascii"))
        finally:
            os.close(file)

    def make(self, path: Path) -> None:
        """A new group."""
        path.mkdir()

    def remove(self, path: Path) -> None:
        """Remove an empty group."""
        path.rmdir()

    def groups(self, path: Path) -> list[str]:
        """The names of the groups in a group."""
        return sorted(one.name for one in path.iterdir() if one.is_dir())


class CpuGroups:
    """The groups of one job below `place`.

    Args:
        place: the parent. cap_cpu: cores of the job; None: no limit.
        kernel: the machine's by default.

    Raises:
        OSError: the kernel does not allow it; nothing is left.
    """

    def __init__(self, place: Place, cap_cpu: float | None, kernel: Kernel | None = None) -> None:
        self._kernel = kernel or Kernel()
        self._base, self._version = place.path, place.version
        self._job = self._base / group_name()
        self._cap = cap_cpu
        self._aside: Path | None = None
        self._enabled = False
        self._pods: dict[str, float] = {}
        self._ending: set[str] = set()
        self._lost = ""
        try:
            self._open()
        except OSError:
            self.close()
            raise

    @property
    def note(self) -> str:
        """Empty while every order was carried out."""
        return self._lost

    @property
    def path(self) -> Path:
        """The job's own group."""
        return self._job

    def give(self, pod: str, cpu: float) -> None:
        """Give a pod `cpu` cores; more than the cap is the cap."""
        cpu = cpu if self._cap is None else min(cpu, self._cap)
        if self._pods.get(pod) == cpu:
            return
        try:
            if pod not in self._pods:
                self._kernel.make(self._job / pod)
            self._pods[pod] = cpu
            self._set(self._job / pod, cpu)
        except OSError as error:
            self._lose(error)

    def door(self, pod: str) -> str:
        """The pod's list of processes."""
        return str(self._job / pod / "cgroup.procs") if pod in self._pods else ""

    def enter(self, pod: str, pid: int) -> None:
        """Move a process into the pod's group; one that has ended meanwhile is no loss."""
        if pod not in self._pods:
            return
        try:
            self._kernel.write(self._job / pod / "cgroup.procs", str(pid))
        except ProcessLookupError:
            return
        except OSError as error:
            self._lose(error)

    def drop(self, pod: str) -> None:
        """Remove the pod's group, now or at a later call."""
        if self._pods.pop(pod, None) is not None:
            self._ending.add(pod)
        self._sweep()

    def close(self) -> bool:
        """Remove all groups, and undo what was changed for them."""
        for pod in list(self._pods):
            self.drop(pod)
        self._sweep()
        if self._ending:
            return False
        try:
            self._kernel.remove(self._job)
        except FileNotFoundError:
            pass
        except OSError:
            return False
        self._undo()
        return True

    def _open(self) -> None:
        if self._version == 2:
            self._enable(self._base)
        self._kernel.make(self._job)
        self._set(self._job, self._cap)
        if self._version == 2:
            self._kernel.write(self._job / "cgroup.subtree_control", "+cpu")
        self._try_out()

    def _enable(self, group: Path) -> None:
        """Hand the cpu controller to the groups in `group`, which then must hold no process itself."""
        if "cpu" in self._kernel.read(group / "cgroup.subtree_control").split():
            return
        control = group / "cgroup.subtree_control"
        try:
            self._kernel.write(control, "+cpu")
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EOPNOTSUPP):
                raise
            if self._kernel.read(group / "cgroup.procs").split() != [str(os.getpid())]:
                raise
            self._step_aside()
            self._kernel.write(control, "+cpu")
        self._enabled = True

    def _step_aside(self) -> None:
        """Move this process, the only one of its group, into a group beside the jobs."""
        aside = self._base / group_name(_ASIDE)
        self._kernel.make(aside)
        self._aside = aside
        self._kernel.write(aside / "cgroup.procs", str(os.getpid()))

    def _undo(self) -> None:
        """Take the controller back, and this process too, unless another job lives below the same parent."""
        if not self._enabled:
            return
        own = {self._aside.name} if self._aside is not None else set()
        with suppress(OSError):
            if set(self._kernel.groups(self._base)) <= own:
                self._kernel.write(self._base / "cgroup.subtree_control", "-cpu")
                self._enabled = False
                if self._aside is not None:
                    self._kernel.write(self._base / "cgroup.procs", str(os.getpid()))
                    self._kernel.remove(self._aside)

    def _try_out(self) -> None:
        """Set a share and move a process: the right to make a group is not yet the right to fill it."""
        group = self._job / _TRIED_OUT
        self._kernel.make(group)
        try:
            self._set(group, 0.1)
            with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as idle:
                self._kernel.write(group / "cgroup.procs", str(idle.pid))
                assert idle.stdin is not None
                idle.stdin.close()
        finally:
            self._ending.add(_TRIED_OUT)
            self._sweep()

    def _set(self, group: Path, cpu: float | None) -> None:
        for name, text in settings(self._version, cpu):
            try:
                self._kernel.write(group / name, text)
            except OSError as error:
                if error.errno != errno.EINVAL or name not in _UNLIMITED:
                    raise
                self._kernel.write(group / name, _UNLIMITED[name])  # more than the parent has: as much as the parent

    def _sweep(self) -> None:
        for pod in list(self._ending):
            group = self._job / pod
            try:
                self._kernel.remove(group)
            except FileNotFoundError:
                pass
            except OSError:
                with suppress(OSError):
                    kill_all(self._kernel.read(group / "cgroup.procs"))
                continue
            self._ending.discard(pod)

    def _lose(self, error: OSError) -> None:
        if not self._lost:
            self._lost = sentence(self._job, error)
            log.warning("%s", self._lost)


def open_shares(cap_cpu: float | None, kernel: Kernel | None = None) -> CpuGroups | NoShares:
    """The shares of a new job, at the first place of this machine where groups work; left-overs are removed first."""
    if not sys.platform.startswith("linux"):
        return NoShares("CPU shares are not enforced: control groups are a part of Linux")
    kernel, why = kernel or Kernel(), ""
    for place in places(os.environ.get("TRIMTAB_CGROUP", ""), file_text(SELF_CGROUP), file_text(SELF_MOUNTS)):
        remove_leftovers(place.path, kernel)
        try:
            return CpuGroups(place, cap_cpu, kernel)
        except OSError as error:
            why = why or sentence(place.path, error)
    return NoShares(why or "CPU shares are not enforced: no control group with the cpu controller is mounted")


def why_not_enforced(kernel: Kernel | None = None) -> str:
    """What `note` of a job's shares would say, for a plan that is made before the job; leaves nothing behind."""
    shares = open_shares(None, kernel)
    shares.close()
    return shares.note


def settings(version: int, cpu: float | None) -> Iterator[tuple[str, str]]:
    """What makes a group have `cpu` cores (None: no limit): file names and texts, in the order to write them.

    The weight follows the share too: where the machine is too small for all, it is divided in proportion.
    """
    cores = cpu if cpu is not None else float(os.cpu_count() or 1)
    quota = None if cpu is None else max(_LEAST_QUOTA_US, round(cpu * PERIOD_US))
    if version == 1:
        yield "cpu.shares", str(min(262_144, max(2, round(cores * 1024))))
        yield "cpu.cfs_period_us", str(PERIOD_US)
        yield "cpu.cfs_quota_us", _UNLIMITED["cpu.cfs_quota_us"] if quota is None else str(quota)
    else:
        yield "cpu.weight", str(min(10_000, max(1, round(cores * 100))))
        yield "cpu.max", _UNLIMITED["cpu.max"] if quota is None else f"{quota} {PERIOD_US}"


def sentence(path: Path, error: OSError) -> str:
    """Why shares are not enforced."""
    if error.errno in (errno.EBUSY, errno.EOPNOTSUPP):
        return (
            f"CPU shares are not enforced: {path} holds other processes; "
            "name an empty group that you may write in TRIMTAB_CGROUP"
        )
    return f"CPU shares are not enforced: {path} can't be written ({error.strerror})"


def remove_leftovers(base: Path, kernel: Kernel) -> None:
    """Remove what jobs left that were killed, as far as it is empty: their pods may still be on their way out."""
    with suppress(OSError):
        for name in filter(is_leftover, kernel.groups(base)):
            with suppress(OSError):
                for pod in kernel.groups(base / name):
                    kernel.remove(base / name / pod)
                kernel.remove(base / name)


def kill_all(procs: str) -> None:
    """Kill the processes that a group lists."""
    for word in procs.split():
        if word.isdigit() and int(word) > 1 and int(word) != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(word), signal.SIGKILL)
