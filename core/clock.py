"""Time as a thing that is handed in.

Every loop, lease and deadline takes a `Clock`, so that tests drive hours in microseconds and never sleep. `now` is
monotonic and only good for differences; `wall` is for records that a person reads.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What the product asks of time."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, UTC."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until `event` is set or `seconds` have passed; true when it is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait on the event for real."""
        return event.wait(max(0.0, seconds))


class ManualClock:
    """A clock that moves only when a test (or the simulator) says so."""

    def __init__(self, now: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._now = now
        self._wall = wall

    def now(self) -> float:
        """Monotonic seconds."""
        return self._now

    def wall(self) -> float:
        """Seconds since 1970, UTC."""
        return self._wall

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let `seconds` pass at once."""
        self.advance(max(0.0, seconds))
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`."""
        self._now += seconds
        self._wall += seconds
