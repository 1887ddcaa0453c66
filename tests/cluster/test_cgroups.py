"""Control groups: what is written, where groups may lie, version 2's rules on a made-up kernel, and the real thing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_up_kernel import MadeUpKernel, opened

from trimtab.core.clock import SystemClock
from trimtab.core.cluster import cgroups
from trimtab.core.cluster.base import PodSpec
from trimtab.core.cluster.cgroup_names import group_name, is_leftover
from trimtab.core.cluster.cgroup_places import Place, directory, mounts_of, own_group, places
from trimtab.core.cluster.cgroups import PodGroups, open_shares, settings, why_not_enforced
from trimtab.core.cluster.local import LocalCluster
from trimtab.core.cluster.shares import NoShares

BUSY = (sys.executable, "-I", "-S", "-c", "print('up', flush=True)\nwhile True: pass")
MOUNTS = """\
25 1 0:23 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
26 25 0:24 / {top}/unified rw - cgroup2 cgroup2 rw
27 25 0:25 /docker/7 {top}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
28 25 0:26 / {top}/cpuset rw - cgroup cgroup rw,cpuset
29 25 0:27 / /a\\040b rw - ext4 /dev/sda rw
"""
GROUPS = "5:cpuset:/\n4:cpu,cpuacct:/docker/7/job\n0::/user/own\n"


def test_what_a_share_is_written_as() -> None:
    assert list(settings(1, 0.25)) == [
        ("cpu.shares", "256"),
        ("cpu.cfs_period_us", "20000"),
        ("cpu.cfs_quota_us", "5000"),
    ]
    assert list(settings(2, 1.5)) == [("cpu.weight", "150"), ("cpu.max", "30000 20000")]
    assert dict(settings(1, None))["cpu.cfs_quota_us"] == "-1"
    assert dict(settings(2, None))["cpu.max"] == "max 20000"
    assert dict(settings(1, 0.001)) == {"cpu.shares": "2", "cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "1000"}
    assert dict(settings(2, 4096))["cpu.weight"] == "10000"


def test_mounts_and_own_groups_are_read() -> None:
    first, second = mounts_of(MOUNTS.format(top="/sys/fs/cgroup"), "cpu")
    assert (first.version, first.root, str(first.point)) == (1, "/docker/7", "/sys/fs/cgroup/cpu,cpuacct")
    assert (second.version, str(second.point)) == (2, "/sys/fs/cgroup/unified")
    assert own_group(GROUPS, 1) == "/docker/7/job"
    assert own_group(GROUPS, 2) == "/user/own"
    assert own_group("3:cpuset:/x\n", 1) is None
    assert own_group("broken", 2) is None


def test_places_are_the_delegated_the_own_and_those_above_it_that_free_nobody(tmp_path: Path) -> None:
    v1, v2 = tmp_path / "cpu,cpuacct", tmp_path / "unified"
    (v1 / "job").mkdir(parents=True)
    (v2 / "user" / "own").mkdir(parents=True)
    delegated = tmp_path / "delegated"
    text = MOUNTS.format(top=tmp_path)
    assert places("", GROUPS, text) == [Place(v1 / "job", 1), Place(v1, 1)]  # version 2 has no cpu controller here
    assert places(str(delegated), GROUPS, text)[0] == Place(delegated, 1)
    delegated.mkdir()
    (delegated / "cgroup.controllers").write_text("cpu memory\n")
    assert places(str(delegated), GROUPS, text)[0] == Place(delegated, 2)
    (v1 / "job" / "cpu.cfs_quota_us").write_text("50000\n")
    assert places("", GROUPS, text) == [Place(v1 / "job", 1)]  # going up would escape the limit
    (v2 / "user" / "own" / "cgroup.controllers").write_text("cpu\n")
    (v2 / "user" / "own" / "cpu.max").write_text("max 100000\n")
    (v2 / "user" / "memory.max").write_text("1000000\n")
    assert places("", GROUPS, text)[1:] == [Place(v2 / "user" / "own", 2), Place(v2 / "user", 2)]


def test_a_group_that_cannot_be_seen_is_the_mount_point(tmp_path: Path) -> None:
    (mount,) = mounts_of(f"27 25 0:25 /docker/7 {tmp_path} rw - cgroup cgroup rw,cpu", "cpu")
    assert directory(mount, "/elsewhere") == tmp_path
    assert directory(mount, "/docker/7/not-there") == tmp_path
    assert directory(mount, "/docker/7/../8") == tmp_path



def test_version_2_hands_the_controller_down_and_takes_it_back() -> None:
    kernel = MadeUpKernel()
    groups = opened(kernel)
    groups.give("worker-0", 0.5)
    assert kernel.tree[groups.path]["cpu.max"] == "40000 20000"
    assert kernel.tree[groups.path / "worker-0"]["cpu.max"] == "10000 20000"
    groups.give("worker-0", 5.0)
    assert kernel.tree[groups.path / "worker-0"]["cpu.max"] == "40000 20000"  # the cap
    assert groups.note == ""
    assert groups.close()
    assert list(kernel.tree) == [kernel.base]
    assert kernel.tree[kernel.base]["cgroup.subtree_control"] == ""


def test_alone_in_its_group_this_process_steps_aside_and_comes_back() -> None:
    own = str(os.getpid())
    kernel = MadeUpKernel(procs=[own])
    first, second = opened(kernel), opened(kernel)
    assert kernel.procs[kernel.base] == []
    assert first.close()
    assert kernel.tree[kernel.base]["cgroup.subtree_control"] == "cpu memory"  # the other job still needs it
    second.give("ps-0", 0.2)
    assert second.note == ""
    assert second.close()
    assert first.close()
    assert kernel.procs == {kernel.base: [own]}


def test_a_group_with_other_processes_is_left_alone_and_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = MadeUpKernel(procs=["1", str(os.getpid())])
    monkeypatch.setattr(cgroups, "places", lambda *_: [Place(kernel.base, 2)])
    shares = open_shares(2.0, kernel=kernel)
    assert isinstance(shares, NoShares)
    assert shares.note == (
        "CPU shares are not enforced: /made/up holds other processes; "
        "name an empty group that you may write in TRIMTAB_CGROUP"
    )
    assert kernel.procs[kernel.base] == ["1", str(os.getpid())]
    kernel.root = True  # the tree's root may hold processes and groups
    assert why_not_enforced(kernel) == ""
    assert list(kernel.tree) == [kernel.base]


@pytest.mark.parametrize("name", ["mkdir", "cpu.cfs_quota_us", "cgroup.procs"])
def test_what_may_not_be_written_is_found_out_beforehand(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = MadeUpKernel(version=1)
    kernel.refuse[name] = errno.EACCES
    monkeypatch.setattr(cgroups, "places", lambda *_: [Place(kernel.base, 1)])
    assert why_not_enforced(kernel) == "CPU shares are not enforced: /made/up can't be written (Permission denied)"
    assert list(kernel.tree) == [kernel.base]


def test_more_than_the_parent_has_is_what_the_parent_has() -> None:
    class Limited(MadeUpKernel):
        def write(self, path: Path, text: str) -> None:
            if path.name == "cpu.cfs_quota_us" and int(text) > 10_000:
                raise OSError(errno.EINVAL, "Invalid argument")
            super().write(path, text)

    kernel = Limited(version=1)
    groups = opened(kernel, 2.0)
    groups.give("a", 1.5)
    groups.give("b", 0.25)
    assert kernel.tree[groups.path]["cpu.cfs_quota_us"] == "-1"
    assert kernel.tree[groups.path / "a"]["cpu.cfs_quota_us"] == "-1"
    assert kernel.tree[groups.path / "b"]["cpu.cfs_quota_us"] == "5000"


def test_groups_lost_on_the_way_become_a_note_and_no_error() -> None:
    kernel = MadeUpKernel(version=1)
    groups = opened(kernel)
    groups.give("a", 0.5)
    kernel.refuse["cpu.cfs_quota_us"] = errno.ENODEV
    groups.give("a", 0.25)
    groups.give("b", 0.25)
    assert groups.note.startswith("CPU shares are not enforced: /made/up/trimtab-job-")
    groups.drop("a")
    groups.drop("never there")
    assert groups.close()


def test_a_share_that_stays_is_not_written_again() -> None:
    kernel = MadeUpKernel(version=1)
    groups = opened(kernel)
    groups.give("a", 0.5)
    written = list(kernel.written)
    groups.give("a", 0.5)
    assert kernel.written == written


def test_a_group_that_is_still_busy_is_removed_later() -> None:
    kernel = MadeUpKernel(version=1)
    groups = opened(kernel)
    groups.give("a", 0.5)
    kernel.procs[groups.path / "a"].append("999999999")
    groups.drop("a")
    assert not groups.close()
    kernel.procs[groups.path / "a"].clear()
    assert groups.close()
    assert list(kernel.tree) == [kernel.base]


def test_groups_of_dead_owners_are_known_by_their_names() -> None:
    name = group_name()
    assert not is_leftover(name)
    parts = name.split("-")
    assert is_leftover("-".join([*parts[:4], str(int(parts[4]) - 1), parts[5]]))  # the id came again
    assert is_leftover("-".join([*parts[:3], str(2**22 - 1), *parts[4:]]))
    assert not is_leftover("-".join([*parts[:2], "7", str(2**22 - 1), *parts[4:]]))  # of another container
    assert not is_leftover("trimtab-job-of-a-person")
    assert not is_leftover("system.slice")


def test_no_place_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "places", lambda *_: [])
    assert why_not_enforced() == "CPU shares are not enforced: no control group with the cpu controller is mounted"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why_not_enforced() == "CPU shares are not enforced: control groups are a part of Linux"


# On the real kernel, from here on.


@pytest.fixture
def groups(require: Callable[[str, bool, str], None]) -> Iterator[PodGroups]:
    shares = open_shares(0.5)
    require("cgroup", isinstance(shares, PodGroups), shares.note)
    assert isinstance(shares, PodGroups)
    yield shares
    until(shares.close)
    assert not shares.path.exists()


def until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end


def used(pid: int) -> float:
    """CPU seconds of one process, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def throttled(group: Path) -> int:
    """In how many periods the group had used up its share."""
    counts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(counts["nr_throttled"])


def test_a_busy_process_gets_its_share_and_the_job_its_cap(groups: PodGroups) -> None:
    busy = [subprocess.Popen(BUSY, stdout=subprocess.DEVNULL) for _ in range(3)]
    try:
        for number, process in enumerate(busy):
            groups.give(f"pod-{number}", 0.1 if number == 0 else 1.0)
            groups.enter(f"pod-{number}", process.pid)
        started, before = time.monotonic(), [used(process.pid) for process in busy]
        until(lambda: throttled(groups.path / "pod-0") > 5 and time.monotonic() > started + 0.5)
        until(lambda: throttled(groups.path) > 5)
        spent = [used(process.pid) - one for process, one in zip(busy, before, strict=True)]
        passed = time.monotonic() - started
        assert 0 < spent[0] <= 0.1 * passed + 0.05  # a share is a limit, whatever else runs
        assert sum(spent) <= 0.5 * passed + 0.1
        groups.give("pod-0", 0.02)  # in place
        before_fall, fell = used(busy[0].pid), time.monotonic()
        until(lambda: time.monotonic() > fell + 0.3)
        assert used(busy[0].pid) - before_fall <= 0.05 * (time.monotonic() - fell) + 0.03
        assert groups.note == ""
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_what_left_its_session_is_killed_with_its_pod(groups: PodGroups) -> None:
    stray = subprocess.Popen(BUSY, stdout=subprocess.DEVNULL, start_new_session=True)
    groups.give("a", 0.2)
    groups.enter("a", stray.pid)
    groups.drop("a")
    assert stray.wait(20) == -signal.SIGKILL
    until(groups.close)


def test_entering_when_it_is_too_late_is_no_loss(groups: PodGroups) -> None:
    ended = subprocess.Popen([sys.executable, "-I", "-S", "-c", "pass"])
    ended.wait()
    groups.give("a", 0.2)
    groups.enter("a", ended.pid)
    groups.enter("never made", os.getpid())
    assert groups.note == ""


@pytest.mark.parametrize("forked", [False, True])
def test_pods_are_in_the_groups_of_their_shares(groups: PodGroups, tmp_path: Path, forked: bool) -> None:
    cluster = LocalCluster(tmp_path, SystemClock(), 0.5, shares=groups)
    zygote = (
        "from trimtab.core.wire.forks import serve_forks\n"
        "serve_forks(lambda arguments: exec(arguments[0], {}))"
    )
    stay = "import time; print('up', flush=True); time.sleep(60)"

    def pod(name: str, cpu: float) -> PodSpec:
        argv = (sys.executable, "-m", "x", stay) if forked else (sys.executable, "-I", "-S", "-c", stay)
        log = str(tmp_path / f"{name}.log")
        return PodSpec(name, "worker", argv, log, cpu, 2**26, (sys.executable, "-c", zygote) if forked else ())

    def quota(name: str) -> str:
        single = groups.path / name / "cpu.cfs_quota_us"
        return (single if single.exists() else groups.path / name / "cpu.max").read_text().split()[0]

    try:
        cluster.apply([pod("a", 0.2), pod("b", 0.2)])
        until(lambda: all(one.phase == "running" for one in cluster.observe()))
        for status in cluster.observe():
            assert (groups.path / status.name / "cgroup.procs").read_text().split() == [str(status.pid)]
            assert quota(status.name) == "4000"
        assert (groups.path / "zygote-worker").exists() == forked
        cluster.apply([pod("b", 0.4)])
        assert quota("b") == "8000"
        until(lambda: len(cluster.observe()) == 1)
        until(lambda: cluster.observe() != () and not (groups.path / "a").exists())
        assert cluster.cpu_note() == ""
    finally:
        cluster.close()
    assert not groups.path.exists()


def test_a_killed_controllers_groups_are_removed_by_the_next(groups: PodGroups, tmp_path: Path) -> None:
    script = (
        "import sys, time; from trimtab.core.cluster.cgroups import open_shares\n"
        "shares = open_shares(1.0); shares.give('a', 0.2); print(shares.path, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        left = Path(controller.stdout.readline().strip())
        assert (left / "a").is_dir()
        why_not_enforced()
        assert left.is_dir()  # its owner lives
        controller.kill()
        controller.wait()
    why_not_enforced()
    assert not left.exists()


def test_looking_whether_it_works_leaves_nothing(groups: PodGroups) -> None:
    def own() -> set[str]:  # other jobs of this machine come and go
        return {one.name for one in groups.path.parent.iterdir() if f"-{os.getpid()}-" in one.name}

    assert why_not_enforced() == ""
    assert own() == {groups.path.name}
