"""Cores and memory for each pod at this moment, so that their sums never exceed the caps, whatever comes and goes.

A change of plan overlaps: what leaves is still there when what comes begins. So shares are computed for the pods that
exist, not for the plan alone, and all give a little while there is one too many. Memory can't be given a little: where
there is no room for what comes beside what leaves, it waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trimtab.core.controller.state import Phase, State

LENT_TO_START = 0.65  # of a working worker's cores, while another one gets ready
ONE_THREAD = 1.0  # cores that getting ready can use
LENT_SHARE = 0.7  # of a worker's cores, while a parameter server loads what was lost and no batch can be trained


def shares(state: State) -> Mapping[str, float]:
    """Cores of every pod that should run, by name; with those that are departing their sum is within the cap."""
    plan = state.document.plan
    before = state.plans[-2].plan if len(state.plans) > 1 else plan  # what leaves has no more than it had
    wanted = {
        pod.name: getattr(plan if state.slots[pod.slot].active else before, pod.role).cpu
        for pod in state.pods.values()
    }  # fmt: skip
    wanted = _lent_to_starting(state, _lent_to_loading(state, wanted))
    cap = state.settings.limits.cpu
    free = (math.inf if cap is None else cap) - sum(one.cpu for one in state.departed.values())
    total = sum(wanted.values())
    if total <= free + 1e-9:
        return wanted
    factor = max(0.0, free) / total
    return {name: math.floor(cpu * factor * 1000) / 1000 for name, cpu in wanted.items()}


def _lent_to_loading(state: State, wanted: dict[str, float]) -> dict[str, float]:
    """The same cores, most of the workers' lent to parameter servers that load: everybody waits for these."""
    if state.phase is not Phase.TRAINING or state.ledger.served or state.tenancies:
        return wanted
    owners = state.ledger.tenures
    loading = [
        pod.name for pod in state.servers()
        if pod.report is None or pod.report.loading or pod.process not in owners
    ]  # fmt: skip
    if not loading:
        return wanted
    lent = {pod.name: wanted[pod.name] * LENT_SHARE for pod in state.workers()}
    each = sum(lent.values()) / len(loading)
    found = {name: math.floor((cpu - lent.get(name, 0.0)) * 1000) / 1000 for name, cpu in wanted.items()}
    return found | {name: math.floor((wanted[name] + each) * 1000) / 1000 for name in loading}


def _lent_to_starting(state: State, wanted: dict[str, float]) -> dict[str, float]:
    """The same cores, a part of the working workers' lent to those that have not done a batch yet.

    Getting ready is a fixed amount of one thread's work, so it is over the sooner, at the price of somewhat longer
    steps meanwhile.
    """
    if state.phase is not Phase.TRAINING or not state.ledger.served:
        return wanted
    working = [pod.name for pod in state.workers() if pod.worked]
    starting = [pod.name for pod in state.workers() if not pod.worked and wanted[pod.name] < ONE_THREAD]
    if not working or not starting:
        return wanted
    most = sum(wanted[name] for name in working) * LENT_TO_START
    asked = sum(ONE_THREAD - wanted[name] for name in starting)
    given = min(most, asked)
    less, more = given / sum(wanted[name] for name in working), given / asked
    found = {name: math.floor(wanted[name] * (1 - less) * 1000) / 1000 for name in working}
    found |= {name: math.floor((wanted[name] + (ONE_THREAD - wanted[name]) * more) * 1000) / 1000 for name in starting}
    return wanted | found


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
