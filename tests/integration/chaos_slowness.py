"""Processes that are stopped for most of the time: what a pod on a busy host looks like from outside.

The kernel stops and continues them by signal, a few times a second, until it is told to let them be; a process that has
ended meanwhile is left alone. It runs in the controller's process, so when that dies a process may stay stopped, and
whoever goes on with the job has to end it.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import psutil

from trimtab.core.clock import SystemClock

PERIOD_SECONDS = 0.2


class Slowness:
    """Stops processes for a share of the time, each until so many batches are applied."""

    def __init__(self) -> None:
        self._slow: list[tuple[psutil.Process, float, int]] = []
        self._lock = threading.Lock()
        self._clock, self._never = SystemClock(), threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, pid: int, stopped: float, until: int) -> None:
        """Slow a process down until `until` batches are applied."""
        with suppress(psutil.Error), self._lock:
            self._slow.append((psutil.Process(pid), stopped, until))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="slowness", daemon=True)
            self._thread.start()

    def look(self, applied: int) -> None:
        """Let those be whose time is over."""
        with self._lock:
            self._slow = [one for one in self._slow if applied < one[2]]

    def end(self) -> None:
        """Let all of them be."""
        with self._lock:
            self._slow = []

    def _run(self) -> None:
        while True:
            with self._lock:
                slow = tuple(self._slow)
            for process, _, _ in slow:
                with suppress(psutil.Error):
                    process.suspend()
            longest = max((stopped for _, stopped, _ in slow), default=0.0)
            self._clock.wait(self._never, PERIOD_SECONDS * longest)
            for process, _, _ in slow:
                with suppress(psutil.Error):
                    process.resume()
            self._clock.wait(self._never, PERIOD_SECONDS * (1 - longest))
