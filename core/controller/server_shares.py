"""Cores of parameter servers that are not what the plan says: one that needs more than its peers, and those that move
vshards.

The plan gives all of a role the same. Where one alone holds everybody up, the same cores in another division help more
than another plan, so the sum stays and others give: by what they have, and never more than half of it. While vshards
move, both sides do that beside their work; with a tenth of a core there is nothing beside it, and a small table would
take minutes. What they lack is lent by the workers until the move is done: their steps are longer for some seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trimtab.core.controller.moving import transfers
from trimtab.core.controller.state import Phase, State

MOVING_CPU = 0.3  # cores with which a parameter server moves vshards beside its work
LENT_TO_MOVE = 0.5  # of a worker's cores, while vshards move
MOST_GIVEN = 0.5  # of anybody's cores, to a parameter server that needs more than the plan gives


def uneven(state: State, wanted: Mapping[str, float]) -> dict[str, float]:
    """The same cores, with more for parameter servers whose place has more, taken from all others."""
    asked = {
        pod.name: state.slots[pod.slot].cpu - wanted[pod.name]
        for pod in state.servers() if state.slots[pod.slot].cpu > wanted[pod.name]
    }  # fmt: skip
    givers = {name: cpu for name, cpu in wanted.items() if name not in asked}
    return _passed(wanted, givers, asked, MOST_GIVEN)


def lent_to_moving(state: State, wanted: Mapping[str, float]) -> dict[str, float]:
    """The same cores, with what parameter servers lack to move vshards, lent by workers that work."""
    if state.phase is not Phase.TRAINING:
        return dict(wanted)
    asked = {name: MOVING_CPU - wanted[name] for name in _moving(state) if wanted[name] < MOVING_CPU}
    givers = {pod.name: wanted[pod.name] for pod in state.workers() if pod.worked}
    return _passed(wanted, givers, asked, LENT_TO_MOVE)


def _moving(state: State) -> set[str]:
    """Parameter servers (their pods) that give vshards or take some."""
    places = {place for one in transfers(state) for place in (one.source, one.target)}
    processes = {one.origin.process for one in state.tenancies}
    processes |= {
        process for process, tenures in state.ledger.tenures.items()
        if any(tenures.get(one.since, 0) & one.mask for one in state.tenancies)
    }  # fmt: skip
    return {pod.name for pod in state.servers() if pod.slot[1] in places or (pod.process and pod.process in processes)}


def _passed(
    wanted: Mapping[str, float], givers: Mapping[str, float], asked: Mapping[str, float], most: float
) -> dict[str, float]:
    """Cores passed on in proportion to what givers have and others ask; at most the part `most` of what they have."""
    total, need = math.fsum(givers.values()), math.fsum(asked.values())
    if need <= 0 or total <= 0:
        return dict(wanted)
    part = min(1.0, total * most / need)
    less = need * part / total
    found = dict(wanted) | {name: _floored(cpu * (1 - less)) for name, cpu in givers.items()}
    return found | {name: _floored(wanted[name] + cores * part) for name, cores in asked.items()}


def _floored(cpu: float) -> float:
    return math.floor(cpu * 1000) / 1000
