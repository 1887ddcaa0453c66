"""A job for `hot_ps.py`, a host that becomes busy, and how busy it must be for half the speed.

The controller runs in the benchmark's own process, so what workers report is written down as it arrives. Pods are real
processes under real shares of CPU.
"""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

GIB = 2**30
BATCH = 1024
ROWS = 40_000  # an epoch is 1 % of a job: so finely its length can be chosen
PERIOD_SECONDS = 0.05
MEASURED_SECONDS, TRIES, TOLERANCE = 4.0, 7, 0.03
QUICK_MEASURED_SECONDS, QUICK_TRIES = 2.0, 5
WARM_SECONDS = 4.0  # the first batches fill the table


class Duty:
    """Stops a process for most of each period, from a thread of its own, until left or until the process ends."""

    def __init__(self, share: float) -> None:
        """`share`: of each period in which it runs."""
        self.share = share
        self._process: psutil.Process | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Duty:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def stop(self, process: psutil.Process | None) -> None:
        """Begin with this process; None: let the present one go."""
        self._process = process

    def _run(self) -> None:
        while not self._over.wait(0.0):
            process = self._process
            if process is None:
                self._over.wait(PERIOD_SECONDS)
                continue
            try:
                process.send_signal(signal.SIGCONT)
                time.sleep(PERIOD_SECONDS * self.share)
                process.send_signal(signal.SIGSTOP)
                time.sleep(PERIOD_SECONDS * (1 - self.share))
            except (psutil.Error, OSError):
                self._process = None
            finally:
                with suppress(psutil.Error, OSError):
                    if self._over.is_set() or self._process is None:
                        process.send_signal(signal.SIGCONT)


def servers_of(folder: Path) -> list[psutil.Process]:
    """The job's parameter servers, by name."""
    mark = f"{folder}/pods/ps-"
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            names = [word for word in one.cmdline() if word.startswith(mark)]
            if names and one.parent() is not None and not any(mark in word for word in one.parent().cmdline()):
                found.append((names[0], one))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


@dataclass
class Trial:
    """One run: when batches were told of, and when something was done to it.

    Attributes:
        first_at, last_at: of batches. acted_at: of what was done to it. began_after: the first batch, since the job's
            start. batches: how many were told of.
    """

    first_at: float = 0.0
    last_at: float = 0.0
    acted_at: float = 0.0
    began_after: float = 0.0
    batches: int = 0
    times: list[tuple[float, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the first batch to the last."""
        return self.last_at - self.first_at

    def rate(self, seconds: float) -> float:
        """Batches per second lately."""
        now = time.monotonic()
        return sum(count for at, count in self.times if at > now - seconds) / seconds


class Job:
    """One job of so many batches."""

    def __init__(self, place: Path, name: str, shape: tuple[int, float, int, float], batches: int) -> None:
        """`shape`: workers, cores of each, servers, cores of each. `place`: where the sample is, or gets written."""
        self.folder = place / name
        self._shape = shape
        self._sample = place / "sample.parquet"
        if not self._sample.exists():
            from trimtab.core.data.sample import write_sample

            write_sample(str(self._sample), ROWS, seed=1)
        self._epochs = max(1, round(batches * BATCH / ROWS))

    def run(
        self, act: Callable[[], None] | None, at: float, *, watched: bool, stops: bool = False,
        look: Callable[[Trial], bool] | None = None,
    ) -> Trial:  # fmt: skip
        """Train it, once.

        Args:
            act: what is done to it `at` seconds after its first batch; None for nothing.
            watched: whether the product looks after its parameter servers.
            stops: it is stopped then. look: called several times a second; true ends it.
        """
        from trimtab.core.controller import run
        from trimtab.core.domain.job import JobSpec, Mode
        from trimtab.core.domain.plan import Limits

        workers, worker_cpu, servers, ps_cpu = self._shape
        limits = Limits(workers * worker_cpu + servers * ps_cpu, 16 * GIB, workers, servers + 2)
        spec = JobSpec(
            str(self._sample), epochs=self._epochs, workers=workers, ps=servers, job_dir=str(self.folder),
            batch_size=BATCH, limits=limits, validation=0.0, mode=Mode.FIXED,
        )  # fmt: skip
        return self._driven(lambda progress, stop: run.train(spec, progress, stop=stop), act, at, watched, stops, look)

    def go_on(self) -> Trial:
        """Resume it, and train the rest."""
        from trimtab.core.controller.resume import resume

        return self._driven(
            lambda progress, stop: resume(str(self.folder), progress, stop=stop), None, 0.0, False, False, None
        )

    def _driven(
        self, train: Callable[[Any, threading.Event], Any], act: Callable[[], None] | None, at: float, watched: bool,
        stops: bool, look: Callable[[Trial], bool] | None,
    ) -> Trial:  # fmt: skip
        from trimtab.core.controller import running
        from trimtab.core.controller.spreading import BalanceRules
        from trimtab.core.errors import Interrupted
        from trimtab.core.optimizer.stability.hot_ps import HotRules

        trial, stop, began = Trial(), threading.Event(), time.monotonic()
        serve, settings, plan_of = running.serve_controller, running.Settings, self._planned

        def hear(sync: Any) -> None:
            now = time.monotonic()
            if sync.losses:
                if not trial.batches:
                    trial.first_at, trial.began_after = now, now - began
                trial.last_at, trial.batches = now, trial.batches + len(sync.losses)
                trial.times.append((now, len(sync.losses)))

        def listening(address: str, secret: bytes, answer: Callable[[Any], Any], *more: Any) -> Any:
            def both(sync: Any) -> Any:
                hear(sync)
                return answer(sync)

            return serve(address, secret, both, *more)

        def progress(now: Any) -> None:
            if not trial.batches or now.phase != "training":
                return
            if not trial.acted_at and time.monotonic() - trial.first_at >= at and (act is not None or stops):
                trial.acted_at = time.monotonic()
                if act is not None:
                    act()
                if stops:
                    stop.set()
            if look is not None and look(trial):
                stop.set()

        off = {} if watched else {"hot": HotRules(samples=10**9), "balance": BalanceRules(seconds=1e9)}
        try:
            running.serve_controller = listening
            running.Settings = partial(settings, **off)  # type: ignore[misc, assignment]
            with plan_of():
                train(progress, stop)
        except Interrupted:
            if not stop.is_set():
                raise
        finally:
            running.serve_controller, running.Settings = serve, settings  # type: ignore[misc]
        return trial

    def _planned(self) -> Any:
        """The first plan has the job's shape."""
        from unittest import mock

        from trimtab.core.controller import resources

        workers, worker_cpu, servers, ps_cpu = self._shape
        first = resources.first_plan

        def shaped(*arguments: Any, **more: Any) -> Any:
            found = first(*arguments, **more)
            ps = replace(found.plan.ps, cpu=ps_cpu, replicas=servers)
            return replace(found, plan=replace(found.plan, ps=ps, worker=replace(
                found.plan.worker, cpu=worker_cpu, replicas=workers
            )))  # fmt: skip

        return mock.patch.object(resources, "first_plan", shaped)


def calibrate(place: Path, shape: tuple[int, float, int, float], quick: bool) -> tuple[float, float, float]:
    """Healthy batches per second, the part of the time that a server may run for half of that, and what that gives."""
    seconds, tries = (QUICK_MEASURED_SECONDS, QUICK_TRIES) if quick else (MEASURED_SECONDS, TRIES)
    job = Job(place, "calibration", shape, 10**6)
    low, high, found = 0.0, 1.0, []
    state: dict[str, Any] = {"rate": 0.0, "next": 0.0}
    healthy: list[float] = []
    with Duty(0.25) as host:

        def look(trial: Trial) -> bool:
            nonlocal low, high
            now = time.monotonic()
            if now < max(state["next"], trial.first_at + WARM_SECONDS + seconds):
                return False
            part = trial.rate(seconds) / state["rate"] if state["rate"] else None
            if part is None:
                healthy.append(trial.rate(seconds))
                state["rate"], state["next"] = healthy[0], now + seconds + 1.0
                host.stop(servers_of(job.folder)[0])
                return False
            found.append((host.share, part))
            if abs(part - 0.5) <= TOLERANCE or len(found) >= tries:
                return True
            low, high = (host.share, high) if part < 0.5 else (low, host.share)
            host.share = (low + high) / 2
            state["next"] = now + seconds + 1.0
            return False

        job.run(None, 0.0, watched=False, look=look)
    best = min(found, key=lambda one: abs(one[1] - 0.5))
    return statistics.fmean(healthy), best[0], best[1]
