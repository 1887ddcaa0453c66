"""One contract for every place where pods run: each test runs over the fake and over real processes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab.core.clock import ManualClock, SystemClock
from trimtab.core.cluster.base import Cluster, PodSpec, PodStatus
from trimtab.core.cluster.fake import FakeCluster, Outcome
from trimtab.core.cluster.local import LocalCluster

PROGRAMS = {  # what a pod does, as a process and as a script
    "stay": "import time; print('up', flush=True); time.sleep(60)",
    "well": "print('done')",
    "ill": "import sys; print('broken'); sys.exit(3)",
    "stubborn": (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    ),
}
OUTCOMES = {
    "stay": Outcome(start_seconds=0.1),
    "well": Outcome(run_seconds=0.1),
    "ill": Outcome(run_seconds=0.1, exit_code=3),
    "stubborn": Outcome(stop_seconds=None),
}


class Place:
    """A cluster under test, and how time passes in it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        if kind == "fake":
            self.clock: ManualClock | SystemClock = ManualClock()
            self.cluster: Cluster = FakeCluster(self.clock, lambda pod: OUTCOMES[pod.name.split("-")[0]], 0.5)
        else:
            self.clock = SystemClock()
            self.cluster = LocalCluster(folder, self.clock, 0.5)

    def pod(self, name: str, role: str = "worker") -> PodSpec:
        program = PROGRAMS[name.split("-")[0]]
        argv = (sys.executable, "-I", "-S", "-c", program)
        return PodSpec(name, role, argv, str(self.folder / f"{name}.log"), 1.0, 2**20)

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

    def status(self, name: str) -> PodStatus:
        return next(status for status in self.cluster.observe() if status.name == name)


@pytest.fixture(params=["fake", "local"])
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


def test_names_are_unique_in_what_is_shown(place: Place) -> None:
    place.cluster.apply([place.pod("stay-1"), place.pod("stay-1")])
    assert [status.name for status in place.cluster.observe()] == ["stay-1"]
