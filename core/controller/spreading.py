"""How vshards are spread over places by what they weigh: pure numbers, no reports and no clock.

A vshard's weight is half its share of the pushed bytes and half its share of the rows, because a place runs short of
cores by the first and of memory by the second. Both shares begin from a little that every vshard has: a job that is
small, idle or not measured yet is spread by count, and no noise moves anything in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PRIOR_ROWS = 16.0  # of each vshard: what weighs before it is known
PRIOR_TRAFFIC = 1024.0  # bytes per second of each vshard, likewise
SLACK = 0.02  # what is level to within this share of an even load is left as it is
_LEAST_CAPACITY = 1e-6  # of a place that should have nothing, in a quotient


@dataclass(frozen=True)
class Layout:
    """Where each vshard should lie, until something gives a reason for another layout.

    Attributes:
        places: of the plan that it was made for, ascending.
        target: the place of each vshard.
        levelling: it was made to level what was measured, not because the places changed.
    """

    places: tuple[int, ...]
    target: tuple[int, ...]
    levelling: bool = False


@dataclass(frozen=True)
class BalanceRules:
    """When a difference between places is worth moves.

    Attributes:
        seconds: nothing has changed hands for so long before traffic is believed, and a place must then carry too much
            for as long again.
        ratio: of the fullest place's load to the mean; no more than that is left alone.
        traffic: bytes of pushes per second to all places; an idle or tiny job with less never moves.
        pause_seconds: from one levelling to the next; doubled with each, up to 32 times.
        sample_seconds: between two looks.
    """

    seconds: float = 10.0
    ratio: float = 1.2
    traffic: float = float(1 << 20)
    pause_seconds: float = 60.0
    sample_seconds: float = 1.0


@dataclass(frozen=True)
class Balance:
    """What was measured of the vshards, and how long it has looked as it does.

    Attributes:
        rows, traffic: of each vshard (512), () before the first measurement.
        next_at: the next look. samples: taken since `rest_since` that are believed.
        rest_since: nothing has changed hands since, None while something does. version: of the routing then.
        hot_since: since when a place has carried too much.
        levelled, levelled_at: how often it was tried to level, and when last.
        capacity: what part of its peers' a place should have, where that is not all of it: it is slow.
        by_traffic: what part of a weight traffic is; it rises when traffic alone has made a place late.
    """

    rows: tuple[float, ...] = ()
    traffic: tuple[float, ...] = ()
    next_at: float = 0.0
    samples: int = 0
    rest_since: float | None = None
    version: int = 0
    hot_since: float | None = None
    levelled: int = 0
    levelled_at: float = -math.inf
    capacity: Mapping[int, float] = field(default_factory=dict)
    by_traffic: float = 0.5


def weights(
    rows: Sequence[float], traffic: Sequence[float], by_traffic: float = 0.5
) -> tuple[float, ...] | None:
    """What each vshard weighs, together 1; None when nothing is known. `()` stands for what was not measured."""
    count = len(rows) or len(traffic)
    if not count:
        return None
    of_rows, of_traffic = _shares(rows, count, PRIOR_ROWS), _shares(traffic, count, PRIOR_TRAFFIC)
    by_rows = 1.0 - by_traffic
    return tuple(by_rows * one + by_traffic * other for one, other in zip(of_rows, of_traffic, strict=True))


def _shares(values: Sequence[float], count: int, prior: float) -> list[float]:
    known = values or (0.0,) * count
    total = math.fsum(known) + count * prior
    return [(value + prior) / total for value in known]


def loads(owner: Sequence[int], weight: Sequence[float], places: Sequence[int]) -> dict[int, float]:
    """What each place carries."""
    found = dict.fromkeys(places, 0.0)
    for place, one in zip(owner, weight, strict=True):
        if place in found:
            found[place] += one
    return found


def unevenness(load: Mapping[int, float], capacity: Mapping[int, float] | None = None) -> float:
    """The fullest place's load over the mean, both for their capacity; 1 is even."""
    able = {place: max((capacity or {}).get(place, 1.0), _LEAST_CAPACITY) for place in load}
    total = math.fsum(load.values())
    if total <= 0:
        return 1.0
    return max(load[place] / able[place] for place in load) * math.fsum(able.values()) / total


def spread(
    owner: Sequence[int], places: Sequence[int], weight: Sequence[float] | None = None,
    capacity: Mapping[int, float] | None = None,
) -> tuple[int, ...]:  # fmt: skip
    """For each vshard the place it should lie at: loads as equal as possible, with as little moved as possible.

    A place that carries too much gives its heaviest vshards that fit into the surplus, so that few have to move; what
    has no place goes, the heaviest first, to the place that carries least.

    Args:
        owner: the present place of each vshard, -1 for none.
        places: the places that should have some, ascending, at least one.
        weight: of each vshard, each above 0; None: all weigh the same, and counts differ by at most one afterwards.
            With weights, what is level to within `SLACK` is left as it is.
        capacity: what part of its peers' load a place should have, 1 where it is not named; 0 leaves it without any,
            unless that is so for all.
    """
    heavy = [1.0] * len(owner) if weight is None else list(weight)
    able = {place: (capacity or {}).get(place, 1.0) for place in places}
    able = {place: part for place, part in able.items() if part > 0} or dict.fromkeys(places, 1.0)
    even = math.fsum(heavy) / math.fsum(able.values())
    slack = 0.0 if weight is None else SLACK * even
    result = list(owner)
    held: dict[int, list[int]] = {place: [] for place in able}
    free: list[int] = []
    for vshard in sorted(range(len(owner)), key=lambda vshard: -heavy[vshard]):
        held.get(owner[vshard], free).append(vshard)
    load = {place: math.fsum(heavy[vshard] for vshard in vshards) for place, vshards in held.items()}
    for place, part in able.items():
        if load[place] <= (even + slack) * part:
            continue
        kept = []
        for vshard in held[place]:
            if heavy[vshard] <= load[place] - even * part:
                load[place] -= heavy[vshard]
                free.append(vshard)
            else:
                kept.append(vshard)
        held[place] = kept
    for vshard in sorted(free, key=lambda vshard: -heavy[vshard]):
        place = min(able, key=lambda place: (load[place] / able[place], place))
        result[vshard] = place
        held[place].append(vshard)
        load[place] += heavy[vshard]
    _level(result, owner, heavy, held, load, able, slack)
    return tuple(result)


def _level(
    result: list[int], owner: Sequence[int], heavy: Sequence[float], held: dict[int, list[int]],
    load: dict[int, float], able: Mapping[int, float], slack: float,
) -> None:  # fmt: skip
    """Move single vshards from the fullest place to the emptiest, both for their capacity, while that helps."""
    open_places = set(load)
    for _ in range(4 * len(result)):  # each step lowers the sum of squares over capacity; a bound all the same
        full = max(open_places, key=lambda place: (load[place] / able[place], place))
        empty = min(load, key=lambda place: (load[place] / able[place], place))
        # Twice what would make the two even: less than that makes them more so.
        gap = 2 * (load[full] * able[empty] - load[empty] * able[full]) / (able[full] + able[empty])
        if gap <= slack:
            return
        fitting = [vshard for vshard in held[full] if heavy[vshard] < gap * (1 - 1e-9)]
        if not fitting:  # one that no part can be taken from; the others may still be levelled
            open_places.discard(full)
            if not open_places - {empty}:
                return
            continue
        # What has moved already costs nothing to move elsewhere.
        best = min(fitting, key=lambda one: (abs(heavy[one] - gap / 2), result[one] == owner[one]))
        held[full].remove(best)
        held[empty].append(best)
        load[full] -= heavy[best]
        load[empty] += heavy[best]
        result[best] = empty
