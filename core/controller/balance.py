"""Which layout of vshards is wanted, and when another one is.

The wish is kept in the state (`State.layout`), because a move takes seconds to prepare and must not aim at something
else with every report. It is made anew when the plan's places change, and, at rest, when one place has carried clearly
more than the others for a while. What was measured just after vshards changed hands is not believed: a new owner has
seen nothing of them yet. A place that was found slow carries less than its peers (`shift`), and that is level then. The
layout is not stored: a successor of the controller takes the owners as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trimtab.core.controller.spreading import Balance, Layout, loads, spread, unevenness, weights
from trimtab.core.controller.state import Draft, Phase, State
from trimtab.core.domain.job import Mode
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.values import replace

_KEPT = 0.8  # of what was known, at each look: a mean over some five of them
_MOST_DOUBLINGS = 5


def keep_balance(draft: Draft) -> None:
    """Keep the layout right for the places that the plan has, and for what is measured."""
    _fit(draft)
    if draft.now >= draft.state.balance.next_at:
        _look(draft)


def _fit(draft: Draft) -> None:
    """A layout for the plan's places; a levelling that can't be carried out is given up."""
    state = draft.state
    routing, layout, places = state.document.routing, state.layout, tuple(state.active("ps"))
    if routing.version == 0:
        return
    if layout is None and set(routing.owner) == set(places):
        draft.state = replace(state, layout=Layout(places, routing.owner))
    elif layout is None or layout.places != places:
        balance = state.balance
        capacity = {place: part for place, part in balance.capacity.items() if place in places}
        target = spread(routing.owner, places, present_weights(state), capacity)
        draft.state = replace(state, layout=Layout(places, target), balance=replace(balance, capacity=capacity))
    elif layout.levelling and state.moving:
        errors = [pod.report.move_error for pod in state.servers() if pod.report is not None and pod.report.move_error]
        if errors:
            levelled = state.balance.levelled + 1
            tried = replace(state.balance, levelled=levelled, levelled_at=draft.now, capacity={}, by_traffic=0.5)
            draft.state = replace(state, layout=Layout(places, routing.owner), balance=tried)
            draft.note("balance", f"vshards stay where they are: the move can't be made: {errors[0]}")


def present_weights(state: State) -> tuple[float, ...] | None:
    """What the vshards weigh as far as it is known now; None: count them."""
    routing, balance = state.document.routing, state.balance
    traffic = balance.traffic
    if not traffic and len(set(routing.since)) == 1:  # all as old, so all seen for as long
        traffic = told(state, "vshard_traffic") or ()
    return weights(told(state, "vshard_rows") or balance.rows, traffic, balance.by_traffic)


def shift(draft: Draft, capacity: Mapping[int, float], by_traffic: float) -> int:
    """Lay vshards out for places that can carry less than their peers; returns how many move.

    Args:
        draft: the step's, at rest. capacity: what part of its peers' load each place should have, 1 where not named.
        by_traffic: what part of a vshard's weight its traffic is.
    """
    state = draft.state
    owner, places = state.document.routing.owner, tuple(state.active("ps"))
    balance = replace(state.balance, capacity=dict(capacity), by_traffic=by_traffic)
    target = spread(owner, places, present_weights(replace(state, balance=balance)), capacity)
    moved = sum(one != other for one, other in zip(owner, target, strict=True))
    if moved:
        balance = replace(balance, levelled_at=draft.now, hot_since=None)
        draft.state = replace(state, layout=Layout(places, target, levelling=True), balance=balance)
    return moved


def told(state: State, what: str) -> tuple[float, ...] | None:
    """One figure of each vshard, as its owner tells it; None unless all owners do."""
    routing = state.document.routing
    by_place: dict[int, tuple[float, ...]] = {}
    for pod in state.servers():
        place = pod.slot[1]
        if pod.report is not None and place < len(routing.processes) and pod.process == routing.processes[place]:
            by_place[place] = getattr(pod.report, what)
    if any(len(by_place.get(place, ())) != VSHARDS for place in set(routing.owner)):
        return None
    values = [by_place[place][vshard] for vshard, place in enumerate(routing.owner)]
    if min(values) >= 0 and sum(values) < math.inf:  # as nearly always
        return tuple(map(float, values))
    return tuple(float(value) if 0 <= value < math.inf else 0.0 for value in values)


def _look(draft: Draft) -> None:
    """One measurement, and what follows from it."""
    state, now, rules = draft.state, draft.now, draft.state.settings.balance
    old, version = state.balance, state.document.routing.version
    balance = replace(old, next_at=now + rules.sample_seconds, rows=told(state, "vshard_rows") or old.rows)
    here = told(state, "vshard_traffic")
    if not _at_rest(state):
        balance = replace(balance, rest_since=None, hot_since=None, samples=0)
    elif balance.rest_since is None or balance.version != version:
        balance = replace(balance, rest_since=now, version=version, hot_since=None, samples=0)
    elif now - balance.rest_since >= rules.seconds and here is not None:
        if balance.samples:
            kept = zip(balance.traffic, here, strict=True)
            here = tuple(_KEPT * before + (1 - _KEPT) * one for before, one in kept)
        balance = replace(balance, traffic=here, samples=balance.samples + 1)
        balance = replace(balance, hot_since=_hot_since(state, balance, now))
    draft.state = replace(state, balance=balance)
    pause = rules.pause_seconds * 2.0 ** min(max(balance.levelled - 1, 0), _MOST_DOUBLINGS)
    hot_since = balance.hot_since
    if hot_since is not None and now - hot_since >= rules.seconds and now - balance.levelled_at >= pause:
        _level(draft)


def _at_rest(state: State) -> bool:
    """Whether vshards lie where they should, all are served, and nothing is about to change that."""
    layout, routing = state.layout, state.document.routing
    if state.phase is not Phase.TRAINING or not state.ledger.served or state.moving or state.tenancies:
        return False
    if state.wish is not None or layout is None or layout.places != tuple(state.active("ps")):
        return False
    return layout.target == routing.owner


def _hot_since(state: State, balance: Balance, now: float) -> float | None:
    """Since when one place has carried too much: None unless it does now, and there is traffic worth a move."""
    rules, owner, places = state.settings.balance, state.document.routing.owner, state.active("ps")
    weight = weights(balance.rows, balance.traffic, balance.by_traffic)
    if len(places) < 2 or weight is None or math.fsum(balance.traffic) < rules.traffic:
        return None
    if unevenness(loads(owner, weight, places), balance.capacity) <= rules.ratio:
        return None
    return now if balance.hot_since is None else balance.hot_since


def _level(draft: Draft) -> None:
    """Ask for a layout with level loads, unless that would not help much."""
    state = draft.state
    owner, places, balance = state.document.routing.owner, tuple(state.active("ps")), state.balance
    weight, capacity = weights(balance.rows, balance.traffic, balance.by_traffic), balance.capacity
    assert weight is not None
    load = loads(owner, weight, places)
    fullest = max(places, key=lambda place: load[place] / max(capacity.get(place, 1.0), 1e-6))
    target = spread(owner, places, weight, capacity)
    before, after = unevenness(load, capacity), unevenness(loads(target, weight, places), capacity)
    balance = replace(balance, levelled=balance.levelled + 1, levelled_at=draft.now, hot_since=None)
    draft.state = replace(state, balance=balance)
    why = _why(balance, owner, places, fullest)
    if after - 1 > (before - 1) / 2:
        heaviest = max(weight)
        draft.note("balance", f"{why}, but moves would not help: a single vshard is {heaviest:.0%} of the load")
        return
    moved = sum(one != other for one, other in zip(owner, target, strict=True))
    words = "1 vshard moves" if moved == 1 else f"{moved} vshards move"
    if state.settings.mode is Mode.ADVISE:
        draft.note("balance", f"{why}: {words.replace(' move', ' would move')}: advice only", place=fullest)
        return
    draft.state = replace(draft.state, layout=Layout(places, target, levelling=True))
    draft.note("balance", f"{why}: {words}", place=fullest, moved=moved, before=round(before, 3), after=round(after, 3))


def _why(balance: Balance, owner: tuple[int, ...], places: tuple[int, ...], fullest: int) -> str:
    """What the fullest place has too much of, in words."""
    shares = []
    for values in (balance.traffic, balance.rows):
        total = math.fsum(values)
        shares.append(loads(owner, values, places)[fullest] / total if total else 0.0)
    traffic, rows = shares
    if traffic >= rows:
        return f"PS {fullest} takes {traffic:.0%} of the traffic"
    return f"PS {fullest} holds {rows:.0%} of the rows"
