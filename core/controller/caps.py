"""Caps that change while a job runs, because other jobs came to the machine or left it.

Cores fall at once: every share is cut to the new cap with the next tick, whatever the plan says. Memory can't be cut
like that, so a plan that does not fit any more is made smaller by a decision like all others, and the pods that it has
no place for leave. What the job may need at least, and what it may still use of what it had, is told from the state;
whoever shares the machine out waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

from trimtab.core.controller.shares import memory_in_use
from trimtab.core.controller.state import Draft, Phase, State
from trimtab.core.domain.job import Mode
from trimtab.core.domain.plan import SMALLEST_CPU, Limits, Plan, within
from trimtab.core.domain.records import Decision
from trimtab.core.domain.values import replace
from trimtab.core.optimizer import words
from trimtab.core.optimizer.smaller import smaller

OTHERS_WAIT, ROOM_IS_FREE = "another job of this machine waits for room", "room has become free on this machine"


def caps_changed(draft: Draft, limits: Limits) -> None:
    """The job's pods may use more, or less, from now on."""
    state = draft.state
    before = state.settings.limits
    if limits == before:
        return
    fell = _falls(before, limits)
    draft.state = replace(
        state, settings=replace(state.settings, limits=limits), caps_fell=state.caps_fell or fell
    )
    why = OTHERS_WAIT if fell else ROOM_IS_FREE
    text = f"the job's pods may use {_room_words(limits)} now, instead of {_room_words(before)}: {why}"
    draft.note("caps", text, cpu=limits.cpu, memory_bytes=limits.memory_bytes)


def keep_caps(draft: Draft, least_ps: Callable[[], int]) -> None:
    """Wish for a smaller plan where the present one is over the caps, and for no other that would be.

    Args:
        draft: the step's.
        least_ps: tells how many parameter servers hold the tables.
    """
    state = draft.state
    limits, plan, wish = state.settings.limits, state.document.plan, state.wish
    if limits.memory_bytes is not None:  # what single places have beyond the plan is used as well
        limits = replace(limits, memory_bytes=limits.memory_bytes - raised_memory(state))
    if not state.caps_fell or state.settings.mode is not Mode.AUTO:
        return
    if state.phase is not Phase.TRAINING or state.committing:
        return
    if wish is not None and not within(wish.plan, limits):
        found = smaller(wish.plan, limits, least_ps())
        if found is None or found == plan:
            state = replace(state, wish=None, giving_up=None)
        else:
            state = replace(state, wish=replace(wish, plan=found, action=words.action(plan, found)))
        draft.state = state
    if state.wish is not None or within(plan, limits):
        return
    cut = smaller(plan, limits, least_ps())
    if cut is None:  # nobody who asks how little the job can do with comes here
        return
    room = _room_words(state.settings.limits)
    reason = f"Another job of this machine waits for room: this one's pods may use {room} now"
    draft.state = replace(
        state,
        wish=Decision(
            state.seconds(draft.now), "shrink", cut, f"{reason}.", action=words.action(plan, cut), before=plan,
        ),
    )  # fmt: skip


def least_plan(state: State, least_ps: int) -> Plan:
    """The smallest plan that the job could go on with: as the present one is, where the plan can't change."""
    plan = state.document.plan
    if state.settings.mode is not Mode.AUTO or state.phase is not Phase.TRAINING:
        return plan
    servers = min(least_ps, plan.ps.replicas)
    return Plan(
        replace(plan.ps, replicas=servers, cpu=min(SMALLEST_CPU, plan.ps.cpu)),
        replace(plan.worker, replicas=1, cpu=min(SMALLEST_CPU, plan.worker.cpu)),
    )


def raised_memory(state: State) -> int:
    """Bytes that single places have beyond what the plan gives their role."""
    plan = state.document.plan
    raised = (
        slot.memory_bytes - getattr(plan, slot.role).memory_bytes
        for slot in state.slots.values() if slot.active and slot.memory_bytes
    )  # fmt: skip
    return int(sum(max(0, more) for more in raised))


def memory_needed(state: State) -> int:
    """Bytes that the pods may come to use, whatever is decided already and not yet done."""
    plans = [state.document.plan, *([state.wish.plan] if state.wish is not None else [])]
    return max(memory_in_use(state), *(one.memory_bytes + raised_memory(state) for one in plans))


def _falls(before: Limits, after: Limits) -> bool:
    pairs = ((before.cpu, after.cpu), (before.memory_bytes, after.memory_bytes))
    return any(new is not None and (old is None or new < old) for old, new in pairs)


def _room_words(limits: Limits) -> str:
    cores = "any number of cores" if limits.cpu is None else f"{limits.cpu:g} core{'' if limits.cpu == 1 else 's'}"
    return cores if limits.memory_bytes is None else f"{cores} and {limits.memory_bytes / 2**30:.1f} GiB"
