"""Control groups in memory, with the kernel's rules: version 2 as it is, and of version 1 what differs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from trimtab.core.cluster.cgroup_kernel import Kernel
from trimtab.core.cluster.cgroup_places import Place
from trimtab.core.cluster.cgroup_tree import Tree
from trimtab.core.cluster.cgroups import PodGroups, settings
from trimtab.core.cluster.memory_files import memory_settings

FILES = {
    (1, "cpu"): {"cpu.shares": "1024", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1"},
    (1, "memory"): {
        "memory.limit_in_bytes": "9223372036854771712", "memory.memsw.limit_in_bytes": "9223372036854771712",
        "memory.usage_in_bytes": "0", "memory.stat": "total_cache 0\ntotal_shmem 0",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0",
    },
    (2, "cpu"): {"cpu.max": "max 100000", "cpu.weight": "100"},
    (2, "memory"): {
        "memory.max": "max", "memory.swap.max": "max", "memory.current": "0", "memory.stat": "anon 0\nfile 0\nshmem 0",
        "memory.events": "low 0\nmax 0\noom 0\noom_kill 0",
    },
}  # fmt: skip


class MadeUpKernel(Kernel):
    """Groups in memory: `version` 2 with its rules, or both trees of version 1 as if they were one.

    Args:
        version: 1 | 2. procs: processes of the base. root: the base is the tree's root, which may hold processes.
        controllers: what the base could hand down.
    """

    def __init__(
        self,
        version: int = 2,
        procs: list[str] | None = None,
        root: bool = False,
        controllers: tuple[str, ...] = ("cpu", "memory"),
    ) -> None:
        self.base, self.version, self.root = Path("/made/up"), version, root
        self.controllers = controllers
        self.tree: dict[Path, dict[str, str]] = {self.base: self._files(controllers)}
        self.procs: dict[Path, list[str]] = {self.base: procs or []}
        self.refuse: dict[str, int] = {}  # file name: error number
        self.written: list[str] = []

    def read(self, path: Path) -> str:
        if path.parent not in self.tree or (path.name != "cgroup.procs" and path.name not in self.tree[path.parent]):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return "\n".join(self.procs[path.parent]) if path.name == "cgroup.procs" else self.tree[path.parent][path.name]

    def write(self, path: Path, text: str) -> None:
        group, name = path.parent, path.name
        self._check(name)
        if group not in self.tree or (name not in self.tree[group] and name != "cgroup.procs"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if name == "cgroup.procs":
            if self.version == 2 and self.tree[group]["cgroup.subtree_control"]:
                raise OSError(errno.EBUSY, "Device or resource busy")
            for members in self.procs.values():
                if text in members:
                    members.remove(text)
            if text == str(os.getpid()):  # others end by themselves
                self.procs[group].append(text)
        elif name == "cgroup.subtree_control":
            self._hand_down(group, text.split())
        else:
            self._limits_agree(group, name, text)
            self.tree[group][name] = text
            self.written.append(f"{group.name} {name} {text}")

    def make(self, path: Path) -> None:
        self._check("mkdir")
        if path.parent not in self.tree:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        handed = self.controllers
        if self.version == 2:
            handed = tuple(self.tree[path.parent]["cgroup.subtree_control"].split())
        files = self._files(handed)
        for one in handed:
            files |= FILES[self.version, one]
        self.tree[path], self.procs[path] = files, []

    def remove(self, path: Path) -> None:
        if path not in self.tree:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if self.procs[path] or self.groups(path):
            raise OSError(errno.EBUSY, "Device or resource busy")
        del self.tree[path], self.procs[path]

    def groups(self, path: Path) -> list[str]:
        return [one.name for one in self.tree if one.parent == path]

    def uses(self, group: Path, nbytes: int, file: int = 0, shmem: int = 0) -> None:
        """Let a group use so much, `file` of it pages of files, and `shmem` of these files in memory."""
        if self.version == 2:
            self.tree[group] |= {"memory.current": f"{nbytes}\n", "memory.stat": f"anon 1\nfile {file}\nshmem {shmem}"}
        else:
            stat = f"cache 1\ntotal_cache {file}\ntotal_shmem {shmem}"
            self.tree[group] |= {"memory.usage_in_bytes": f"{nbytes}\n", "memory.stat": stat}

    def kills(self, group: Path, count: int) -> None:
        """Let the kernel have killed so many processes of a group for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        self.tree[group][name] = f"oom 7\noom_kill {count}\noom_group_kill 0"

    def _hand_down(self, group: Path, words: list[str]) -> None:
        rising = [word[1:] for word in words if word[0] == "+"]
        if rising and self.procs[group] and not (self.root and group == self.base):
            raise OSError(errno.EBUSY, "Device or resource busy")
        if not set(rising) <= set(self.tree[group]["cgroup.controllers"].split()):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        present = self.tree[group]["cgroup.subtree_control"].split()
        present = [one for one in present if f"-{one}" not in words]
        present += [one for one in rising if one not in present]
        self.tree[group]["cgroup.subtree_control"] = " ".join(present)
        for child in [one for one in self.tree if one.parent == group]:
            self.tree[child]["cgroup.controllers"] = " ".join(present)
            for one in rising:
                self.tree[child] |= {name: text for name, text in FILES[2, one].items() if name not in self.tree[child]}

    def _limits_agree(self, group: Path, name: str, text: str) -> None:
        """Version 1: memory alone never has a higher limit than memory and swap together."""
        pair = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        if name not in pair or pair[1] not in self.tree[group]:
            return
        memory, both = (int(text if one == name else self.tree[group][one]) % (1 << 64) for one in pair)
        if memory > both:
            raise OSError(errno.EINVAL, "Invalid argument")

    def _files(self, controllers: tuple[str, ...]) -> dict[str, str]:
        return {"cgroup.subtree_control": "", "cgroup.controllers": " ".join(controllers)} if self.version == 2 else {}

    def _check(self, name: str) -> None:
        if name in self.refuse:
            raise OSError(self.refuse[name], os.strerror(self.refuse[name]))


def opened(kernel: MadeUpKernel, cap: float | None = 2.0, memory: int | None = None) -> PodGroups:
    """The groups of a job with these caps, of cores and memory where the kernel has both."""
    tree = Tree(Place(kernel.base, kernel.version), kernel.controllers, kernel)
    limits = [*settings(kernel.version, cap)] if "cpu" in kernel.controllers else []
    if "memory" in kernel.controllers:
        limits += memory_settings(kernel.version, memory)
    tree.open(limits, ())
    cpu, both = (tree if one in kernel.controllers else None for one in ("cpu", "memory"))
    return PodGroups(cpu, both, cap, memory)
