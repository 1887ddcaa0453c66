"""What a parameter server holds: for each vshard its tenure, and whether it is served, merely held, or kept aside.

Every way a vshard comes, changes hands and goes works on this one value under one lock, so that no two of them can
disagree. A vshard is *served* (takes pushes), *held* (its rows and set are true, pushes are refused: it is being handed
over), *aside* (rows that another server still changes; never true by themselves, never served) or not here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps.exchange import Exchange


@dataclass
class Holdings:
    """Tenures by vshard; call everything with the exchange's lock held.

    Attributes:
        exchange: whose `served` bitmap says what takes pushes.
        since: the tenure each vshard has, or last had. wanted: the one that an accepted order is about.
        held: vshards whose rows and sets are true (a bitmap; the served ones are among them).
    """

    exchange: Exchange
    since: list[int] = field(default_factory=lambda: [0] * VSHARDS)
    wanted: list[int] = field(default_factory=lambda: [0] * VSHARDS)
    held: int = 0

    def serve(self, vshard: int, since: int) -> None:
        """Its rows and set are complete: take pushes."""
        self.since[vshard] = since
        self.held |= 1 << vshard
        self.exchange.served |= 1 << vshard

    def end_tenure(self, vshards: Iterable[int], since: int) -> int:
        """Take no more pushes for those that are held since `since` and not to be replaced; returns them as a bitmap.

        Called again it returns the same: the rows of an ended tenure do not change.
        """
        ended = 0
        for vshard in vshards:
            if self.since[vshard] == since and self.held >> vshard & 1 and self.wanted[vshard] <= since:
                ended |= 1 << vshard
        self.exchange.served &= ~ended
        return ended

    def empty(self, vshard: int) -> None:
        """Whatever is here of it goes; what it was last is kept, so that late orders stay late."""
        bit = 1 << vshard
        self.exchange.served &= ~bit
        self.held &= ~bit
        self.exchange.watch.end(bit)
        self.exchange.table.drop(vshard)
        self.exchange.sets.remove(bit)
