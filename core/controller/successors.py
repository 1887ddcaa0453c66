"""A place gets a successor beside it, which is up before the old one goes.

A pod that is bad though it lives can't be replaced by ending it first: until the new one works, nobody would do its
part. So a new place of the same role comes up beside it, outside the plan's count. Whoever asked for it says when it
has taken over: from then on it is the plan's place and the old one is retired, which is the same as a place that a
smaller plan has no more: it finishes or hands over what it has, and leaves. Then its index is free for the next one,
so that indexes stay few however often that happens.
"""

from __future__ import annotations

from trimtab.core.controller.shares import has_room
from trimtab.core.controller.state import Draft, Slot, State, Succession
from trimtab.core.domain.values import replace

Key = tuple[str, int]


def begin(draft: Draft, key: Key, why: str, tight_bytes: int = 0) -> Succession | None:
    """Let a new place come up beside the place `key`; None when the caps leave no room, or the plan has no such place.

    Args:
        draft: the step's. key: role and index of a place that the plan has.
        why: what is wrong with it, as a clause ("does 0.1 of what its peers do").
        tight_bytes: what the new one can do with for now, where the caps leave no room for all of its memory.
    """
    state = draft.state
    role, index = key
    memory = state.slots[key].memory_bytes if key in state.slots else 0
    if room_beside(state, role, memory):
        tight_bytes = 0
    elif not tight_bytes or not room_beside(state, role, memory, tight_bytes):
        return None
    if key in state.successions or index not in state.active(role):
        return None
    found = Succession(_free(state, role), draft.now, why)
    before = state.slots.get((role, found.new), Slot(role, found.new))
    draft.state = replace(state, successions={**state.successions, key: found})
    draft.put_slot(replace(before.anew(), memory_bytes=0 if tight_bytes else memory, tight_bytes=tight_bytes))
    return found


def take_over(draft: Draft, key: Key) -> None:
    """The new place is the plan's from now on; the old one finishes or hands over what it has, and leaves."""
    _end(draft, key)
    _retire(draft, key)


def give_up(draft: Draft, key: Key) -> None:
    """The old place stays, and the one that was to take over leaves."""
    new = (key[0], draft.state.successions[key].new)
    _end(draft, key)
    _retire(draft, new)


def take_back(draft: Draft, role: str) -> bool:
    """A retired parameter server that can't hand over what it has stays, and the one that has nothing yet goes."""
    state = draft.state
    owner = state.document.routing.owner
    owning = [key for key in state.retired if key[0] == role and key[1] in owner and key not in state.barred]
    empty = [index for index in state.active(role) if index not in owner]
    if not owning or not empty or state.committing or state.tenancies:
        return False
    old, new = min(owning), (role, max(empty))
    draft.state = replace(state, retired=state.retired - {old})
    draft.put_slot(replace(state.slots[old], active=True, started=True))
    _retire(draft, new)
    return True


def predecessor(state: State, key: Key) -> Key | None:
    """The place that the place `key` is to take over from, None when there is none."""
    return next((old for old, one in state.successions.items() if (old[0], one.new) == key), None)


def pods_room(state: State, role: str) -> bool:
    """Whether the cap on pods of a role leaves room for one more beside all that are there, ending ones included."""
    limits = state.settings.limits
    most = limits.workers if role == "worker" else limits.ps
    there = sum(pod.role == role for pod in state.pods.values())
    return most is None or there + sum(name.startswith(f"{role}-") for name in state.departed) < most


def room_beside(state: State, role: str, least_bytes: int = 0, tight_bytes: int = 0) -> bool:
    """Whether the caps leave room for one more place of a role beside all of the plan; bytes as for `has_room`."""
    waiting = {key for key, slot in state.slots.items() if key[0] == role and slot.active}
    waiting -= {pod.slot for pod in state.pods.values()}
    return not waiting and pods_room(state, role) and has_room(state, role, least_bytes, tight_bytes)


def fit_places(draft: Draft) -> None:
    """The places of both roles are those of the document's plan, and those that are to take over from one of them."""
    state = draft.state
    present = {pod.slot for pod in state.pods.values()}
    if not state.retired <= present:
        draft.state = replace(state, retired=state.retired & present)
    plan = state.document.plan
    for role, count in (("ps", plan.ps.replicas), ("worker", plan.worker.replicas)):
        _do_without(draft, role, count)
        places = draft.state.places(role, count)
        coming = {one.new for (of, _), one in draft.state.successions.items() if of == role}
        for index in places:
            slot = draft.state.slots.get((role, index))
            if slot is None:
                draft.put_slot(Slot(role, index))
            elif not slot.active and (role, index) not in present:
                draft.put_slot(slot.anew())
            elif not slot.active:
                draft.put_slot(replace(slot, active=True, in_row=0, total=0))
        for (of, index), slot in tuple(draft.state.slots.items()):
            if of == role and slot.active and index not in coming and index not in places:
                draft.put_slot(replace(slot, active=False, started=False))


def _do_without(draft: Draft, role: str, count: int) -> None:
    """A smaller plan does without the places that are to be taken over from, rather than without the last ones."""
    for key in sorted(draft.state.successions):
        if key[0] == role and (key in draft.state.barred or len(draft.state.active(role)) > count):
            give_up(draft, key)
            _retire(draft, key)


def _end(draft: Draft, key: Key) -> None:
    state = draft.state
    draft.state = replace(state, successions={old: one for old, one in state.successions.items() if old != key})


def _retire(draft: Draft, key: Key) -> None:
    """The plan has this place no more; nobody gets it before its pod is gone."""
    draft.state = replace(draft.state, retired=draft.state.retired | {key})
    draft.put_slot(replace(draft.state.slots[key], active=False, started=False))


def _free(state: State, role: str) -> int:
    """The first index that no place or pod has, and that is not barred."""
    taken = {index for (of, index), slot in state.slots.items() if of == role and slot.active}
    taken |= {index for of, index in state.barred if of == role}
    taken |= {pod.slot[1] for pod in state.pods.values() if pod.role == role}
    return next(index for index in range(len(taken) + 1) if index not in taken)
