"""Which control group of this machine may hold a job's groups, found from what the kernel says of this process.

Nothing here is tried out; it is reading and choosing. A directory that somebody delegated (TRIMTAB_CGROUP) comes
first, then this process's own group, then the groups above it, as far as leaving the lower ones escapes no limit: a
job must stay within what its container or its unit was given. Version 1 has one tree per controller, version 2 one
tree for all; a machine may have both mounted, and then the cpu controller is in one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SELF_CGROUP, SELF_MOUNTS = Path("/proc/self/cgroup"), Path("/proc/self/mountinfo")


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


def places(delegated: str, groups: str, mounts: str) -> list[Place]:
    """Places worth a try, best first.

    Args:
        delegated: the directory that the user named, or "".
        groups: the text of /proc/self/cgroup. mounts: the text of /proc/self/mountinfo.
    """
    found: list[Place] = []
    if delegated:
        path = Path(delegated)
        found.append(Place(path, 2 if (path / "cgroup.controllers").exists() else 1))
    for mount in cpu_mounts(mounts):
        own = own_group(groups, mount.version)
        if own is None:
            continue
        at = directory(mount, own)
        if mount.version == 2 and "cpu" not in _words(at / "cgroup.controllers"):
            continue
        found.append(Place(at, mount.version))
        while at != mount.point and not is_limited(at):
            at = at.parent
            found.append(Place(at, mount.version))
    return found


def cpu_mounts(mounts: str) -> list[Mount]:
    """The trees that can hold the cpu controller, version 1 first: where it has the controller, version 2 has not."""
    found = []
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        root, point = _unescaped(fields[3]), Path(_unescaped(fields[4]))
        if kind[0] == "cgroup2":
            found.append(Mount(2, root, point))
        elif kind[0] == "cgroup" and "cpu" in kind[2].split(","):
            found.append(Mount(1, root, point))
    return sorted(found, key=lambda mount: mount.version)


def own_group(groups: str, version: int) -> str | None:
    """This process's group of the tree with the cpu controller (version 1) or of the one tree (version 2)."""
    for line in groups.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if ("cpu" in controllers.split(",")) if version == 1 else (number == "0" and not controllers):
            return path
    return None


def directory(mount: Mount, group: str) -> Path:
    """Where `group` lies below `mount`; the mount point where it can't be seen (a container without its namespace)."""
    root, at = PurePosixPath(mount.root), PurePosixPath(group)
    if ".." in at.parts or not at.is_relative_to(root):
        return mount.point
    path = mount.point / at.relative_to(root)
    return path if path.is_dir() else mount.point


def is_limited(group: Path) -> bool:
    """Whether the group has a limit of CPU or memory, which nobody may leave by going up."""
    quota, limits = _words(group / "cpu.cfs_quota_us"), ("cpu.max", "memory.max")
    if quota and quota[0] != "-1":
        return True
    return any(words and words[0] != "max" for words in (_words(group / name) for name in limits))


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
