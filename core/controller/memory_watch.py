"""What is done before a pod meets its memory limit.

In the order of what it costs: a higher limit in place where the caps have room, vshards to parameter servers that have
some, another parameter server, and at last a stop with a checkpoint, a reason and the size that would do. A table that
is full ends nothing: its parameter server refuses new rows until it may grow, so there is time for all of that. What
the kernel kills all the same is answered by `out_of_memory`.

In mode `advise` all this is only said, as long as the job does not end for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trimtab.core.controller.growing import table_memory
from trimtab.core.controller.out_of_memory import say, watch_kills, what_would_do
from trimtab.core.controller.shares import memory_beyond, memory_free, memory_of
from trimtab.core.controller.spreading import Layout, loads, spread, weights
from trimtab.core.controller.state import Draft, Phase, Pod, State
from trimtab.core.controller.stopping import ask_to_stop
from trimtab.core.domain.job import JobState, Mode
from trimtab.core.domain.plan import SMALLEST_CPU, Plan, RolePlan, within
from trimtab.core.domain.quantities import format_memory
from trimtab.core.domain.records import Decision
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.stability.memory import MemoryWatch, Outlook, Use, kept, outlook, ps_need, size_for
from trimtab.core.perf.memory import LOG_BYTES

FINDING = "memory"
_MEBI = 1 << 20
_LEAST_RAISE = 16 * _MEBI
_ENDS_BEFORE = 1.2  # times what is left of the job: a limit that is met later is none
_NEXT_TO = 0.97  # of a limit: more than that is about to be killed
_RELIEF = 0.95  # a move has to bring the full one below so much of what it holds


@dataclass(frozen=True)
class _Case:
    """A pod that comes near its limit: what it has, what comes of it, whether its table refuses rows already."""

    pod: Pod
    limit: int
    seen: Outlook
    full: bool
    imminent: bool


def watch_memory(draft: Draft) -> None:
    """Look at each pod's memory and its forecast, and act before a limit is met."""
    watch_kills(draft)
    _forget_gone(draft)
    due = draft.now >= draft.state.memory.next_at
    _sample(draft)
    if not (due or draft.state.memory.full_since):
        return  # nothing has been seen since the last look
    for pod in sorted(draft.state.pods.values(), key=lambda one: (one.role, one.slot)):
        if draft.state.phase in (Phase.STARTING, Phase.TRAINING) and draft.state.slots[pod.slot].active:
            _judge(draft, pod)


# ---- looking


def _sample(draft: Draft) -> None:
    state, rules, watch = draft.state, draft.state.settings.memory, draft.state.memory
    uses, full_since = dict(watch.uses), dict(watch.full_since)
    for pod in state.servers():
        full = pod.report is not None and pod.report.full and not pod.report.error
        if full:
            full_since.setdefault(pod.name, draft.now)
        else:
            full_since.pop(pod.name, None)
    version = state.document.routing.version
    if watch.routing != version or state.moving or state.tenancies:  # rows that come or go are no growth (case 32)
        uses = {name: one for name, one in uses.items() if state.pods[name].role == "worker"}
    if draft.now >= watch.next_at:
        for pod in state.pods.values():
            use = _use(state, pod, draft.now)
            if use is not None:
                uses[pod.name] = kept(uses.get(pod.name, ()), use, rules)
        watch = replace(watch, next_at=draft.now + rules.sample_seconds)
    _put(draft, replace(watch, uses=uses, full_since=full_since, routing=version))


def _use(state: State, pod: Pod, now: float) -> Use | None:
    used = (pod.memory_used or pod.rss_bytes) if pod.memory_limit else 0  # else nothing is cut off at the limit
    cores = float(getattr(state.document.plan, pod.role).cpu)
    if pod.role == "worker":
        if not pod.worked or not used:
            return None
        coming = max(0, LOG_BYTES - pod.cache_bytes) if pod.cache_bytes else 0
        return Use(now, used, 0, coming, pod.cpu_seconds, cores)
    report = pod.report
    if report is None or not pod.process or not report.table_bytes or state.moving or state.tenancies:
        return None
    if report.loading or state.phase is Phase.STARTING:  # what is read fast has an end
        return None
    return Use(now, used, report.table_bytes, 0, pod.cpu_seconds, cores, report.copying)


def _forget_gone(draft: Draft) -> None:
    """Nothing is known any more of pods that are gone, nor of any while no training is under way."""
    state, watch = draft.state, draft.state.memory
    there = frozenset(state.pods) if state.phase in (Phase.STARTING, Phase.TRAINING) else frozenset()
    places = {_name(state.pods[name]) for name in there}
    for kind, subject in tuple(state.findings):
        if kind == FINDING and subject not in places and (kind, subject) not in state.degraded:
            say(draft, FINDING, subject, "")
    if not there >= {*watch.uses, *watch.full_since, *watch.raised_at}:
        _put(draft, replace(
            watch, uses={name: one for name, one in watch.uses.items() if name in there},
            full_since={name: one for name, one in watch.full_since.items() if name in there},
            raised_at={name: one for name, one in watch.raised_at.items() if name in there},
            said=watch.said & there,
        ))  # fmt: skip


# ---- judging


def _judge(draft: Draft, pod: Pod) -> None:
    state, rules, watch = draft.state, draft.state.settings.memory, draft.state.memory
    uses, full = watch.uses.get(pod.name), pod.name in watch.full_since
    if not uses and not full:
        return
    limit = memory_of(state, pod.slot)
    # Without samples it has no room for what it loads, and how much that is nobody has told yet.
    seen = outlook(uses, limit, rules) if uses else Outlook(int(limit * rules.factor), 0.0, 0.0)
    if seen.starved and not full:
        text = (
            f"{_name(pod)} grows by a queue of work and not by its table, and uses {seen.busy:.0%} of its cores: "
            "more cores would help, more memory would not"
        )
        _tell(draft, pod, text)
        return
    imminent = full or seen.seconds_left <= rules.imminent_seconds
    if not imminent and seen.seconds_left > min(rules.move_seconds, _ENDS_BEFORE * _seconds_to_end(state, draft.now)):
        _tell(draft, pod, "")
        return
    if draft.now - watch.raised_at.get(pod.name, -math.inf) < rules.pause_seconds:
        return
    case = _Case(pod, limit, seen, full, imminent)
    if state.settings.mode is Mode.ADVISE and not imminent:
        _tell(draft, pod, f"{_why(case)}: give it more memory, or add parameter servers")
    elif not imminent and seen.seconds_left > rules.raise_seconds and _can_raise(draft, case):
        _tell(draft, pod, "")  # there is time, and room
    elif _raise(draft, case):
        _tell(draft, pod, "")
    elif pod.role == "worker":
        _tell(draft, pod, f"{_why(case)}, and the caps have no more: {_would_do(state, case)}")
    else:
        _dearer(draft, case)


def _dearer(draft: Draft, case: _Case) -> None:
    """No limit can be raised: rows go elsewhere, another server comes, or the job stops while it still can in order."""
    text = f"{_why(case)}, and the caps have no more"
    if _under_way(draft, case):
        _tell(draft, case.pod, f"{text}: waiting for what is under way")
    elif draft.state.settings.mode is not Mode.ADVISE and (_move(draft, case) or _add(draft, case)):
        return
    elif _hopeless(draft, case):
        reason = f"{text}: {_would_do(draft.state, case)}"
        draft.note("memory", reason, pod=case.pod.name, role=case.pod.role)
        ask_to_stop(draft, reason, state=JobState.FAILED, out_of_memory=case.pod.role)
    else:
        _tell(draft, case.pod, f"{text}: the job stops with a checkpoint when it is met")


def _hopeless(draft: Draft, case: _Case) -> bool:
    """Whether the job can go no further: rows wait for room, or what is used is next to what kills."""
    watch, pod = draft.state.memory, case.pod
    waited = draft.now - watch.full_since.get(pod.name, draft.now)
    return waited >= draft.state.settings.memory.pause_seconds or pod.memory_used > _NEXT_TO * case.limit


def _under_way(draft: Draft, case: _Case) -> bool:
    """Whether something is being done that may help, and has not taken too long."""
    state = draft.state
    busy = state.moving or bool(state.tenancies) or state.wish is not None or state.committing
    busy = busy or any(slot.role == "ps" and slot.active and not slot.started for slot in state.slots.values())
    layout = state.layout
    busy = busy or layout is None or layout.places != tuple(state.active("ps"))
    since = state.memory.full_since.get(case.pod.name, draft.now)
    return busy and draft.now - since < state.settings.memory.patience_seconds


# ---- remedies


def _can_raise(draft: Draft, case: _Case) -> int:
    """By how much a limit can rise now, 0 for not at all."""
    state, rules = draft.state, draft.state.settings.memory
    held, since = case.pod.memory_limit, state.memory.raised_at.get(case.pod.name, draft.now)
    if held and held < case.limit and draft.now - since > rules.refused_seconds:
        return 0  # wherever it runs, it does not get more
    free = min(size_for(case.seen, case.limit, rules) - case.limit, memory_free(state)) // _MEBI * _MEBI
    return free if free >= _LEAST_RAISE else 0


def _raise(draft: Draft, case: _Case) -> bool:
    more = _can_raise(draft, case)
    if not more:
        return False
    state, pod, size = draft.state, case.pod, case.limit + more
    draft.put_slot(replace(state.slots[pod.slot], memory_bytes=size))
    _put(draft, replace(state.memory, raised_at={**state.memory.raised_at, pod.name: draft.now}))
    text = f"{_why(case)}: its limit rises to {format_memory(size)}"
    draft.note("memory", text, pod=pod.name, role=pod.role, memory_bytes=size, before=case.limit)
    return True


def _move(draft: Draft, case: _Case) -> bool:
    """Give rows of a full server to others that have room; True when that has begun."""
    state = draft.state
    routing, layout, places = state.document.routing, state.layout, tuple(state.active("ps"))
    if len(places) < 2 or not _may(draft, "move") or layout is None or layout.places != places:
        return False
    if layout.target != routing.owner or not state.ledger.served or not state.balance.rows:
        return False
    for weight in (weights(state.balance.rows, state.balance.traffic), weights(state.balance.rows, ())):
        target = spread(routing.owner, places, weight)
        if target != routing.owner and _fits(state, case, target):
            break
    else:
        return False
    count = sum(one != other for one, other in zip(routing.owner, target, strict=True))
    draft.state = replace(
        state, layout=Layout(places, target, levelling=True), balance=replace(state.balance, levelled_at=draft.now)
    )
    _try(draft, "move")
    text = f"{_why(case)}, and the caps have no more: {count} vshards move to others"
    draft.note("memory", text, pod=case.pod.name, moved=count)
    say(draft, FINDING, _name(case.pod), text)
    return True


def _fits(state: State, case: _Case, target: tuple[int, ...]) -> bool:
    """Whether all servers would have room for what they had then, and the full one clearly less than now."""
    tables = {pod.slot[1]: pod.report.table_bytes for pod in state.servers() if pod.report is not None}
    places = tuple(state.active("ps"))
    rows, total = state.balance.rows, sum(tables.get(place, 0) for place in places)
    held, whole = loads(target, rows, places), math.fsum(rows)
    if not total or not whole:
        return False
    then = {place: total * held[place] / whole for place in places}
    mine = case.pod.slot[1]
    if then[mine] > _RELIEF * tables.get(mine, 0):
        return False
    return all(ps_need(then[place]) <= memory_of(state, ("ps", place)) * _RELIEF for place in places if place != mine)


def _add(draft: Draft, case: _Case) -> bool:
    """Ask for one more parameter server, if the caps allow it; True when that has begun."""
    state, plan = draft.state, draft.state.document.plan
    if state.settings.mode is not Mode.AUTO or state.wish is not None or not _may(draft, "add"):
        return False
    limits = state.settings.limits
    if limits.memory_bytes is not None:
        limits = replace(limits, memory_bytes=limits.memory_bytes - memory_beyond(state))
    count = plan.ps.replicas + 1
    shared = math.floor(plan.ps.cpu * plan.ps.replicas / count * 1000) / 1000
    for cpu in (plan.ps.cpu, max(SMALLEST_CPU, shared)):
        new = Plan(RolePlan(count, cpu, plan.ps.memory_bytes), plan.worker)
        if within(new, limits):
            break
    else:
        return False
    reason = f"{_why(case)}, and the caps have no more for it."
    words = f"Add 1 PS: {plan.ps.replicas} → {count}"
    draft.state = replace(
        state, wish=Decision(state.seconds(draft.now), "memory", new, reason, action=words, before=plan)
    )
    _try(draft, "add")
    say(draft, FINDING, _name(case.pod), f"{reason[:-1]}: another PS comes")
    return True


def _may(draft: Draft, remedy: str) -> bool:
    """Whether a remedy was not tried a moment ago."""
    watch, rules = draft.state.memory, draft.state.settings.memory
    return draft.now - watch.tried.get(remedy, -math.inf) >= rules.patience_seconds


def _try(draft: Draft, remedy: str) -> None:
    watch = draft.state.memory
    _put(draft, replace(watch, tried={**watch.tried, remedy: draft.now}))


# ---- words


def _why(case: _Case) -> str:
    has = f"{_name(case.pod)} has {format_memory(case.limit)}"
    if case.full:
        return f"{has}, and its table has no room for new rows"
    if case.seen.seconds_left <= 0:
        return f"{has} and needs {_mebi(case.seen.need)}"
    pace = f"{_mebi(int(case.seen.rate * 60))} a minute"
    return f"{has}, needs {_mebi(case.seen.need)} and {pace} more: it would be full in {case.seen.seconds_left:.0f} s"


def _would_do(state: State, case: _Case) -> str:
    """The size that would do, by the forecast of the whole job where there is one."""
    need = 2.0 * case.seen.need
    if case.pod.role == "ps" and case.pod.report is not None:
        memory = table_memory(state)
        most = max(memory.at_end, memory.high)
        need = ps_need(most * case.pod.report.table_bytes / memory.now) if most and memory.now else need
    size = max(int(need), case.limit + _LEAST_RAISE)
    word = "PS" if case.pod.role == "ps" else "worker"
    return what_would_do(state, size - case.limit, f"{_mebi(size)} per {word}")


def _tell(draft: Draft, pod: Pod, text: str) -> None:
    """Keep what is said of a pod as a finding; the first word of it is an event, too."""
    watch = draft.state.memory
    if text and pod.name not in watch.said:
        _put(draft, replace(watch, said=watch.said | {pod.name}))
        draft.note("memory", text, pod=pod.name, role=pod.role)
    elif not text and pod.name in watch.said:
        _put(draft, replace(watch, said=watch.said - {pod.name}))
    say(draft, FINDING, _name(pod), text)


def _seconds_to_end(state: State, now: float) -> float:
    """Of training, at the present pace; infinite where that is not known."""
    rate = state.losses.rate(now)
    left = (state.settings.batches - len(state.ledger.applied)) * state.settings.batch_size
    return left / rate if rate else math.inf


def _name(pod: Pod) -> str:
    return f"{pod.role}-{pod.slot[1]}"


def _mebi(nbytes: int) -> str:
    return format_memory(max(1, math.ceil(nbytes / _MEBI)) * _MEBI)


def _put(draft: Draft, watch: MemoryWatch) -> None:
    draft.state = replace(draft.state, memory=watch)
