"""What is kept of a job: one record that grows while it runs, its report and picture, and its way into the history.

The record lies in the job's directory whatever happens elsewhere. The history gets it while the job runs and once more
at the end; a store that is away delays nobody, and neither does a disk. A page or picture that can't be made is said
and costs nothing else. Nothing here rests on the machine's wall clock once the job has begun: a record's times count
from its start.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.controller.aside import Aside
from trimtab.core.controller.growing import memory_figures
from trimtab.core.controller.state import State
from trimtab.core.controller.timeline import Timeline
from trimtab.core.domain.figures import finite
from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import JobEvent, JobRecord
from trimtab.core.history.record_file import FILE, write_record
from trimtab.core.history.recorder import Recorder
from trimtab.core.report.page import write_page
from trimtab.core.report.picture import write_picture

log = logging.getLogger(__name__)

MOST_EVENTS = 250  # of the first ones, and as many of the last
UPDATE_SECONDS = 5.0
FINISH_SECONDS = 30.0  # the longest that a job that has ended waits for its history
STOPPED_SECONDS = 5.0  # the same when a person waits for it to stop


@dataclass(frozen=True)
class Kept:
    """What came of a job's record: its page and picture, its place in the history, and what went wrong, in words."""

    report: str | None = None
    picture: str | None = None
    link: str | None = None
    problem: str = ""


class Chronicle:
    """Keeps one job's record.

    Args:
        base: what is known of the job before it runs; of a resumed one also what happened before, which is kept.
        job_dir: where record, report and picture go.
        recorder: the line to the history; None keeps the record at home.
        aside: writes the record while the job runs; without it `watch` does.
    """

    def __init__(self, base: JobRecord, job_dir: Path, recorder: Recorder | None, aside: Aside | None = None) -> None:
        self._base, self._job_dir, self._recorder, self._aside = base, job_dir, recorder, aside
        self._lock = threading.Lock()  # of the events, which commands of other threads bring, too
        self._problem = ""
        self._timeline = Timeline(base.samples)
        self._events: list[JobEvent] = list(base.events[:MOST_EVENTS])
        self._late: deque[JobEvent] = deque(base.events[MOST_EVENTS:], maxlen=MOST_EVENTS)
        self._next_update = 0.0

    def event(self, seconds: float, kind: str, text: str) -> None:
        """Something happened."""
        with self._lock:
            early = len(self._events) < MOST_EVENTS
            (self._events if early else self._late).append(JobEvent(seconds, kind, text))

    def trouble(self) -> str:
        """Why the record in the job's directory is not up to date, "" when it is."""
        return self._problem

    def history_trouble(self) -> str:
        """Why the history does not have the run yet, "" when nothing is wrong with it."""
        return self._recorder.problem() if self._recorder is not None else ""

    def watch(self, state: State, now: float) -> None:
        """Look at the running job; call it as often as you like."""
        taken = self._timeline.take(state, now)
        if not taken or now < self._next_update:
            return
        self._next_update = now + UPDATE_SECONDS * (1 + len(self._timeline.samples) // 100)  # a long record costs more
        record = self.record(state, {})
        if self._aside is None:
            self._write(record)
        else:
            self._aside.do("record", lambda: self._write(record))
        if self._recorder is not None:
            self._recorder.update(record)

    def _write(self, record: JobRecord) -> None:
        try:
            write_record(self._job_dir / FILE, record)
            self._problem = ""
        except OSError as error:
            self._problem = f"{FILE} can't be written: {error}"

    def record(self, state: State, figures: Mapping[str, object], ended_at: float | None = None) -> JobRecord:
        """The record so far."""
        known, _ = finite(figures)
        document, applied = state.document, len(state.ledger.applied)
        progress = {"batches_expected": float(state.settings.batches), "batches_applied": float(applied)}
        progress["batches_trained"] = float(applied)  # also those that no checkpoint holds, when a job is stopped
        progress |= memory_figures(state, self._timeline.samples)
        with self._lock:
            events = (*self._events, *self._late)
        return replace(
            self._base, state=document.state if ended_at is not None else JobState.RUNNING, plans=state.plans,
            observations=state.observations, decisions=state.decisions, figures=progress | known,
            samples=tuple(self._timeline.samples), events=events, ended_at=ended_at,
            reason=document.reason, out_of_memory=state.out_of_memory,
        )  # fmt: skip

    def finish(
        self, state: State, figures: Mapping[str, object], ended_at: float, patience_seconds: float = FINISH_SECONDS
    ) -> Kept:
        """Write record, page and picture, and hand them to the history.

        Args:
            state: the last one. figures: the result's numbers.
            ended_at: seconds since 1970.
            patience_seconds: how long to wait for the history.
        """
        record = self.record(state, figures, ended_at)
        problems: list[str] = []

        def tried(name: str, write: Callable[[JobRecord, Path], object]) -> Path | None:
            path = self._job_dir / name
            try:
                write(record, path)
            except Exception as error:
                log.warning("%s could not be written", path, exc_info=True)
                problems.append(f"{name} could not be written: {error}")
                return None
            return path

        tried(FILE, lambda record, path: write_record(path, record))
        page, picture = tried("report.html", write_page), tried("report.png", write_picture)
        link = None
        if self._recorder is not None:
            artifacts = {path.name: path for path in (page, picture) if path is not None}
            delivery = self._recorder.finish(record, artifacts, patience_seconds)
            link = delivery.link or None
            problems += [delivery.error] if delivery.error else []
        return Kept(str(page) if page else None, str(picture) if picture else None, link, "; ".join(problems))
