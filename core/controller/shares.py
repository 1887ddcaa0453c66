"""Cores and memory for each pod at this moment, so that their sums never exceed the caps, whatever comes and goes.

A change of plan overlaps: what leaves is still there when what comes begins. So shares are computed for the pods that
exist, not for the plan alone, and all give a little while there is one too many. Memory can't be given a little: where
there is no room for what comes beside what leaves, it waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trimtab.core.controller.server_shares import lent_to_moving, uneven
from trimtab.core.controller.state import Phase, Pod, State
from trimtab.core.domain.plan import Plan, table_room

LENT_TO_START = 0.65  # of a working worker's cores, while another one gets ready
ONE_THREAD = 1.0  # cores that getting ready can use
LENT_SHARE = 0.7  # of a worker's cores, while a parameter server loads what was lost and no batch can be trained
KEPT_BY_SLOW = 0.25  # of its cores, by a slow worker while another comes in its place


def shares(state: State) -> Mapping[str, float]:
    """Cores of every pod that should run, by name; with those that are departing their sum is within the cap."""
    plan = state.document.plan
    before = state.plans[-2].plan if len(state.plans) > 1 else plan  # what leaves has no more than it had
    wanted = {
        pod.name: getattr(plan if state.of_plan(pod.slot) else before, pod.role).cpu
        for pod in state.pods.values()
    }  # fmt: skip
    wanted = lent_to_moving(state, _for_successors(state, uneven(state, wanted)))
    wanted = _lent_to_writing(state, _lent_to_starting(state, _lent_to_loading(state, wanted)))
    cap = state.settings.limits.cpu
    free = (math.inf if cap is None else cap) - sum(one.cpu for one in state.departed.values())
    total = sum(wanted.values())
    if total <= free + 1e-9:
        return wanted
    factor = max(0.0, free) / total
    return {name: math.floor(cpu * factor * 1000) / 1000 for name, cpu in wanted.items()}


def _for_successors(state: State, wanted: dict[str, float]) -> dict[str, float]:
    """The same cores, most of a slow worker's for the one that comes in its place, with what the cap has to spare."""
    found = dict(wanted)
    by_place = {pod.slot: pod for pod in state.workers()}
    starting = []
    for key in {*state.successions, *state.retired} & by_place.keys():
        found[by_place[key].name] *= KEPT_BY_SLOW
    for (role, index), one in state.successions.items():
        new = by_place.get((role, one.new))
        if new is not None and (role, index) in by_place:
            found[new.name] *= 1 - KEPT_BY_SLOW
        if new is not None and not new.worked:
            starting.append(new.name)
    asked = sum(max(0.0, ONE_THREAD - found[name]) for name in starting)
    if asked > 0:
        cap = state.settings.limits.cpu
        free = (math.inf if cap is None else cap) - sum(one.cpu for one in state.departed.values())
        part = min(1.0, max(0.0, free - sum(found.values())) / asked)
        found |= {name: found[name] + max(0.0, ONE_THREAD - found[name]) * part for name in starting}
    return {name: cpu if cpu == wanted[name] else math.floor(cpu * 1000) / 1000 for name, cpu in found.items()}


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


def _lent_to_writing(state: State, wanted: dict[str, float]) -> dict[str, float]:
    """The same cores, most of the workers' lent to the servers that write the last copies: nothing is trained."""
    drained = state.phase is Phase.STOPPING and state.stop is not None and state.stop.drained_at is not None
    servers = [pod.name for pod in state.servers()]
    if not servers or not (drained or state.phase is Phase.CLOSING):
        return wanted
    lent = {pod.name: wanted[pod.name] * LENT_SHARE for pod in state.workers()}
    each = sum(lent.values()) / len(servers)
    found = {name: math.floor((cpu - lent.get(name, 0.0)) * 1000) / 1000 for name, cpu in wanted.items()}
    return found | {name: math.floor((wanted[name] + each) * 1000) / 1000 for name in servers}


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


def memory_of(state: State, key: tuple[str, int]) -> int:
    """Bytes of a place's pod: what the plan gives, or what it was given beyond, or less for the time being."""
    plan = state.document.plan
    if not state.of_plan(key) and len(state.plans) > 1:
        plan = state.plans[-2].plan  # what leaves has no more than it had
    given: int = state.slots[key].tight_bytes or getattr(plan, key[0]).memory_bytes
    return max(given, state.slots[key].memory_bytes)


def memory_in_use(state: State) -> int:
    """Bytes of all that is there or has its place: pods, places whose pod is to come again, and departing pods."""
    there = {pod.slot for pod in state.pods.values()}
    total = sum(one.memory_bytes for one in state.departed.values())
    return total + sum(
        memory_of(state, key) for key, slot in state.slots.items() if key in there or (slot.active and slot.started)
    )


def memory_beyond(state: State) -> int:
    """Bytes that places of the plan were given beyond it; no plan may count on them."""
    plan = state.document.plan
    return sum(
        max(0, slot.memory_bytes - getattr(plan, slot.role).memory_bytes)
        for slot in state.slots.values() if slot.active
    )  # fmt: skip


def memory_free(state: State) -> int:
    """Bytes that can be given beyond the plan: nobody has them, and neither this plan nor the wished one needs them."""
    cap = state.settings.limits.memory_bytes
    if cap is None:
        return 1 << 62
    there = {pod.slot for pod in state.pods.values()}
    coming = sum(
        memory_of(state, key)
        for key, slot in state.slots.items() if slot.active and not slot.started and key not in there
    )  # fmt: skip
    more = 0 if state.wish is None else max(0, state.wish.plan.memory_bytes - state.document.plan.memory_bytes)
    return max(0, cap - memory_in_use(state) - coming - more)


def has_room(state: State, role: str, least_bytes: int = 0, tight_bytes: int = 0) -> bool:
    """Whether one more pod of `role` fits into the memory cap beside all that are there.

    It gets what the plan gives, `least_bytes` at least, or no more than `tight_bytes` where that is given.
    """
    cap = state.settings.limits.memory_bytes
    wanted = tight_bytes or max(least_bytes, getattr(state.document.plan, role).memory_bytes)
    return cap is None or memory_in_use(state) + wanted <= cap


def fits_beyond(state: State, plan: Plan) -> bool:
    """Whether a plan fits into the memory cap with what places of the present one were given beyond it."""
    cap = state.settings.limits.memory_bytes
    return cap is None or plan.memory_bytes + memory_beyond(state) <= cap


def table_limit(state: State, pod: Pod) -> int:
    """How far a parameter server's table may grow: never beyond what is enforced already, so a raise comes first."""
    wanted, held = memory_of(state, pod.slot), pod.memory_limit
    return table_room(min(wanted, held) if held else wanted)
