"""One contract for every place where pods run: over the fake, over processes, over processes that a zygote forks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab.core.clock import ManualClock, SystemClock
from trimtab.core.cluster.base import LEAVING_CPU, Cluster, PodSpec, PodStatus
from trimtab.core.cluster.fake import FakeCluster, Outcome
from trimtab.core.cluster.local import LocalCluster
from trimtab.core.cluster.shares import NoShares

PROGRAMS = {  # what a pod does, as a process and as a script
    "stay": "import time; print('up', flush=True); time.sleep(60)",
    "well": "print('done')",
    "ill": "import sys; print('broken'); sys.exit(3)",
    "stubborn": (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    ),
}
ZYGOTE = (
    "from trimtab.core.wire.forks import serve_forks\n"
    "def run(arguments):\n    exec(arguments[0], {})\n    return 0\n"
    "serve_forks(run)"
)
OUTCOMES = {
    "stay": Outcome(start_seconds=0.1),
    "well": Outcome(run_seconds=0.1),
    "ill": Outcome(run_seconds=0.1, exit_code=3),
    "stubborn": Outcome(stop_seconds=None),
}


class RecordedShares(NoShares):
    """What a cluster gives, in order, without saying the same twice; and kills as the test says."""

    def __init__(self) -> None:
        super().__init__("CPU shares are not enforced: a test")
        self.given: list[tuple[str, float]] = []
        self.held: list[tuple[str, int]] = []
        self.killed: dict[str, int] = {}
        self.capped: tuple[float | None, int | None] = (None, None)
        self.memory_note = ""

    def hold(self, pod: str, memory_bytes: int) -> None:
        if self.limit(pod) != memory_bytes:
            self.held.append((pod, memory_bytes))

    def limit(self, pod: str) -> int:
        return dict(self.held).get(pod, 0)

    def kills(self, pod: str) -> int:
        return self.killed.get(pod, 0)

    def caps(self, cpu: float | None, memory_bytes: int | None) -> None:
        self.capped = (cpu, memory_bytes)

    def give(self, pod: str, cpu: float) -> None:
        if dict(self.given).get(pod) != cpu and not pod.startswith("zygote"):
            self.given.append((pod, cpu))


class Place:
    """A cluster under test, and how time passes in it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        if kind == "fake":
            self.clock: ManualClock | SystemClock = ManualClock()
            note = "CPU shares are not enforced: a test"
            fake = FakeCluster(self.clock, lambda pod: OUTCOMES[pod.name.split("-")[0]], 0.5, note)
            self.cluster: Cluster = fake
            self.given, self.held = fake.shares, fake.limits
        else:
            self.clock = SystemClock()
            shares = RecordedShares()
            self.cluster = LocalCluster(folder, self.clock, 0.5, shares=shares)
            self.given, self.held, self.shares = shares.given, shares.held, shares

    def pod(self, name: str, role: str = "worker", cpu: float = 1.0, memory_bytes: int = 2**20) -> PodSpec:
        program = PROGRAMS[name.split("-")[0]]
        argv: tuple[str, ...] = (sys.executable, "-I", "-S", "-c", program)
        zygote: tuple[str, ...] = ()
        if self.kind == "forked":
            argv, zygote = (sys.executable, "-m", "module", program), (sys.executable, "-c", ZYGOTE)
        return PodSpec(name, role, argv, str(self.folder / f"{name}.log"), cpu, memory_bytes, zygote)

    def phases(self) -> dict[str, str]:
        return {status.name: status.phase for status in self.cluster.observe()}

    def until(self, done: Callable[[], bool], seconds: float = 20.0) -> None:
        end, never = self.clock.now() + seconds, threading.Event()
        while not done():
            assert self.clock.now() < end, f"not so after {seconds} s: {self.cluster.observe()}"
            self.clock.wait(never, 0.01)

    def up(self, name: str) -> bool:
        """Whether the pod's program runs, not only its process."""
        if self.phases().get(name) != "running":
            return False
        return self.kind == "fake" or b"up" in (self.folder / f"{name}.log").read_bytes()

    def kill_for_memory(self, name: str) -> None:
        """As the kernel does it."""
        if isinstance(self.cluster, FakeCluster):
            self.cluster.kill(name, out_of_memory=True)
            return
        pid = self.status(name).pid
        assert pid is not None
        self.shares.killed[name] = self.shares.killed.get(name, 0) + 1
        os.kill(pid, 9)

    def status(self, name: str) -> PodStatus:
        return next(status for status in self.cluster.observe() if status.name == name)


@pytest.fixture(params=["fake", "local", "forked"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    made.cluster.close()


def test_what_is_missing_is_started_and_what_is_not_desired_is_ended(place: Place) -> None:
    stay, other = place.pod("stay-1", "ps"), place.pod("stay-2")
    place.cluster.apply([stay, other])
    place.until(lambda: place.up("stay-1") and place.up("stay-2"))
    assert place.status("stay-1").role == "ps"
    assert place.status("stay-1").started_at is not None
    place.cluster.apply([other])
    place.until(lambda: place.phases() == {"stay-2": "running"})


def test_applying_the_same_twice_changes_nothing(place: Place) -> None:
    pods = [place.pod("stay-1")]
    place.cluster.apply(pods)
    place.until(lambda: place.up("stay-1"))
    before = place.cluster.observe()
    place.cluster.apply(pods)
    assert place.cluster.observe() == before


def test_exit_codes_tell_well_from_ill(place: Place) -> None:
    place.cluster.apply([place.pod("well-1"), place.pod("ill-1")])
    place.until(lambda: all(status.ended for status in place.cluster.observe()))
    assert (place.status("well-1").phase, place.status("well-1").exit_code) == ("succeeded", 0)
    assert (place.status("ill-1").phase, place.status("ill-1").exit_code) == ("failed", 3)


def test_a_finished_pod_is_shown_while_desired_and_never_started_again(place: Place) -> None:
    pods = [place.pod("well-1")]
    place.cluster.apply(pods)
    place.until(lambda: place.phases() == {"well-1": "succeeded"})
    ended = place.cluster.observe()
    place.cluster.apply(pods)
    assert place.cluster.observe() == ended  # case 6: completed stays completed
    place.cluster.apply([])
    place.until(lambda: place.phases() == {})
    place.cluster.apply(pods)
    assert place.phases() == {}


def test_a_pod_that_was_ended_is_not_started_again_under_its_name(place: Place) -> None:
    pod = place.pod("stay-1")
    place.cluster.apply([pod])
    place.until(lambda: place.up("stay-1"))
    place.cluster.apply([])
    place.cluster.apply([pod])  # a late, repeated order
    place.until(lambda: place.phases() == {})


def test_a_pod_that_does_not_obey_is_killed_after_the_grace(place: Place) -> None:
    place.cluster.apply([place.pod("stubborn-1")])
    place.until(lambda: place.up("stubborn-1"))
    began = place.clock.now()
    place.cluster.apply([])
    assert place.phases() == {"stubborn-1": "running"}  # apply does not wait
    place.until(lambda: place.phases() == {})
    assert place.clock.now() - began >= 0.5


def test_closing_leaves_nothing_and_starts_nothing(place: Place) -> None:
    place.cluster.apply([place.pod("stubborn-1"), place.pod("stay-1"), place.pod("well-1")])
    place.until(lambda: place.up("stay-1") and place.up("stubborn-1"))
    place.cluster.close()
    assert place.cluster.observe() == ()
    place.cluster.apply([place.pod("stay-9")])
    assert place.cluster.observe() == ()
    place.cluster.close()


def test_a_killed_pod_shows_its_signal(place: Place) -> None:
    place.cluster.apply([place.pod("stay-1")])
    place.until(lambda: place.up("stay-1"))
    if isinstance(place.cluster, FakeCluster):
        place.cluster.kill("stay-1")
    else:
        pid = place.status("stay-1").pid
        assert pid is not None
        os.kill(pid, 9)
    place.until(lambda: place.status("stay-1").ended)
    assert (place.status("stay-1").phase, place.status("stay-1").exit_code) == ("failed", 137)
    assert not place.status("stay-1").out_of_memory  # case 8: a preemption


def test_names_are_unique_in_what_is_shown(place: Place) -> None:
    place.cluster.apply([place.pod("stay-1"), place.pod("stay-1")])
    assert [status.name for status in place.cluster.observe()] == ["stay-1"]


def test_a_share_changes_in_place(place: Place) -> None:
    place.cluster.apply([place.pod("stay-1", cpu=0.5)])
    place.until(lambda: place.up("stay-1"))
    before = place.status("stay-1")
    assert before.cpu == 0.5
    place.cluster.apply([place.pod("stay-1", cpu=0.75, memory_bytes=2**21)])
    after = place.status("stay-1")
    assert (after.cpu, after.pid, after.started_at) == (0.75, before.pid, before.started_at)
    place.cluster.apply([place.pod("stay-1", cpu=0.25)])
    assert place.status("stay-1").cpu == 0.25
    assert place.given == [("stay-1", 0.5), ("stay-1", 0.75), ("stay-1", 0.25)]


def test_shares_never_add_up_to_more_on_the_way(place: Place) -> None:
    old = [place.pod("stay-1", cpu=0.5), place.pod("stubborn-2", cpu=0.5), place.pod("stay-3", cpu=0.25)]
    place.cluster.apply(old)
    place.until(lambda: all(place.up(pod.name) for pod in old))
    place.given.clear()
    place.cluster.apply(
        [place.pod("stay-3", cpu=0.5), place.pod("stay-4", cpu=0.5), place.pod("stay-1", cpu=0.2)]
    )  # 2 leaves, 1 falls, 3 rises, 4 is new
    assert place.given == [("stay-1", 0.2), ("stubborn-2", LEAVING_CPU), ("stay-4", 0.5), ("stay-3", 0.5)]
    assert place.status("stubborn-2").cpu == LEAVING_CPU


def test_the_last_to_leave_keeps_its_share(place: Place) -> None:
    place.cluster.apply([place.pod("stubborn-1", cpu=0.5)])
    place.until(lambda: place.up("stubborn-1"))
    place.cluster.apply([])
    assert place.status("stubborn-1").cpu == 0.5


def test_a_pending_pod_can_be_given_another_share_and_taken_back(place: Place) -> None:
    place.cluster.apply([place.pod("stay-1", cpu=0.5), place.pod("stay-2")])
    place.cluster.apply([place.pod("stay-1", cpu=0.25)])
    place.until(lambda: place.up("stay-1"))
    place.until(lambda: place.phases() == {"stay-1": "running"})
    assert place.status("stay-1").cpu == 0.25
    assert dict(place.given)["stay-1"] == 0.25


def test_a_place_says_why_shares_do_not_hold(place: Place) -> None:
    assert place.cluster.cpu_note() == "CPU shares are not enforced: a test"


def test_a_limit_of_memory_changes_in_place(place: Place) -> None:
    place.cluster.apply([place.pod("stay-1", memory_bytes=2**26)])
    place.until(lambda: place.up("stay-1"))
    before = place.status("stay-1")
    place.cluster.apply([place.pod("stay-1", memory_bytes=2**27)])
    after = place.status("stay-1")
    assert (before.memory_bytes, after.memory_bytes) == (2**26, 2**27)
    assert (after.pid, after.started_at) == (before.pid, before.started_at)
    assert place.held == [("stay-1", 2**26), ("stay-1", 2**27)]
    assert place.cluster.memory_note() == ""


def test_limits_of_memory_fall_before_others_start_and_rise_after_it(place: Place) -> None:
    old = [place.pod("stay-1", memory_bytes=2**27), place.pod("stay-2", memory_bytes=2**26)]
    place.cluster.apply(old)
    place.until(lambda: all(place.up(pod.name) for pod in old))
    place.held.clear()
    place.cluster.apply(
        [place.pod("stay-2", memory_bytes=2**27), place.pod("stay-3"), place.pod("stay-1", memory_bytes=2**26)]
    )
    place.until(lambda: place.up("stay-3"))
    assert place.held == [("stay-1", 2**26), ("stay-3", 2**20), ("stay-2", 2**27)]


def test_a_kill_for_want_of_memory_shows_as_one(place: Place) -> None:
    place.cluster.apply([place.pod("stay-1")])
    place.until(lambda: place.up("stay-1"))
    place.kill_for_memory("stay-1")
    place.until(lambda: place.status("stay-1").ended)
    seen = place.status("stay-1")
    assert (seen.phase, seen.exit_code, seen.out_of_memory) == ("failed", 137, True)
    assert place.status("stay-1") == seen


def test_a_kill_for_want_of_memory_is_told_once_of_a_pod_that_was_told_to_end(place: Place) -> None:
    place.cluster.apply([place.pod("stubborn-1"), place.pod("stay-2")])
    place.until(lambda: place.up("stubborn-1") and place.up("stay-2"))
    place.kill_for_memory("stubborn-1")
    place.cluster.apply([place.pod("stay-2")])  # case 24: it goes before anybody has looked
    shown: list[PodStatus] = []
    place.until(lambda: bool(shown.extend(place.cluster.observe())) or any(one.out_of_memory for one in shown))
    place.until(lambda: place.phases() == {"stay-2": "running"})


def test_caps_of_the_whole_job_change_in_place(place: Place) -> None:
    place.cluster.apply([place.pod("stay-1")])
    place.cluster.set_caps(1.5, 2**30)
    assert (place.cluster.caps if isinstance(place.cluster, FakeCluster) else place.shares.capped) == (1.5, 2**30)
