"""What a kill for want of memory leads to: the next pod of this very place gets more, a few times, and then no more.

It happens though memory is watched: a burst is faster than any forecast, and what user code does nobody forecasts. Each
kill counts once, whoever tells of it and however often (case 18), and says nothing about the other places of its role.
That it happened, and what time it cost, is shown: a job that is only slow explains nothing (case 19).
"""

from __future__ import annotations

import math

from trimtab.core.controller.shares import memory_free, memory_of
from trimtab.core.controller.state import Draft, Phase, Slot, State
from trimtab.core.domain.quantities import format_memory
from trimtab.core.domain.records import Finding
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.start import ZYGOTE_MEMORY

FINDING = "out_of_memory"
_MEBI = 1 << 20


def count_kill(draft: Draft, key: tuple[str, int], name: str) -> str:
    """Count one kill at a place and give the place more memory; why the job can't go on, "" where it can.

    Args:
        draft: the step's. key: the place. name: of the pod that was killed.
    """
    state = draft.state
    slot, rules = state.slots[key], state.settings.memory
    had = memory_of(state, key)
    count = slot.out_of_memory + 1
    wanted = _whole(had * rules.factor)
    more = max(0, min(wanted - had, memory_free(state))) if slot.active else 0
    size = (had + more) // _MEBI * _MEBI if more >= _MEBI else had
    here = count - slot.kills_before
    over = slot.active and here > rules.most_kills
    killed = replace(slot, out_of_memory=count, killed_at=draft.now)
    if slot.active and slot.lost_since is None:
        killed = replace(killed, lost_since=draft.now)
    if not over and size > had:
        killed = replace(killed, memory_bytes=size)
    draft.put_slot(killed)
    text = f"{name} was killed for want of memory: it had {format_memory(had)}"
    if over:
        text += f", and this was kill {here} of its place"
    elif size > had:
        text += f", the next one gets {format_memory(size)}"
    elif slot.active:
        text += ", and the caps have no more for the next one"
    draft.note("oom", text, pod=name, role=slot.role, count=count, memory_bytes=had, next_bytes=size)
    if not over:
        return ""
    remedy = what_would_do(state, wanted - had, f"{format_memory(wanted)} per {_word(slot)}")
    return f"{name} was killed for want of memory with {format_memory(had)}, kill {here} of its place: {remedy}"


def watch_kills(draft: Draft) -> None:
    """Keep what kills have cost, and show it as long as it is of interest."""
    for key, slot in tuple(draft.state.slots.items()):
        killed_at = slot.killed_at
        if killed_at is None:
            say(draft, FINDING, _name(slot), "")
            continue
        if slot.lost_since is not None and (not slot.active or _works(draft.state, key)):
            lost = slot.lost_seconds + draft.now - slot.lost_since
            slot = replace(slot, lost_since=None, lost_seconds=lost)
            draft.put_slot(slot)
        shown = slot.active and draft.now - killed_at < draft.state.settings.memory.told_seconds
        say(draft, FINDING, _name(slot), _told(draft, slot) if shown or slot.lost_since is not None else "")


def _works(state: State, key: tuple[str, int]) -> bool:
    """Whether somebody works at a place; a parameter server gets nothing more done once training is over."""
    serves = key[0] == "ps" and state.ledger.served and state.phase not in (Phase.STARTING, Phase.TRAINING)
    return any(pod.slot == key and (pod.worked or serves) for pod in state.pods.values())


def say(draft: Draft, kind: str, subject: str, text: str) -> None:
    """Make the finding say `text`, since when it was first there; "" takes it away."""
    state = draft.state
    present = state.findings.get((kind, subject))
    if (present.text if present is not None else "") == text:
        return
    findings = {key: one for key, one in state.findings.items() if key != (kind, subject)}
    if text:
        since = present.since_seconds if present is not None else state.seconds(draft.now)
        findings[kind, subject] = Finding(kind, subject, text, since)
    draft.state = replace(state, findings=findings)


def what_would_do(state: State, more_bytes: int, size: str) -> str:
    """The remedy in words: a pod of `size` may do, which is `more_bytes` more than it has now."""
    asked, cap = state.document.spec.limits.memory_bytes, state.settings.limits.memory_bytes
    if cap is None or more_bytes <= memory_free(state):
        return f"{size} may do"
    beside = max(0, asked - cap) if asked is not None else ZYGOTE_MEMORY
    return f"{size} may do, so give it --max-memory {format_memory(_whole(cap + beside + more_bytes))} or more"


def _told(draft: Draft, slot: Slot) -> str:
    times = "once" if slot.out_of_memory == 1 else f"{slot.out_of_memory} times"
    lost = slot.lost_seconds + (draft.now - slot.lost_since if slot.lost_since is not None else 0.0)
    size = format_memory(memory_of(draft.state, (slot.role, slot.index)))
    return f"{_name(slot)} was killed {times} for want of memory and has {size} now; {lost:.0f} s were lost"


def _name(slot: Slot) -> str:
    return f"{slot.role}-{slot.index}"


def _word(slot: Slot) -> str:
    return "PS" if slot.role == "ps" else "worker"


def _whole(nbytes: float) -> int:
    return math.ceil(nbytes / _MEBI) * _MEBI
