"""What is done about a worker that has become slow, from the cheapest to the dearest.

A slow worker gets shards as small as it is slow, and what it has not begun of larger ones goes to others. One that is
very slow for some time gets a successor (`successors`): a new pod comes up beside it with most of its cores, and it
goes when that one has trained its first batch. It stays if it recovers before. Where the caps leave no room for both,
it goes first. A new pod may be as slow: then it is the machine, and no third one is tried in that place. All of this
is a repair, not another plan: mode `advise` says what would be done, the others do it.
"""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.core.controller.doubled import too_much, unfinished
from trimtab.core.controller.pods import start_again
from trimtab.core.controller.shares import memory_in_use, shares
from trimtab.core.controller.state import Draft, Phase, Pod, State
from trimtab.core.controller.successors import begin, give_up, take_over
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import Mode
from trimtab.core.domain.records import Finding
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.stability.stragglers import Pace, Reading, Track, cleared, lagging, looked, very_slow

KIND, LAG = "straggler", "lag"
_SILENT_SECONDS = 1.0  # without a word: what the last one told is not how far it is
_START_SECONDS = 5.0  # of a worker that joins, until one has shown how long it takes
_LEAST_START_SECONDS = 2.0
_WORTH = 2.0  # times its start must be left to train for a new pod
_LAG_SECONDS = 10.0  # that parameter servers have been apart, to be told of


def watch_workers(draft: Draft) -> None:
    """Look at the workers' speeds, and act on what is found."""
    _follow(draft)
    state = draft.state
    rules, pace = state.settings.straggling, state.pace
    if draft.now - pace.looked_at < rules.sample_seconds:
        return
    draft.state = replace(state, pace=replace(_look(state, draft.now), looked_at=draft.now))
    _tell(draft)
    _take_back(draft)
    _replace_one(draft)
    _watch_lag(draft)


def _look(state: State, now: float) -> Pace:
    """One more sample of all workers, judged; a change, a pause of all or an empty to-do voids what was sampled."""
    rules, pace = state.settings.straggling, state.pace
    there = {pod.name: pod for pod in state.workers()}
    tracks = {name: one for name, one in pace.tracks.items() if name in there}
    changes = (state.document.routing.version, len(state.plans), len(state.successions))
    if changes != pace.changes:
        quiet = now + rules.settle_seconds
        return replace(pace, tracks=cleared(tracks), changes=changes, quiet_until=quiet)
    if state.phase is not Phase.TRAINING or state.served_at is None:
        return replace(pace, tracks=cleared(tracks), quiet_until=now + rules.settle_seconds)
    if not state.ledger.todo or now < pace.quiet_until:
        return replace(pace, tracks=tracks)
    readings = _readings(state, now)
    known = looked(tracks, readings, rules)
    joined = (name for name in known if name not in tracks and there[name].wanted_at > state.served_at)
    fresh = [known[name].since - there[name].wanted_at for name in joined]
    start = min([*fresh, *([pace.start_seconds] if pace.start_seconds is not None else [])], default=None)
    return replace(pace, tracks=known, start_seconds=start)


def _readings(state: State, now: float) -> dict[str, Reading]:
    """What every worker that has got something done shows at this time."""
    share = shares(state)
    found = {}
    for pod in state.workers():
        if pod.heard_at is not None and pod.reported and state.slots[pod.slot].active:
            at = max(pod.heard_at, now - _SILENT_SECONDS)
            busy = bool(state.ledger.holds.of(pod.name))
            found[pod.name] = Reading(at, pod.reported, share[pod.name], busy)
    return found


def _take_back(draft: Draft) -> None:
    """End loans of slow workers that would take them long, and at the end loans whose numbers others have done."""
    for pod in draft.state.workers():
        state = draft.state
        held = (*state.ledger.holds.of(pod.name), *state.evaluation.holds.of(pod.name))
        track = state.pace.tracks.get(pod.name)
        ends = set(too_much(state, pod, draft.now)) if track is not None and track.slow else set()
        if not state.ledger.todo:
            loans = state.ledger.holds.of(pod.name)
            ends |= {one.id for one in loans if state.ledger.applied.issuperset(IntervalSet.span(one.lo, one.hi))}
        if not ends:
            continue
        left = sum(len(unfinished(state, hold)) for hold in held if hold.id in ends)
        _end_loans(draft, pod, ends)
        if left:
            text = f"{pod.name} is slow: {left} batches that it has not begun go to others"
            draft.note("taken_back", text, pod=pod.name, batches=left)


def _end_loans(draft: Draft, pod: Pod, ends: set[int]) -> None:
    """These loans end, and the worker is told to begin nothing more of them."""
    state = draft.state
    ledger, _ = state.ledger.ended(lambda hold: hold.id in ends, state.sequence)
    holds, _ = state.evaluation.holds.end(lambda hold: hold.id in ends)
    draft.state = replace(state, ledger=ledger, evaluation=replace(state.evaluation, holds=holds))
    draft.put_pod(replace(pod, taken_back=tuple(sorted({*pod.taken_back, *ends}))))


def _follow(draft: Draft) -> None:
    """A successor that has trained takes over; a worker that recovers stays."""
    for key, one in tuple(draft.state.successions.items()):
        state = draft.state
        if key[0] != "worker":
            continue
        places = {pod.slot: pod for pod in state.workers()}
        old, new = places.get(key), places.get((key[0], one.new))
        track = state.pace.tracks.get(old.name) if old is not None else None
        if new is not None and new.worked:
            take_over(draft, key)
            if old is not None:
                ends = {hold.id for hold in state.ledger.holds.of(old.name)}
                _end_loans(draft, old, ends | {hold.id for hold in state.evaluation.holds.of(old.name)})
            names = state.pace.successors | {new.name}
            draft.state = replace(draft.state, pace=replace(state.pace, successors=names))
            took = draft.now - one.began_at
            text = f"{new.name} has taken over from worker {key[1]}, which {one.why}; it took {took:.1f} s"
            gone = old.name if old is not None else ""
            draft.note("straggler_replaced", text, pod=new.name, old=gone, took_seconds=round(took, 3))
        elif track is not None and not track.slow:
            give_up(draft, key)
            name = old.name if old is not None else ""
            draft.note("straggler_recovered", f"{name} is as fast as its peers again and stays", pod=name)
        elif new is not None and _over_caps(state):
            give_up(draft, key)
            draft.note("successor_failed", f"the caps have no room for {new.name} any more", role="worker")
        elif draft.now - one.began_at > state.settings.start_seconds:
            give_up(draft, key)
            text = f"no new worker came up beside worker {key[1]} within {state.settings.start_seconds:g} s; it stays"
            draft.note("successor_failed", text, role="worker")


def _over_caps(state: State) -> bool:
    """Whether caps that have fallen leave no room for all that is there."""
    limits, pods = state.settings.limits, len(state.workers())
    over = limits.workers is not None and pods > limits.workers
    return over or (limits.memory_bytes is not None and memory_in_use(state) > limits.memory_bytes)


def _replace_one(draft: Draft) -> None:
    """A new pod for the slowest of the very slow workers, if that is worth its start and has not been tried in vain."""
    state = draft.state
    rules, pace, now = state.settings.straggling, state.pace, draft.now
    if state.phase is not Phase.TRAINING or state.wish is not None:
        return
    found = [pod for pod in state.workers() if _replaceable(state, pod)]
    if not found:
        return
    pod = min(found, key=lambda pod: (pace.tracks[pod.name].ratio or 0.0, pod.name))
    if pod.name in pace.successors and not pace.tracks[pod.name].proven:
        hopeless = pace.hopeless | {pod.slot[1]}
        draft.state = replace(state, pace=replace(pace, hopeless=hopeless))
        text = f"{pod.name} came for a slow worker and {_words(pace.tracks[pod.name])} as well: it is the machine"
        draft.note("straggler_stays", f"{text}, not the pod. Nothing more is done about it", pod=pod.name)
        return
    if any(role == "worker" for role, _ in state.successions) or now < pace.next_at or not _worth_it(state):
        return
    why = _words(pace.tracks[pod.name])
    if state.settings.mode is Mode.ADVISE:
        if pod.name not in pace.told:
            draft.state = replace(state, pace=replace(pace, told=pace.told | {pod.name}))
            draft.note("advice", f"{pod.name} {why}: a new pod in its place would help", pod=pod.name)
        return
    if pace.replaced >= rules.most_replaced or _one_is_missing(state):
        return
    coming = begin(draft, pod.slot, why)
    proven = sum(name in pace.tracks and pace.tracks[name].proven for name in pace.successors)
    pause = rules.pause_seconds * 2.0 ** max(0, pace.replaced - proven)
    names = pace.successors
    if coming is None:  # no room for both
        names = names | {replace(state.slots[pod.slot], generation=state.slots[pod.slot].generation + 1).pod_name(
            state.document.term
        )}  # fmt: skip
        start_again(draft, pod, f"{why}, and the caps have no room for a new one beside it")
    else:
        draft.note("straggler", f"{pod.name} {why}: a new worker comes in its place", pod=pod.name, place=coming.new)
    pace = replace(pace, replaced=pace.replaced + 1, next_at=now + pause, successors=names)
    draft.state = replace(draft.state, pace=pace)


def _one_is_missing(state: State) -> bool:
    """Whether a worker's place waits for its pod: the job should not lose another one meanwhile."""
    there = {pod.slot for pod in state.workers()}
    return any(slot.role == "worker" and slot.active and key not in there for key, slot in state.slots.items())


def _replaceable(state: State, pod: Pod) -> bool:
    track, key = state.pace.tracks.get(pod.name), pod.slot
    return (
        track is not None and very_slow(track, state.settings.straggling) and state.slots[key].active
        and key[1] not in state.pace.hopeless and key not in state.successions
    )  # fmt: skip


def _worth_it(state: State) -> bool:
    """Whether so much is left to train that a new worker has time to begin and to bring something."""
    rate = sum(track.rate for track in state.pace.tracks.values() if track.rate is not None)
    start = state.pace.start_seconds if state.pace.start_seconds is not None else _START_SECONDS
    left = state.settings.batches - len(state.ledger.applied)
    return rate > 0 and left / rate > _WORTH * max(start, _LEAST_START_SECONDS)


def _words(track: Track) -> str:
    return f"does {track.ratio or 0.0:.2f} of what its peers do ({track.rate or 0.0:.2g} batches/s)"


def _tell(draft: Draft) -> None:
    """Keep the findings about slow workers; a new one is also said once."""
    state = draft.state
    found: dict[tuple[str, str], Finding] = {}
    for pod in state.workers():
        track = state.pace.tracks.get(pod.name)
        if track is not None and track.slow_since is not None:
            text = f"{pod.name} {_words(track)}: {_done_about(state, pod)}"
            found[KIND, pod.name] = Finding(KIND, pod.name, text, state.seconds(track.slow_since))
            if (KIND, pod.name) not in state.findings:
                draft.note("slow_worker", text, pod=pod.name)
    draft.state = replace(draft.state, findings=_others(state.findings, KIND) | found)


def _done_about(state: State, pod: Pod) -> str:
    pace, rules = state.pace, state.settings.straggling
    if pod.slot in state.successions:
        return "a new worker comes in its place"
    text = "it gets smaller data shards"
    if pod.slot[1] in pace.hopeless:
        text += "; it is the machine, not the pod"
    elif very_slow(pace.tracks[pod.name], rules) and state.settings.mode is not Mode.ADVISE:
        if pace.replaced >= rules.most_replaced:
            text += f"; {pace.replaced} workers of this job were replaced, and no more are"
        elif not _worth_it(state):
            text += "; a new pod would hardly begin before the end"
    return text


def _watch_lag(draft: Draft) -> None:
    """Tell of parameter servers whose rows are far apart (case 20)."""
    state = draft.state
    rate = sum(track.rate for track in state.pace.tracks.values() if track.rate is not None)
    apart = lagging(_applied(state), rate, state.settings.straggling) if state.phase is Phase.TRAINING else None
    since = None if apart is None else draft.now if state.pace.lag_since is None else state.pace.lag_since
    findings = _others(state.findings, LAG)
    if apart is not None and since is not None and draft.now - since >= _LAG_SECONDS:
        name, batches = apart
        text = f"{name} is {batches} batches behind the others: its rows were lost, or its pushes do not arrive"
        findings[LAG, name] = Finding(LAG, name, text, state.seconds(since))
        if (LAG, name) not in state.findings:
            draft.note("lag", text, pod=name)
    draft.state = replace(state, pace=replace(state.pace, lag_since=since), findings=findings)


def _applied(state: State) -> dict[str, int]:
    """Batches in all rows of each parameter server that serves something."""
    found = {}
    for pod in state.servers():
        known = state.ledger.known.get(pod.process)
        if known is not None and known.groups and pod.process in state.ledger.tenures:
            found[pod.name] = min(len(group.applied) for group in known.groups)
    return found


def _others(findings: Mapping[tuple[str, str], Finding], kind: str) -> dict[tuple[str, str], Finding]:
    return {key: one for key, one in findings.items() if key[0] != kind}
