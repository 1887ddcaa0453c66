"""A job of which everything is known: put together, driven to its end, and reported.

New jobs (`run`) and resumed ones (`resume`) differ in how they come to know it; from here on they are the same.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.cluster.local import LocalCluster
from trimtab.core.controller.aside import Aside
from trimtab.core.controller.chronicle import FINISH_SECONDS, STOPPED_SECONDS, Chronicle
from trimtab.core.controller.commanding import Commands, link_socket, unlink_socket
from trimtab.core.controller.degraded import troubles_of
from trimtab.core.controller.document import Document
from trimtab.core.controller.driver import Driver, Ports
from trimtab.core.controller.events import EventLog
from trimtab.core.controller.inputs import Trouble
from trimtab.core.controller.launch import Launcher
from trimtab.core.controller.lost import disown
from trimtab.core.controller.metrics import MetricsServer
from trimtab.core.controller.places import JobDir
from trimtab.core.controller.preparing import JobRows
from trimtab.core.controller.progress import UNHEARD, Milestones, Progress
from trimtab.core.controller.ps_stats import PsStatsFile
from trimtab.core.controller.resources import Resources
from trimtab.core.controller.result import JobResult, decision_dict, tally, warm_start_dict
from trimtab.core.controller.settings import Settings
from trimtab.core.controller.sharing import Sharing
from trimtab.core.controller.state import State
from trimtab.core.controller.status import About, StatusBoard
from trimtab.core.controller.store import FileStore
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.domain.plan import Limits
from trimtab.core.domain.records import Decision, JobRecord, Observation, WarmStart
from trimtab.core.errors import Interrupted, JobFailed
from trimtab.core.history.record_file import write_whole
from trimtab.core.history.recorder import Recorder
from trimtab.core.optimizer.question import Question
from trimtab.core.ps.layout import layout_of
from trimtab.core.wire.control import ControlServer, PsStub, serve_controller
from trimtab.core.wire.messages import WorkerOrders, WorkerSync
from trimtab.core.wire.secrets import new_secret

RESULT = "result.json"
ASIDE_SECONDS = 5.0  # that small files get at the job's end, where the disk is slow


@dataclass(frozen=True)
class Job:
    """What is known of a job before its driver runs.

    Attributes:
        run_id, spec, job_dir, rows, model: of the job. resources: what it may use.
        copies: where copies and manifests go, a path or a URL.
        record: of the job so far, with what happened before a resume.
        prior: observations of similar past runs. recorder: the line to the history.
    """

    run_id: str
    spec: JobSpec
    job_dir: JobDir
    rows: JobRows
    model: ModelSpec
    resources: Resources
    copies: str
    record: JobRecord
    prior: tuple[Observation, ...]
    recorder: Recorder | None


@dataclass(frozen=True)
class Cadence:
    """How often a running job is saved and looked at."""

    checkpoint_seconds: float
    settle_seconds: float
    window_seconds: float


@dataclass(frozen=True)
class Outside:
    """Who looks at the job and may stop it, its clock, and the optimizer.

    Attributes:
        began: the clock's seconds at the job's first start; negative when that was before the machine's.
        milestones: who hears that the job has begun.
        sharing: the job's part of the machine, None: it is not shared. metrics: who serves figures, if anybody.
    """

    clock: Clock
    began: float
    show: Callable[[Progress], None]
    stop: threading.Event
    decide: Callable[[Question], Decision]
    milestones: Milestones = UNHEARD
    sharing: Sharing | None = None
    metrics: MetricsServer | None = None


@dataclass(frozen=True)
class Spent:
    """What earlier controllers of the job have used and counted, as far as they could tell."""

    cpu_seconds: float = 0.0
    resends_dropped: int = 0
    max_worker_gap_seconds: float = 0.0
    samples_per_second: float | None = None


@dataclass(frozen=True)
class Ready:
    """A job whose files are written; its driver only needs to run."""

    job: Job
    driver: Driver
    cluster: LocalCluster
    events: EventLog
    chronicle: Chronicle
    stats: PsStatsFile
    aside: Aside
    spent: Spent = Spent()


def put_together(
    job: Job,
    document: Document,
    first: Callable[[Settings], State],
    store: FileStore,
    private: Path,
    cadence: Cadence,
    outside: Outside,
    spent: Spent | None = None,
) -> Ready:
    """Make a job's driver with all that it needs; nothing is started yet.

    Args:
        job: of which everything is known. document: as this controller has taken it.
        first: the state that the driver begins with.
        store: of the document. private: for sockets and the secret.
        cadence, outside, spent: see there.
    """
    spec, rows, path, clock = job.spec, job.rows, job.job_dir.path, outside.clock
    launcher = Launcher(
        job.run_id, document.term, spec, document.plan, rows.batches, job.job_dir, private, rows.dataset,
        rows.validation, job.resources.zygotes,
    )  # fmt: skip
    secret = new_secret(launcher.secret_file)
    settings = Settings(
        job.run_id, rows.batches, rows.evaluation_batches, job.copies, bool(job.model.metrics),
        batch_size=spec.batch_size, mode=spec.mode, objective=spec.objective, prices=spec.prices,
        budget=spec.budget, deadline_seconds=spec.deadline_seconds,
        limits=job.resources.for_pods, cpu_enforced=not job.resources.not_enforced, prior=job.prior,
        began_at=outside.began, epoch_rows=rows.counts.train_rows,
        widths=tuple((4 * layout_of(one).stride, one.rows) for one in job.model.tables),
        tables=tuple(one.name for one in job.model.tables),
        checkpoint_seconds=cadence.checkpoint_seconds,
        settle_seconds=cadence.settle_seconds, window_seconds=cadence.window_seconds,
    )  # fmt: skip
    aside = Aside(clock)
    chronicle = Chronicle(job.record, path, job.recorder, aside)
    stats = PsStatsFile(path, job.run_id, job.model, clock, aside)
    board = StatusBoard(_about(job, spent or Spent(), outside.metrics), clock.wall)

    def watch(state: State, now: float) -> None:
        chronicle.watch(state, now)
        stats.watch(state, now)
        board.watch(state, now)

    def serve(answer: Callable[[WorkerSync], WorkerOrders]) -> ControlServer:
        commands = Commands(driver.command, board)
        server = serve_controller(launcher.controller_address, secret, answer, commands.answer)
        link_socket(path, launcher.controller_address)
        outside.milestones.begun()
        return server

    def caps(state: State) -> Limits | None:
        return outside.sharing.follow(state, cluster) if outside.sharing is not None else None

    started_at = job.record.started_at
    events = EventLog(path / "events.jsonl", clock, outside.began, chronicle.event, started_at, aside)
    cluster = LocalCluster(
        path, clock, cap_cpu=job.resources.caps.cpu, cap_memory=job.resources.caps.memory_bytes
    )  # fmt: skip

    def health() -> tuple[Trouble, ...]:
        files = aside.trouble() or chronicle.trouble() or stats.trouble()
        return troubles_of(
            events=events.trouble(), files=files, history=chronicle.history_trouble(), cpu=cluster.cpu_note(),
            memory=cluster.memory_note(), machine=outside.sharing.problem if outside.sharing is not None else "",
            said=job.resources.not_enforced,
        )  # fmt: skip

    ports = Ports(
        cluster=cluster, store=store, clock=clock, pod_spec=launcher.pod_spec,
        connect=lambda pod: PsStub(launcher.control_address(pod), secret),
        serve=serve, caps=caps,
        copies=job.copies, scores=path / "scores.npz", events=events, decide=outside.decide,
        watch=watch, progress=outside.show, stop=outside.stop,
        snapshots=str(job.job_dir.snapshots), health=health,
    )  # fmt: skip
    driver = Driver(first(settings), ports)
    if outside.metrics is not None:
        outside.metrics.status = lambda: board.status(driver.state, clock.now())
        events.append("metrics", f"figures are served at {outside.metrics.url}", url=outside.metrics.url)
    return Ready(job, driver, cluster, events, chronicle, stats, aside, spent or Spent())


def _about(job: Job, spent: Spent, metrics: MetricsServer | None) -> About:
    """What the status tells of a job beside its state."""
    return About(
        job.spec.job_name, str(job.job_dir.path), os.getpid(), job.record.started_at,
        resends_dropped=spent.resends_dropped, max_worker_gap_seconds=spent.max_worker_gap_seconds,
        cpu_seconds=spent.cpu_seconds, metrics_url=metrics.url if metrics is not None else None,
    )  # fmt: skip


def run_to_end(ready: Ready, outside: Outside, cpu: float) -> JobResult:
    """Drive it, and report.

    Args:
        ready: the job. outside: as it was put together with.
        cpu: CPU seconds of this process when it began.
    """
    job, clock = ready.job, outside.clock

    def report() -> JobResult:
        cpu_seconds = ready.cluster.cpu_seconds() + time.process_time() - cpu
        return _result(ready, clock.now() - outside.began, cpu_seconds)

    def keep(result: JobResult) -> JobResult:
        """Whoever waits for the job has the result all the same, and what it trained is in its checkpoint."""
        text = json.dumps(result.as_dict(), allow_nan=False, indent=1) + "\n"
        try:
            write_whole(job.job_dir.path / RESULT, text.encode())
        except OSError as error:
            problems = (f"{RESULT} could not be written: {error}", result.history_problem)
            return replace(result, history_problem="; ".join(one for one in problems if one))
        return result

    def remember(result: JobResult, patience_seconds: float) -> JobResult:
        """The result first, whatever page, picture and history cost after it."""
        ready.aside.close(ASIDE_SECONDS)
        keep(result)
        ready.stats.finish(ready.driver.state)
        ended_at = job.record.started_at + clock.now() - outside.began  # the wall clock may have been set meanwhile
        kept = ready.chronicle.finish(ready.driver.state, result.as_dict(), ended_at, patience_seconds)
        if kept.problem:
            ready.events.append("record", kept.problem)
        return keep(replace(result, report=kept.report, mlflow=kept.link, history_problem=kept.problem or None))

    try:
        _drive(ready, outside.sharing)
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
        raise JobFailed(f"{job.job_dir.path}: {one_line(error)}; make room or choose another --job-dir") from error
    except Exception:
        with suppress(OSError):
            remember(report(), STOPPED_SECONDS)
        raise
    finally:
        with suppress(OSError):
            ready.events.close()
        unlink_socket(job.job_dir.path)
        disown(job.job_dir.path)


def _drive(ready: Ready, sharing: Sharing | None) -> None:
    """Run the driver; the job's part of the machine is given back once its pods have ended, before its last page."""
    if sharing is not None:
        sharing.begin(ready.job.resources)
    try:
        ready.driver.run()
    finally:
        if sharing is not None:
            sharing.close()


def _result(ready: Ready, wall_seconds: float, cpu_seconds: float) -> JobResult:
    """The record of a job whose pods have ended."""
    job, state, spent = ready.job, ready.driver.state, ready.spent
    found, document = tally(state.manifest, job.rows.counts), state.document
    dropped = sum(pod.report.duplicates for pod in state.servers() if pod.report is not None)
    rate = state.losses.throughput
    return JobResult(
        run_id=job.run_id,
        state=document.state if document.state is not JobState.RUNNING else JobState.FAILED,
        batches_expected=job.rows.batches,
        batches_applied=found.batches_applied,
        batches_duplicated=found.batches_duplicated,
        batches_skipped=found.batches_skipped,
        resends_dropped=spent.resends_dropped + state.resends + dropped,
        rows_expected=job.rows.expected,
        rows_applied=found.rows_applied,
        rows_skipped=found.rows_skipped,
        auc=state.outcome.auc,
        log_loss=state.outcome.log_loss,
        metrics=state.outcome.metrics or {},
        samples_per_second=rate if rate is not None else spent.samples_per_second,
        plans=state.plans,
        max_worker_gap_seconds=max(spent.max_worker_gap_seconds, state.max_gap_seconds),
        wall_seconds=wall_seconds,
        cpu_seconds=spent.cpu_seconds + cpu_seconds,
        job_dir=str(job.job_dir.path),
        model=document.manifest.path,
        error=document.reason or None,
        warm_start=warm_start_dict(job.record.warm_start or WarmStart()),
        objective=str(job.spec.objective),
        decisions=tuple(decision_dict(one) for one in state.decisions),
    )


def one_line(error: BaseException) -> str:
    """An error's words on one line."""
    return " ".join(str(error).split())
