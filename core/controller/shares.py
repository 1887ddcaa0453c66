"""Cores and memory for each pod at this moment, so that their sums never exceed the caps, whatever comes and goes.

A change of plan overlaps: what leaves is still there when what comes begins. So shares are computed for the pods that
exist, not for the plan alone, and all give a little while there is one too many. Memory can't be given a little: where
there is no room for what comes beside what leaves, it waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trimtab.core.controller.state import State


def shares(state: State) -> Mapping[str, float]:
    """Cores of every pod that should run, by name; with those that are departing their sum is within the cap."""
    plan = state.document.plan
    before = state.plans[-2].plan if len(state.plans) > 1 else plan  # what leaves has no more than it had
    wanted = {
        pod.name: getattr(plan if state.slots[pod.slot].active else before, pod.role).cpu
        for pod in state.pods.values()
    }  # fmt: skip
    cap = state.settings.limits.cpu
    free = (math.inf if cap is None else cap) - sum(one.cpu for one in state.departed.values())
    total = sum(wanted.values())
    if total <= free + 1e-9:
        return wanted
    factor = max(0.0, free) / total
    return {name: math.floor(cpu * factor * 1000) / 1000 for name, cpu in wanted.items()}


def memory_in_use(state: State) -> int:
    """Bytes of all that is there or has its place: pods, places whose pod is to come again, and departing pods."""
    plan, before = state.document.plan, state.plans[-2].plan if len(state.plans) > 1 else state.document.plan
    there = {pod.slot for pod in state.pods.values()}
    total = sum(one.memory_bytes for one in state.departed.values())
    for key, slot in state.slots.items():
        if key in there or (slot.active and slot.started):
            total += int(getattr(plan if slot.active else before, slot.role).memory_bytes)
    return total


def has_room(state: State, role: str) -> bool:
    """Whether one more pod of `role` fits into the memory cap beside all that are there."""
    cap = state.settings.limits.memory_bytes
    wanted: int = getattr(state.document.plan, role).memory_bytes
    return cap is None or memory_in_use(state) + wanted <= cap
