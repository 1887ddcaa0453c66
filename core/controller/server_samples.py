"""Windows in which all parameter servers are measured together, from what they and the workers report.

A window is begun and ended by the reports of that moment, each with its own time, so that it does not matter when a
server speaks. A change of routing, plan, cores or processes voids all windows. While one writes copies, which takes its
cores, a window says nothing about that one; a busy job does it every few seconds, so the others are not lost with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from trimtab.core.controller.balance import told
from trimtab.core.controller.shares import shares
from trimtab.core.controller.state import Phase, Pod, State
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.stability.hot_ps import (
    Cause,
    HotServer,
    Marks,
    ServerLook,
    ServerMark,
    ServerWatch,
    Window,
)

_LONGEST_SECONDS = 30.0  # with too few batches in it, a window is given up


def sampled(state: State, now: float) -> ServerWatch:
    """The watch after one more look: one window more when one is full; the same when there is nothing new."""
    watch, rules = state.hot, state.settings.hot
    servers = _servers(state)
    if servers is None or state.moving or state.tenancies or state.wish is not None:
        return replace(watch, basis=(), marks=None, windows=(), calm=())
    basis = _basis(state, servers)
    if basis != watch.basis:
        return replace(watch, basis=basis, since=now, marks=None, windows=(), calm=())
    if now - watch.since < rules.settle_seconds:
        return watch
    copying = frozenset(pod.slot[1] for pod in servers if pod.report is not None and pod.report.copying)
    marks = watch.marks
    if marks is None or now - marks.at > max(_LONGEST_SECONDS, 2 * rules.sample_seconds):
        return replace(watch, marks=replace(_marks(state, servers, now), copying=copying))
    if not copying <= marks.copying:
        marks = replace(marks, copying=marks.copying | copying)
        watch = replace(watch, marks=marks)
    present = _marks(state, servers, now)
    shortest = min(present.servers[name].at - one.at for name, one in marks.servers.items())
    short = now - marks.at < rules.sample_seconds or shortest < rules.sample_seconds / 2  # a slow one reports late
    if short or present.batches - marks.batches < rules.batches:
        return watch
    window = _window(state, servers, marks, present)
    windows = (*(one for one in watch.windows if now - one.at <= rules.fresh_seconds), window)
    calm = watch.calm if window.copying or len(watch.calm) >= rules.samples else (*watch.calm, window)
    return replace(watch, marks=replace(present, copying=copying), windows=windows, calm=calm)


def _servers(state: State) -> list[Pod] | None:
    """The plan's parameter servers, while training is under way and all of them serve; else None."""
    if state.phase is not Phase.TRAINING or not state.ledger.served or not state.ledger.todo:
        return None
    places = state.active("ps")
    found = [pod for pod in state.servers() if pod.slot[1] in places and pod.report is not None]
    return found if len(found) == len(places) else None


def _basis(state: State, servers: list[Pod]) -> tuple[object, ...]:
    """What must be the same for two windows to be compared."""
    share = shares(state)
    cores = tuple((pod.process, share[pod.name]) for pod in servers)
    workers = tuple(pod.name for pod in state.workers() if pod.worked)
    return (state.document.routing.version, state.document.plan, cores, workers)


def _marks(state: State, servers: list[Pod], now: float) -> Marks:
    marks = {
        pod.process: ServerMark(pod.heard_at or now, pod.cpu_seconds, pod.report.busy_seconds)
        for pod in servers if pod.report is not None
    }  # fmt: skip
    waits = {name: math.fsum(pod.waits.get(name, 0.0) for pod in state.workers()) for name in marks}
    return Marks(now, marks, waits, sum(pod.reported for pod in state.workers()))


def _window(state: State, servers: list[Pod], then: Marks, here: Marks) -> Window:
    batches, seconds = here.batches - then.batches, here.at - then.at
    traffic, heaviest = loads_of(state)
    share = shares(state) if state.settings.cpu_enforced else {}
    found = {}
    for pod in servers:
        place, before, after = pod.slot[1], then.servers[pod.process], here.servers[pod.process]
        took = after.at - before.at
        found[place] = ServerLook(
            share.get(pod.name, 0.0), (after.cpu_seconds - before.cpu_seconds) / took,
            (here.waits[pod.process] - then.waits[pod.process]) / batches,
            (after.busy_seconds - before.busy_seconds) / took * seconds / batches, traffic.get(place, 0.0),
            heaviest.get(place, 0.0), state.balance.capacity.get(place, 1.0),
        )  # fmt: skip
    workers = sum(pod.worked for pod in state.workers())
    return Window(here.at, workers * seconds / batches, found, then.copying)


def loads_of(state: State) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Each place's part of the traffic, and what part of it its heaviest vshard has; by count where none is told.

    A vshard's traffic is taken as it was known at rest, because a new owner has seen nothing of it yet.
    """
    owner = state.document.routing.owner
    values = np.array(state.balance.traffic or told(state, "vshard_traffic") or (1.0,) * len(owner))
    if values.sum() <= 0:
        values = np.ones(len(owner))
    places, total = np.array(owner), float(values.sum())
    parts, heaviest = {}, {}
    for place in set(owner):
        mine = values[places == place]
        part = float(mine.sum())
        parts[place] = part / total
        if part > 0:
            heaviest[place] = float(mine.max()) / part
    return parts, heaviest


def heaviest_words(state: State, pod: Pod, found: HotServer) -> str:
    """Where a place's traffic goes, as far as that is why it is late: its heaviest vshard and table; else ""."""
    words = ""
    if found.cause is Cause.VSHARD:
        values = state.balance.traffic or told(state, "vshard_traffic") or ()
        own = [vshard for vshard, place in enumerate(state.document.routing.owner) if place == found.place]
        if values and own:
            words = f" (vshard {max(own, key=lambda vshard: values[vshard])})"
    by_table, names = pod.report.table_traffic if pod.report is not None else (), state.settings.tables
    total = math.fsum(by_table)
    if found.cause in (Cause.VSHARD, Cause.LOAD) and len(by_table) == len(names) and total > 0:
        most = max(range(len(names)), key=lambda number: by_table[number])
        words += f", {by_table[most] / total:.0%} of it for table '{names[most]}'"
    return words
