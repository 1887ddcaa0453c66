"""A disk that is full, hangs or goes away, and a controller that was held up: workers and servers do not notice."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
import test_driver
from controller_world import plan_of, settings
from test_driver import Bench

from trimtab.core.clock import SystemClock
from trimtab.core.controller import driver as module
from trimtab.core.controller.actions import PodName
from trimtab.core.controller.document import Document
from trimtab.core.controller.inputs import CheckpointRequested, StopRequested, Trouble
from trimtab.core.controller.progress import Progress
from trimtab.core.controller.store import FileStore
from trimtab.core.domain.job import JobState
from trimtab.core.errors import Interrupted
from trimtab.core.ps.manifest import read_manifest


class HangingStore(FileStore):
    """Stores nothing more once the gate is shut, until it opens."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.gate.set()

    def compare_and_swap(self, document: Document, expected: int) -> Document:
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(60.0)
        return super().compare_and_swap(document, expected)


class HeldUp(SystemClock):
    """The machine's clock, and some time that passes at once."""

    later = 0.0

    def now(self) -> float:
        return super().now() + self.later


def test_while_a_disk_hangs_in_a_checkpoint_training_goes_on(tmp_path: Path) -> None:
    store = HangingStore(tmp_path / "state.json")
    bench = Bench(tmp_path, settings(batches=10**6, checkpoint_seconds=0.2))
    driver = bench.driver(store)
    seen: list[int] = []

    def look(progress: Progress) -> None:
        if progress.phase == "training" and progress.batches_done and not seen:
            store.gate.clear()
        if store.waiting.is_set():
            seen.append(progress.batches_done)
            if len(seen) == 4:
                store.gate.set()
                bench.stop.set()

    bench.on_progress = look
    with pytest.raises(Interrupted):
        driver.run()
    assert len(seen) >= 4
    assert seen[3] > seen[0], "batches that parameter servers reported while the swap hung"


def test_a_stop_writes_its_last_checkpoint_and_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=10**6, checkpoint_seconds=1e9))
    bench.on_progress = lambda progress: bench.stop.set() if progress.batches_done else None
    with pytest.raises(Interrupted, match=r"^interrupted; its checkpoint holds \d+ of 1000000 batches$") as error:
        bench.driver().run()
    stored = bench.store.read()
    assert stored is not None
    held = len(read_manifest(stored.manifest).applied())
    assert held > 0
    assert f"holds {held} of" in str(error.value) and stored.reason == str(error.value)
    phases = [progress.phase for progress in bench.shown]
    assert "stopping" in phases
    assert any("asked once more" in progress.message for progress in bench.shown if progress.phase == "stopping")


def test_ctrl_c_while_it_stops_ends_the_job_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, settings(batches=10**6, checkpoint_seconds=1e9))

    def look(progress: Progress) -> None:
        if progress.phase == "stopping":
            raise KeyboardInterrupt
        if progress.batches_done:
            bench.stop.set()

    bench.on_progress = look
    with pytest.raises(Interrupted) as error:
        bench.driver().run()
    assert str(error.value) == "interrupted"
    stored = bench.store.read()
    assert stored is not None
    assert (stored.state, bench.cluster.observe()) == (JobState.STOPPED, ())


def test_a_command_of_another_thread_asks_for_a_checkpoint_and_a_stop(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=10**6, checkpoint_seconds=1e9))
    driver = bench.driver()

    def ask() -> None:
        driver.command(CheckpointRequested())

    def look(progress: Progress) -> None:
        state, _, _ = driver.command()
        if progress.batches_done and not state.checkpoints.asked:
            threading.Thread(target=ask).start()
        if state.checkpoints.done and state.stop is None:
            assert len(state.manifest.applied()) > 0
            driver.command(StopRequested("stopped by a command"))

    bench.on_progress = look
    with pytest.raises(Interrupted, match=r"^stopped by a command; its checkpoint holds"):
        driver.run()


def test_a_pod_whose_configuration_has_no_room_waits_and_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=10**6, checkpoint_seconds=1e9), plan_of(1, 2))
    driver, full, seen = bench.driver(), [True], []
    plain = bench.pod_spec

    def pod_spec(pod: PodName) -> object:
        if full[0] and pod.name == "worker-1-t1-g1":
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(pod)

    driver._ports = module.replace(driver._ports, pod_spec=pod_spec)

    def look(progress: Progress) -> None:
        state, started = driver.state, {pod.name for pod in bench.cluster.started}
        if progress.batches_done and ("disk", "pods") in state.findings and full[0]:
            seen.append(state.findings["disk", "pods"].text)
            assert "worker-1-t1-g1" not in started
            full[0] = False
        if not full[0] and "worker-1-t1-g1" in started and not state.findings:
            bench.stop.set()

    bench.on_progress = look
    with pytest.raises(Interrupted):
        driver.run()
    assert seen and "worker-1-t1-g1 can't be started" in seen[0]
    kinds = [event["kind"] for event in bench.events()]
    assert "degraded" in kinds and "recovered" in kinds


def test_what_is_wrong_around_the_job_is_asked_for_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEALTH_SECONDS", 0.0)
    bench = Bench(tmp_path, settings(batches=10**6, checkpoint_seconds=1e9))
    driver, wrong = bench.driver(), [(Trouble("history", "history", "away"),)]
    driver._ports = module.replace(driver._ports, health=lambda: wrong[0])

    def look(progress: Progress) -> None:
        if progress.batches_done and driver.state.findings:
            wrong[0] = ()
        elif progress.batches_done and not wrong[0]:
            bench.stop.set()

    bench.on_progress = look
    with pytest.raises(Interrupted):
        driver.run()
    told = [(event["kind"], event["text"]) for event in bench.events() if event["kind"] in ("degraded", "recovered")]
    assert told[0] == ("degraded", "away")
    assert told[1][0] == "recovered"


def test_a_controller_that_was_held_up_takes_nobody_for_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the cluster hangs for longer than a pod may be silent; the servers were not asked meanwhile."""
    monkeypatch.setattr(test_driver, "SystemClock", HeldUp)
    bench = Bench(tmp_path, settings(batches=10**6, checkpoint_seconds=1e9, silence_seconds=60.0))
    driver, held = bench.driver(), []
    bench.deadline += 600.0
    observe = bench.cluster.observe

    def hangs() -> object:
        if held == [1]:
            held.append(2)
            assert isinstance(bench.clock, HeldUp)
            bench.clock.later += 300.0
        return observe()

    bench.cluster.observe = hangs  # type: ignore[method-assign, assignment]

    def look(progress: Progress) -> None:
        if progress.batches_done and not held:
            held.append(1)
        if held == [1, 2]:
            held.append(progress.batches_done)
        if len(held) == 3 and progress.batches_done > held[2]:
            bench.stop.set()

    bench.on_progress = look
    with pytest.raises(Interrupted):
        driver.run()
    kinds = [event["kind"] for event in bench.events()]
    assert "late" in kinds
    assert "pod_lost" not in kinds
