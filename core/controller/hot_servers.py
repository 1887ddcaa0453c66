"""What is done about a parameter server that everybody waits for.

The cheapest that can help comes first (`server_remedies`): vshards move to its peers, it gets more cores, another one
takes its place. Each remedy is measured before the next one, and none is tried twice for one process, so there is an
end to it. A place that was slow and is so no more gets its vshards back once, never twice (case 32). In mode advise all
of it is only said; an uneven share is a change of plan to whoever fixed it, so it needs mode auto.
"""

from __future__ import annotations

from statistics import median

from trimtab.core.controller.balance import shift
from trimtab.core.controller.server_remedies import CORES, DO, NOUNS, WOULD, keep, ladder, replacing
from trimtab.core.controller.server_samples import heaviest_words, sampled
from trimtab.core.controller.shares import memory_free
from trimtab.core.controller.state import Draft, Phase, Pod, State
from trimtab.core.controller.successors import give_up, take_over
from trimtab.core.domain.job import Mode
from trimtab.core.domain.records import Finding
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.stability.hot_ps import Acted, HotServer, cooled, find_hot, saturated, speed_of, why

KIND = "hot_ps"
_ALL = "parameter servers"  # subject of the finding about all of them


def watch_servers(draft: Draft) -> None:
    """Look at the parameter servers' times, shares and traffic, and act on what is found."""
    _forget(draft)
    if draft.state.phase is not Phase.TRAINING:
        return
    _follow_successors(draft)
    _loosen(draft)
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
            keep(draft, hot_since={name: at for name, at in watch.hot_since.items() if name != pod.process})
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
        keep(draft, hot_since={**watch.hot_since, pod.process: state.seconds(at)})
        kept = tuple(one for one in state.observations if one.time_seconds < state.seconds(at))
        draft.state = replace(draft.state, observations=kept)  # what was seen since is not what the plan brings
        draft.note(KIND, f"{pod.name} is late: {reason}", pod=pod.name, cause=str(found.cause))
    tried = watch.tried.get(pod.process, ())
    open_ = [one for one in ladder(found, state.settings.hot) if one not in tried]
    if state.settings.mode is Mode.ADVISE:
        keep(draft, advised=draft.state.hot.advised | {pod.process})
        _say(draft, pod.name, f"{reason}; advice only: {WOULD[open_[0]]}" if open_ else reason)
        return
    left = state.settings.batches - len(state.ledger.applied)
    if left * found.step < state.settings.hot.least_seconds * max(1, sum(one.worked for one in state.workers())):
        _say(draft, pod.name, f"{reason}; the job is over before anything could help")
        return
    if draft.state.hot.acted is not None or replacing(state):
        return  # first see what that does
    for remedy in open_:
        done = DO[remedy](draft, pod, found)
        if done is None:
            _say(draft, pod.name, f"{reason}; it is watched a little longer")
            return
        if done:
            watch = draft.state.hot
            keep(
                draft, acted=Acted(found.place, pod.process, remedy, now, found.excess, found.step),
                tried={**watch.tried, pod.process: (*tried, remedy)}, exhausted=watch.exhausted - {pod.process},
            )  # fmt: skip
            _say(draft, pod.name, f"{reason}; {done}")
            draft.note(KIND, f"{pod.name}: {done}; {reason}", pod=pod.name, remedy=remedy)
            return
    keep(draft, exhausted=draft.state.hot.exhausted | {pod.process})
    _say(draft, pod.name, f"{reason}; nothing more can be done about it within the plan and the caps")


# ---- afterwards


def _measure(draft: Draft) -> None:
    """What the last remedy came to, once enough windows have been seen after it."""
    state, watch = draft.state, draft.state.hot
    acted, rules = watch.acted, state.settings.hot
    if acted is None or watch.since <= acted.at or replacing(state) or len(watch.windows) < rules.samples:
        return
    step = median(one.step for one in watch.windows[-rules.samples :])
    helped = step < acted.step - acted.excess / 4
    if not helped and len(watch.windows) < 2 * rules.samples:
        return  # right after vshards have moved everything takes a little longer
    text = f"a step takes {1000 * step:.0f} ms after {NOUNS[acted.remedy]}, {1000 * acted.step:.0f} ms before"
    draft.note(KIND, text if helped else f"{text}: that did not help", remedy=acted.remedy, helped=helped)
    keep(draft, acted=None)
    slot = state.slots.get(("ps", acted.place))
    if acted.remedy == CORES and not helped and slot is not None and slot.cpu:
        draft.put_slot(replace(slot, cpu=0.0))


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
            keep(draft, acted=None)
            draft.note(KIND, f"nobody takes the place of PS {index}: its successor did not come up", place=index)


def _loosen(draft: Draft) -> None:
    """A successor that began with little memory gets the plan's, once that has become free."""
    state = draft.state
    if replacing(state) or state.departed:
        return
    for slot in state.slots.values():
        if slot.tight_bytes and state.document.plan.ps.memory_bytes - slot.tight_bytes <= memory_free(state):
            draft.put_slot(replace(slot, tight_bytes=0))
            return


def _give_back(draft: Draft) -> None:
    """A slow place that has been as fast as its peers for long gets its vshards back, once."""
    state, watch, rules = draft.state, draft.state.hot, draft.state.settings.hot
    for pod in state.servers():
        place, process = pod.slot[1], pod.process
        if not 0 < state.balance.capacity.get(place, 1.0) < 1 or process not in watch.slow_at or watch.acted:
            continue
        speed = speed_of(watch.windows[-rules.samples :], place)
        if process in watch.hot_since or speed is None or speed < rules.slow:
            keep(draft, slow_at={**draft.state.hot.slow_at, process: draft.now})
        elif draft.now - watch.slow_at[process] >= rules.recover_seconds and process not in watch.returned:
            keep(draft, returned=watch.returned | {process})
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
        keep(
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


def _pod(state: State, place: int) -> Pod | None:
    return next((pod for pod in state.servers() if pod.slot[1] == place), None)


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
