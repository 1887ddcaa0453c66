"""What only processes have: sessions, groups, logs, environment, the list of ids."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab.core.clock import SystemClock
from trimtab.core.cluster.base import PodSpec
from trimtab.core.cluster.local import PIDS_FILE, LocalCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path, SystemClock(), 0.5)
    yield made
    made.close()


def python(folder: Path, name: str, program: str) -> PodSpec:
    log = folder / "logs" / f"{name}.log"
    return PodSpec(name, "worker", (sys.executable, "-I", "-S", "-c", program), str(log), 1, 2**26)


def until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    clock, never = SystemClock(), threading.Event()
    end = clock.now() + seconds
    while not done():
        assert clock.now() < end
        clock.wait(never, 0.01)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_command_that_cannot_run_is_a_failed_pod_with_a_reason(cluster: LocalCluster, tmp_path: Path) -> None:
    log = tmp_path / "pod.log"
    cluster.apply([PodSpec("a", "ps", ("/no/such/program",), str(log), 1, 2**26)])
    (status,) = cluster.observe()
    assert (status.phase, status.exit_code, status.pid) == ("failed", 127, None)
    assert "/no/such/program could not be started" in log.read_text()


def test_a_pod_has_its_own_session_and_log_no_stdin_and_the_pods_environment(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    program = (
        "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()), "
        "'PYTHONDONTWRITEBYTECODE' in os.environ, os.environ['OMP_NUM_THREADS'], os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    cluster.apply([python(tmp_path, "a", program)])
    until(lambda: all(status.ended for status in cluster.observe()))
    assert (tmp_path / "logs" / "a.log").read_text() == "True '' False 1 -1\n"
    assert cluster.cpu_seconds() > 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("death", ["killed", "ended"])
def test_children_of_a_pod_end_with_it(cluster: LocalCluster, tmp_path: Path, death: str) -> None:
    program = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else None; time.sleep(60)"
    cluster.apply([python(tmp_path, "a", program)])
    log = tmp_path / "logs" / "a.log"
    until(lambda: log.read_text().endswith("\n"))
    child = int(log.read_text())
    assert alive(child)
    if death == "killed":
        (status,) = cluster.observe()
        assert status.pid is not None
        os.kill(status.pid, 9)
        until(lambda: cluster.observe()[0].ended)
    else:
        cluster.close()
    until(lambda: not alive(child))


def test_the_list_of_living_pods_lies_in_the_jobs_directory(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.apply([python(tmp_path, "a", "import time; time.sleep(60)")])
    (status,) = cluster.observe()
    assert json.loads((tmp_path / PIDS_FILE).read_text()) == {"a": status.pid}
    cluster.close()
    assert not (tmp_path / PIDS_FILE).exists()


def test_a_list_that_cannot_be_written_keeps_no_pod_from_being_ended(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, SystemClock(), 0.2)
    (tmp_path / PIDS_FILE).mkdir()  # nothing can be put in its place
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    cluster.apply([python(tmp_path, "a", stubborn)])
    (status,) = cluster.observe()
    cluster.close()
    assert status.pid is not None
    assert cluster.observe() == ()
    assert not Path(f"/proc/{status.pid}").exists()


def test_the_list_is_written_only_when_it_changes(cluster: LocalCluster, tmp_path: Path) -> None:
    pods = [python(tmp_path, "a", "import time; time.sleep(60)")]
    cluster.apply(pods)
    (tmp_path / PIDS_FILE).unlink()
    cluster.apply(pods)
    cluster.observe()
    assert not (tmp_path / PIDS_FILE).exists()


def test_a_pod_that_somebody_else_has_reaped_is_ended_and_the_others_go_on(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    stays = "import time; time.sleep(60)"
    cluster.apply([python(tmp_path, "a", stays), python(tmp_path, "b", stays)])
    pid = cluster.observe()[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)  # not one that ends by itself: the look above might have reaped it already
    os.waitpid(pid, 0)
    lost, other = cluster.observe()
    assert (lost.phase, lost.exit_code, other.phase) == ("failed", None, "running")
    assert cluster.observe() == (lost, other)
