"""What is done about a parameter server that everybody waits for.

The cheapest that can help comes first: vshards move to its peers, it gets more cores, another one takes its place. What
can't help is passed over (a place whose host is busy gains nothing from a larger share, and where its peers are full
moves only shift the trouble). Each remedy is measured before the next one, and none is tried twice for one process, so
there is an end to it. A place that was slow and is so no more gets its vshards back once, never twice (case 32). In
mode advise all of it is only said; an uneven share is a change of plan to whoever fixed it, so it needs mode auto.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from trimtab.core.controller.balance import shift
from trimtab.core.controller.server_samples import heaviest_words, loads_of, sampled
from trimtab.core.controller.state import Draft, Phase, Pod, State
from trimtab.core.controller.successors import begin, give_up, take_over
from trimtab.core.domain.job import Mode
from trimtab.core.domain.plan import table_room
from trimtab.core.domain.records import Finding
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.stability.hot_ps import (
    Acted,
    Cause,
    HotRules,
    HotServer,
    ServerWatch,
    cooled,
    find_hot,
    saturated,
    speed_of,
    why,
)

KIND = "hot_ps"
MOVES, CORES, SUCCESSOR, EMPTY = "moves", "cores", "successor", "empty"
_WOULD = {
    MOVES: "vshards would move to its peers", CORES: "it would get more cores",
    SUCCESSOR: "another one would take its place", EMPTY: "all its vshards would move to its peers",
}  # fmt: skip
_BY_TRAFFIC = 0.9  # of a vshard's weight, once a place is late because of its traffic
_LEAST_PART = 0.05  # of its peers' load, for a slow place that keeps some
_FULL_TABLE = 0.85  # of its limit: a successor takes no more, new rows must have room beside
_LEAST_RAISE, _MOST_RAISE = 1.25, 2.0  # times its cores, at once
_ALL = "parameter servers"  # subject of the finding about all of them


def watch_servers(draft: Draft) -> None:
    """Look at the parameter servers' times, shares and traffic, and act on what is found."""
    _forget(draft)
    if draft.state.phase is not Phase.TRAINING:
        return
    _follow_successors(draft)
    before = draft.state.hot
    watch = sampled(draft.state, draft.now)
    if watch is before:
        return
    draft.state = replace(draft.state, hot=watch)
    if watch.windows and watch.windows[-1:] != before.windows[-1:]:
        _judge(draft)


def _judge(draft: Draft) -> None:
    """One more window: how the last remedy did, who is hot now, and who is so no more."""
    _measure(draft)
    watch, rules = draft.state.hot, draft.state.settings.hot
    found = find_hot(watch.windows, watch.calm, rules)
    for pod in draft.state.servers():
        other = found is None or pod.slot[1] != found.place
        if pod.process in watch.hot_since and other and cooled(watch.windows, watch.calm, pod.slot[1], rules):
            _watch(draft, hot_since={name: at for name, at in watch.hot_since.items() if name != pod.process})
            _unsay(draft, pod.name)
            draft.note(KIND, f"{pod.name} is waited for no longer than others", pod=pod.name)
    if found is not None:
        _face(draft, found)
    full = saturated(watch.windows, rules)
    if full is None:
        _unsay(draft, _ALL)
    else:
        text = f"all use {full:.0%} of their cores and workers wait for them: more cores or another one would help"
        _say(draft, _ALL, f"{text}, more memory would not")
    _give_back(draft)


def _face(draft: Draft, found: HotServer) -> None:
    """A place is hot: say so, and do the next thing about it."""
    pod = _pod(draft.state, found.place)
    if pod is None:
        return
    watch, state, now = draft.state.hot, draft.state, draft.now
    reason = why(found) + heaviest_words(state, pod, found)
    if pod.process not in watch.hot_since:
        at = watch.windows[-state.settings.hot.samples].at - state.settings.hot.sample_seconds
        _watch(draft, hot_since={**watch.hot_since, pod.process: state.seconds(at)})
        kept = tuple(one for one in state.observations if one.time_seconds < state.seconds(at))
        draft.state = replace(draft.state, observations=kept)  # what was seen since is not what the plan brings
        draft.note(KIND, f"{pod.name} is late: {reason}", pod=pod.name, cause=str(found.cause))
    tried = watch.tried.get(pod.process, ())
    open_ = [one for one in _ladder(found, state.settings.hot) if one not in tried]
    if state.settings.mode is Mode.ADVISE:
        _watch(draft, advised=draft.state.hot.advised | {pod.process})
        _say(draft, pod.name, f"{reason}; advice only: {_WOULD[open_[0]]}" if open_ else reason)
        return
    left = state.settings.batches - len(state.ledger.applied)
    if left * found.step < state.settings.hot.least_seconds * max(1, sum(one.worked for one in state.workers())):
        _say(draft, pod.name, f"{reason}; the job is over before anything could help")
        return
    if draft.state.hot.acted is not None or _replacing(state):
        return  # first see what that does
    for remedy in open_:
        done = _DO[remedy](draft, pod, found)
        if done is None:
            _say(draft, pod.name, f"{reason}; it is watched a little longer")
            return
        if done:
            watch = draft.state.hot
            _watch(
                draft, acted=Acted(found.place, pod.process, remedy, now, found.excess, found.step),
                tried={**watch.tried, pod.process: (*tried, remedy)}, exhausted=watch.exhausted - {pod.process},
            )  # fmt: skip
            _say(draft, pod.name, f"{reason}; {done}")
            draft.note(KIND, f"{pod.name}: {done}; {reason}", pod=pod.name, remedy=remedy)
            return
    _watch(draft, exhausted=draft.state.hot.exhausted | {pod.process})
    _say(draft, pod.name, f"{reason}; nothing more can be done about it within the plan and the caps")


def _ladder(found: HotServer, rules: HotRules) -> tuple[str, ...]:
    """What can help, the cheapest first."""
    if found.cause in (Cause.LOAD, Cause.VSHARD):
        return (MOVES, CORES)
    if found.cause is Cause.CORES:
        return (MOVES, CORES)
    if found.speed < rules.very_slow:
        return (SUCCESSOR, EMPTY)
    return (MOVES, SUCCESSOR, EMPTY)


# ---- remedies: each says what it does, "" when it can't, None when it is too early


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
        _watch(draft, slow_at={**draft.state.hot.slow_at, pod.process: draft.now})
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
    if find_hot(watch.windows, watch.calm, replace(rules, samples=rules.sure)) is None:
        return None
    if begin(draft, pod.slot, why(found)) is None:
        return ""
    pause = rules.pause_seconds * 2.0**watch.replaced
    _watch(draft, replaced=watch.replaced + 1, next_at=draft.now + pause)
    return "another one takes its place, and is up before it goes"


_DO: dict[str, Callable[[Draft, Pod, HotServer], str | None]] = {
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


# ---- afterwards


def _measure(draft: Draft) -> None:
    """What the last remedy came to, once enough windows have been seen after it."""
    state, watch = draft.state, draft.state.hot
    acted, rules = watch.acted, state.settings.hot
    if acted is None or watch.since <= acted.at or _replacing(state) or len(watch.windows) < rules.samples:
        return
    step = median(one.step for one in watch.windows[-rules.samples :])
    helped = step < acted.step - acted.excess / 4
    text = f"a step takes {1000 * step:.0f} ms after {_NOUNS[acted.remedy]}, {1000 * acted.step:.0f} ms before"
    draft.note(KIND, text if helped else f"{text}: that did not help", remedy=acted.remedy, helped=helped)
    _watch(draft, acted=None)
    slot = state.slots.get(("ps", acted.place))
    if acted.remedy == CORES and not helped and slot is not None and slot.cpu:
        draft.put_slot(replace(slot, cpu=0.0))


_NOUNS = {
    MOVES: "vshards moved", CORES: "it got more cores", SUCCESSOR: "another one took its place",
    EMPTY: "all its vshards moved",
}  # fmt: skip


def _follow_successors(draft: Draft) -> None:
    """One that is up takes over; one that does not come up in time is given up."""
    for (role, index), one in tuple(draft.state.successions.items()):
        state = draft.state
        new = next((pod for pod in state.servers() if pod.slot == (role, one.new)), None)
        if role != "ps":
            continue
        if new is not None and new.report is not None and state.ledger.served and not state.tenancies:
            take_over(draft, (role, index))
            draft.note(KIND, f"{new.name} takes over from PS {index}: all its vshards move", pod=new.name)
        elif draft.now - one.began_at > state.settings.hot.start_seconds:
            give_up(draft, (role, index))
            _watch(draft, acted=None)
            draft.note(KIND, f"nobody takes the place of PS {index}: its successor did not come up", place=index)


def _give_back(draft: Draft) -> None:
    """A slow place that has been as fast as its peers for long gets its vshards back, once."""
    state, watch, rules = draft.state, draft.state.hot, draft.state.settings.hot
    for pod in state.servers():
        place, process = pod.slot[1], pod.process
        if not 0 < state.balance.capacity.get(place, 1.0) < 1 or process not in watch.slow_at or watch.acted:
            continue
        speed = speed_of(watch.windows[-rules.samples :], place)
        if process in watch.hot_since or speed is None or speed < rules.slow:
            _watch(draft, slow_at={**draft.state.hot.slow_at, process: draft.now})
        elif draft.now - watch.slow_at[process] >= rules.recover_seconds and process not in watch.returned:
            _watch(draft, returned=watch.returned | {process})
            capacity = {other: part for other, part in state.balance.capacity.items() if other != place}
            moved = shift(draft, capacity, state.balance.by_traffic) if state.settings.mode is not Mode.ADVISE else 0
            if moved:
                draft.note(KIND, f"{pod.name} is as fast as its peers again: {moved} vshards go back", pod=pod.name)
                return


def _forget(draft: Draft) -> None:
    """What is remembered about processes that are gone, and about shares of another plan."""
    state, watch = draft.state, draft.state.hot
    training = state.phase is Phase.TRAINING
    there = {pod.process for pod in state.servers() if pod.process}
    names = {pod.name for pod in state.servers()} | {_ALL}
    for kind, subject in state.findings:
        if kind == KIND and (not training or subject not in names):
            _unsay(draft, subject)
    known = {*watch.hot_since, *watch.tried, *watch.slow_at}
    if not known <= there:
        _watch(
            draft, hot_since={name: at for name, at in watch.hot_since.items() if name in there},
            tried={name: one for name, one in watch.tried.items() if name in there},
            slow_at={name: at for name, at in watch.slow_at.items() if name in there},
            exhausted=watch.exhausted & there, returned=watch.returned & there, advised=watch.advised & there,
        )  # fmt: skip
    slow = {pod.slot[1] for pod in state.servers() if pod.process in watch.slow_at}
    if not state.balance.capacity.keys() <= slow:
        capacity = {place: part for place, part in state.balance.capacity.items() if place in slow}
        draft.state = replace(draft.state, balance=replace(state.balance, capacity=capacity))
    for pod in state.servers():
        slot = state.slots[pod.slot]
        if slot.cpu and (CORES not in watch.tried.get(pod.process, ()) or slot.cpu <= state.document.plan.ps.cpu):
            draft.put_slot(replace(slot, cpu=0.0))


def _replacing(state: State) -> bool:
    """Whether one is taking another's place."""
    return any(role == "ps" for role, _ in (*state.successions, *state.retired))


def _pod(state: State, place: int) -> Pod | None:
    return next((pod for pod in state.servers() if pod.slot[1] == place), None)


def _watch(draft: Draft, **changes: object) -> None:
    watch: ServerWatch = draft.state.hot
    draft.state = replace(draft.state, hot=replace(watch, **changes))  # type: ignore[arg-type]


def _say(draft: Draft, subject: str, text: str) -> None:
    state = draft.state
    known = state.findings.get((KIND, subject))
    since = known.since_seconds if known is not None else state.seconds(draft.now)
    found = Finding(KIND, subject, text, since)
    if found != known:
        draft.state = replace(state, findings={**state.findings, (KIND, subject): found})


def _unsay(draft: Draft, subject: str) -> None:
    state = draft.state
    if (KIND, subject) in state.findings:
        left = {key: one for key, one in state.findings.items() if key != (KIND, subject)}
        draft.state = replace(state, findings=left)
