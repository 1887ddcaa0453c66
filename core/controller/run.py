"""`train`: one job from a `JobSpec` to a `JobResult`.

Everything that can be bad input is looked at first, cheapest first, and nothing is started before: directory, plan,
data, batch numbers, model. Then the job's files are written, the driver runs it, and whatever happens, no process and
no private file stays, and `result.json` says how it went.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.cluster.local import LocalCluster
from trimtab.core.controller.chronicle import FINISH_SECONDS, STOPPED_SECONDS, Chronicle
from trimtab.core.controller.document import Document
from trimtab.core.controller.driver import Driver, Ports
from trimtab.core.controller.events import EventLog
from trimtab.core.controller.launch import Launcher
from trimtab.core.controller.lost import disown, own
from trimtab.core.controller.places import JobDir, claim_job_dir, home, new_run_id, private_dir
from trimtab.core.controller.progress import Progress, Showing
from trimtab.core.controller.resources import Beginning, Memory, Resources, resources_of
from trimtab.core.controller.result import JobResult, RowCounts, decision_dict, tally, warm_start_dict
from trimtab.core.controller.signals import stops_in_order
from trimtab.core.controller.state import Settings, State, first_state
from trimtab.core.controller.store import FileStore, take_term
from trimtab.core.data.batches import BatchReader
from trimtab.core.data.dataset import Dataset
from trimtab.core.data.describe import columns_line
from trimtab.core.data.numbering import numbering_of
from trimtab.core.data.prepare import prepare
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import BadInput, CorruptCopy, Interrupted, JobFailed
from trimtab.core.history.identity import identity
from trimtab.core.history.recorder import Recorder
from trimtab.core.optimizer.decide import decide
from trimtab.core.optimizer.start import first_plan
from trimtab.core.ps.initial import write_initial
from trimtab.core.ps.kernel_cache import warm
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.training.probe_client import probe
from trimtab.core.wire.control import PsStub, serve_controller
from trimtab.core.wire.encode import to_json
from trimtab.core.wire.secrets import new_secret

CHECKPOINT_SECONDS = 60.0
SETTLE_SECONDS, WINDOW_SECONDS = 2.0, 3.0
Show = Callable[[Progress], None]


@dataclass(frozen=True)
class _Prepared:
    """A job of which everything is known and nothing is started."""

    run_id: str
    spec: JobSpec
    resources: Resources
    beginning: Beginning
    tags: dict[str, str]
    recorder: Recorder | None
    job_dir: JobDir
    dataset: Path
    validation_dataset: Path | None
    fingerprint: str
    counts: RowCounts
    batches: int
    evaluation_batches: int
    rows_expected: int
    model: ModelSpec


@dataclass(frozen=True)
class _Cadence:
    """How often a running job is saved and looked at."""

    checkpoint_seconds: float
    settle_seconds: float
    window_seconds: float


@dataclass(frozen=True)
class _Ready:
    """A job whose files are written; its driver only needs to run."""

    driver: Driver
    cluster: LocalCluster
    events: EventLog
    chronicle: Chronicle


def train(
    spec: JobSpec,
    progress: Show | None = None,
    clock: Clock | None = None,
    stop: threading.Event | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    settle_seconds: float = SETTLE_SECONDS,
    window_seconds: float = WINDOW_SECONDS,
) -> JobResult:
    """Train one model and return how it went; a job that failed after its start is a result with its reason.

    In the main thread SIGINT, SIGTERM and SIGHUP stop the job in order, where the program has no handlers of its own.

    Args:
        spec: the job.
        progress: called in the calling thread, several times a second at most; not any more once it has failed.
        clock: the machine's by default.
        stop: set it (from any thread) to stop the job in order.
        checkpoint_seconds: between periodic checkpoints.
        settle_seconds, window_seconds: how long a plan runs before it is measured, and for how long it is.

    Raises:
        BadInput: something given cannot be used; nothing was started and nothing is left behind.
        JobFailed: it could not be started. Interrupted: it was stopped; once it had begun, `outcome` tells how far it
            came, as `result.json` does.
    """
    clock = clock if clock is not None else SystemClock()
    show = Showing(progress)
    halt = stop if stop is not None else threading.Event()
    began, driven = clock.now(), threading.Event()
    cpu = time.process_time()
    with ExitStack() as cleaning, stops_in_order(halt, driven.is_set):
        run_id = new_run_id(clock)
        job_dir = claim_job_dir(spec, run_id)
        try:
            resources = resources_of(spec)
            first_plan(spec, resources.caps, None, not resources.not_enforced)  # refuses what can never be started
            memory = Memory(home(), clock)
            cleaning.callback(memory.close)
            prepared = _prepare(spec, run_id, job_dir, resources, memory, show, halt)
            cpu = time.process_time()
            private = private_dir()
            cleaning.callback(shutil.rmtree, private, ignore_errors=True)
            cadence = _Cadence(checkpoint_seconds, settle_seconds, window_seconds)
            ready = _set_up(prepared, private, show, clock, halt, cadence, began)
        except BaseException as error:
            job_dir.abandon()
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted("interrupted before anything was started") from None
            if isinstance(error, OSError | CorruptCopy):
                raise JobFailed(f"the job could not be prepared: {_one_line(error)}; make room or see to it") from error
            raise
        driven.set()
        return _run(prepared, ready, clock, began, cpu)


def _prepare(
    spec: JobSpec,
    run_id: str,
    job_dir: JobDir,
    resources: Resources,
    memory: Memory,
    show: Show,
    stop: threading.Event,
) -> _Prepared:
    """Look at everything; cheap things first."""

    def tell(message: str, share: float = 0.0) -> None:
        if stop.is_set():
            raise Interrupted("stopped before anything was started")
        show(Progress(0, 0, 0.0, None, None, "preparing", f"{message}: {share:.0%}" if share else message))

    cache = home() / "cache" / "data"
    dataset_path = prepare(spec.data, spec.columns, cache, tell)
    dataset = Dataset.open(dataset_path)
    show(Progress(0, 0, 0.0, None, None, "columns", columns_line(dataset.metadata)))
    if dataset.labels_distinct < 2:
        raise BadInput("--data", spec.data, f"column {dataset.columns.label} has one value only; give both 0 and 1")
    numbering = numbering_of(spec, dataset.rows)
    other_path, other = None, None
    if isinstance(spec.validation, str):
        other_path = prepare(spec.validation, None, cache, tell, columns=dataset.columns, field="--validation")
        other = Dataset.open(other_path)
    evaluation_batches = BatchReader(dataset, numbering, other).evaluation_batches
    tell(f"looking at model {spec.model}")
    model = probe(spec, dataset_path, job_dir.path)
    tell("preparing kernels")
    warm()
    tell("looking at past runs")
    tags = identity(
        spec, fingerprint=dataset.fingerprint, columns=to_json(dataset.columns).decode(), rows=dataset.rows,
        model_fingerprint=model.fingerprint, limits=resources.caps,
    )  # fmt: skip
    beginning = memory.begin(spec, resources, tags)
    counts = RowCounts(spec.batch_size, numbering.batches_per_epoch, spec.epochs, numbering.train_rows)
    return _Prepared(
        run_id, spec.with_job_dir(str(job_dir.path)), resources, beginning, tags, memory.recorder(), job_dir,
        dataset_path, other_path,
        dataset.fingerprint, counts, numbering.batches, evaluation_batches, numbering.train_rows * spec.epochs, model,
    )  # fmt: skip


def _set_up(
    job: _Prepared,
    private: Path,
    show: Show,
    clock: Clock,
    stop: threading.Event,
    cadence: _Cadence,
    began: float,
) -> _Ready:
    """Write the job's files. The job's time runs from the call's start, so what it took to get here can be seen."""
    started = clock.now()
    job.job_dir.make_folders()
    own(job.job_dir.path)
    (job.job_dir.path / "spec.json").write_bytes(to_json(job.spec))
    shutil.copyfile(job.dataset / "metadata.json", job.job_dir.path / "metadata.json")  # export outlives the cache
    ref = write_initial(job.job_dir.copies, job.run_id, job.model)
    decision = replace(job.beginning.decision, time_seconds=started - began)
    limits = job.resources.for_pods
    plan = decision.plan
    store = FileStore(job.job_dir.path / "state.json")
    document = take_term(store, Document(job.run_id, job.spec, plan, ref, decisions=(decision,)))
    launcher = Launcher(
        job.run_id, document.term, job.spec, plan, job.batches, job.job_dir, private, job.dataset,
        job.validation_dataset, job.resources.zygotes,
    )  # fmt: skip
    secret = new_secret(launcher.secret_file)
    settings = Settings(
        job.run_id, job.batches, job.evaluation_batches, str(job.job_dir.copies), bool(job.model.metrics),
        batch_size=job.spec.batch_size, mode=job.spec.mode, objective=job.spec.objective, prices=job.spec.prices,
        limits=limits, cpu_enforced=not job.resources.not_enforced, prior=job.beginning.prior, began_at=began,
        checkpoint_seconds=cadence.checkpoint_seconds, settle_seconds=cadence.settle_seconds,
        window_seconds=cadence.window_seconds,
    )  # fmt: skip
    wall = clock.wall() - (started - began)
    base = JobRecord(
        job.run_id, job.spec.job_name, JobState.RUNNING, job.tags, (), (), (), {}, started_at=wall,
        objective=str(job.spec.objective), limits=job.resources.caps, prices=job.spec.prices,
        warm_start=job.beginning.warm, job_dir=str(job.job_dir.path),
    )  # fmt: skip
    chronicle = Chronicle(base, job.job_dir.path, job.recorder)
    events = EventLog(job.job_dir.path / "events.jsonl", clock, began, chronicle.event)
    cluster = LocalCluster(job.job_dir.path, clock, cap_cpu=job.resources.caps.cpu)
    ports = Ports(
        cluster=cluster, store=store, clock=clock, pod_spec=launcher.pod_spec,
        connect=lambda pod: PsStub(launcher.control_address(pod), secret),
        serve=lambda answer: serve_controller(launcher.controller_address, secret, answer),
        copies=job.job_dir.copies, scores=job.job_dir.path / "scores.npz", events=events, decide=decide,
        watch=chronicle.watch, progress=show, stop=stop,
    )  # fmt: skip
    events.append("plan", f"{plan}: {decision.reason}", plan=plan.as_dict(), data=job.fingerprint)
    return _Ready(Driver(first_state(settings, document, read_manifest(ref)), ports), cluster, events, chronicle)


def _run(job: _Prepared, ready: _Ready, clock: Clock, began: float, cpu: float) -> JobResult:
    """Drive it, and report."""

    def report() -> JobResult:
        cpu_seconds = ready.cluster.cpu_seconds() + time.process_time() - cpu
        return _result(job, ready.driver.state, clock.now() - began, cpu_seconds)

    def keep(result: JobResult) -> JobResult:
        target = job.job_dir.path / "result.json"
        target.write_text(json.dumps(result.as_dict(), allow_nan=False, indent=1) + "\n", encoding="utf-8")
        return result

    def remember(result: JobResult, patience_seconds: float) -> JobResult:
        """The result first, whatever page, picture and history cost after it."""
        keep(result)
        kept = ready.chronicle.finish(ready.driver.state, result.as_dict(), clock.wall(), patience_seconds)
        if kept.problem:
            ready.events.append("record", kept.problem)
        return keep(replace(result, report=kept.report, mlflow=kept.link, history_problem=kept.problem or None))

    try:
        ready.driver.run()
        return remember(report(), FINISH_SECONDS)
    except (Interrupted, KeyboardInterrupt) as error:
        interrupted = error if isinstance(error, Interrupted) else Interrupted("interrupted")
        stopped = report()
        with suppress(OSError, KeyboardInterrupt):
            stopped = remember(stopped, STOPPED_SECONDS)
        interrupted.outcome = stopped.as_dict()
        raise interrupted from None
    except OSError as error:
        with suppress(OSError):
            remember(report(), STOPPED_SECONDS)
        raise JobFailed(f"{job.job_dir.path}: {_one_line(error)}; make room or choose another --job-dir") from error
    except Exception:
        with suppress(OSError):
            remember(report(), STOPPED_SECONDS)
        raise
    finally:
        with suppress(OSError):
            ready.events.close()
        disown(job.job_dir.path)


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
        plans=state.plans,
        max_worker_gap_seconds=state.max_gap_seconds,
        wall_seconds=wall_seconds,
        cpu_seconds=cpu_seconds,
        job_dir=str(job.job_dir.path),
        model=document.manifest.path,
        error=document.reason or None,
        warm_start=warm_start_dict(job.beginning.warm),
        objective=str(job.spec.objective),
        decisions=tuple(decision_dict(one) for one in state.decisions),
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
