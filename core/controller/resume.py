"""`resume`: a job that was begun goes on, whatever ended its controller.

A kill, a restart of the machine, Ctrl-C or a failure leave the same thing behind: the job's directory. Its state
document says what the job is and which copies count; everything else is learned again from parameter servers, as a
controller that restarts learns it. The run stays the same run: same id, same record, the next term. What still runs of
the dead controller's pods is ended first, so that the caps hold, and so that a parameter server can write down what it
has; nothing rests on that, for what is lost is simply to do again.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.cluster.leftovers import end_pods
from trimtab.core.controller.capacity import Capacity
from trimtab.core.controller.document import Document
from trimtab.core.controller.growing import growth_before
from trimtab.core.controller.lost import OWNER, clear_private, name_controller, own, release
from trimtab.core.controller.metrics import open_metrics
from trimtab.core.controller.places import JobDir, find_job, home, private_dir
from trimtab.core.controller.preparing import columns_of, directory_of, located, prepare_rows, same_rows, teller
from trimtab.core.controller.progress import UNHEARD, Milestones, Showing
from trimtab.core.controller.resources import Memory
from trimtab.core.controller.result import JobResult
from trimtab.core.controller.run import CHECKPOINT_SECONDS, SETTLE_SECONDS, WINDOW_SECONDS, Show
from trimtab.core.controller.running import (
    RESULT,
    Cadence,
    Job,
    Outside,
    Ready,
    Spent,
    one_line,
    put_together,
    run_to_end,
)
from trimtab.core.controller.settings import Settings
from trimtab.core.controller.sharing import Sharing
from trimtab.core.controller.signals import stops_in_order
from trimtab.core.controller.state import State, Switch, first_state
from trimtab.core.controller.store import FileStore
from trimtab.core.domain.asked import asked_words
from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.domain.plan import within
from trimtab.core.domain.records import Decision, JobRecord, idle_spans
from trimtab.core.errors import BadInput, CorruptCopy, Interrupted, JobFailed, StaleState, WireError
from trimtab.core.history.identity import identity
from trimtab.core.history.record_file import FILE, read_record
from trimtab.core.optimizer.decide import decide
from trimtab.core.ps import storage
from trimtab.core.ps.kernel_cache import warm
from trimtab.core.ps.manifest import Manifest, ManifestRef, read_manifest
from trimtab.core.wire.encode import read_json, to_json

FIELD, STATE = "JOB", "state.json"
_TRIES = 50


@dataclass(frozen=True)
class _Found:
    """A job that can go on: its directory, its document, and what was recorded of it."""

    job_dir: JobDir
    store: FileStore
    document: Document
    manifest: Manifest
    record: JobRecord | None


@dataclass(frozen=True)
class _Prepared:
    """The same with everything that a driver needs; `plan`: another one than the document's, with its reason."""

    found: _Found
    job: Job
    spent: Spent
    plan: Decision | None


def resume(
    job: str,
    progress: Show | None = None,
    clock: Clock | None = None,
    stop: threading.Event | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    settle_seconds: float = SETTLE_SECONDS,
    window_seconds: float = WINDOW_SECONDS,
    milestones: Milestones = UNHEARD,
    metrics_port: int | None = None,
) -> JobResult:
    """Go on with a job that was killed, stopped or failed, and return how it went.

    Batches that the committed copies or the parameter servers' snapshots hold are not trained again. Times of the
    record count on from the job's first start. Signals do what they do for `train`. A model of one's own must be
    importable from here as it was from where the job was started.

    Args:
        job: a run's id, or the job's directory.
        progress, clock, stop: as for `train`.
        checkpoint_seconds, settle_seconds, window_seconds, milestones, metrics_port: as for `train`.

    Raises:
        BadInput: there is no such job, it has finished, its controller lives, or its rows are not what they were;
            nothing was started.
        JobFailed: it could not go on. Interrupted: it was stopped, as for `train`.
    """
    clock = clock if clock is not None else SystemClock()
    show = Showing(progress)
    halt = stop if stop is not None else threading.Event()
    driven, cpu = threading.Event(), time.process_time()
    with ExitStack() as cleaning, stops_in_order(halt, driven.is_set):
        job_dir = find_job(job)
        begun = _document(job_dir)
        sharing = Sharing(Capacity(home(), clock), begun.spec, begun.job_id, clock)
        cleaning.callback(sharing.close)
        metrics = open_metrics(metrics_port, begun.job_id, begun.spec.job_name, lambda: sharing.waits, show)
        if metrics is not None:
            cleaning.callback(metrics.close)
        before = _owner(job_dir)
        try:
            own(job_dir.path)
        except OSError as error:
            raise BadInput(FIELD, str(job_dir.path), f"cannot be written ({error.strerror or error})") from error
        try:
            found = _look(job_dir)  # once more: nobody changes it now
            milestones.claimed(found.document.job_id, job_dir.path)
            teller(show, halt)("ending what is left of it")
            _end_what_runs(job_dir, before, clock)
            memory = Memory(home(), clock)
            cleaning.callback(memory.close)
            prepared = _prepare(found, sharing, memory, show, halt, clock)
            private = private_dir()
            cleaning.callback(shutil.rmtree, private, ignore_errors=True)
            name_controller(job_dir.path, private)
            began = _began(prepared.job.record, clock)
            outside = Outside(clock, began, show, halt, decide, milestones, sharing, metrics)
            cadence = Cadence(checkpoint_seconds, settle_seconds, window_seconds)
            ready = _set_up(prepared, private, cadence, outside)
        except BaseException as error:
            _give_back(job_dir, before)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted("interrupted before the job went on") from None
            if isinstance(error, OSError | CorruptCopy | WireError):
                raise JobFailed(f"the job can't go on: {one_line(error)}; make room or see to it") from error
            raise
        driven.set()
        return run_to_end(ready, outside, cpu)


def _look(job_dir: JobDir) -> _Found:
    """What lies in the directory (raises BadInput; CorruptCopy: its checkpoint cannot be read)."""
    document, record = _document(job_dir), None
    with suppress(OSError, CorruptCopy):
        record = read_record(job_dir.path / FILE)
    return _Found(job_dir, FileStore(job_dir.path / STATE), document, read_manifest(document.manifest), record)


def _document(job_dir: JobDir) -> Document:
    """The state of a job that can go on.

    Raises:
        BadInput: there is none, it has finished, or a newer trimtab has written it.
    """
    path = job_dir.path
    try:
        document = FileStore(path / STATE).read()
    except WireError as error:
        raise BadInput(FIELD, str(path), f"its {STATE} cannot be read ({one_line(error)})") from error
    except OSError as error:
        raise BadInput(FIELD, str(path), f"cannot be read ({error.strerror or error})") from error
    if document is None:
        remedy = f"has no job that has begun (no {STATE} in it); start it with `trimtab train` in another directory"
        raise BadInput(FIELD, str(path), remedy)
    if document.state is JobState.FINISHED:
        remedy = "has finished; start a new job with --init-from to train its model further"
        raise BadInput(FIELD, str(path), remedy)
    return _moved(document, job_dir)


def _moved(document: Document, job_dir: JobDir) -> Document:
    """The document with paths of where the job's directory lies now."""
    ref, beside = document.manifest, str(job_dir.copies / storage.name_of(document.manifest.path))
    if document.spec.checkpoint_dir is None and not Path(ref.path).exists() and Path(beside).exists():
        ref = ManifestRef(beside, ref.checksum)
    return replace(document, spec=document.spec.with_job_dir(str(job_dir.path)), manifest=ref)


def _owner(job_dir: JobDir) -> bytes | None:
    """What the directory says of the dead controller."""
    try:
        return (job_dir.path / OWNER).read_bytes()
    except OSError:
        return None


def _give_back(job_dir: JobDir, before: bytes | None) -> None:
    """Nothing was started: leave the directory as it was found, for the next one who comes."""
    with suppress(OSError):
        if before is None:
            (job_dir.path / OWNER).unlink(missing_ok=True)
        else:
            (job_dir.path / OWNER).write_bytes(before)
    release(job_dir.path)


def _end_what_runs(job_dir: JobDir, before: bytes | None, clock: Clock) -> None:
    """End the dead controller's pods, and clear its sockets and secrets away."""
    end_pods(job_dir.path, clock)
    named: set[Path] = set()
    with suppress(ValueError, KeyError, TypeError):
        named.add(Path(json.loads(before or b"{}")["private"]))
    for config in (job_dir.path / "pods").glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            named.add(Path(json.loads(config.read_bytes())["secret_file"]).parent)
    for private in named:
        clear_private(private)


def _prepare(
    found: _Found, sharing: Sharing, memory: Memory, show: Showing, stop: threading.Event, clock: Clock
) -> _Prepared:
    """Look at everything again, before anything is started."""
    document, job_dir = found.document, found.job_dir
    spec, tell = document.spec, teller(show, stop)
    spec = located(spec, directory_of(job_dir.path))
    rows = prepare_rows(spec, home() / "cache" / "data", show, tell, columns_of(job_dir.path))
    same_rows(spec, rows, job_dir.path)
    model = read_json(ModelSpec, job_dir.path / "model.json")
    tell("preparing kernels")
    warm()
    resources = sharing.join(job_dir.path, show, stop)
    tell("looking at past runs")
    tags = identity(
        spec, fingerprint=rows.data.fingerprint, columns=to_json(rows.data.columns).decode(), rows=rows.data.rows,
        model_fingerprint=model.fingerprint, limits=resources.asked,
        embedding_rows=sum(rows.data.metadata.distinct.values()),
    )  # fmt: skip
    beginning = memory.begin(spec, resources, tags, but=document.job_id)
    plan = None
    if not within(document.plan, resources.for_pods):
        reason = f"{document.plan} is not within what may be used now. {beginning.decision.reason}"
        plan = replace(beginning.decision, kind="replace", reason=reason, before=document.plan,
                       action=f"Resume with {beginning.decision.plan}")  # fmt: skip
    record = found.record
    if record is None:
        record = JobRecord(
            document.job_id, spec.job_name, JobState.RUNNING, tags, (), (), (), {}, objective=str(spec.objective),
            budget=spec.budget, deadline_seconds=spec.deadline_seconds, started_at=_born(job_dir, clock),
            warm_start=beginning.warm, asked=asked_words(spec, resources.asked),
        )  # fmt: skip
    record = replace(
        record, state=JobState.RUNNING, limits=resources.asked, prices=spec.prices, ended_at=None, reason="",
        out_of_memory="", job_dir=str(job_dir.path),
    )  # fmt: skip
    copies = str(job_dir.copies)
    if spec.checkpoint_dir is not None:
        copies = storage.parent(document.manifest.path)
        storage.prepare(copies)
    job = Job(
        document.job_id, spec, job_dir, rows, model, resources, copies, record, beginning.prior, memory.recorder()
    )
    return _Prepared(found, job, _spent(job_dir), plan)


def _set_up(prepared: _Prepared, private: Path, cadence: Cadence, outside: Outside) -> Ready:
    """Take the next term, and make the driver that begins with what the document says."""
    found, job = prepared.found, prepared.job
    now = outside.clock.now()
    job.job_dir.make_folders()
    plan = prepared.plan
    if plan is not None:
        known = [one.number for one in (*job.record.decisions, *found.document.decisions)]
        plan = replace(plan, number=max(known, default=0) + 1, time_seconds=now - outside.began)
    document = _take_over(found, plan)
    (job.job_dir.path / "spec.json").write_bytes(to_json(document.spec))
    (job.job_dir.path / RESULT).unlink(missing_ok=True)

    def first(settings: Settings) -> State:
        return _resumed(first_state(settings, document, found.manifest), job.record, plan, now)

    ready = put_together(job, document, first, found.store, private, cadence, outside, prepared.spent)
    held, batches = len(found.manifest.applied()), job.rows.batches
    text = f"resumed by controller term {document.term}: its checkpoint holds {held} of {batches} batches"
    text += ", snapshots may hold more" if held < batches else ""
    ready.events.append("resumed", text, term=document.term, plan=document.plan.as_dict())
    if plan is not None:
        ready.events.append("plan", f"{plan.action}: {plan.reason}", plan=plan.plan.as_dict(), decision=plan.number)
    return ready


def _take_over(found: _Found, plan: Decision | None) -> Document:
    """The document under the next term, running again.

    Raises:
        JobFailed: another controller keeps changing it, or has finished the job.
    """
    for _ in range(_TRIES):
        present = found.store.read()
        if present is None or present.state is JobState.FINISHED or present.term != found.document.term:
            break
        if present.manifest.checksum != found.document.manifest.checksum:
            break  # somebody has written a newer checkpoint since ours was read: it must not be merged into the old one
        new = _moved(replace(present, term=present.term + 1, state=JobState.RUNNING, reason=""), found.job_dir)
        if plan is not None:
            new = replace(new.decided(replace(plan, considered=(), evidence=())), plan=plan.plan)
        with suppress(StaleState):
            return found.store.compare_and_swap(new, present.version)
    raise JobFailed(f"job {found.document.job_id}: another controller keeps changing its state; run only one")


def _resumed(state: State, record: JobRecord, plan: Decision | None, now: float) -> State:
    """A first state with what the record tells of the time before."""
    decisions = _merged(record.decisions, state.document.decisions)
    if plan is not None:
        decisions = (*(one for one in decisions if one.number != plan.number), plan)
    plans = record.plans
    for one in decisions:
        changed = not one.advised and (not plans or (one.changes_plan and one.time_seconds > plans[-1].time_seconds))
        if changed and (not plans or one.plan != plans[-1].plan):
            plans = (*plans, PlanChange(one.time_seconds, one.plan, one.reason))
    if not plans or plans[-1].plan != state.document.plan:
        plans = (*plans, PlanChange(state.seconds(now), state.document.plan, "the plan in force when the job went on"))
    return replace(
        state, decisions=decisions, plans=plans, observations=record.observations,
        growth=growth_before(record.samples, state.settings), idle=idle_spans(record, state.seconds(now)),
        switch=Switch(plan.number, now) if plan is not None else None,
    )  # fmt: skip


def _merged(recorded: Sequence[Decision], stored: Sequence[Decision]) -> tuple[Decision, ...]:
    """All decisions, in order: the record has more of each, the document the very last ones."""
    found = {one.number: one for one in stored} | {one.number: one for one in recorded}
    return tuple(found[number] for number in sorted(found))


def _spent(job_dir: JobDir) -> Spent:
    """What the last controller told at its end; one that was killed told nothing."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        told = json.loads((job_dir.path / RESULT).read_text(encoding="utf-8"))
        return Spent(
            float(told["cpu_seconds"] or 0.0), int(told["resends_dropped"] or 0),
            float(told["max_worker_gap_seconds"] or 0.0), told["samples_per_second"],
        )  # fmt: skip
    return Spent()


def _began(record: JobRecord, clock: Clock) -> float:
    """The clock's seconds at the job's first start; never so late that a recorded time would lie ahead."""
    parts = (record.samples, record.events, record.decisions, record.plans)
    times = [one.time_seconds for part in parts for one in part]
    return clock.now() - max(clock.wall() - record.started_at, *times, 0.0)


def _born(job_dir: JobDir, clock: Clock) -> float:
    """When a job without a record began: when its spec was written."""
    with suppress(OSError):
        return (job_dir.path / "rows.json").stat().st_mtime
    return clock.wall()
