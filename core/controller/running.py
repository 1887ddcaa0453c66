"""A job of which everything is known: put together, driven to its end, and reported.

New jobs (`run`) and resumed ones (`resume`) differ in how they come to know it; from here on they are the same.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.cluster.local import LocalCluster
from trimtab.core.controller.chronicle import FINISH_SECONDS, STOPPED_SECONDS, Chronicle
from trimtab.core.controller.document import Document
from trimtab.core.controller.driver import Driver, Ports
from trimtab.core.controller.events import EventLog
from trimtab.core.controller.launch import Launcher
from trimtab.core.controller.lost import disown
from trimtab.core.controller.places import JobDir
from trimtab.core.controller.preparing import JobRows
from trimtab.core.controller.progress import Progress
from trimtab.core.controller.ps_stats import PsStatsFile
from trimtab.core.controller.resources import Resources
from trimtab.core.controller.result import JobResult, decision_dict, tally, warm_start_dict
from trimtab.core.controller.state import Settings, State
from trimtab.core.controller.store import FileStore
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.domain.records import Decision, JobRecord, Observation, WarmStart
from trimtab.core.errors import Interrupted, JobFailed
from trimtab.core.history.recorder import Recorder
from trimtab.core.optimizer.question import Question
from trimtab.core.ps.layout import layout_of
from trimtab.core.wire.control import PsStub, serve_controller
from trimtab.core.wire.secrets import new_secret

RESULT = "result.json"


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
    """

    clock: Clock
    began: float
    show: Callable[[Progress], None]
    stop: threading.Event
    decide: Callable[[Question], Decision]


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
        checkpoint_seconds=cadence.checkpoint_seconds,
        settle_seconds=cadence.settle_seconds, window_seconds=cadence.window_seconds,
    )  # fmt: skip
    chronicle = Chronicle(job.record, path, job.recorder)
    stats = PsStatsFile(path, job.run_id, job.model, clock)

    def watch(state: State, now: float) -> None:
        chronicle.watch(state, now)
        stats.watch(state, now)

    events = EventLog(path / "events.jsonl", clock, outside.began, chronicle.event)
    cluster = LocalCluster(path, clock, cap_cpu=job.resources.caps.cpu)
    ports = Ports(
        cluster=cluster, store=store, clock=clock, pod_spec=launcher.pod_spec,
        connect=lambda pod: PsStub(launcher.control_address(pod), secret),
        serve=lambda answer: serve_controller(launcher.controller_address, secret, answer),
        copies=job.copies, scores=path / "scores.npz", events=events, decide=outside.decide,
        watch=watch, progress=outside.show, stop=outside.stop,
        snapshots=str(job.job_dir.snapshots),
    )  # fmt: skip
    return Ready(job, Driver(first(settings), ports), cluster, events, chronicle, stats, spent or Spent())


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
        target = job.job_dir.path / RESULT
        target.write_text(json.dumps(result.as_dict(), allow_nan=False, indent=1) + "\n", encoding="utf-8")
        return result

    def remember(result: JobResult, patience_seconds: float) -> JobResult:
        """The result first, whatever page, picture and history cost after it."""
        keep(result)
        ready.stats.finish(ready.driver.state)
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
        raise JobFailed(f"{job.job_dir.path}: {one_line(error)}; make room or choose another --job-dir") from error
    except Exception:
        with suppress(OSError):
            remember(report(), STOPPED_SECONDS)
        raise
    finally:
        with suppress(OSError):
            ready.events.close()
        disown(job.job_dir.path)


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
