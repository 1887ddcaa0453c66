"""Past runs for a warm start, within a few seconds or not at all.

Opening a store can take longer than a job wants to wait: an import of seconds, a server that does not answer. So a
thread opens it while rows and model are looked at, and delivers what still waits in the outbox (the last run may be
the very one to start from). Whoever would have to wait too long gets nothing, and a sentence that says why. A store
without any run answers at once and is made ready meanwhile, so that the first record finds it open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.domain.records import JobRecord
from trimtab.core.history.base import History
from trimtab.core.history.outbox import deliver_waiting

FETCH_SECONDS = 10.0


@dataclass(frozen=True)
class Past:
    """Past runs, the last written first; `problem`: why there may be more than these, "" when all were seen."""

    records: tuple[JobRecord, ...] = ()
    problem: str = ""


class PastRuns:
    """A look into a store that never raises and never takes longer than it may."""

    def __init__(self, open_history: Callable[[], History], outbox: Path, clock: Clock) -> None:
        """Starts to open the store and to deliver what waits, on a thread of its own."""
        self._clock = clock
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._tags: dict[str, str] = {}
        self._limit = 1
        self._past = Past()
        look = threading.Thread(target=self._look, args=(open_history, outbox), name="history-past", daemon=True)
        look.start()

    def fetch(self, tags: Mapping[str, str], limit: int, timeout_seconds: float = FETCH_SECONDS) -> Past:
        """Records that carry all of `tags`, at most `limit`; to be asked once.

        Args:
            tags: what must be equal.
            limit: how many at most.
            timeout_seconds: how long to wait from now.
        """
        self._tags, self._limit = dict(tags), limit
        self._asked.set()
        self._clock.wait(self._answered, timeout_seconds)
        if not self._answered.is_set():
            return Past(problem=f"past runs could not be read within {timeout_seconds:g} s")
        return self._past

    def close(self) -> None:
        """Nobody will ask any more."""
        self._limit = 0
        self._asked.set()

    def _look(self, open_history: Callable[[], History], outbox: Path) -> None:
        try:
            deliver_waiting(open_history, outbox)
            history = open_history()
            if not history.fetch({}, 1):
                self._answered.set()  # nothing can match: nobody has to wait while a new store is made
                history.prepare()
                return
            self._asked.wait()
            if self._limit > 0:
                self._past = Past(history.fetch(self._tags, self._limit))
        except Exception as error:  # noqa: BLE001 - whatever a store does must not reach the job
            reason = " ".join(str(error).split()) or type(error).__name__
            if not self._answered.is_set():
                self._past = Past(problem=f"past runs could not be read ({reason.rstrip('. ')})")
        self._answered.set()
