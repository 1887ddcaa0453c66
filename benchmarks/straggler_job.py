"""Jobs for `straggler.py`: real processes under real CPU quotas, one of whose workers is slowed down from outside.

The slow worker is stopped and let go on by signals, so that it gets a tenth of the time: that is how a process looks
whose machine is taken away by others. Nothing in the product knows of it. A quota written from outside would be put
right by the product as soon as it hands cores out anew, and would prove nothing.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

WORKERS, WORKER_CPU, PS_CPU = 4, 0.3, 0.5
CAP = 1.8  # cores of the job; its plan has 1.7
BATCH = 512
GIB = 2**30
PERIOD_SECONDS, PART = 0.5, 0.1  # of the time that a slowed process runs
VICTIM = 2  # place of the worker that is slowed


class Slowed:
    """A process that runs a tenth of the time, until it ends or this is closed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slowing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let it run again."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(ProcessLookupError):
            while not self._stop.is_set():
                os.kill(self.pid, signal.SIGSTOP)
                self._stop.wait(PERIOD_SECONDS * (1 - PART))
                os.kill(self.pid, signal.SIGCONT)
                if self._stop.wait(PERIOD_SECONDS * PART):
                    return
            os.kill(self.pid, signal.SIGCONT)


@dataclass
class Told:
    """What a run showed.

    Attributes:
        seconds: of the whole call, from its start to its end. cut: it was stopped because it had taken too long.
        fell_at: seconds after the start at which the worker was slowed, None: never.
        speeds: batches per second of the victim while it was healthy and while it was slow.
        events: what the product did about it: seconds after the start, kind, text.
        batches: of the job. state: how it ended.
    """

    seconds: float = 0.0
    cut: bool = False
    fell_at: float | None = None
    speeds: tuple[float, float] = (0.0, 0.0)
    events: list[tuple[float, str, str]] = field(default_factory=list)
    batches: int = 0
    rate: float = 0.0
    state: str = ""


TOLD_KINDS = ("slow_worker", "taken_back", "straggler", "straggler_replaced", "straggler_recovered", "straggler_stays",
              "lent_twice", "pod_lost", "waiting_for_memory", "waiting_for_pods")  # fmt: skip


@dataclass
class Job:
    """One job.

    Attributes:
        sample, job_dir, epochs: what is trained, where.
        straggler: one worker falls to a tenth at 20 % of the job.
        static: each worker has a fixed quarter of the batches, and nothing is done about a slow one.
        longest: seconds after which it is cut, None: never.
    """

    sample: str
    job_dir: Path
    epochs: int
    straggler: bool = False
    static: bool = False
    longest: float | None = None

    def run(self) -> Told:
        """Train; what it took."""
        from trimtab.core.controller.run import train
        from trimtab.core.domain.job import JobSpec, Mode
        from trimtab.core.domain.plan import Limits
        from trimtab.core.errors import Interrupted

        told, stop, began = Told(), threading.Event(), time.monotonic()
        slowed: list[Slowed] = []
        seen: dict[int, list[tuple[float, int]]] = {}
        spec = JobSpec(
            self.sample, epochs=self.epochs, workers=WORKERS, ps=1, job_dir=str(self.job_dir), batch_size=BATCH,
            mode=Mode.FIXED, limits=Limits(CAP, 24 * GIB, WORKERS + 1, 1), validation=0.0,
        )  # fmt: skip

        def progress(now: Any) -> None:
            told.batches = now.batches_expected
            at = time.monotonic() - began
            if self.longest is not None and at > self.longest:
                told.cut = True
                stop.set()
            due = self.straggler and now.phase == "training" and now.batches_done >= 0.2 * now.batches_expected
            if due and not slowed and (pid := _worker(self.job_dir, VICTIM)) is not None:
                slowed.append(Slowed(pid))
                told.fell_at = at

        def hear(sync: Any) -> None:
            if sync.pod.startswith(f"worker-{VICTIM}-"):
                seen.setdefault(bool(slowed), []).append((time.monotonic() - began, len(sync.losses)))

        try:
            with _patched(self.static, hear):
                result = train(spec, progress, stop=stop, checkpoint_seconds=1e9)
                told.state, told.rate = str(result.state), result.samples_per_second or 0.0
        except Interrupted as ended:
            told.state = str(ended.outcome["state"]) if ended.outcome is not None else "stopped"
        finally:
            for one in slowed:
                one.close()
        told.seconds = time.monotonic() - began
        told.speeds = (_speed(seen.get(False, [])), _speed(seen.get(True, [])))
        told.events = list(_events(self.job_dir))
        return told


def _speed(reports: list[tuple[float, int]]) -> float:
    """Batches per second between the first report and the last."""
    if len(reports) < 2 or reports[-1][0] <= reports[0][0]:
        return 0.0
    return sum(done for _, done in reports[1:]) / (reports[-1][0] - reports[0][0])


def _worker(job_dir: Path, place: int) -> int | None:
    """The process of a worker."""
    mark = f"{job_dir}/pods/worker-{place}-"
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(word.startswith(mark) for word in one.cmdline()):
                return one.pid
    return None


def _events(job_dir: Path) -> Iterator[tuple[float, str, str]]:
    """What the product wrote down about slow workers, in seconds since the job's start."""
    for line in (job_dir / "events.jsonl").read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        if told["kind"] in TOLD_KINDS:
            yield told["seconds"], told["kind"], told["text"]


@contextmanager
def _patched(static: bool, hear: Callable[[Any], None]) -> Iterator[None]:
    """The plan of the benchmark, an ear at the workers' calls, and for the static split: fixed quarters, no remedy."""
    from trimtab.core.controller import lending, resources, running, step
    from trimtab.core.domain.intervals import IntervalSet
    from trimtab.core.domain.plan import Plan, RolePlan

    begin, serve, following = resources.Memory.begin, running.serve_controller, lending._next
    plan = Plan(RolePlan(1, PS_CPU, 2 * GIB), RolePlan(WORKERS, WORKER_CPU, 3 * GIB // 2))

    def planned(*args: Any, **kwargs: Any) -> Any:
        beginning = begin(*args, **kwargs)
        return replace(beginning, decision=replace(beginning.decision, plan=plan))

    def listening(address: str, secret: bytes, answer: Callable[[Any], Any], *others: Any) -> Any:
        def both(sync: Any) -> Any:
            hear(sync)
            return answer(sync)

        return serve(address, secret, both, *others)

    def quarter(draft: Any, name: str, kind: str, todo: Any) -> Any:
        batches, place = draft.state.settings.batches, draft.state.pods[name].slot[1]
        mine = IntervalSet.span(batches * place // WORKERS, batches * (place + 1) // WORKERS)
        left = todo & mine
        return following(draft, name, kind, left) if left else None

    changes = [(resources.Memory, "begin", planned), (running, "serve_controller", listening)]
    if static:
        changes += [(lending, "_next", quarter), (step, "watch_workers", lambda draft: None)]
    kept = [(where, name, getattr(where, name)) for where, name, _ in changes]
    try:
        for where, name, value in changes:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in kept:
            setattr(where, name, value)
