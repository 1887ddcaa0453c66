"""Limits of memory: what is written and read in both versions, when a limit may fall, and the kernel's own kills."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from made_up_kernel import MadeUpKernel, opened

from trimtab.core.clock import ManualClock, SystemClock
from trimtab.core.cluster import cgroups
from trimtab.core.cluster.base import PodSpec, PodStatus
from trimtab.core.cluster.cgroup_places import Place, places
from trimtab.core.cluster.cgroups import PodGroups, open_shares
from trimtab.core.cluster.local import LocalCluster
from trimtab.core.cluster.memory_files import lowered, memory_settings
from trimtab.core.cluster.shares import NoShares

MIB = 1 << 20
Found = TypeVar("Found")
GROWS = """
import sys, time
held = []
print("up", flush=True)
for size in map(int, sys.argv[1:]):
    held.append(bytearray(b"x") * (size << 20))
    print("has", size, flush=True)
time.sleep(60)
"""


def test_what_a_limit_is_written_as() -> None:
    both = [("memory.limit_in_bytes", "4096"), ("memory.memsw.limit_in_bytes", "4096")]
    assert list(memory_settings(1, 4096)) == both
    assert list(memory_settings(1, 4096, rising=True)) == both[::-1]
    assert list(memory_settings(2, 4096)) == [("memory.max", "4096"), ("memory.swap.max", "0")]
    assert dict(memory_settings(1, None)) == {name: "-1" for name, _ in both}
    assert list(memory_settings(2, None)) == [("memory.max", "max")]


def test_a_limit_never_falls_below_what_is_used_and_a_margin() -> None:
    assert lowered(400 * MIB, 300 * MIB, 100 * MIB) == 300 * MIB
    assert lowered(400 * MIB, 100 * MIB, 100 * MIB) == 132 * MIB
    assert lowered(4000 * MIB, 100 * MIB, 1000 * MIB) == 1125 * MIB
    assert lowered(110 * MIB, 100 * MIB, 100 * MIB) == 110 * MIB, "it does not rise for it"


@pytest.mark.parametrize("version", [1, 2])
def test_a_pod_is_held_to_its_memory_and_the_job_to_its_cap(version: int) -> None:
    kernel = MadeUpKernel(version)
    groups = opened(kernel, memory=900 * MIB)
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    pod = groups.path / "ps-0"
    groups.give("ps-0", 0.5)
    groups.hold("ps-0", 256 * MIB)
    assert (kernel.tree[groups.path][name], kernel.tree[pod][name]) == (str(900 * MIB), str(256 * MIB))
    groups.hold("ps-0", 512 * MIB)
    assert kernel.tree[pod][name] == str(512 * MIB)
    kernel.uses(pod, 400 * MIB, file=200 * MIB, shmem=50 * MIB)  # the other pages of files can go at any time
    assert groups.used("ps-0") == 250 * MIB
    groups.hold("ps-0", 128 * MIB)
    assert kernel.tree[pod][name] == str(groups.limit("ps-0")) == str(282 * MIB)
    kernel.uses(pod, 60 * MIB)
    groups.hold("ps-0", 128 * MIB)  # said again with every look
    assert kernel.tree[pod][name] == str(128 * MIB)
    groups.hold("ps-0", 5000 * MIB)
    assert groups.limit("ps-0") == 900 * MIB
    assert (groups.note, groups.memory_note) == ("", "")
    assert groups.close()
    assert list(kernel.tree) == [kernel.base]


@pytest.mark.parametrize("version", [1, 2])
def test_caps_of_the_job_change_in_place(version: int) -> None:
    kernel = MadeUpKernel(version)
    groups = opened(kernel, 2.0, 900 * MIB)
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    groups.caps(3.0, 2000 * MIB)
    assert kernel.tree[groups.path][name] == str(2000 * MIB)
    assert kernel.tree[groups.path]["cpu.max" if version == 2 else "cpu.cfs_quota_us"].split()[0] == "60000"
    kernel.uses(groups.path, 800 * MIB)
    groups.caps(1.0, 500 * MIB)
    assert kernel.tree[groups.path][name] == str(900 * MIB), "nobody is killed for it"
    kernel.uses(groups.path, 100 * MIB)
    groups.caps(1.0, 500 * MIB)
    assert kernel.tree[groups.path][name] == str(500 * MIB)
    groups.caps(None, None)
    assert kernel.tree[groups.path][name] in ("max", "-1")
    assert groups.memory_note == ""


def test_kernels_that_count_no_swap_have_no_file_for_it() -> None:
    for version, name in ((1, "memory.memsw.limit_in_bytes"), (2, "memory.swap.max")):
        kernel = MadeUpKernel(version)
        groups = opened(kernel, memory=900 * MIB)
        groups.give("a", 0.5)
        del kernel.tree[groups.path / "a"][name]
        groups.hold("a", 100 * MIB)
        assert (groups.limit("a"), groups.memory_note) == (100 * MIB, "")


def test_a_machine_may_allow_cores_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = MadeUpKernel(controllers=("cpu",))
    monkeypatch.setattr(cgroups, "places", lambda *of: [Place(kernel.base, 2)] if of[-1] == "cpu" else [])
    shares = open_shares(2.0, 900 * MIB, kernel)
    assert isinstance(shares, PodGroups)
    assert shares.note == ""
    assert shares.memory_note == (
        "limits of memory are not enforced: no control group with the memory controller is mounted"
    )
    shares.give("a", 0.5)
    shares.hold("a", 100 * MIB)
    assert (shares.limit("a"), shares.used("a"), shares.kills("a")) == (0, 0, 0)
    assert shares.close()


def test_memory_that_is_refused_costs_no_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = MadeUpKernel()
    monkeypatch.setattr(cgroups, "places", lambda *of: [Place(kernel.base, 2)])
    kernel.refuse["memory.max"] = errno.EACCES
    shares = open_shares(2.0, 900 * MIB, kernel)
    assert shares.note == ""
    assert shares.memory_note.startswith("limits of memory are not enforced")
    shares.give("a", 0.5)
    assert shares.close()
    assert list(kernel.tree) == [kernel.base]


@pytest.mark.parametrize("version", [1, 2])
def test_limits_lost_on_the_way_become_a_note_and_shares_stay(version: int) -> None:
    kernel = MadeUpKernel(version)
    groups = opened(kernel, memory=900 * MIB)
    groups.give("a", 0.5)
    groups.hold("a", 100 * MIB)
    kernel.refuse["memory.max" if version == 2 else "memory.limit_in_bytes"] = errno.ENODEV
    groups.hold("a", 50 * MIB)
    assert groups.limit("a") == 100 * MIB
    assert groups.memory_note.startswith("limits of memory are not enforced: /made/up/trimtab-job-")
    assert groups.note == ""
    assert groups.close()


def test_where_memory_groups_may_lie(tmp_path: Path) -> None:
    cpu, memory, own = tmp_path / "cpu", tmp_path / "memory", tmp_path / "memory" / "own"
    for path in (cpu / "mine", memory / "mine", own):
        path.mkdir(parents=True)
    mounts = (
        f"27 25 0:25 / {cpu} rw - cgroup cgroup rw,cpu\n28 25 0:26 / {memory} rw - cgroup cgroup rw,memory\n"
        f"29 25 0:27 / {tmp_path}/unified rw - cgroup2 cgroup2 rw\n"
    )
    groups = "2:memory:/own\n1:cpu:/\n0::/\n"
    assert places("", groups, mounts, "memory") == [Place(own, 1), Place(memory, 1)]
    assert places(str(cpu / "mine"), groups, mounts, "memory")[0] == Place(memory / "mine", 1)  # its like
    (own / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert places(str(own), groups, mounts, "memory")[:2] == [Place(own, 1), Place(own, 1)]
    both = f"{cpu / 'mine'}{os.pathsep}{own}"
    assert places(both, groups, mounts, "cpu")[0] == Place(cpu / "mine", 1)
    assert Place(own, 1) not in places(both, groups, mounts, "cpu")
    (own / "memory.limit_in_bytes").write_text("1000000\n")
    assert places("", groups, mounts, "memory") == [Place(own, 1)]  # going up would escape the limit


class Told(NoShares):
    """Shares that tell what the test wants."""

    def __init__(self) -> None:
        super().__init__("")
        self.count = 0

    def kills(self, pod: str) -> int:
        return self.count


def test_a_killed_child_of_a_pod_is_no_end_of_the_pod(tmp_path: Path) -> None:
    """The child that writes copies is the first to go; that its parent is preempted later is something else."""
    clock, shares = ManualClock(), Told()
    cluster = LocalCluster(tmp_path, clock, 0.5, shares=shares)
    stay = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")
    cluster.apply([PodSpec("a", "ps", stay, str(tmp_path / "a.log"), 1.0, 64 * MIB)])
    shares.count = 1
    clock.advance(1.0)  # it is looked for now and then
    (seen,) = cluster.observe()
    assert seen.phase == "running"
    clock.advance(11.0)
    assert seen.pid is not None
    os.kill(seen.pid, signal.SIGKILL)
    ended = until(lambda: next((one for one in cluster.observe() if one.ended), None))
    assert (ended.exit_code, ended.out_of_memory) == (137, False)
    cluster.close()


# On the real kernel, from here on.


def until(look: Callable[[], Found | None], seconds: float = 20.0) -> Found:
    clock, never = SystemClock(), threading.Event()
    end = clock.now() + seconds
    while (found := look()) is None:
        assert clock.now() < end
        clock.wait(never, 0.01)
    return found


@pytest.fixture
def groups(require: Callable[[str, bool, str], None]) -> Iterator[PodGroups]:
    shares = open_shares(None, 192 * MIB)
    require("cgroup", isinstance(shares, PodGroups) and shares.memory_note == "", shares.memory_note)
    assert isinstance(shares, PodGroups)
    yield shares
    until(lambda: shares.close() or None)
    assert not shares.path.exists()
    assert shares.memory_path is not None and not shares.memory_path.exists()


@pytest.fixture
def cluster(groups: PodGroups, tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path, SystemClock(), 0.5, shares=groups)
    yield made
    made.close()


def pod(folder: Path, name: str, memory: int, *sizes: int) -> PodSpec:
    argv = (sys.executable, "-I", "-S", "-c", GROWS, *map(str, sizes))
    return PodSpec(name, "ps", argv, str(folder / f"{name}.log"), 1.0, memory * MIB)


def status(cluster: LocalCluster, name: str) -> PodStatus:
    return next(one for one in cluster.observe() if one.name == name)


def ended(cluster: LocalCluster, name: str) -> PodStatus:
    return until(lambda: next((one for one in cluster.observe() if one.name == name and one.ended), None))


def test_more_than_its_limit_is_a_kill_that_says_so(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.apply([pod(tmp_path, "a", 64, 16, 96), pod(tmp_path, "b", 64, 16)])
    seen = ended(cluster, "a")
    assert (seen.exit_code, seen.out_of_memory) == (137, True)
    assert (tmp_path / "a.log").read_text() == "up\nhas 16\n"
    other = status(cluster, "b")
    assert other.phase == "running" and other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    assert not ended(cluster, "b").out_of_memory  # case 8


def test_a_limit_that_rises_in_time_prevents_it(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.apply([pod(tmp_path, "a", 64, 16)])
    until(lambda: "has 16" in (tmp_path / "a.log").read_text() or None)
    cluster.apply([pod(tmp_path, "a", 160, 16)])
    assert status(cluster, "a").memory_bytes == 160 * MIB
    used = until(lambda: status(cluster, "a").memory_used or None)
    assert 16 * MIB < used < 40 * MIB
    cluster.apply([pod(tmp_path, "a", 8, 16)])
    held = status(cluster, "a")
    assert held.phase == "running" and used < held.memory_bytes <= used + 40 * MIB
    assert cluster.memory_note() == ""


def test_all_pods_together_are_held_to_the_cap(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.apply([pod(tmp_path, "a", 180, 100), pod(tmp_path, "b", 180, 120)])
    gone = until(lambda: next((one for one in cluster.observe() if one.ended), None))
    assert gone.out_of_memory
    cluster.set_caps(None, 400 * MIB)
    cluster.apply([pod(tmp_path, "c", 180, 100), pod(tmp_path, "d", 180, 120)])
    until(lambda: all("has 1" in (tmp_path / f"{name}.log").read_text() for name in "cd") or None)


@pytest.mark.parametrize("forked", [False, True])
def test_pods_are_in_the_groups_of_their_memory(groups: PodGroups, tmp_path: Path, forked: bool) -> None:
    cluster = LocalCluster(tmp_path, SystemClock(), 0.5, shares=groups)
    zygote = (
        "from trimtab.core.wire.forks import serve_forks\nserve_forks(lambda arguments: exec(arguments[0], {}))"
    )
    stay = "import time; print('up', flush=True); time.sleep(60)"
    argv = (sys.executable, "-m", "x", stay) if forked else (sys.executable, "-I", "-S", "-c", stay)
    one = PodSpec(
        "a", "ps", argv, str(tmp_path / "a.log"), 1.0, 96 * MIB, (sys.executable, "-c", zygote) if forked else ()
    )
    try:
        cluster.apply([one])
        until(lambda: all(seen.phase == "running" for seen in cluster.observe()) or None)
        (seen,) = cluster.observe()
        assert groups.memory_path is not None
        assert (groups.memory_path / "a" / "cgroup.procs").read_text().split() == [str(seen.pid)]
        assert seen.memory_bytes == 96 * MIB
        assert (groups.memory_path / "zygote-ps").exists() == forked
    finally:
        cluster.close()


def test_a_limit_that_fell_by_half_only_is_put_back() -> None:
    kernel = MadeUpKernel(1)
    groups = opened(kernel, memory=900 * MIB)
    groups.give("a", 0.5)
    groups.hold("a", 400 * MIB)
    kernel.refuse["memory.memsw.limit_in_bytes"] = errno.EBUSY  # of what has been swapped out
    groups.hold("a", 100 * MIB)
    assert kernel.tree[groups.path / "a"]["memory.limit_in_bytes"] == str(groups.limit("a")) == str(400 * MIB)


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_does_not_fall_below_pages_that_are_still_to_be_written(version: int) -> None:
    kernel = MadeUpKernel(version)
    groups = opened(kernel, memory=900 * MIB)
    groups.give("a", 0.5)
    groups.hold("a", 800 * MIB)
    group, prefix = groups.path / "a", "file_" if version == 2 else "total_"
    kernel.uses(group, 700 * MIB, file=600 * MIB)
    kernel.tree[group]["memory.stat"] += f"\n{prefix}dirty {100 * MIB}\n{prefix}writeback {300 * MIB}"
    assert groups.used("a") == 100 * MIB, "they go by themselves"
    groups.hold("a", 200 * MIB)
    assert groups.limit("a") == lowered(800 * MIB, 200 * MIB, 500 * MIB) > 500 * MIB
