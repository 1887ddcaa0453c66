"""One job's control groups in one tree of the machine: a group of the job, and in it one per pod.

Version 1 has a tree per controller, so a job has groups of the same names in two of them; version 2 has one for all.
Whether a tree can be used is found out by doing it once with a process that does nothing: the right to make a group is
not yet the right to fill it.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from trimtab.core.cluster.cgroup_kernel import Kernel, kill_all
from trimtab.core.cluster.cgroup_names import group_name
from trimtab.core.cluster.cgroup_places import Place

Pairs = Iterable[tuple[str, str]]  # file names and texts, in the order to write them

PROCS = "cgroup.procs"
_CONTROL = "cgroup.subtree_control"
_TRIED_OUT = "tried-out"
_ASIDE = "aside"
_UNLIMITED = {"cpu.cfs_quota_us": "-1", "cpu.max": "max"}
_OPTIONAL = ("memory.memsw.limit_in_bytes", "memory.swap.max")  # a kernel that counts no swap has none


class Tree:
    """The groups of one job below `place`; nothing is made before `open`.

    Args:
        place: the parent.
        controllers: what the groups are for, of "cpu" and "memory".
        kernel: the machine's by default.

    Attributes:
        path: of the job's own group.
    """

    def __init__(self, place: Place, controllers: Sequence[str], kernel: Kernel | None = None) -> None:
        self.version, self.controllers = place.version, tuple(controllers)
        self._kernel = kernel or Kernel()
        self._base = place.path
        self.path = self._base / group_name()
        self._aside: Path | None = None
        self._enabled: list[str] = []  # by this job
        self._ending: set[str] = set()

    def open(self, limits: Pairs, tried: Pairs) -> None:
        """Make the job's group with its `limits`, and try a group with the limits `tried` out.

        Raises:
            OSError: the kernel does not allow it; nothing is left.
        """
        try:
            if self.version == 2:
                self._enable()
            self._kernel.make(self.path)
            self._write(self.path, limits)
            if self.version == 2:
                self._kernel.write(self.path / _CONTROL, _words("+", self.controllers))
            self._try_out(tried)
        except OSError:
            self.close(())
            raise

    def make(self, pod: str) -> None:
        """The pod's group (raises OSError)."""
        self._kernel.make(self.path / pod)

    def set(self, pod: str, pairs: Pairs) -> None:
        """Change settings of a pod's group; of the job's own with the name "" (raises OSError)."""
        self._write(self.path / pod, pairs)

    def read(self, pod: str, name: str) -> str:
        """A file of a pod's group; "" when it can't be read."""
        try:
            return self._kernel.read(self.path / pod / name)
        except (OSError, UnicodeDecodeError):
            return ""

    def door(self, pod: str) -> str:
        """The file to which a process writes "0" to enter the pod's group."""
        return str(self.path / pod / PROCS)

    def enter(self, pod: str, pid: int) -> None:
        """Move a process with its threads into the pod's group; one that has ended meanwhile is no loss.

        Raises:
            OSError: the kernel refuses.
        """
        with suppress(ProcessLookupError):
            self._kernel.write(self.path / pod / PROCS, str(pid))

    def drop(self, pod: str) -> None:
        """Remove the pod's group, now or at a later call, and kill what is still in it."""
        self._ending.add(pod)
        self._sweep()

    def close(self, pods: Iterable[str]) -> bool:
        """Remove everything, `pods`' groups too, and undo what was changed for it; False while something is left."""
        self._ending.update(pods)
        self._sweep()
        if self._ending:
            return False
        try:
            self._kernel.remove(self.path)
        except FileNotFoundError:
            pass
        except OSError:
            return False
        self._undo()
        return True

    def _enable(self) -> None:
        """Hand the controllers to the groups in the place, which then must hold no process itself."""
        control = self._base / _CONTROL
        present = self._kernel.read(control).split()
        lacking = [one for one in self.controllers if one not in present]
        if not lacking:
            return
        try:
            self._kernel.write(control, _words("+", lacking))
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EOPNOTSUPP):
                raise
            if self._kernel.read(self._base / PROCS).split() != [str(os.getpid())]:
                raise
            self._step_aside()
            self._kernel.write(control, _words("+", lacking))
        self._enabled = lacking

    def _step_aside(self) -> None:
        """Move this process, the only one of its group, into a group beside the jobs."""
        aside = self._base / group_name(_ASIDE)
        self._kernel.make(aside)
        self._aside = aside
        self._kernel.write(aside / PROCS, str(os.getpid()))

    def _undo(self) -> None:
        """Take the controllers back, and this process too, unless another job lives below the same parent."""
        if not self._enabled:
            return
        own = {self._aside.name} if self._aside is not None else set()
        with suppress(OSError):
            if set(self._kernel.groups(self._base)) <= own:
                self._kernel.write(self._base / _CONTROL, _words("-", self._enabled))
                self._enabled = []
                if self._aside is not None:
                    self._kernel.write(self._base / PROCS, str(os.getpid()))
                    self._kernel.remove(self._aside)

    def _try_out(self, tried: Pairs) -> None:
        group = self.path / _TRIED_OUT
        self._kernel.make(group)
        try:
            self._write(group, tried)
            with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as idle:
                self._kernel.write(group / PROCS, str(idle.pid))
                assert idle.stdin is not None
                idle.stdin.close()
        finally:
            self._ending.add(_TRIED_OUT)
            self._sweep()

    def _write(self, group: Path, pairs: Pairs) -> None:
        for name, text in pairs:
            try:
                self._kernel.write(group / name, text)
            except FileNotFoundError:
                if name not in _OPTIONAL:
                    raise
            except OSError as error:
                if error.errno != errno.EINVAL or name not in _UNLIMITED:
                    raise
                # More than the parent has: as much as the parent.
                self._kernel.write(group / name, " ".join([_UNLIMITED[name], *text.split()[1:]]))

    def _sweep(self) -> None:
        for pod in list(self._ending):
            group = self.path / pod
            try:
                self._kernel.remove(group)
            except FileNotFoundError:
                pass
            except OSError:
                with suppress(OSError):
                    kill_all(self._kernel.read(group / PROCS))
                continue
            self._ending.discard(pod)


def _words(sign: str, controllers: Iterable[str]) -> str:
    """What hands controllers down, or takes them back."""
    return " ".join(f"{sign}{one}" for one in controllers)
