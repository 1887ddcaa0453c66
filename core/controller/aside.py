"""Small files that are written beside the job's loop, for who looks at it: a disk that hangs must not stop the loop.

Nothing rests on any of them, so there is no queue that could grow: under each name only the latest work waits, and a
thread carries it out when it can. What an earlier one would have written is part of what a later one writes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from trimtab.core.clock import Clock

log = logging.getLogger(__name__)

SLOW_SECONDS = 5.0


class Aside:
    """Carries works out in a thread of its own, in the order of their names' first coming; the latest of each counts.

    Args:
        clock: measures how long a work takes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._began: float | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._wake, self._idle = threading.Event(), threading.Event()

    def do(self, name: str, work: Callable[[], None]) -> None:
        """Have `work` done soon, in the place of one that waits under this name; after `close`: here and now."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._waiting[name] = work
                self._idle.clear()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="aside", daemon=True)
                    self._thread.start()
        if closed:
            work()
        self._wake.set()

    def trouble(self) -> str:
        """Why what should be written is not, "" when nothing waits for long."""
        with self._lock:
            slow = self._began is not None and self._clock.now() - self._began > SLOW_SECONDS
        return f"files of the job wait: the disk takes more than {SLOW_SECONDS:g} s for one" if slow else ""

    def close(self, seconds: float) -> bool:
        """Wait until all is done, at most so long; false when it is not, and what waits is dropped then."""
        with self._lock:
            self._closed = True
            busy = self._thread is not None
        self._wake.set()
        done = not busy or self._clock.wait(self._idle, seconds)
        with self._lock:
            self._waiting.clear()
        return done

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while (work := self._next()) is not None:
                try:
                    work()
                except Exception:  # the thread must live, and nothing rests on the file
                    log.exception("a file could not be written")
            with self._lock:
                if self._closed and not self._waiting:
                    return

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if not self._waiting:
                self._began = None
                self._idle.set()
                return None
            self._began = self._clock.now()
            return self._waiting.pop(next(iter(self._waiting)))
