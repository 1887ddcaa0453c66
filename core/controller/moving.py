"""Which vshard should lie where, and moving it there without a pause.

The wish is the layout (`balance`), and what should move is its difference to the document's routing. A move is
prepared first (the new owner keeps a copy aside); when that is done, one swap changes all its owners, and the order to
serve names who still holds the freshest rows. Nothing here has to be remembered for exactness: if a side of a move
dies, the same functions say what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.core.controller.ledger import ALL_VSHARDS
from trimtab.core.controller.state import Draft, Phase, Pod, State, Tenancy
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.values import replace
from trimtab.core.wire.messages import DropOrder, Origin, PrepareOrder, Routing, ServeOrder

LITTLE_ROWS = 30_000  # left to send after a refresh: some five megabytes, sent and applied in a few steps' time
STILL_LESS = 0.8  # of the refresh before: it pays to wait for another one


@dataclass(frozen=True)
class Transfer:
    """Vshards (a mask) of one tenure that should move from one place to another."""

    mask: int
    since: int
    source: int
    target: int


def transfers(state: State) -> tuple[Transfer, ...]:
    """What should move now: nothing while training is not under way, anything is unserved, or a place is not up yet."""
    routing = state.document.routing
    layout, places = state.layout, tuple(state.active("ps"))
    up = {pod.slot[1]: pod for pod in state.servers() if pod.process and pod.report is not None}
    if state.phase is not Phase.TRAINING or not state.ledger.served or any(place not in up for place in places):
        return ()
    if layout is None or layout.places != places or layout.target == routing.owner:
        return ()
    masks: dict[tuple[int, int, int], int] = {}
    for vshard, (now, then) in enumerate(zip(routing.owner, layout.target, strict=True)):
        if now != then:
            key = (routing.since[vshard], now, then)
            masks[key] = masks.get(key, 0) | 1 << vshard
    found = tuple(Transfer(mask, since, now, then) for (since, now, then), mask in sorted(masks.items()))
    gone = any(one.source not in up or up[one.source].process != routing.processes[one.source] for one in found)
    return () if gone else found


def prepare_orders(state: State) -> Mapping[str, tuple[PrepareOrder, ...]]:
    """What each parameter server (by pod) should keep aside."""
    routing = state.document.routing
    orders: dict[int, list[PrepareOrder]] = {}
    for one in transfers(state):
        origin = Origin(routing.processes[one.source], routing.addresses[one.source], one.since)
        orders.setdefault(one.target, []).append(PrepareOrder(bits(one.mask), origin))
    return {pod.name: tuple(orders[pod.slot[1]]) for pod in state.servers() if pod.slot[1] in orders}


def watch_preparation(draft: Draft) -> tuple[Transfer, ...]:
    """Keep since when everything that should move is prepared; returns what may change hands now.

    That is when little is left to send. Much is left where training changes as many rows as a refresh brings: waiting
    for less would be in vain, so it ends when a refresh brings hardly less than the one before, and anyhow in time.
    Nor does it pay where the one that gives is late with everything.
    """
    state = draft.state
    wanted = transfers(state)
    rows = [_staged(state, one) for one in wanted]
    staged = bool(wanted) and None not in rows
    at = (draft.now if state.staged_at is None else state.staged_at) if staged else None
    left = sum(one for one in rows if one is not None) if staged else None
    if (state.moving, state.staged_at, state.staged_rows) != (bool(wanted), at, left):
        draft.state = replace(state, moving=bool(wanted), staged_at=at, staged_rows=left)
    if at is None or left is None:
        return ()
    before = state.staged_rows
    steady = before is not None and left != before and left > STILL_LESS * before
    hurried = any(_source(state, one) in state.hot.hot_since for one in wanted)  # everybody waits for it anyhow
    patient = draft.now - at < state.settings.staged_seconds and not steady and not hurried
    return () if left > LITTLE_ROWS and patient else wanted


def _source(state: State, one: Transfer) -> str:
    """The process that gives."""
    return state.document.routing.processes[one.source]


def _staged(state: State, one: Transfer) -> int | None:
    """Rows of the last refresh if all of a transfer is kept aside at its target, else None."""
    process = _source(state, one)
    for pod in state.servers():
        if pod.slot[1] == one.target and pod.report is not None:
            for staged in pod.report.staged:
                whole = not one.mask & ~int(staged.vshards, 16)
                if (staged.process, staged.since) == (process, one.since) and whole:
                    return staged.refreshed_rows
    return None


def next_routing(old: Routing, up: Mapping[int, Pod], owners: Mapping[int, int]) -> Routing:
    """The routing in which each vshard of `owners` begins a new tenure at its place.

    Args:
        old: the present one.
        up: pods that have said who they are, by place; every place in `owners` is among them.
        owners: vshard → place.
    """
    version = old.version + 1
    owner, since = list(old.owner), list(old.since)
    for vshard, place in owners.items():
        owner[vshard], since[vshard] = place, version
    fresh = set(owners.values())
    processes, addresses = [], []
    for place in range(max(owner) + 1):
        pod = up.get(place) if place in fresh else None
        known = place in owner and place < len(old.processes)
        processes.append(pod.process if pod else old.processes[place] if known else "")
        address = pod.report.address if pod and pod.report else ""
        addresses.append(address if pod else old.addresses[place] if known else "")
    return Routing(version, tuple(processes), tuple(addresses), tuple(owner), tuple(since))


def tenancies_after(state: State, routing: Routing, moved: Sequence[Transfer]) -> tuple[Tenancy, ...]:
    """Who still holds the freshest rows of what changes hands with `routing`.

    A move brings its source; an owner that died before it had taken over leaves the source that it would have had.
    """
    old = state.document.routing
    changed = mask_of(vshard for vshard in range(VSHARDS) if routing.since[vshard] == routing.version)
    alive = {pod.process for pod in state.servers()}
    kept = [replace(one, mask=one.mask & ~changed) for one in state.tenancies if one.mask & ~changed]
    again = [
        Tenancy(one.mask & changed, routing.version, one.origin)
        for one in state.tenancies
        if one.mask & changed and one.origin.process in alive
    ]
    fresh = [
        Tenancy(one.mask, routing.version, Origin(old.processes[one.source], old.addresses[one.source], one.since))
        for one in moved
    ]
    return (*kept, *again, *fresh)


def serve_orders(state: State, process: str) -> tuple[ServeOrder, ...]:
    """Everything that a process should serve, from the freshest source of each part."""
    manifest = state.document.manifest.path
    alive = {pod.process for pod in state.servers()}
    orders = []
    for since, mask in sorted(state.ledger.tenures.get(process, {}).items()):
        rest = mask
        for one in state.tenancies:
            part = one.mask & rest if one.since == since and one.origin.process in alive else 0
            if part:
                orders.append(ServeOrder(bits(part), since, manifest, one.origin))
                rest &= ~part
        if rest:
            orders.append(ServeOrder(bits(rest), since, manifest))
    return tuple(orders)


def drop_orders(state: State, process: str) -> tuple[DropOrder, ...]:
    """What a process may give up: all that others own and serve."""
    if not state.ledger.served:
        return ()
    found: dict[int, int] = {}
    for other, tenures in state.ledger.tenures.items():
        if other != process:
            for since, mask in tenures.items():
                found[since] = found.get(since, 0) | mask
    return tuple(DropOrder(bits(mask), since) for since, mask in sorted(found.items()))


def hear_about_moves(draft: Draft, pod: Pod) -> None:
    """An origin that does not hold what it should hand over is no source; a move that is done needs none."""
    state, report = draft.state, pod.report
    if not state.tenancies or report is None:
        return
    missing = int(report.missing or "0", 16)
    owned = state.ledger.tenures.get(pod.process, {})
    served: dict[int, int] = {}
    for told in report.served:
        served[told.since] = served.get(told.since, 0) | int(told.vshards, 16)
    left: list[Tenancy] = []
    for one in state.tenancies:
        mine = one.mask & owned.get(one.since, 0)
        mask = one.mask & ~(mine & (missing | served.get(one.since, 0)))
        if mask:
            left.append(replace(one, mask=mask))
    draft.state = replace(state, tenancies=tuple(left))


def owned_places(routing: Routing) -> set[int]:
    """Places that own something."""
    return set(routing.owner) - {-1}


def bits(mask: int) -> str:
    """A mask as messages carry it."""
    return f"{mask & ALL_VSHARDS:0{VSHARDS // 4}x}"


def mask_of(vshards: Iterable[int]) -> int:
    """Vshard numbers as a mask."""
    mask = 0
    for vshard in vshards:
        mask |= 1 << vshard
    return mask
