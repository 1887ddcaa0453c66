"""Cores for each pod at this moment, so that their sum never exceeds the cap, whatever comes and goes.

A change of plan overlaps: what leaves is still there when what comes begins. So shares are computed for the pods that
exist, not for the plan alone, and all give a little while there is one too many.
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
    free = (math.inf if cap is None else cap) - sum(state.departed.values())
    total = sum(wanted.values())
    if total <= free + 1e-9:
        return wanted
    factor = max(0.0, free) / total
    return {name: math.floor(cpu * factor * 1000) / 1000 for name, cpu in wanted.items()}
