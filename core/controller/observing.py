"""From reports to observations: what a plan brings, measured only while everything runs as planned.

A window begins when the plan has been in full force for a while and ends after some seconds; anything that disturbs it
(a pod lost, a move, a change) voids it. Rates are taken between reports of the same pod, so that it does not matter
when each of them speaks. What was observed before a change says nothing about the plan after it (case 32).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from trimtab.core.controller.state import Draft, Mark, Phase, Pod, State
from trimtab.core.domain.records import Observation
from trimtab.core.domain.values import replace


def settled(state: State) -> bool:
    """Whether exactly the plan's pods are at work, and nothing moves, comes, goes or runs short of work."""
    if state.phase is not Phase.TRAINING or not state.ledger.served or not state.ledger.todo:
        return False
    if state.departed or state.moving or state.tenancies or state.wish is not None or state.hot.acting:
        return False
    planned = {key for key, slot in state.slots.items() if slot.active}
    at_work = {pod.slot for pod in state.pods.values() if pod.batches or (pod.role == "ps" and pod.report is not None)}
    return at_work == planned == {pod.slot for pod in state.pods.values()}


def observe(draft: Draft) -> Observation | None:
    """Go on with the window; returns the observation when it is full, which is also kept in the state."""
    state, settings = draft.state, draft.state.settings
    if not settled(state):
        if state.settled_at is not None or state.marks:
            draft.state = replace(state, settled_at=None, marks={})
        return None
    if state.settled_at is None:
        draft.state = replace(state, settled_at=draft.now)
        return None
    if draft.now - state.settled_at < settings.settle_seconds:
        return None
    present = _marks(state)
    if not state.marks or state.marks.keys() != present.keys():
        # Somebody whose calls are lost for a while was heard last before the change: a window would reach back to it.
        fresh = all(mark.at >= state.settled_at for mark in present.values())
        draft.state = replace(state, marks=present if fresh else {})
        return None
    if min(present[name].at - mark.at for name, mark in state.marks.items()) < settings.window_seconds:
        return None
    seen = _observation(state, present, draft.now)
    kept = (*state.observations, seen) if seen is not None else state.observations
    draft.state = replace(state, marks=present, observations=kept[-_MOST:])
    return seen


_MOST = 2000  # windows kept: hours of a job


def _marks(state: State) -> Mapping[str, Mark]:
    return {
        pod.name: Mark(pod.heard_at, pod.cpu_seconds, pod.batches, pod.rows, pod.phase_seconds)
        for pod in state.pods.values() if pod.heard_at is not None
    }  # fmt: skip


def _observation(state: State, present: Mapping[str, Mark], now: float) -> Observation | None:
    """Rates between the marks; None when nothing was trained."""
    rows = batches = worker_cpu = ps_cpu = 0.0
    counted = 0
    at_ps: list[float] = []
    speeds: list[float] = []
    shortest = min(present[name].at - mark.at for name, mark in state.marks.items())
    phases: dict[str, float] = {}
    for pod in state.pods.values():
        then, here = state.marks[pod.name], present[pod.name]
        seconds = here.at - then.at
        cpu = (here.cpu_seconds - then.cpu_seconds) / seconds
        if pod.role == "ps":
            ps_cpu += cpu
            at_ps.append(cpu)
            continue
        worker_cpu += cpu
        rows += (here.rows - then.rows) / seconds
        batches += (here.batches - then.batches) / seconds
        speeds.append((here.batches - then.batches) / seconds)
        counted += here.batches - then.batches
        for name, value in here.phase_seconds.items():
            phases[name] = phases.get(name, 0.0) + value - then.phase_seconds.get(name, 0.0)
    if batches <= 0:
        return None
    return Observation(
        state.document.plan, rows, worker_cpu / batches or None, ps_cpu / batches or None, state.settings.batch_size,
        time_seconds=state.seconds(now), window_seconds=shortest, batches=counted,
        phase_seconds={name: value / counted for name, value in phases.items()} if counted else {},
        ps_skew=max(at_ps) / (ps_cpu / len(at_ps)) if ps_cpu > 0 else None,
        slowest_worker=min(speeds) / median(speeds) if len(speeds) > 1 and median(speeds) > 0 else None,
    )  # fmt: skip


def count_work(pod: Pod, batches: int, rows: int, phases: Mapping[str, float]) -> Pod:
    """A worker's pod with what one report adds."""
    times = {name: pod.phase_seconds.get(name, 0.0) + phases.get(name, 0.0) for name in {*pod.phase_seconds, *phases}}
    return replace(pod, batches=pod.batches + batches, rows=pod.rows + rows, phase_seconds=times)


def count_waits(state: State, pod: Pod, seconds: Mapping[str, float]) -> Pod:
    """A worker's pod with what it waited for each parameter server since its last report; strangers don't count."""
    known = {one.process for one in state.servers() if one.process}
    told = {name: value for name, value in seconds.items() if name in known and 0.0 < value < math.inf}
    names = known & (pod.waits.keys() | told.keys())
    return replace(pod, waits={name: pod.waits.get(name, 0.0) + told.get(name, 0.0) for name in names})
