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
from trimtab.core.history.outbox import deliver_waiting, read_waiting
from trimtab.core.history.outline import Outlines, outline

FETCH_SECONDS = 10.0


@dataclass(frozen=True)
class Past:
    """Outlines of past runs, the last started first.

    Attributes:
        records: what was found.
        problem: why there may be more than these, "" when all were seen.
        unread: runs that may have matched but could not be read.
    """

    records: tuple[JobRecord, ...] = ()
    problem: str = ""
    unread: int = 0


class PastRuns:
    """A look into a store that never raises and never takes longer than it may."""

    def __init__(
        self, open_history: Callable[[], History], outbox: Path, clock: Clock, only_look: bool = False
    ) -> None:
        """Starts to open the store and to deliver what waits, on a thread of its own.

        Args:
            open_history: opens the store. outbox: where records wait. clock: measures how long it takes.
            only_look: nothing is delivered, and no store is made; records that wait in the outbox count as read.
        """
        self._clock = clock
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._tags: dict[str, str] = {}
        self._limit = 1
        self._past = Past()
        self._only_look = only_look
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
            late = read_waiting(outbox) if self._only_look else ()
            if not self._only_look:
                deliver_waiting(open_history, outbox)
            history = open_history()
            if not late and history.outlines({}, 1) == Outlines():
                self._answered.set()  # nothing can match: nobody has to wait while a new store is made
                if not self._only_look:
                    history.prepare()
                return
            self._asked.wait()
            if self._limit > 0:
                fitting = [outline(one) for one in reversed(late) if self._tags.items() <= one.tags.items()]
                ids = {one.run_id for one in fitting}
                stored = history.outlines(self._tags, self._limit)
                others = [one for one in stored.records if one.run_id not in ids]
                self._past = Past((*fitting, *others)[: self._limit], unread=stored.unread)
        except Exception as error:  # noqa: BLE001 - whatever a store does must not reach the job
            reason = " ".join(str(error).split()) or type(error).__name__
            if not self._answered.is_set():
                self._past = Past(problem=f"past runs could not be read ({reason.rstrip('. ')})")
        self._answered.set()
