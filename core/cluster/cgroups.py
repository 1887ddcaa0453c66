"""Shares of cores and limits of memory that hold: a control group per job with the job's caps, in it one per pod.

The caps stand on the job's own group, so they hold at every instant, whatever the pods' shares add up to while they
change, and what forks pods is under them too. The period is 20 ms: with the kernel's 100 ms a chain of small shares
waits twice as long at the tail, and with 5 ms a pod gets more than its quota. A group is named after the process that
made it, so that the next job can remove what a killed one left behind. CPU and memory are in two trees (version 1) or
in one (version 2), and a machine may allow one of them only: then the other one runs without limits and says why.

A group knows whether the kernel has killed in it for want of memory, and that goes with the group: it is to be asked
before the pod is dropped.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from trimtab.core.cluster.cgroup_kernel import Kernel, remove_leftovers
from trimtab.core.cluster.cgroup_names import file_text
from trimtab.core.cluster.cgroup_places import SELF_CGROUP, SELF_MOUNTS, Place, places
from trimtab.core.cluster.cgroup_tree import Tree
from trimtab.core.cluster.memory_files import kills, lowered, memory_settings, used_bytes
from trimtab.core.cluster.shares import NoShares

log = logging.getLogger(__name__)

PERIOD_US = 20_000
_LEAST_QUOTA_US = 1_000  # the kernel takes no less
_TRIED_MEMORY = 32 << 20
_UNLIMITED = 1 << 62
_WHAT = {"cpu": "CPU shares are not enforced", "memory": "limits of memory are not enforced"}


class PodGroups:
    """The groups of one job.

    Args:
        cpu: the open tree for cores, None for none. memory: the one for memory; the same where one tree has both.
        cap_cpu, cap_memory: of the job, as its own groups have them; None: no limit.
        note, memory_note: why there is no such tree.
    """

    def __init__(
        self,
        cpu: Tree | None,
        memory: Tree | None,
        cap_cpu: float | None = None,
        cap_memory: int | None = None,
        note: str = "",
        memory_note: str = "",
    ) -> None:
        self._cpu, self._memory = cpu, memory
        self._trees = [tree for tree in (cpu, memory if memory is not cpu else None) if tree is not None]
        self._cap_cpu, self._cap_memory = cap_cpu, cap_memory
        self._capped = cap_memory  # what the job's group has; it may be more than the cap for a while
        self._notes = {"cpu": note, "memory": memory_note}
        self._pods: dict[str, float] = {}
        self._limits: dict[str, int] = {}

    @property
    def note(self) -> str:
        """Empty while every order about cores was carried out."""
        return self._notes["cpu"]

    @property
    def memory_note(self) -> str:
        """Empty while every order about memory was carried out."""
        return self._notes["memory"]

    @property
    def path(self) -> Path:
        """The job's own group in the tree for cores, or else in the one for memory."""
        return self._trees[0].path

    @property
    def memory_path(self) -> Path | None:
        """The job's own group in the tree for memory."""
        return self._memory.path if self._memory is not None else None

    def give(self, pod: str, cpu: float) -> None:
        """Give a pod `cpu` cores; more than the cap is the cap."""
        cpu = cpu if self._cap_cpu is None else min(cpu, self._cap_cpu)
        if self._pods.get(pod) == cpu:
            return
        if pod not in self._pods:
            for tree in self._trees:
                self._try(tree, partial(tree.make, pod))
        self._pods[pod] = cpu
        if self._cpu is not None:
            self._try(self._cpu, partial(self._cpu.set, pod, settings(self._cpu.version, cpu)), ("cpu",))

    def hold(self, pod: str, memory_bytes: int) -> None:
        """Hold a pod to so many bytes; more than the cap is the cap, and 0 is no order."""
        tree, present = self._memory, self._limits.get(pod)
        wanted = memory_bytes if self._cap_memory is None else min(memory_bytes, self._cap_memory)
        if tree is None or pod not in self._pods or wanted <= 0 or wanted == present:
            return
        if present is not None and wanted < present:
            wanted = lowered(present, wanted, self._asked(partial(used_bytes, at_once=True), pod))
            if wanted == present:
                return
        rising = present is not None and wanted > present
        order = partial(tree.set, pod, memory_settings(tree.version, wanted, rising=rising))
        if self._try(tree, order, ("memory",)):
            self._limits[pod] = wanted
        elif present is not None and not rising:  # half of it may stand, and a later order for `present` would be none
            for pair in memory_settings(tree.version, present, rising=True):
                with suppress(OSError):
                    tree.set(pod, [pair])

    def caps(self, cpu: float | None, memory_bytes: int | None) -> None:
        """Change the limits of the job's own groups; a limit of memory falls as far as what is used allows."""
        if self._cpu is not None and cpu != self._cap_cpu:
            self._try(self._cpu, partial(self._cpu.set, "", settings(self._cpu.version, cpu)), ("cpu",))
        self._cap_cpu = cpu
        self._cap_memory = memory_bytes
        if self._memory is not None and memory_bytes != self._capped:
            self._cap(self._memory, memory_bytes)

    def limit(self, pod: str) -> int:
        """The limit as it was last written."""
        return self._limits.get(pod, 0)

    def used(self, pod: str) -> int:
        """What the kernel counts."""
        return self._asked(used_bytes, pod)

    def kills(self, pod: str) -> int:
        """What the kernel counts."""
        return self._asked(kills, pod)

    def doors(self, pod: str) -> list[str]:
        """The pod's lists of processes."""
        return [tree.door(pod) for tree in self._trees] if pod in self._pods else []

    def enter(self, pod: str, pid: int) -> None:
        """Move a process into the pod's groups; one that has ended meanwhile is no loss."""
        if pod in self._pods:
            for tree in self._trees:
                self._try(tree, partial(tree.enter, pod, pid))

    def drop(self, pod: str) -> None:
        """Remove the pod's groups, now or at a later call."""
        if self._pods.pop(pod, None) is not None:
            self._limits.pop(pod, None)
            for tree in self._trees:
                tree.drop(pod)

    def close(self) -> bool:
        """Remove all groups, and undo what was changed for them."""
        pods, self._pods = list(self._pods), {}
        gone = [tree.close(pods) for tree in self._trees]
        return all(gone)

    def _cap(self, tree: Tree, wanted: int | None) -> None:
        present = _UNLIMITED if self._capped is None else self._capped
        if wanted is not None and wanted < present:
            wanted = lowered(present, wanted, used_bytes(tree.version, partial(tree.read, ""), at_once=True))
        rising = wanted is not None and wanted > present
        order = partial(tree.set, "", memory_settings(tree.version, wanted, rising=rising))
        if self._try(tree, order, ("memory",)):
            self._capped = wanted

    def _asked(self, question: Callable[[int, Callable[[str], str]], int], pod: str) -> int:
        tree = self._memory
        if tree is None or pod not in self._pods:
            return 0
        return question(tree.version, partial(tree.read, pod))

    def _try(self, tree: Tree, order: Callable[[], None], about: Sequence[str] = ()) -> bool:
        """Carry one order out; one that is refused becomes the note of what it is about: all that the tree is for."""
        try:
            order()
        except OSError as error:
            for controller in about or tree.controllers:
                if not self._notes[controller]:
                    self._notes[controller] = sentence(tree.path, error, controller)
                    log.warning("%s", self._notes[controller])
            return False
        return True


def open_shares(
    cap_cpu: float | None, cap_memory: int | None = None, kernel: Kernel | None = None
) -> PodGroups | NoShares:
    """The shares of a new job, at the first places of this machine where groups work; left-overs are removed first."""
    if not sys.platform.startswith("linux"):
        notes = [f"{what}: control groups are a part of Linux" for what in _WHAT.values()]
        return NoShares(*notes)
    kernel = kernel or Kernel()
    cpu, note = _first("cpu", cap_cpu, cap_memory, kernel, None)
    if cpu is not None and "memory" in cpu.controllers:
        return PodGroups(cpu, cpu, cap_cpu, cap_memory)
    memory, memory_note = _first("memory", cap_cpu, cap_memory, kernel, cpu)
    if cpu is None and memory is None:
        return NoShares(note, memory_note)
    return PodGroups(cpu, memory, cap_cpu, cap_memory, note, memory_note)


def why_not_enforced(kernel: Kernel | None = None) -> str:
    """What `note` of a job's shares would say, for a plan that is made before the job; leaves nothing behind."""
    shares = open_shares(None, None, kernel)
    shares.close()
    return shares.note


def _first(
    controller: str, cap_cpu: float | None, cap_memory: int | None, kernel: Kernel, beside: Tree | None
) -> tuple[Tree | None, str]:
    """An open tree for one controller, and why there is none; `beside`: for the other one, where there is one."""
    why = ""
    texts = (os.environ.get("TRIMTAB_CGROUP", ""), file_text(SELF_CGROUP), file_text(SELF_MOUNTS))
    for place in places(*texts, controller):
        if place.version == 2 and beside is not None and beside.version == 2:
            continue  # a process is in one group of that tree
        remove_leftovers(place.path, kernel)
        wishes: list[tuple[str, ...]] = [(controller,)]
        if place.version == 2 and controller == "cpu" and _has_memory(place, kernel):
            wishes = [("cpu", "memory"), *wishes]
        for wish in wishes:
            tree = Tree(place, wish, kernel)
            try:
                tree.open(_limits(tree, cap_cpu, cap_memory), _limits(tree, 0.1, _TRIED_MEMORY))
                return tree, ""
            except OSError as error:
                why = why or sentence(place.path, error, controller)
    return None, why or f"{_WHAT[controller]}: no control group with the {controller} controller is mounted"


def _has_memory(place: Place, kernel: Kernel) -> bool:
    try:
        return "memory" in kernel.read(place.path / "cgroup.controllers").split()
    except OSError:
        return False


def _limits(tree: Tree, cpu: float | None, memory_bytes: int | None) -> Iterator[tuple[str, str]]:
    """The settings of a new group, as far as its tree can hold them."""
    if "cpu" in tree.controllers:
        yield from settings(tree.version, cpu)
    if "memory" in tree.controllers and memory_bytes is not None:
        yield from memory_settings(tree.version, memory_bytes)


def settings(version: int, cpu: float | None) -> Iterator[tuple[str, str]]:
    """What makes a group have `cpu` cores (None: no limit): file names and texts, in the order to write them.

    The weight follows the share too: where the machine is too small for all, it is divided in proportion.
    """
    cores = cpu if cpu is not None else float(os.cpu_count() or 1)
    quota = None if cpu is None else max(_LEAST_QUOTA_US, round(cpu * PERIOD_US))
    if version == 1:
        yield "cpu.shares", str(min(262_144, max(2, round(cores * 1024))))
        yield "cpu.cfs_period_us", str(PERIOD_US)
        yield "cpu.cfs_quota_us", "-1" if quota is None else str(quota)
    else:
        yield "cpu.weight", str(min(10_000, max(1, round(cores * 100))))
        yield "cpu.max", f"max {PERIOD_US}" if quota is None else f"{quota} {PERIOD_US}"


def sentence(path: Path, error: OSError, controller: str = "cpu") -> str:
    """Why shares of cores, or limits of memory, are not enforced."""
    if error.errno in (errno.EBUSY, errno.EOPNOTSUPP):
        return (
            f"{_WHAT[controller]}: {path} holds other processes; "
            "name an empty group that you may write in TRIMTAB_CGROUP"
        )
    return f"{_WHAT[controller]}: {path} can't be written ({error.strerror})"
