"""`train`: one job from a `JobSpec` to a `JobResult`.

Everything that can be bad input is looked at first, cheapest first, and nothing is started before: directory, plan,
data, batch numbers, model. Then the job's files are written, the driver runs it, and whatever happens, no process and
no private file stays, and `result.json` says how it went.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.controller.capacity import Capacity
from trimtab.core.controller.document import Document
from trimtab.core.controller.looking import begin, look, source_of
from trimtab.core.controller.lost import name_controller, own, release
from trimtab.core.controller.metrics import open_metrics
from trimtab.core.controller.places import JobDir, claim_job_dir, home, new_run_id, private_dir
from trimtab.core.controller.preparing import remember_rows, teller
from trimtab.core.controller.previewing import explained
from trimtab.core.controller.progress import UNHEARD, Milestones, Progress, Showing
from trimtab.core.controller.resources import Beginning, Memory
from trimtab.core.controller.result import JobResult
from trimtab.core.controller.running import Cadence, Job, Outside, Ready, one_line, put_together, run_to_end
from trimtab.core.controller.sharing import Sharing
from trimtab.core.controller.signals import stops_in_order
from trimtab.core.controller.source import Source
from trimtab.core.controller.source import begin as begin_copies
from trimtab.core.controller.state import first_state
from trimtab.core.controller.store import FileStore, take_term
from trimtab.core.domain.asked import asked_words
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import BadInput, CorruptCopy, Interrupted, JobFailed
from trimtab.core.optimizer.decide import decide
from trimtab.core.optimizer.start import first_plan
from trimtab.core.ps import storage
from trimtab.core.ps.kernel_cache import warm
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.wire.encode import to_json

CHECKPOINT_SECONDS = 60.0
SETTLE_SECONDS, WINDOW_SECONDS = 2.0, 3.0
Show = Callable[[Progress], None]


@dataclass(frozen=True)
class _Prepared:
    """A job of which everything is known and nothing is started; `source`: whose rows it begins with, if any."""

    job: Job
    beginning: Beginning
    source: Source | None


def train(
    spec: JobSpec,
    progress: Show | None = None,
    clock: Clock | None = None,
    stop: threading.Event | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    settle_seconds: float = SETTLE_SECONDS,
    window_seconds: float = WINDOW_SECONDS,
    milestones: Milestones = UNHEARD,
    metrics_port: int | None = None,
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
        milestones: hears of the job's first steps.
        metrics_port: where a program reads figures of the running job, on this machine only; 0: any port that is free,
            as the event "metrics" tells. None: nowhere.

    Raises:
        BadInput: something given cannot be used; nothing was started and nothing is left behind.
        JobFailed: it could not be started. Interrupted: it was stopped; once it had begun, `outcome` tells how far it
            came, as `result.json` does.
    """
    clock = clock if clock is not None else SystemClock()
    show = Showing(progress)
    halt = stop if stop is not None else threading.Event()
    driven = threading.Event()
    outside = Outside(clock, clock.now(), show, halt, decide, milestones)
    cpu = time.process_time()
    with ExitStack() as cleaning, stops_in_order(halt, driven.is_set):
        run_id = new_run_id(clock)
        sharing = Sharing(Capacity(home(), clock), spec, run_id, clock)
        cleaning.callback(sharing.close)
        metrics = open_metrics(metrics_port, run_id, spec.job_name, lambda: sharing.waits, show)
        if metrics is not None:
            cleaning.callback(metrics.close)
        outside = replace(outside, sharing=sharing, metrics=metrics)
        job_dir = claim_job_dir(spec, run_id)
        try:
            own(job_dir.path)
            milestones.claimed(run_id, job_dir.path)
            resources = sharing.whole()
            first_plan(spec, resources.caps, None, not resources.not_enforced)  # refuses what can never be started
            memory = Memory(home(), clock)
            cleaning.callback(memory.close)
            prepared = _prepare(spec, run_id, job_dir, sharing, memory, show, halt)
            cpu = time.process_time()
            private = private_dir()
            cleaning.callback(shutil.rmtree, private, ignore_errors=True)
            cadence = Cadence(checkpoint_seconds, settle_seconds, window_seconds)
            ready = _set_up(prepared, private, cadence, outside)
        except BaseException as error:
            release(job_dir.path)
            job_dir.abandon()
            _forget_copies(spec, run_id)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted("interrupted before anything was started") from None
            if isinstance(error, OSError | CorruptCopy):
                raise JobFailed(f"the job could not be prepared: {one_line(error)}; make room or see to it") from error
            raise
        driven.set()
        return run_to_end(ready, outside, cpu)


def _prepare(
    spec: JobSpec,
    run_id: str,
    job_dir: JobDir,
    sharing: Sharing,
    memory: Memory,
    show: Show,
    stop: threading.Event,
) -> _Prepared:
    """Look at everything; cheap things first."""
    tell = teller(show, stop)
    asked = asked_words(spec, sharing.whole().caps)
    source = source_of(spec)
    copies = _copies_of(spec, run_id, job_dir)
    looked = look(spec, source, job_dir.path, show, stop)
    tell("preparing kernels")
    warm()
    resources = sharing.join(job_dir.path, show, stop)
    tell("looking at past runs")
    tags, beginning = begin(looked, resources, memory)
    decision, front = explained(looked, resources, beginning)
    beginning = replace(beginning, decision=decision)
    spec, rows, model = looked.spec.with_job_dir(str(job_dir.path)), looked.rows, looked.model
    record = JobRecord(
        run_id, spec.job_name, JobState.RUNNING, tags, (), (), (), {}, objective=str(spec.objective),
        limits=resources.asked, prices=spec.prices, budget=spec.budget, deadline_seconds=spec.deadline_seconds,
        warm_start=beginning.warm, job_dir=str(job_dir.path), front=front,
        asked=asked,
    )  # fmt: skip
    job = Job(run_id, spec, job_dir, rows, model, resources, copies, record, beginning.prior, memory.recorder())
    return _Prepared(job, beginning, looked.source)


def _copies_of(spec: JobSpec, run_id: str, job_dir: JobDir) -> str:
    """Where the job's copies go; a directory of its own, made here, for then it is known that it can be.

    Raises:
        BadInput: it cannot be made.
    """
    if spec.checkpoint_dir is None:
        return str(job_dir.copies)
    place = storage.join(storage.absolute(spec.checkpoint_dir), run_id)
    try:
        storage.prepare(place)
        storage.try_out(place)
    except OSError as error:
        remedy = f"cannot be written ({error.strerror or one_line(error)}); give a directory or a URL that can"
        raise BadInput("--checkpoint-dir", spec.checkpoint_dir, remedy) from error
    return place


def _forget_copies(spec: JobSpec, run_id: str) -> None:
    """Undo `_copies_of` for a job that was not begun."""
    if spec.checkpoint_dir is None:
        return
    place = storage.join(storage.absolute(spec.checkpoint_dir), run_id)
    try:
        for name in storage.list_names(place):
            storage.remove(storage.join(place, name))
    except OSError:
        return
    storage.remove_directory(place)


def _set_up(prepared: _Prepared, private: Path, cadence: Cadence, outside: Outside) -> Ready:
    """Write the job's files. The job's time runs from the call's start, so what it took to get here can be seen."""
    job, beginning = prepared.job, prepared.beginning
    path, clock = job.job_dir.path, outside.clock
    started = clock.now()
    job.job_dir.make_folders()
    name_controller(path, private)
    (path / "spec.json").write_bytes(to_json(job.spec))
    page, source = (job.rows.dataset / "metadata.json").read_bytes(), prepared.source
    (path / "metadata.json").write_bytes(page if source is None else source.page_of(page))  # export outlives the cache
    remember_rows(path, job.rows)
    ref, source = begin_copies(job.copies, job.run_id, job.model, source, path / "metadata.json")
    decision = replace(beginning.decision, time_seconds=started - outside.began)
    store = FileStore(path / "state.json")
    document = take_term(store, Document(job.run_id, job.spec, decision.plan, ref, decisions=(decision,)))
    job = replace(job, record=replace(job.record, started_at=clock.wall() - (clock.now() - outside.began)))
    manifest = read_manifest(ref)
    ready = put_together(
        job, document, lambda settings: first_state(settings, document, manifest), store, private, cadence, outside
    )
    plan = decision.plan
    text = f"{plan}: {decision.reason}"
    ready.events.append("plan", text, plan=plan.as_dict(), data=job.rows.data.fingerprint)
    if source is not None:
        text = f"starts with the rows of run {source.run_id}, which hold {source.batches} batches"
        ready.events.append("source", text, run=source.run_id, manifest=source.path)
    return ready
