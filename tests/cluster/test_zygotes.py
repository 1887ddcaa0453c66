"""Pods that a zygote forks: they are as if started cold, and whatever happens to the zygote, each starts once."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab.core.clock import SystemClock
from trimtab.core.cluster import subreaper
from trimtab.core.cluster.base import PodSpec, PodStatus
from trimtab.core.cluster.local import PIDS_FILE, LocalCluster
from trimtab.core.cluster.processes import reap_group
from trimtab.core.cluster.shares import NoShares

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pods are forked on Linux only")

GOOD = (
    "import sys; from trimtab.core.wire.forks import serve_forks\n"
    "def run(arguments):\n    exec(arguments[0], {})\n    return 0\n"
    "sys.exit(serve_forks(run))"
)
READY = "import os, sys, time; os.write(0, b'{}\\n')\n"
STAY = "import time; print('up', flush=True); time.sleep(60)"


class LateClock(SystemClock):
    """The machine's clock, which can be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class World:
    """A cluster of processes whose pods name a zygote."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, LateClock()
        self.cluster = LocalCluster(folder, self.clock, 0.5, shares=NoShares("none"))

    def pod(self, name: str, program: str = STAY, zygote: str = GOOD) -> PodSpec:
        """A pod that runs `program`, forked or cold: cold, `-c` takes the place of `-m module`."""
        argv = (sys.executable, "-I", "-c", program) if zygote != GOOD else (sys.executable, "-m", "some.pod", program)
        log = self.folder / "logs" / f"{name}.log"
        return PodSpec(name, "worker", argv, str(log), 1.0, 1, (sys.executable, "-c", zygote))

    def until(self, done: Callable[[], bool], seconds: float = 20.0) -> None:
        end, never = time.monotonic() + seconds, threading.Event()
        while True:
            self.cluster.observe()  # pods go on only when looked at
            if done():
                return
            assert time.monotonic() < end, f"not so after {seconds} s: {self.cluster.observe()}"
            self.clock.wait(never, 0.01)

    def status(self, name: str) -> PodStatus:
        return next(status for status in self.cluster.observe() if status.name == name)

    def log(self, name: str) -> str:
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def up(self, name: str) -> bool:
        return self.status(name).phase == "running" and "up" in self.log(name)

    def pids(self) -> dict[str, int]:
        return json.loads((self.folder / PIDS_FILE).read_text())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.cluster.close()


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_forked_pod_is_as_if_started_by_command_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    program = (
        "import os, signal, sys\n"
        "print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()), 'PYTHONDONTWRITEBYTECODE' in os.environ,\n"
        "os.environ['OMP_NUM_THREADS'], signal.getsignal(signal.SIGTERM).name,\n"
        "os.listdir('/proc/self/fd'), flush=True)\n"
        "print(open('/proc/self/cmdline').read())\n"
        "print('and to stderr', file=sys.stderr)"
    )
    world.cluster.apply([world.pod("a", program)])
    world.until(lambda: world.status("a").ended)
    assert (world.status("a").phase, world.status("a").exit_code) == ("succeeded", 0)
    first, *more = world.log("a").splitlines()
    assert first == "True '' False 1 SIG_DFL ['0', '1', '2', '3']"  # 3 reads the folder: nothing is inherited
    assert more[0].startswith(f"{sys.executable} -m some.pod import os, signal, sys")
    assert more[-1] == "and to stderr"


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no way')", 1, "no way"),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("import os; os.kill(os.getpid(), 9)", 137, ""),
        ("import os; os._exit(200)", 200, ""),
    ],
)
def test_exit_codes_of_forked_pods(world: World, program: str, code: int, said: str) -> None:
    world.cluster.apply([world.pod("a", program)])
    world.until(lambda: world.status("a").ended)
    assert world.status("a").exit_code == code
    assert said in world.log("a")


def test_the_zygote_is_started_once_and_its_pods_are_ours(world: World) -> None:
    pods = [world.pod("a"), world.pod("b")]
    world.cluster.apply(pods)
    assert {status.phase for status in world.cluster.observe()} == {"pending"}  # apply did not wait
    world.until(lambda: world.up("a") and world.up("b"))
    pods.append(world.pod("c"))
    world.cluster.apply(pods)
    world.until(lambda: world.up("c"))
    pids = world.pids()
    assert set(pids) == {"zygote-worker", "a", "b", "c"}
    assert {parent(pid) for pid in pids.values()} == {os.getpid()}
    world.cluster.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())  # not even a zombie


def test_cpu_time_of_forked_pods_and_zygotes_is_counted(world: World) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    world.cluster.apply([world.pod("a", burn)])
    world.until(lambda: world.status("a").ended)
    pod = world.cluster.cpu_seconds()
    assert 0.3 <= pod < 2
    world.cluster.close()
    assert world.cluster.cpu_seconds() > pod  # the imports


def test_children_of_a_forked_pod_end_with_it_and_leave_no_zombie(world: World) -> None:
    program = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else None; time.sleep(60)"
    world.cluster.apply([world.pod("a", program)])
    world.until(lambda: world.log("a").endswith("\n"))
    child, pid = int(world.log("a")), world.status("a").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    world.until(lambda: world.status("a").ended)
    world.until(lambda: not Path(f"/proc/{child}").exists())


def test_the_setting_of_this_process_is_put_back(world: World, tmp_path: Path) -> None:
    before = subreaper.get()
    other = World(tmp_path / "other")
    other.folder.mkdir()
    world.cluster.apply([world.pod("a", "pass")])
    other.cluster.apply([other.pod("a")])
    world.cluster.close()
    assert subreaper.get() == 1
    other.until(lambda: other.up("a"))  # the other's pods still come here
    other.cluster.close()
    assert subreaper.get() == before


def test_without_the_setting_pods_start_cold(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subreaper, "_prctl", lambda: None)
    world.cluster.apply([world.pod("a", zygote="the zygote of nobody")])
    world.until(lambda: world.up("a"))
    assert set(world.pids()) == {"a"}


HANGS = "import time; time.sleep(60)"
BAD_ZYGOTES = {
    "dies": ("raise SystemExit(5)", "has ended"),
    "hangs": (HANGS, "took more than 60 s"),
    "never answers": (READY + "os.read(0, 1); open('asked', 'w').close(); time.sleep(60)", "took more than 60 s"),
    "dies when asked": (READY + "os.read(0, 1)", "has ended"),
    "answers wrong": (READY + "os.write(0, b'hello\\n'); time.sleep(60)", "answers wrong"),
    "answers without an end": (READY + "os.write(0, b'x' * 100_000); time.sleep(60)", "answers wrong"),
    "closes its channel": (READY + "os.close(0); time.sleep(60)", "has ended"),
}


@pytest.mark.parametrize("kind", BAD_ZYGOTES)
def test_a_pod_whose_zygote_fails_starts_cold_and_once(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(world.folder)
    zygote, why = BAD_ZYGOTES[kind]
    pods = [world.pod("a", zygote=zygote), world.pod("b", zygote=zygote)]
    world.cluster.apply(pods)
    if why.startswith("took"):
        if kind == "never answers":
            world.until(lambda: (world.folder / "asked").exists())
        assert {status.phase for status in world.cluster.observe()} == {"pending"}
        world.clock.ahead = 61.0
    with caplog.at_level(logging.WARNING):
        world.until(lambda: world.up("a") and world.up("b"))
        world.cluster.apply([*pods, world.pod("c", zygote=zygote)])
        world.until(lambda: world.up("c"))
    (line,) = [line for line in caplog.messages if "start cold" in line]
    assert why in line
    world.until(lambda: set(world.pids()) == {"a", "b", "c"})
    assert all(world.log(name) == "up\n" for name in "abc")  # each ran once


def test_a_zygote_that_cannot_fork_says_so_and_the_pod_starts_cold(world: World) -> None:
    zygote = READY + "os.read(0, 65536); os.write(0, b'{\"pod\": \"a\", \"error\": \"no memory\"}\\n'); os.read(0, 1)"
    world.cluster.apply([world.pod("a", zygote=zygote)])
    world.until(lambda: world.up("a"))
    assert "zygote-worker" in world.pids()  # it may fork the next one


def test_a_zygote_that_cannot_be_started_is_no_obstacle(world: World) -> None:
    pod = world.pod("a", zygote="unused")
    world.cluster.apply([PodSpec(pod.name, pod.role, pod.argv, pod.log_path, 1.0, 1, ("/no/such/zygote",))])
    world.until(lambda: world.up("a"))


def test_a_zygote_killed_between_two_pods_is_not_missed(world: World) -> None:
    world.cluster.apply([world.pod("a")])
    world.until(lambda: world.up("a"))
    os.kill(world.pids()["zygote-worker"], signal.SIGKILL)
    cold = world.pod("b", zygote="another text, so argv is cold")
    late = PodSpec("b", "worker", cold.argv, cold.log_path, 1.0, 1, world.pod("a").zygote)
    world.cluster.apply([world.pod("a"), late])
    world.until(lambda: world.up("b"))
    assert world.status("a").phase == "running"  # what was forked lives on


def test_a_pod_taken_back_while_its_zygote_forks_it_is_ended(world: World) -> None:
    slow = GOOD.replace("sys.exit", "import os, time; os.write(0, b'{}\\n'); time.sleep(0.3); sys.exit")
    world.cluster.apply([world.pod("a", zygote=slow)])
    world.until(lambda: (world.folder / PIDS_FILE).exists())
    world.until(lambda: world.cluster.observe()[0].phase == "pending" and bool(world.pids()))
    world.clock.wait(threading.Event(), 0.2)  # most likely asked by now; right either way
    world.cluster.apply([])
    world.until(lambda: world.cluster.observe() == ())


def test_closing_while_a_zygote_imports_leaves_nothing(world: World) -> None:
    world.cluster.apply([world.pod("a", zygote=HANGS)])
    pid = world.pids()["zygote-worker"]
    world.cluster.close()
    assert world.cluster.observe() == ()
    assert not Path(f"/proc/{pid}").exists()
    assert not (world.folder / PIDS_FILE).exists()
    assert world.log("a") == ""  # and started nothing cold


def test_a_zygote_ends_with_its_controller(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from trimtab.core.clock import SystemClock; from trimtab.core.cluster.base import PodSpec\n"
        "from trimtab.core.cluster.shares import NoShares; from trimtab.core.cluster.local import LocalCluster\n"
        f"cluster = LocalCluster(Path({str(tmp_path)!r}), SystemClock(), shares=NoShares('none'))\n"
        f"zygote, argv = (sys.executable, '-c', {GOOD!r}), (sys.executable, '-m', 'x', {STAY!r})\n"
        f"pod = PodSpec('a', 'worker', argv, {str(tmp_path / 'a.log')!r}, 1, 1, zygote)\n"
        "cluster.apply([pod])\n"
        "while True:\n    cluster.observe(); time.sleep(0.01)"
    )
    controller = subprocess.Popen([sys.executable, "-c", script])
    log, end = tmp_path / "a.log", time.monotonic() + 20
    try:
        while not (log.exists() and log.read_text()):
            assert time.monotonic() < end
        pids = json.loads((tmp_path / PIDS_FILE).read_text())
        while "a" not in pids:
            assert time.monotonic() < end
            pids = json.loads((tmp_path / PIDS_FILE).read_text())
    finally:
        controller.kill()
        controller.wait()
    try:
        while alive(pids["zygote-worker"]):
            assert time.monotonic() < end
        assert alive(pids["a"])  # a real pod waits for another controller, and leaves by itself
    finally:
        os.killpg(pids["a"], signal.SIGKILL)


def test_reaping_a_group_that_nobody_is_left_in() -> None:
    assert reap_group(2**22 - 1) == (True, 0.0)
