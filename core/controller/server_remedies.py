"""Remedies for a parameter server that everybody waits for, the cheapest first, and whether each can help.

What can't help is passed over: a place whose host is busy gains nothing from a larger share, whatever stays at a very
slow one is waited for, and where its peers are full moves only shift the trouble. Each remedy says what it does, ""
when it can't, None when it is too early for it.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from trimtab.core.controller.balance import shift
from trimtab.core.controller.server_samples import loads_of
from trimtab.core.controller.shares import memory_free
from trimtab.core.controller.state import Draft, Pod, State
from trimtab.core.controller.successors import begin
from trimtab.core.domain.job import Mode
from trimtab.core.domain.plan import PS_BASE_BYTES, SMALLEST_PS_MEMORY, SNAPSHOT_SHARE, table_room
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.stability.hot_ps import Cause, HotRules, HotServer, ServerWatch, find_hot, why

MOVES, CORES, SUCCESSOR, EMPTY = "moves", "cores", "successor", "empty"
_BY_TRAFFIC = 0.9  # of a vshard's weight, once a place is late because of its traffic
_LEAST_PART = 0.05  # of its peers' load, for a slow place that keeps some
_FULL_TABLE = 0.85  # of its limit: a successor takes no more, new rows must have room beside
_LEAST_RAISE, _MOST_RAISE = 1.25, 2.0  # times its cores, at once
WOULD = {
    MOVES: "vshards would move to its peers", CORES: "it would get more cores",
    SUCCESSOR: "another one would take its place", EMPTY: "all its vshards would move to its peers",
}  # fmt: skip
NOUNS = {
    MOVES: "vshards moved", CORES: "it got more cores", SUCCESSOR: "another one took its place",
    EMPTY: "all its vshards moved",
}  # fmt: skip


def ladder(found: HotServer, rules: HotRules) -> tuple[str, ...]:
    """What can help, the cheapest first."""
    if found.cause is not Cause.HOST:
        return (MOVES, CORES)
    if found.speed < rules.very_slow or found.busy < found.excess / 2:  # not even at work: less of it changes nothing
        return (SUCCESSOR, EMPTY)
    return (MOVES, SUCCESSOR, EMPTY)


def _move_some(draft: Draft, pod: Pod, found: HotServer) -> str:
    """Part of its vshards goes to its peers: what it has too much of, or what it is too slow for."""
    balance = draft.state.balance
    if found.cause in (Cause.LOAD, Cause.VSHARD):
        return _shifted(draft, pod, balance.capacity.get(found.place, 1.0), _BY_TRAFFIC)
    able = found.speed
    if found.cause is Cause.CORES:  # as fast as its peers for what it has, which is not enough
        able = min(able, _use_of_others(draft.state, found.place) / found.use)
    part = max(_LEAST_PART, able * balance.capacity.get(found.place, 1.0))
    if _others_after(draft.state, found, part) > draft.state.settings.hot.room:
        return ""
    return _shifted(draft, pod, part, balance.by_traffic)


def _move_all(draft: Draft, pod: Pod, found: HotServer) -> str:
    """Whatever stays at it is waited for, so nothing stays."""
    if _others_after(draft.state, found, 0.0) > 1.0:
        return ""
    return _shifted(draft, pod, 0.0, draft.state.balance.by_traffic)


def _shifted(draft: Draft, pod: Pod, part: float, by_traffic: float) -> str:
    place = pod.slot[1]
    if len(draft.state.active("ps")) < 2:
        return ""
    capacity = {other: one for other, one in draft.state.balance.capacity.items() if other != place}
    capacity |= {place: part} if part < 1.0 else {}
    moved = shift(draft, capacity, by_traffic)
    if not moved:
        return ""
    if part < 1.0:
        keep(draft, slow_at={**draft.state.hot.slow_at, pod.process: draft.now})
    return "1 vshard moves" if moved == 1 else f"{moved} vshards move"


def _raise_cores(draft: Draft, pod: Pod, found: HotServer) -> str:
    """More cores for it alone, taken from all others: the sum stays."""
    state, slot = draft.state, draft.state.slots[pod.slot]
    plan, rules = state.document.plan, state.settings.hot
    if state.settings.mode is not Mode.AUTO or not state.settings.cpu_enforced:
        return ""
    share = slot.cpu or plan.ps.cpu
    times = min(_MOST_RAISE, max(_LEAST_RAISE, found.waited / max(found.usual, 1e-9)))
    wanted = round(min(share * times, plan.ps.cpu * rules.most_raised), 3)
    if wanted <= share * 1.05:
        return ""
    draft.put_slot(replace(slot, cpu=wanted))
    return f"it gets {wanted:g} cores instead of {share:g}, and all others give them"


def _replace(draft: Draft, pod: Pod, found: HotServer) -> str | None:
    """Another one comes up beside it, and takes its vshards over once it answers."""
    state, rules, watch = draft.state, draft.state.settings.hot, draft.state.hot
    limit = table_room(state.slots[pod.slot].memory_bytes or state.document.plan.ps.memory_bytes)
    full = pod.report is None or pod.report.table_bytes > _FULL_TABLE * (pod.report.memory_bytes or limit)
    if full or watch.replaced >= rules.most_replaced or draft.now < watch.next_at:
        return ""
    sure = rules.sure * (2 if found.alone else 1)  # its own past is weaker evidence than its peers' present
    if find_hot(watch.windows, watch.calm, replace(rules, samples=sure)) is None:
        return None
    if begin(draft, pod.slot, why(found), _tight(state, pod)) is None:
        return ""
    pause = rules.pause_seconds * 2.0**watch.replaced
    keep(draft, replaced=watch.replaced + 1, next_at=draft.now + pause)
    return "another one takes its place, and is up before it goes"


def _tight(state: State, pod: Pod) -> int:
    """Bytes with which a successor can take over what there is now, where that is less than the plan gives; else 0."""
    table = pod.report.table_bytes if pod.report is not None else 0
    least = PS_BASE_BYTES + (1 + SNAPSHOT_SHARE) * table / _FULL_TABLE
    most = min(memory_free(state), state.document.plan.ps.memory_bytes) >> 20 << 20
    return most if most >= max(least, SMALLEST_PS_MEMORY) else 0


DO: dict[str, Callable[[Draft, Pod, HotServer], str | None]] = {
    MOVES: _move_some, CORES: _raise_cores, SUCCESSOR: _replace, EMPTY: _move_all,
}  # fmt: skip


def _others_after(state: State, found: HotServer, part: float) -> float:
    """What part of its cores the busiest of the others would use if a place carried `part` of what they do.

    They would do more batches too: nobody waits for that place any more.
    """
    traffic = loads_of(state)[0].get(found.place, 0.0)
    others = len(state.active("ps")) - 1
    left = part / (part + others) if others else 1.0
    more = (1.0 - left) / (1.0 - traffic) if traffic < 1.0 else 1.0
    pace = found.step / max(found.step - found.excess, 1e-9)
    return _use_of_others(state, found.place) * more * pace


def _use_of_others(state: State, place: int) -> float:
    """What part of its cores the busiest of the others uses, lately."""
    last = state.hot.windows[-state.settings.hot.samples :]
    used = [median(one.servers[other].use for one in last) for other in last[-1].servers if other != place]
    return max(used, default=0.0)


def replacing(state: State) -> bool:
    """Whether one is taking another's place."""
    return any(role == "ps" for role, _ in (*state.successions, *state.retired))


def keep(draft: Draft, **changes: object) -> None:
    """Change what is remembered about the parameter servers' times."""
    watch: ServerWatch = draft.state.hot
    draft.state = replace(draft.state, hot=replace(watch, **changes))  # type: ignore[arg-type]
