"""Messages between simulated processes: each arrives after a moment, unless the weather of its plane says otherwise.

Nothing here knows what a message means. A lost answer, a call that comes twice or seconds late, and two that overtake
each other are all the same thing: the moment at which an event runs, or that it never does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trimtab.core.simulator.loop import DrivenLoop

REQUESTS, REPORTS, CALLS, ANSWERS, PUSHES = PLANES = ("requests", "reports", "calls", "answers", "pushes")
MOMENT_SECONDS = 0.004


@dataclass(frozen=True)
class Weather:
    """Chances of one plane's messages.

    Attributes:
        lost, doubled, late: shares of all messages. seconds: how late these come at most; a double comes late, too.
    """

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    seconds: float = 5.0


FINE = Weather()


class Network:
    """Delivers.

    Attributes:
        weather: of the planes that have some now.
    """

    def __init__(self, loop: DrivenLoop) -> None:
        self._loop = loop
        self.weather: Mapping[str, Weather] = {}

    def send(self, plane: str, deliver: Callable[[], None]) -> None:
        """Let a message arrive some time, or not, or twice."""
        now = self.weather.get(plane)
        if now is None:
            self._loop.after(MOMENT_SECONDS, deliver)
            return
        chance = self._loop.random
        if chance.random() < now.doubled:
            self._loop.after(chance.uniform(0, now.seconds), deliver)
        if chance.random() < now.lost:
            return
        late = chance.random() < now.late
        self._loop.after(chance.uniform(0, now.seconds) if late else MOMENT_SECONDS, deliver)

    def fate(self, plane: str) -> Weather:
        """The weather of a plane whose messages somebody else carries."""
        return self.weather.get(plane, FINE)
