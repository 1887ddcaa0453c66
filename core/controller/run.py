"""`train`: one job from a `JobSpec` to a `JobResult`.

Everything that can be bad input is looked at first, cheapest first, and nothing is started before: directory, plan,
data, batch numbers, model. Then the job's files are written, the driver runs it, and whatever happens, no process and
no private file stays, and `result.json` says how it went.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.cluster.local import LocalCluster
from trimtab.core.controller.document import Document
from trimtab.core.controller.driver import Driver, Ports
from trimtab.core.controller.events import EventLog
from trimtab.core.controller.launch import Launcher
from trimtab.core.controller.machine import usable_cpu, usable_memory_bytes
from trimtab.core.controller.places import JobDir, claim_job_dir, home, new_run_id, private_dir
from trimtab.core.controller.progress import Progress
from trimtab.core.controller.result import JobResult, RowCounts, tally
from trimtab.core.controller.state import Settings, State, first_state
from trimtab.core.controller.store import FileStore, take_term
from trimtab.core.data.batches import BatchReader
from trimtab.core.data.dataset import Dataset
from trimtab.core.data.describe import columns_line
from trimtab.core.data.numbering import Numbering
from trimtab.core.data.prepare import prepare
from trimtab.core.domain.job import JobSpec, JobState, Mode, PlanChange
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.domain.plan import Plan, cold_plan
from trimtab.core.domain.records import Decision
from trimtab.core.errors import BadInput, Interrupted, JobFailed
from trimtab.core.ps.kernel_cache import warm
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.training.probe_client import probe
from trimtab.core.wire.control import PsStub, serve_controller
from trimtab.core.wire.encode import to_json
from trimtab.core.wire.secrets import new_secret

CHECKPOINT_SECONDS = 60.0
Show = Callable[[Progress], None]


@dataclass(frozen=True)
class _Prepared:
    """A job of which everything is known and nothing is started."""

    run_id: str
    spec: JobSpec
    plan: Plan
    reason: str
    job_dir: JobDir
    dataset: Path
    validation_dataset: Path | None
    fingerprint: str
    counts: RowCounts
    batches: int
    evaluation_batches: int
    rows_expected: int
    model: ModelSpec


def train(
    spec: JobSpec,
    progress: Show | None = None,
    clock: Clock | None = None,
    stop: threading.Event | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> JobResult:
    """Train one model and return how it went; a job that failed after its start is a result with its reason.

    Args:
        spec: the job.
        progress: called in the calling thread, several times a second at most.
        clock: the machine's by default.
        stop: set it (from any thread) to stop the job in order.
        checkpoint_seconds: between periodic checkpoints.

    Raises:
        BadInput: something given cannot be used; nothing was started and nothing is left behind.
        JobFailed: it could not be started. Interrupted: it was stopped; `result.json` was written.
    """
    clock = clock if clock is not None else SystemClock()
    show = progress if progress is not None else _silent
    began = clock.now()
    with _sigterm_interrupts():
        run_id = new_run_id(clock)
        job_dir = claim_job_dir(spec, run_id)
        try:
            prepared = _prepare(spec, run_id, job_dir, show)
            private = private_dir()
        except BaseException as error:
            job_dir.abandon()
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted("interrupted before anything was started") from None
            raise
        halt = stop if stop is not None else threading.Event()
        try:
            return _run(prepared, private, show, clock, halt, began, checkpoint_seconds)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        except OSError as error:
            raise JobFailed(f"{job_dir.path}: {error}; make room or choose another --job-dir") from error
        finally:
            shutil.rmtree(private, ignore_errors=True)


def _prepare(spec: JobSpec, run_id: str, job_dir: JobDir, show: Show) -> _Prepared:
    """Look at everything; cheap things first."""
    plan = cold_plan(spec.limits, usable_cpu(), usable_memory_bytes(), workers=spec.workers, ps=spec.ps)
    reason = _reason(spec)

    def tell(message: str, share: float = 0.0) -> None:
        show(Progress(0, 0, 0.0, None, plan, "preparing", f"{message}: {share:.0%}" if share else message))

    cache = home() / "cache" / "data"
    dataset_path = prepare(spec.data, spec.columns, cache, tell)
    dataset = Dataset.open(dataset_path)
    show(Progress(0, 0, 0.0, None, plan, "columns", columns_line(dataset.metadata)))
    if dataset.labels_distinct < 2:
        raise BadInput("--data", spec.data, f"column {dataset.columns.label} has one value only; give both 0 and 1")
    fraction = spec.validation if isinstance(spec.validation, float) else 0.0
    numbering = Numbering(dataset.rows, spec.batch_size, spec.epochs, spec.seed, fraction)
    other_path, other = None, None
    if isinstance(spec.validation, str):
        other_path = prepare(spec.validation, None, cache, tell, columns=dataset.columns, field="--validation")
        other = Dataset.open(other_path)
    evaluation_batches = BatchReader(dataset, numbering, other).evaluation_batches
    tell(f"looking at model {spec.model}")
    model = probe(spec, dataset_path, job_dir.path)
    tell("preparing kernels")
    warm()
    counts = RowCounts(spec.batch_size, numbering.batches_per_epoch, spec.epochs, numbering.train_rows)
    return _Prepared(
        run_id, spec.with_job_dir(str(job_dir.path)), plan, reason, job_dir, dataset_path, other_path,
        dataset.fingerprint, counts, numbering.batches, evaluation_batches, numbering.train_rows * spec.epochs, model,
    )  # fmt: skip


def _run(
    job: _Prepared,
    private: Path,
    show: Show,
    clock: Clock,
    stop: threading.Event,
    began: float,
    checkpoint_seconds: float,
) -> JobResult:
    """Write the job's files, drive it, and report."""
    from trimtab.core.ps.initial import write_initial  # after `warm`: it loads compiled kernels

    started, cpu = clock.now(), time.process_time()
    job.job_dir.make_folders()
    (job.job_dir.path / "spec.json").write_bytes(to_json(job.spec))
    ref = write_initial(job.job_dir.copies, job.run_id, job.model)
    decision = Decision(0.0, "hold", job.plan, job.reason)
    store = FileStore(job.job_dir.path / "state.json")
    document = take_term(store, Document(job.run_id, job.spec, job.plan, ref, decisions=(decision,)))
    launcher = Launcher(
        job.run_id, document.term, job.spec, job.plan, job.batches, job.job_dir, private, job.dataset,
        job.validation_dataset,
    )  # fmt: skip
    secret = new_secret(launcher.secret_file)
    settings = Settings(
        job.run_id, job.batches, job.evaluation_batches, job.plan.ps.replicas, job.plan.worker.replicas,
        str(job.job_dir.copies), bool(job.model.metrics), checkpoint_seconds=checkpoint_seconds,
    )  # fmt: skip
    events = EventLog(job.job_dir.path / "events.jsonl", clock, started)
    cluster = LocalCluster(job.job_dir.path, clock)
    ports = Ports(
        cluster=cluster, store=store, clock=clock, pod_spec=launcher.pod_spec,
        connect=lambda pod: PsStub(launcher.control_address(pod), secret),
        serve=lambda answer: serve_controller(launcher.controller_address, secret, answer),
        copies=job.job_dir.copies, scores=job.job_dir.path / "scores.npz", events=events, progress=show, stop=stop,
    )  # fmt: skip
    events.append("plan", f"{job.plan}: {job.reason}", plan=job.plan.as_dict(), data=job.fingerprint)
    driver = Driver(first_state(settings, document, read_manifest(ref)), ports)

    def report() -> JobResult:
        cpu_seconds = cluster.cpu_seconds() + time.process_time() - cpu
        return _result(job, driver.state, clock.now() - began, cpu_seconds)

    try:
        driver.run()
    except Interrupted as interrupted:
        interrupted.outcome = report().as_dict()
        raise
    finally:
        result = report()
        target = job.job_dir.path / "result.json"
        target.write_text(json.dumps(result.as_dict(), allow_nan=False, indent=1) + "\n", encoding="utf-8")
        events.close()
    return result


def _result(job: _Prepared, state: State, wall_seconds: float, cpu_seconds: float) -> JobResult:
    """The record of a job whose pods have ended."""
    found, document = tally(state.manifest, job.counts), state.document
    dropped = sum(pod.report.duplicates for pod in state.servers() if pod.report is not None)
    return JobResult(
        run_id=job.run_id,
        state=document.state if document.state is not JobState.RUNNING else JobState.FAILED,
        batches_expected=job.batches,
        batches_applied=found.batches_applied,
        batches_duplicated=found.batches_duplicated,
        batches_skipped=found.batches_skipped,
        resends_dropped=state.resends + dropped,
        rows_expected=job.rows_expected,
        rows_applied=found.rows_applied,
        rows_skipped=found.rows_skipped,
        auc=state.outcome.auc,
        log_loss=state.outcome.log_loss,
        metrics=state.outcome.metrics or {},
        samples_per_second=state.losses.throughput,
        plans=(PlanChange(0.0, job.plan, job.reason),),
        max_worker_gap_seconds=state.max_gap_seconds,
        wall_seconds=wall_seconds,
        cpu_seconds=cpu_seconds,
        job_dir=str(job.job_dir.path),
        model=document.manifest.path,
        error=document.reason or None,
    )


def _reason(spec: JobSpec) -> str:
    """Why the first plan is as it is."""
    chosen = [name for name, value in (("workers", spec.workers), ("PSs", spec.ps)) if value is not None]
    origin = f"{' and '.join(chosen)} as asked for" if chosen else "the default for this machine"
    fixed = "" if spec.mode is Mode.FIXED else f"; mode {spec.mode}: the plan stays fixed for now"
    return f"{origin}, no past job is looked at{fixed}"


def _silent(_: Progress) -> None:
    """Nobody watches."""


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends the job as Ctrl-C does, unless the program has its own handler or this is not its main thread."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not ours:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
