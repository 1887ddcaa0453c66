"""No thrashing: after one stimulus the controller changes its mind at most once, and never by what was before it.

A stimulus is whatever the schedule lets happen, and whatever it brings about: a pod that is lost, a plan that was asked
for from outside. Between two of them a vshard may go somewhere and come back once, and so may the plan; who is called
slow or hot has been measured since the last one (case 32).
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.core.controller.caps import OTHERS_WAIT
from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Decision
from trimtab.core.wire.messages import Routing

MOST_RETURNS = 1
_GIVES_WAY = OTHERS_WAIT[:11].lower()


class Thrash:
    """Watches the layout, the plan and the verdicts of one run; `say(promise, holds, text)` tells."""

    def __init__(self, say: Callable[[str, bool, str], None]) -> None:
        self._say = say
        self._homes: dict[int, list[int]] = {}
        self._plans: list[Plan] = []
        self._returns = 0

    def stimulus(self) -> None:
        """Something has happened: what comes now may be an answer to it."""
        self._homes, self._plans, self._returns = {}, [], 0

    def moved(self, old: Routing, new: Routing) -> None:
        """Vshards have changed hands."""
        for vshard, (before, now) in enumerate(zip(old.owner, new.owner, strict=True)):
            if before == now or before < 0:
                continue
            homes = self._homes.setdefault(vshard, [before])
            returns = sum(home in homes[:at] for at, home in enumerate([*homes, now]))
            homes.append(now)
            self._say("at most one reversal", returns <= MOST_RETURNS, f"vshard {vshard} lay at {homes}")

    def decided(self, before: Plan, decision: Decision) -> None:
        """The plan has changed."""
        if decision.reason == "as scheduled" or _GIVES_WAY in decision.reason.lower():
            self.stimulus()
            return
        if not self._plans:
            self._plans.append(before)
        self._returns += decision.plan in self._plans
        self._plans.append(decision.plan)
        text = " → ".join(map(str, self._plans))
        self._say("at most one reversal", self._returns <= MOST_RETURNS, f"{text}: {decision.reason}")
