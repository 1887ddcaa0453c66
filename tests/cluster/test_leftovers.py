"""Pods of a dead controller are found by what they were started with, asked to end, and killed if they don't."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab.core.clock import SystemClock
from trimtab.core.cluster.leftovers import end_pods, pods_in

OBEYS = "print('up', flush=True); input()"
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + OBEYS
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts something with a pod's command line."""
    started = []

    def one(code: str, job: str = "job", module: str = "trimtab.core.ps.main") -> subprocess.Popen[str]:
        config = tmp_path / job / "pods" / "ps-0-t1-g1.json"
        process = subprocess.Popen(
            [sys.executable, "-c", code, module, str(config)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def test_pods_of_the_job_are_ended_and_nobody_elses(start: Start, tmp_path: Path) -> None:
    mine = [start(OBEYS), start(OBEYS)]
    others = [start(OBEYS, job="job2"), start(OBEYS, module="somebody.else")]
    assert sorted(pod.pid for pod in pods_in(tmp_path / "job")) == sorted(one.pid for one in mine)
    assert end_pods(tmp_path / "job", SystemClock(), grace_seconds=60.0) == (2, 0)
    assert [one.wait() for one in mine] == [-signal.SIGTERM] * 2
    assert [one.poll() for one in others] == [None, None]
    assert pods_in(tmp_path / "job") == []


def test_a_job_is_known_by_its_whole_path_and_through_links(start: Start, tmp_path: Path) -> None:
    """Another job's directory may end with the same words; this one's may have been named by another path."""
    (tmp_path / "inner" / "pods").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "inner")
    pod = start(OBEYS, job="inner")
    assert [one.pid for one in pods_in(tmp_path / "link")] == [pod.pid]
    tail = Path(f"/{tmp_path.name}/inner")
    assert f"{tail}/pods/" in f"{tmp_path / 'inner'}/pods/"
    assert pods_in(tail) == []


@pytest.mark.parametrize("stopped", [False, True])
def test_one_that_does_not_obey_is_killed(start: Start, tmp_path: Path, stopped: bool) -> None:
    pod = start(OBEYS if stopped else IGNORES)
    if stopped:
        pod.send_signal(signal.SIGSTOP)
    assert end_pods(tmp_path / "job", SystemClock(), grace_seconds=0.2) == (1, 1)
    assert pod.wait() == -signal.SIGKILL


def test_nothing_is_left_of_a_job_that_never_was(tmp_path: Path) -> None:
    assert end_pods(tmp_path / "none", SystemClock()) == (0, 0)
