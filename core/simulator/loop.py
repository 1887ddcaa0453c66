"""The loop of a simulated cluster: time jumps from event to event, and one seed decides everything.

Faults that need hours and many machines to show are found by running them in one thread, thousands of times; that is
only worth something if a run can be repeated exactly. So all randomness comes from the loop's own generator, all time
from its clock, and events due at one instant run in the order in which they were asked for.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

from trimtab.core.clock import ManualClock
from trimtab.core.errors import BadInput


class DrivenLoop:
    """A queue of events on a clock that nothing else moves.

    Attributes:
        clock: hand it to whatever runs inside; it stands still while an event runs.
        random: the only source of chance.
    """

    def __init__(self, seed: int) -> None:
        self.clock = ManualClock()
        self.random = random.Random(seed)
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Callable[[], object]]] = []

    def __len__(self) -> int:
        """Events that wait."""
        return len(self._queue)

    def after(self, seconds: float, event: Callable[[], object]) -> None:
        """Run `event` when `seconds` have passed (0: at this instant, after what is already due).

        Raises:
            BadInput: the time lies in the past or is no number.
        """
        if not seconds >= 0:
            raise BadInput("seconds", seconds, "give seconds of at least 0")
        heapq.heappush(self._queue, (self.clock.now() + seconds, next(self._order), event))

    def run(self, seconds: float, most_events: int = 1_000_000) -> int:
        """Let `seconds` pass, running what falls due; returns how many events ran.

        An event may itself move the clock forward, as a machine that stood still; what fell due meanwhile is late then.

        Raises:
            BadInput: more than `most_events` ran: events keep asking for each other without time passing.
        """
        end = self.clock.now() + seconds
        ran = 0
        while self._queue and self._queue[0][0] <= end:
            if ran == most_events:
                at = f"time stands at {self.clock.now():g} s"
                raise BadInput("most_events", most_events, f"{at}; raise it, or mend what asks for events without end")
            due, _, event = heapq.heappop(self._queue)
            self.clock.advance(max(0.0, due - self.clock.now()))
            event()
            ran += 1
        self.clock.advance(max(0.0, end - self.clock.now()))
        return ran
