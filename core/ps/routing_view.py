"""A routing as clients use it: bitmaps and arrays worked out once, however many batches it lasts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps.rows import Int64s
from trimtab.core.wire.messages import Routing

ALL_VSHARDS = (1 << VSHARDS) - 1


def covers_of(routing: Routing) -> list[int]:
    """The vshards of each server as a bitmap; those without an owner are in none."""
    covers = [0] * len(routing.processes)
    for vshard, owner in enumerate(routing.owner):
        if owner >= 0:
            covers[owner] |= 1 << vshard
    return covers


@dataclass(frozen=True)
class RoutingView:
    """A routing with its bitmaps worked out once.

    Attributes:
        covers: see `covers_of`. owner, since: i64[512], as the routing has them. whole: every vshard has an owner.
    """

    routing: Routing
    covers: tuple[int, ...]
    owner: Int64s
    since: Int64s
    whole: bool

    @classmethod
    def of(cls, routing: Routing) -> RoutingView:
        """Work the bitmaps out."""
        owner, since = np.array(routing.owner, np.int64), np.array(routing.since, np.int64)
        return cls(routing, tuple(covers_of(routing)), owner, since, -1 not in routing.owner)

    @property
    def version(self) -> int:
        """The routing's version."""
        return self.routing.version
