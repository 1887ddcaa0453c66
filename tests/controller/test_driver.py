"""The driver's threads, queue and ends, with simulated processes in the place of real ones."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from controller_world import JOB, Server, Worker, empty_manifest, plan_of, settings

from trimtab.core.clock import SystemClock
from trimtab.core.cluster.base import PodSpec, PodStatus
from trimtab.core.cluster.fake import FakeCluster
from trimtab.core.controller import driver as module
from trimtab.core.controller.actions import PodName
from trimtab.core.controller.document import Document
from trimtab.core.controller.driver import Driver, Ports
from trimtab.core.controller.events import EventLog
from trimtab.core.controller.progress import Progress
from trimtab.core.controller.settings import Settings
from trimtab.core.controller.state import first_state
from trimtab.core.controller.store import FileStore, StateStore, take_term
from trimtab.core.controller.storing import Storing
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Decision
from trimtab.core.errors import Interrupted, Refused
from trimtab.core.optimizer.question import Question
from trimtab.core.ps.manifest import Manifest, read_manifest, write_manifest
from trimtab.core.wire.control import Unreachable
from trimtab.core.wire.messages import PsReport, PsSync, WorkerOrders, WorkerSync

Answer = Callable[[WorkerSync], WorkerOrders]


@dataclass
class Manifests(dict[str, Manifest]):
    """Looks manifests up on disk, as a real parameter server does."""

    def __missing__(self, path: str) -> Manifest:
        return read_manifest(path)


@dataclass
class Line:
    """A call to a simulated parameter server; `down` calls fail first."""

    bench: Bench
    server: Server
    down: int = 2

    def sync(self, request: PsSync, timeout_seconds: float) -> PsReport:
        self.down -= 1
        if self.down >= 0 or self.server.pod in self.bench.silent:
            raise Unreachable("nobody there")
        report = self.server.sync(self.bench, request)  # type: ignore[arg-type]
        if report is None:
            raise Refused("another process is meant")
        return report

    def close(self) -> None:
        self.bench.closed.append(self.server.pod)


def keep(question: Question) -> Decision:
    return Decision(question.time_seconds, "hold", question.plan, "kept", before=question.plan)


@dataclass
class Bench:
    """A driver with everything around it; simulated workers run in threads of their own."""

    folder: Path
    chosen: Settings
    plan: Plan = field(default_factory=plan_of)
    silent: set[str] = field(default_factory=set)
    closed: list[str] = field(default_factory=list)
    shown: list[Progress] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    manifests: Manifests = field(default_factory=Manifests)
    servers: dict[str, Server] = field(default_factory=dict)
    pushes: list[tuple[str, int, int]] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    on_progress: Callable[[Progress], None] = lambda _: None
    answer: Answer | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def driver(self, store: StateStore | None = None) -> Driver:
        copies = self.folder / "copies"
        copies.mkdir()
        ref = write_manifest(copies, empty_manifest())
        self.store = store or FileStore(self.folder / "state.json")
        document = take_term(self.store, Document(JOB, JobSpec("data.csv"), self.plan, ref))
        self.clock = SystemClock()
        self.deadline = self.clock.now() + 60.0
        self.cluster = FakeCluster(self.clock)
        ports = Ports(
            cluster=self.cluster, store=self.store, clock=self.clock, pod_spec=self.pod_spec, connect=self.connect,
            serve=self.serve, copies=str(copies), scores=self.folder / "scores.npz",
            events=EventLog(self.folder / "events.jsonl", self.clock, self.clock.now()), decide=keep,
            watch=lambda *_: None, progress=self.progress, stop=self.stop,
        )  # fmt: skip
        return Driver(first_state(self.chosen, document, empty_manifest()), ports)

    def pod_spec(self, pod: PodName) -> PodSpec:
        return PodSpec(pod.name, pod.role, (), str(self.folder / f"{pod.name}.log"), 1.0, 1)

    def connect(self, pod: str) -> Line:
        server = Server(pod, f"process-of-{pod}")
        self.servers[server.process] = server
        return Line(self, server)

    def serve(self, answer: Answer) -> Bench:
        self.answer = answer
        for number in range(self.plan.worker.replicas):
            worker = Worker(f"worker-{number}-t1-g1", f"process-{number}")
            self.threads.append(threading.Thread(target=self.work, args=(worker,)))
            self.threads[-1].start()
        return self

    def close(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def work(self, worker: Worker) -> None:
        assert self.answer is not None
        while not worker.stopped and not self.over.wait(0.002):
            if worker.pod not in {pod.name for pod in tuple(self.cluster.started)}:
                continue
            for _ in range(20):
                worker.work(self)  # type: ignore[arg-type]
            sync = worker.message(1)
            worker.hear(self.answer(sync))
            worker.finished = worker.finished[len(sync.finished) :]
            worker.losses, worker.scores = worker.losses[len(sync.losses) :], worker.scores[len(sync.scores) :]

    def progress(self, progress: Progress) -> None:
        self.shown.append(progress)
        if self.clock.now() > self.deadline:  # a hanging job becomes a failing test
            self.stop.set()
        self.on_progress(progress)

    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]


def test_a_job_runs_to_its_end_and_its_story_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=300, metrics=True))
    state = bench.driver().run()
    assert state.document.state is JobState.FINISHED
    assert state.manifest.complete(300)
    stored = bench.store.read()
    assert stored is not None
    assert stored == state.document
    assert read_manifest(stored.manifest) == state.manifest
    assert (tmp_path / "scores.npz").exists()
    assert state.outcome.metrics == {"auc": 0.5}
    assert bench.cluster.observe() == ()
    kinds = [event["kind"] for event in bench.events()]
    assert kinds[-1] == "end"
    assert {"pod_started", "routing", "served", "phase", "checkpoint"} <= set(kinds)
    assert bench.shown[-1].batches_done == bench.shown[-1].batches_expected == 300
    assert len(bench.closed) == 2


def test_what_a_forecast_imports_is_imported_before_one_is_made(tmp_path: Path) -> None:
    """In a process of its own, for here it is imported already: under the lock it would keep workers waiting."""
    script = """
import sys
from trimtab.core.controller import changing, driver
from trimtab.core.perf.memory import Growth, KeyGrowth
assert not any(name in sys.modules for name in driver._SOLVERS)
driver.load_solvers()
before = set(sys.modules)
assert KeyGrowth([Growth(1000.0 * 1.2**n, 40 * (1000.0 * 1.2**n) ** 0.7) for n in range(30)]).fitted
late = [name for name in set(sys.modules) - before if name.startswith("scipy")]
assert not late, late
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_a_driver_loads_the_solvers_beside_its_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    monkeypatch.setattr(module, "load_solvers", lambda: threads.append(threading.current_thread().name))
    Bench(tmp_path, settings(batches=300)).driver().run()
    assert len(threads) == 1 and threads[0].startswith("ps-call")


def test_whoever_sets_stop_gets_an_orderly_stop(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=10**6))
    bench.on_progress = lambda progress: bench.stop.set() if progress.batches_done else None
    with pytest.raises(Interrupted, match="interrupted"):
        bench.driver().run()
    stored = bench.store.read()
    assert stored is not None
    assert (stored.state, bench.cluster.observe()) == (JobState.STOPPED, ())


def test_ctrl_c_ends_the_pods_and_is_written_down(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=10**6))

    def interrupt(progress: Progress) -> None:
        if progress.phase == "training":
            raise KeyboardInterrupt

    bench.on_progress = interrupt
    with pytest.raises(Interrupted):
        bench.driver().run()
    stored = bench.store.read()
    assert stored is not None
    assert (stored.state, stored.reason, bench.cluster.observe()) == (JobState.STOPPED, "interrupted", ())


def test_an_error_of_our_own_is_raised_after_the_pods_have_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=10**6))
    driver = bench.driver()

    def broken() -> tuple[PodStatus, ...]:
        raise ZeroDivisionError

    bench.on_progress = lambda p: setattr(bench.cluster, "observe", broken) if p.phase == "training" else None
    with pytest.raises(ZeroDivisionError):
        driver.run()
    del bench.cluster.observe
    stored = bench.store.read()
    assert stored is not None
    assert (stored.state, bench.cluster.observe()) == (JobState.FAILED, ())
    assert stored.reason == "the controller met an error of its own: ZeroDivisionError: "


def test_another_controllers_term_ends_this_one_and_its_document_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings())
    driver = bench.driver()
    other = take_term(bench.store, driver.state.document)
    state = driver.run()
    assert "another controller has taken this job over" in state.document.reason
    assert bench.store.read() == other


def test_workers_of_another_term_or_job_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=10**6), plan_of(workers=1))
    refused: list[str] = []

    def probe(progress: Progress) -> None:
        if progress.phase != "training" or bench.stop.is_set():
            return
        assert bench.answer is not None
        for job, term in ((JOB, 0), (JOB, 2), ("other", 1)):
            with pytest.raises(Refused) as error:
                bench.answer(WorkerSync(job, term, "worker-0-t1-g1", "process-0"))
            refused.append(str(error.value))
        stranger = bench.answer(WorkerSync(JOB, 1, "worker-7-t1-g1", "process-9", want=2))
        assert (stranger.stop, stranger.grants) == (True, ())
        bench.stop.set()

    bench.on_progress = probe
    with pytest.raises(Interrupted):
        bench.driver().run()
    assert len(refused) == 3


def test_a_ps_that_never_answers_fails_the_job_by_name_within_the_limits(tmp_path: Path) -> None:
    """Case 2: bounded retries, then a reason."""
    limits = replace(settings(failures_in_row=2), start_seconds=0.3)
    bench = Bench(tmp_path, limits, silent={"ps-1-t1-g1", "ps-1-t1-g2"})
    state = bench.driver().run()
    assert state.document.state is JobState.FAILED
    assert state.document.reason.startswith("ps-1-t1-g2 said nothing within 0.3 s of its start, failure 2")


def test_a_failed_pods_reason_ends_with_the_last_lines_of_its_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=10**6))
    (tmp_path / "worker-0-t1-g1.log").write_text("\n".join(f"line {n}" for n in range(100)))
    bench.on_progress = lambda p: bench.cluster.kill("worker-0-t1-g1", 4) if p.phase == "training" else None
    state = bench.driver().run()
    assert state.document.state is JobState.FAILED
    assert state.document.reason.endswith("line 98\nline 99")
    assert "line 91" not in state.document.reason


def test_a_progress_function_that_fails_changes_nothing_and_is_not_called_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=20))

    def broken(progress: Progress) -> None:
        raise ValueError("I/O operation on closed file")

    bench.on_progress = broken
    assert bench.driver().run().document.state is JobState.FINISHED
    assert len(bench.shown) == 1


def test_ctrl_c_while_the_end_is_shown_does_not_change_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=20))
    driver = bench.driver()

    def interrupt(progress: Progress) -> None:
        if bench.over.is_set():
            raise KeyboardInterrupt

    bench.on_progress = interrupt
    assert driver.run().document.state is JobState.FINISHED


class CutStore(FileStore):
    """Stores the job's end, and is interrupted before it can say so."""

    cut = False

    def compare_and_swap(self, document: Document, expected: int) -> Document:
        stored = super().compare_and_swap(document, expected)
        if document.state is not JobState.RUNNING and not self.cut:
            self.cut = True
            raise KeyboardInterrupt
        return stored


def test_an_end_whose_storing_was_interrupted_is_stored_all_the_same(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=20))
    state = bench.driver(CutStore(tmp_path / "state.json")).run()
    assert state.document.state is JobState.FINISHED
    assert state.manifest.complete(20)
    assert bench.store.read() == state.document


def test_what_is_stored_apart_gets_its_time_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pods: list[object] = []
    bench = Bench(tmp_path, settings(batches=20))
    driver = bench.driver()
    monkeypatch.setattr(Storing, "close", lambda self, clock: pods.append(bench.cluster.observe()))
    driver.run()
    assert pods == [()], "once, after the pods have ended"


def test_whatever_fails_at_the_end_everything_is_closed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings(batches=20))
    driver = bench.driver()
    close = bench.cluster.close

    def broken() -> None:
        close()
        raise OSError("No space left on device")

    bench.cluster.close = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="No space left"):
        driver.run()
    assert len(bench.closed) == 2
    assert bench.over.is_set(), "the server too"
