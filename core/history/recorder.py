"""One job's live line to a store, on a thread of its own.

Training must not notice the store: a call here puts a record down and returns. The thread takes the latest one when it
has time (what lay there before was part of it anyway), never more often than its own work allows, so that recording
costs a twentieth of a core at most. A store that is down, slow or broken costs a sentence, which can be asked for while
it lasts: the record is kept in the job's directory and delivered by a later command.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.domain.records import JobRecord
from trimtab.core.history import outbox as box
from trimtab.core.history.base import History

log = logging.getLogger(__name__)

SHORTEST_PAUSE_SECONDS = 5.0  # between two deliveries while the job runs
_SHARE_OF_TIME = 20.0  # pause as many times as long as the delivery took
_PAUSE_AFTER_FAILURE_SECONDS = 15.0
_LAST_TRY_PAUSE_SECONDS = 1.0
_SLOW_SECONDS = 60.0  # for one delivery: then the store is as good as away


@dataclass(frozen=True)
class Delivery:
    """How the last record fared.

    Attributes:
        link: the address of the run's page, "" without one.
        error: one sentence why it was not delivered, "" when it was.
    """

    link: str = ""
    error: str = ""


class Recorder:
    """Hands one job's records to a store. No call raises, and only `finish` waits, for as long as it is told to."""

    def __init__(self, open_history: Callable[[], History], outbox: Path, clock: Clock) -> None:
        """Nothing is opened or started before the first record.

        Args:
            open_history: opens the store; called in the recorder's own thread.
            outbox: where an undelivered record is named.
            clock: measures pauses.
        """
        self._open, self._outbox, self._clock = open_history, outbox, clock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._history: History | None = None
        self._latest: JobRecord | None = None
        self._artifacts: Mapping[str, Path] = {}
        self._entry: box.Entry | None = None
        self._work = threading.Event()
        self._hurry = threading.Event()  # the last record is there
        self._left = threading.Event()  # nobody waits for the last record any more
        self._done = threading.Event()
        self._link = ""
        self._problem = ""
        self._began: float | None = None  # of the running delivery

    def update(self, record: JobRecord) -> None:
        """Put down the whole record so far; the latest one wins."""
        with self._lock:
            if self._hurry.is_set():
                return
            self._latest = record
            self._start()
        self._work.set()

    def finish(self, record: JobRecord, artifacts: Mapping[str, Path], timeout_seconds: float) -> Delivery:
        """Deliver the last record and its artifacts, or keep them for later after `timeout_seconds`.

        Args:
            record: complete.
            artifacts: names and paths of files and directories to attach.
            timeout_seconds: how long to wait for the store at most.
        """
        kept = True
        try:
            entry = box.put(self._outbox, record, artifacts)
        except (OSError, ValueError) as error:
            entry, kept = None, False
            log.warning("the record of %s cannot be kept: %s", record.run_id, error)
        with self._lock:
            self._latest, self._artifacts, self._entry = record, artifacts, entry
            self._hurry.set()
            self._start()
        self._work.set()
        self._clock.wait(self._done, timeout_seconds)
        self._left.set()
        with self._lock:
            if self._done.is_set():
                return Delivery(link=self._link)
            reason = self._problem or f"the store did not take it within {timeout_seconds:g} s"
        later = "the record is kept and delivered later" if kept else "the record could not be kept either"
        return Delivery(error=f"{_bare(reason)}: {later}")

    def close(self) -> None:
        """End without a last record (nothing happens after `finish`)."""
        with self._lock:
            if self._hurry.is_set():
                return
            self._latest = None
            self._left.set()
            self._hurry.set()
        self._work.set()

    def problem(self) -> str:
        """What is wrong with the store at the moment, in one sentence; "" when nothing is known to be."""
        with self._lock:
            slow = self._began is not None and self._clock.now() - self._began > _SLOW_SECONDS
            wrong = self._problem or (f"the store has not answered for {_SLOW_SECONDS:g} s" if slow else "")
            return f"{_bare(wrong)}: the record is kept and delivered later" if wrong else ""

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="history-recorder", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            with self._lock:
                record, last = self._latest, self._hurry.is_set()
                self._latest = None
            if record is None and last:
                return  # closed
            if record is None:
                continue
            began = self._began = self._clock.now()
            taken = self._deliver(record, last)
            self._began = None
            if last and (taken or self._left.is_set()):
                self._leave_entry()
                return
            self._rest(record, taken, last, self._clock.now() - began)

    def _leave_entry(self) -> None:
        """What was not delivered is for the next command, also for one in this process."""
        with self._lock:
            if self._entry is not None:
                self._entry.close()

    def _rest(self, record: JobRecord, taken: bool, last: bool, spent_seconds: float) -> None:
        """Pause until the next delivery; the last record hurries."""
        if not taken:
            with self._lock:
                if self._latest is None:
                    self._latest = record
            self._work.set()
        if last:
            self._clock.wait(self._left, _LAST_TRY_PAUSE_SECONDS)
            return
        pause = max(SHORTEST_PAUSE_SECONDS, _SHARE_OF_TIME * spent_seconds)
        self._clock.wait(self._hurry, pause if taken else _PAUSE_AFTER_FAILURE_SECONDS)

    def _deliver(self, record: JobRecord, last: bool) -> bool:
        try:
            if self._history is None:
                self._history = self._open()
            if last:
                box.deliver(self._history, record, self._artifacts)
            else:
                self._history.record(record)
            link = self._history.link(record.run_id)
        except Exception as error:  # noqa: BLE001 - whatever a store does must not reach the job
            log.info("history: %s", error)
            self._history = None  # opened anew: it may be another server by then
            with self._lock:
                self._problem = " ".join(str(error).split()) or type(error).__name__
            return False
        with self._lock:
            self._problem, self._link = "", link
            if last:
                if self._entry is not None:
                    self._entry.done()
                self._done.set()
        return True


def _bare(sentence: str) -> str:
    return sentence.rstrip(". ")
