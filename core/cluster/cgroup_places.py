"""Which control group of this machine may hold a job's groups, found from what the kernel says of this process.

Nothing here is tried out; it is reading and choosing. A directory that somebody delegated (TRIMTAB_CGROUP) comes
first, then this process's own group, then the groups above it, as far as leaving the lower ones escapes no limit: a
job must stay within what its container or its unit was given. Version 1 has one tree per controller, version 2 one
tree for all; a machine may have both mounted, and then each controller is in one of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trimtab.core.cluster.memory_files import is_limit

SELF_CGROUP, SELF_MOUNTS = Path("/proc/self/cgroup"), Path("/proc/self/mountinfo")
_ONE_OF_ITS_FILES = {"cpu": "cpu.cfs_quota_us", "memory": "memory.limit_in_bytes"}  # in version 1


@dataclass(frozen=True)
class Place:
    """A group that may become the parent of a job's groups.

    Attributes:
        path: its directory.
        version: 1 | 2.
    """

    path: Path
    version: int


@dataclass(frozen=True)
class Mount:
    """A mounted tree of groups.

    Attributes:
        version: 1 | 2.
        root: the group that the mount point shows, as `/proc/self/cgroup` writes groups.
        point: where it is mounted.
    """

    version: int
    root: str
    point: Path


def places(delegated: str, groups: str, mounts: str, controller: str = "cpu") -> list[Place]:
    """Places worth a try, best first.

    Args:
        delegated: the directory that the user named, or ""; several with colons between them.
        groups: the text of /proc/self/cgroup. mounts: the text of /proc/self/mountinfo.
        controller: cpu | memory.
    """
    trees = mounts_of(mounts, controller)
    found: list[Place] = []
    for name in filter(None, delegated.split(os.pathsep)):
        found += _delegated(Path(name), trees, mounts_of(mounts, "cpu"), controller)
    for mount in trees:
        own = own_group(groups, mount.version, controller)
        if own is None:
            continue
        at = directory(mount, own)
        if mount.version == 2 and controller not in controllers_of(at):
            continue
        found.append(Place(at, mount.version))
        while at != mount.point and not is_limited(at):
            at = at.parent
            found.append(Place(at, mount.version))
    return found


def mounts_of(mounts: str, controller: str) -> list[Mount]:
    """The trees that can hold a controller, version 1 first: where it has the controller, version 2 has not."""
    found = []
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        root, point = _unescaped(fields[3]), Path(_unescaped(fields[4]))
        if kind[0] == "cgroup2":
            found.append(Mount(2, root, point))
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            found.append(Mount(1, root, point))
    return sorted(found, key=lambda mount: mount.version)


def own_group(groups: str, version: int, controller: str = "cpu") -> str | None:
    """This process's group of the tree with a controller (version 1) or of the one tree (version 2)."""
    for line in groups.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if (controller in controllers.split(",")) if version == 1 else (number == "0" and not controllers):
            return path
    return None


def directory(mount: Mount, group: str) -> Path:
    """Where `group` lies below `mount`; the mount point where it can't be seen (a container without its namespace)."""
    root, at = PurePosixPath(mount.root), PurePosixPath(group)
    if ".." in at.parts or not at.is_relative_to(root):
        return mount.point
    path = mount.point / at.relative_to(root)
    return path if path.is_dir() else mount.point


def controllers_of(group: Path) -> list[str]:
    """What a group of version 2 could hand to groups in it."""
    return _words(group / "cgroup.controllers")


def is_limited(group: Path) -> bool:
    """Whether the group has a limit of CPU or memory, which nobody may leave by going up."""
    quota = _words(group / "cpu.cfs_quota_us")
    if quota and quota[0] != "-1":
        return True
    if any(is_limit(" ".join(_words(group / name))) for name in ("memory.limit_in_bytes", "memory.max")):
        return True
    words = _words(group / "cpu.max")
    return bool(words) and words[0] != "max"


def _delegated(path: Path, trees: Sequence[Mount], cpu: Sequence[Mount], controller: str) -> list[Place]:
    """A directory that the user named, as far as it can hold the controller, and its like in the controller's tree."""
    if (path / "cgroup.controllers").exists():
        return [Place(path, 2)] if controller == "cpu" or controller in controllers_of(path) else []
    if controller == "cpu":
        other = _ONE_OF_ITS_FILES["memory"]
        return [] if (path / other).exists() and not (path / _ONE_OF_ITS_FILES["cpu"]).exists() else [Place(path, 1)]
    if (path / _ONE_OF_ITS_FILES[controller]).exists():
        return [Place(path, 1)]
    found = []
    for mount in (one for one in trees if one.version == 1):
        for other_tree in (one for one in cpu if one.version == 1 and path.is_relative_to(one.point)):
            like = mount.point / path.relative_to(other_tree.point)
            found += [Place(like, 1)] if like.is_dir() else []
    return found


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []


def _unescaped(field: str) -> str:
    """A path of mountinfo, where spaces and the like are written as octal codes."""
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, sign)
    return field
