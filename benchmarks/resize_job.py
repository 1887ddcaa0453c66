"""A job for `resize.py`: a table of a given size, events on a script, and a log of what every worker waited.

The controller runs in the benchmark's own process, so plans come from a script instead of the optimizer, and what
workers and parameter servers report is written down as it arrives. Pods are real processes under real shares of CPU.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

SETTLE_SECONDS, WINDOW_SECONDS = 0.5, 1.8
BEFORE_SECONDS, AFTER_SECONDS = 2.0, 1.0


@dataclass(frozen=True)
class Heard:
    """A worker's report: when it came, whose, its longest wait since the last one, and how many batches it brings."""

    at: float
    pod: str
    gap: float
    batches: int


@dataclass
class Log:
    """What a job's processes said."""

    heard: list[Heard] = field(default_factory=list)
    decided: list[tuple[float, str]] = field(default_factory=list)
    snapshots: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # by pod: when seen, seconds it took

    def longest(self, since: float, until: float, pods: set[str] | None = None) -> float | None:
        """The longest wait of a worker that reports arriving in this time tell of."""
        found = [one.gap for one in self.heard if since < one.at <= until and (pods is None or one.pod in pods)]
        return max(found, default=None)

    def pods(self, since: float, until: float) -> set[str]:
        """Workers that finished batches in this time."""
        return {one.pod for one in self.heard if since < one.at <= until and one.batches}


def sample_rows(place: Path, rows: int) -> str:
    """The sample with so many rows; its path."""
    from trimtab.core.data.sample import write_sample

    path = place / "sample.parquet"
    write_sample(str(path), rows, seed=1)
    return str(path)


def seedling(sample: str, place: Path) -> str:
    """A short job's checkpoint: the model's tables and dense parameters."""
    from trimtab.core.controller.run import train
    from trimtab.core.domain.job import JobSpec, Mode

    spec = JobSpec(sample, job_dir=str(place / "seedling"), workers=1, ps=1, mode=Mode.FIXED, validation=0.0)
    result = train(spec)
    return result.model


def inflate(source: str, target: Path, rows: int, seed: int = 0) -> str:
    """A checkpoint like `source` with `rows` embedding rows in all: the missing ones get random keys. Its path."""
    from trimtab.core.domain.intervals import EMPTY
    from trimtab.core.domain.model_spec import EMBEDDING, VSHARDS, ModelSpec
    from trimtab.core.ps.copies import VshardCopy, read_copies, read_copy, write_copies
    from trimtab.core.ps.hashing import vshards
    from trimtab.core.ps.layout import newborn_rows
    from trimtab.core.ps.manifest import Manifest, read_manifest, write_manifest
    from trimtab.core.ps.rows import VshardRows
    from trimtab.core.wire.encode import read_json

    manifest = read_manifest(source)
    described = Path(source).parent.parent / "model.json"
    model = read_json(ModelSpec, described)
    tables = [number for number, table in enumerate(model.tables) if table.kind == EMBEDDING]
    rows -= sum(len(copy.content.keys[n]) for copy in read_copies(manifest.entries, model.tables) for n in tables)
    rng = np.random.default_rng(seed)
    keys: dict[int, list[np.ndarray]] = {}
    for number in tables:
        drawn = np.unique(rng.integers(1 << 61, 1 << 62, max(0, rows) // len(tables)))
        order = np.argsort(place := vshards(model.tables[number].name, drawn), kind="stable")
        bounds = np.searchsorted(place[order], np.arange(VSHARDS + 1))
        keys[number] = [np.sort(drawn[order[lo:hi]]) for lo, hi in pairwise(bounds.tolist())]

    def copies() -> Any:
        for entry in manifest.entries:
            copy = read_copy(entry, model.tables)
            held, values = list(copy.content.keys), list(copy.content.rows)
            for number in tables:
                more = keys[number][entry.vshard]
                table = model.tables[number]
                fresh = newborn_rows(table, rng.uniform(-0.05, 0.05, (len(more), table.dim)).astype(np.float32))
                held[number] = np.concatenate((held[number], more))  # the sample's keys are smaller
                values[number] = np.concatenate((values[number], fresh))
            yield VshardCopy(entry.vshard, 0, EMPTY, EMPTY, VshardRows(tuple(held), tuple(values)))

    target.mkdir(parents=True)
    written = write_copies(str(target / "copies.ttc"), copies(), model.tables, 0)
    (target / "model.json").write_bytes(described.read_bytes())
    made = Manifest(manifest.version, manifest.job_id, manifest.fingerprint, VSHARDS, written.entries, written.sets)
    return write_manifest(str(target), made).path


@dataclass
class Job:
    """One job on a script.

    Attributes:
        steps: plans (workers, cores of each, PSs, cores of each), one after the other, each held until it is measured.
        snapshot_seconds: between snapshots; None: none are written.
        zygotes: whether pods are forked from one.
        act: called several times a second once training has begun, with the log; true when the job may end.
    """

    sample: str
    job_dir: Path
    source: str | None
    steps: list[tuple[int, float, int, float]]
    memory_bytes: int
    snapshot_seconds: float | None = None
    zygotes: bool = True
    act: Callable[[Log, Any], bool] | None = None
    epochs: int = 1000
    log: Log = field(default_factory=Log)

    def run(self) -> Any:
        """Train until the script is over; the job's decisions."""
        from trimtab.core.controller import launch, run, running
        from trimtab.core.domain.job import JobSpec
        from trimtab.core.domain.plan import Limits, Plan, RolePlan
        from trimtab.core.domain.records import Decision
        from trimtab.core.errors import Interrupted

        left, stop, log = list(self.steps), threading.Event(), self.log
        first = left.pop(0)

        def plan_of(step: Sequence[float], like: Plan) -> Plan:
            workers, worker_cpu, servers, ps_cpu = step
            return Plan(
                RolePlan(int(servers), ps_cpu, like.ps.memory_bytes),
                RolePlan(int(workers), worker_cpu, like.worker.memory_bytes),
            )

        def decide(question: Any) -> Decision:
            plan, now = question.plan, question.time_seconds
            wanted = plan_of(first, plan) if not log.decided else None
            if wanted is None and left:
                wanted = plan_of(left.pop(0), plan)
            if wanted is not None and wanted != plan:
                log.decided.append((time.monotonic(), f"{plan} to {wanted}"))
                return Decision(now, "replace", wanted, "on purpose", action=f"To {wanted}", before=plan)
            if wanted is not None:
                log.decided.append((time.monotonic(), "as it began"))
            elif not left and self.act is None:
                stop.set()
            return Decision(now, "hold", plan, "wait", before=plan)

        def hear(sync: Any) -> None:
            log.heard.append(Heard(time.monotonic(), sync.pod, sync.max_gap_seconds, len(sync.losses)))

        ps_config, serve, stub = launch.Launcher._ps, running.serve_controller, running.PsStub
        seconds = self.snapshot_seconds

        def without_surprises(launcher: Any, pod: Any) -> Any:
            config = ps_config(launcher, pod)
            if seconds is None:
                return replace(config, snapshots="")
            return replace(config, snapshot_seconds=seconds, snapshot_bytes=1 << 60, snapshot_share=0.7)

        class Listening(stub):  # type: ignore[misc, valid-type]
            def sync(self, request: Any, timeout_seconds: float) -> Any:
                report = super().sync(request, timeout_seconds)
                seen = log.snapshots.setdefault(report.process, [])
                if report.snapshots > len(seen):
                    seen.append((time.monotonic(), report.snapshot_seconds))
                return report

        def listening(address: str, secret: bytes, answer: Callable[[Any], Any], *more: Any) -> Any:
            def both(sync: Any) -> Any:
                hear(sync)
                return answer(sync)

            return serve(address, secret, both, *more)

        def progress(now: Any) -> None:
            if now.phase == "training" and log.decided and self.act is not None and self.act(log, now):
                stop.set()

        pod_spec = launch.Launcher.pod_spec

        def cold(launcher: Any, pod: Any) -> Any:
            return replace(pod_spec(launcher, pod), zygote=())

        workers, _, servers, _ = first
        spec = JobSpec(
            self.sample, epochs=self.epochs, workers=int(workers), ps=int(servers), job_dir=str(self.job_dir),
            init_from=self.source, limits=Limits(1.8, self.memory_bytes, 2, 3), validation=0.0,
        )  # fmt: skip
        patched = [
            (run, "decide", decide), (launch.Launcher, "_ps", without_surprises), (running, "PsStub", Listening),
            (running, "serve_controller", listening),
            (launch.Launcher, "pod_spec", pod_spec if self.zygotes else cold),
        ]  # fmt: skip
        kept = [(where, name, getattr(where, name)) for where, name, _ in patched]
        try:
            for where, name, value in patched:
                setattr(where, name, value)
            return run.train(
                spec, progress, stop=stop, checkpoint_seconds=1e9, settle_seconds=SETTLE_SECONDS,
                window_seconds=WINDOW_SECONDS,
            )  # fmt: skip
        except Interrupted as ended:
            return ended.outcome
        finally:
            for where, name, value in kept:
                setattr(where, name, value)


def frozen(job_dir: Path) -> list[float]:
    """Seconds that vshards on the move were served by nobody, from the parameter servers' logs."""
    found = []
    for path in (job_dir / "logs").glob("ps-*.log"):
        found += [float(one) for one in re.findall(r"were frozen for at most ([0-9.]+) s", path.read_text())]
    return found
