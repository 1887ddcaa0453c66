"""The first plan of a job: small and cold, or where similar runs ended, and always within the caps.

Cold and mode auto, a job starts with one worker and one parameter server, because growing costs a second or two once
something is measured, while a start that is too large is paid for until someone looks. The memory per pod is fixed for
the job's life, so it is sized at once for the pods that the job may grow to, not for those it starts with.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trimtab.core.domain.job import JobSpec, Mode
from trimtab.core.domain.plan import (
    SMALLEST_CPU,
    SMALLEST_PS_MEMORY,
    SMALLEST_WORKER_MEMORY,
    Limits,
    Plan,
    RolePlan,
    cold_plan,
    ps_memory_for,
)
from trimtab.core.domain.quantities import format_memory
from trimtab.core.domain.records import Decision, WarmStart
from trimtab.core.errors import BadInput
from trimtab.core.optimizer.lattice import PS_SHARE, TABLE_SKEW
from trimtab.core.optimizer.past_memory import MemoryNeed, in_words

WORKER_ZYGOTE_MEMORY = 640 * 2**20  # bytes: a process with TensorFlow imported that workers are forked from
PS_ZYGOTE_MEMORY = 128 * 2**20  # bytes: one with the kernels loaded
ZYGOTE_MEMORY = WORKER_ZYGOTE_MEMORY + PS_ZYGOTE_MEMORY
NOT_ENFORCED = "CPU shares are not enforced here"


def caps_for_pods(spec: JobSpec, caps: Limits) -> tuple[Limits, bool]:
    """What PSs and workers may have of `caps`, and whether zygotes are started beside them.

    Zygotes count in the caps as pods do. They are started only where the pods that the job may grow to fit beside
    them: a pod that starts within a second is worth less than a pod. `Question.limits` are these.
    """
    if caps.memory_bytes is None:
        return caps, True
    w, p = _most_pods(caps, *_asked(spec, caps))
    left = caps.memory_bytes - ZYGOTE_MEMORY
    if left < w * SMALLEST_WORKER_MEMORY + p * SMALLEST_PS_MEMORY:
        return caps, False
    return replace(caps, memory_bytes=left), True


def first_plan(
    spec: JobSpec, caps: Limits, warm: WarmStart | None, cpu_enforced: bool, need: MemoryNeed | None = None
) -> Decision:
    """The plan that a job starts with, as a decision of kind "start" with its reason.

    Args:
        spec: what was asked for; its workers and PSs are the starting point in mode auto, the plan in the others.
        caps: resolved: cores and bytes are given; None for workers or PSs means no cap.
        warm: what similar runs say; None or without runs: a cold start.
        cpu_enforced: whether CPU shares hold here; only said.
        need: forecast of what tables and workers need; None: unknown. Pods get it as far as the caps allow.

    Raises:
        BadInput: the caps are below the smallest plan, or below what the wishes of `spec` need.
    """
    if caps.cpu is None or caps.memory_bytes is None:
        raise BadInput("caps", caps, "give cores and bytes")
    room, zygotes = caps_for_pods(spec, caps)
    if spec.mode is Mode.AUTO:
        plan, reason = _auto(spec, caps, room, warm)
    else:
        # The caps as they are first: its refusals are to speak of what the caller gave.
        cold_plan(caps, caps.cpu, caps.memory_bytes, workers=spec.workers, ps=spec.ps)
        plan = cold_plan(room, caps.cpu, caps.memory_bytes, workers=spec.workers, ps=spec.ps)
        plan = _with_floors(plan, warm, room)
        asked = "as asked for" if spec.workers is not None or spec.ps is not None else "as many workers as whole cores"
        reason = f"Mode {spec.mode.value}: {plan} within {caps.cpu:g} cores, {asked}"
    plan, raised = _with_need(plan, need, spec, room) if need is not None else (plan, "")
    reason += raised
    notes = [] if zygotes else [f"{format_memory(caps.memory_bytes)} leave no room for zygotes: pods start cold"]
    notes += [] if cpu_enforced else [NOT_ENFORCED]
    text = ". ".join([reason, *notes]) + "."
    same = warm is not None and warm.plan is not None and _but_memory(warm.plan) == _but_memory(plan)
    predicted = warm.predicted if warm is not None and same else None
    return Decision(0.0, "start", plan, text, action=f"Start with {plan}", predicted=predicted)


def _auto(spec: JobSpec, caps: Limits, room: Limits, warm: WarmStart | None) -> tuple[Plan, str]:
    """The plan of mode auto and its reason."""
    w, p = spec.workers or 1, spec.ps or 1
    small = cold_plan(caps, caps.cpu or 0, caps.memory_bytes or 0, workers=w, ps=p)  # refuses caps that are too small
    if warm is not None and warm.runs and warm.plan is not None:
        plan = _within_memory(_fitted(warm.plan, spec, room), room, warm.plan)
        reason = warm.note[:1].upper() + warm.note[1:] if warm.note else f"Warm start with {warm.plan}"
        if str(plan) != str(warm.plan):
            why = "as asked for" if spec.workers is not None or spec.ps is not None else "to stay within the caps"
            reason += f"; {plan} {why}"
        return plan, reason
    worker_cpu = max(SMALLEST_CPU, _tenths(min(1.0, small.worker.cpu)))
    ps_cpu = max(SMALLEST_CPU, _tenths(min(small.ps.cpu, worker_cpu / PS_SHARE)))
    memory = _memory(room, w, p)
    plan = _with_floors(Plan(RolePlan(p, ps_cpu, memory[1]), RolePlan(w, worker_cpu, memory[0])), warm, room)
    why = warm.note if warm is not None and warm.note else "no past run to start from"
    why = why if why.lower().startswith("cold start") else f"cold start, {why[:1].lower()}{why[1:]}"
    return plan, f"{why[:1].upper()}{why[1:]}: start small with {plan} and grow where it pays"


def _asked(spec: JobSpec, caps: Limits) -> tuple[int, int]:
    """Workers and PSs that the job starts with, if it starts cold."""
    if spec.mode is Mode.AUTO:
        return spec.workers or 1, spec.ps or 1
    workers = spec.workers if spec.workers is not None else min(caps.workers or 2**31, max(1, int(caps.cpu or 1)))
    return workers, spec.ps if spec.ps is not None else min(caps.ps or 2**31, max(1, workers // 4))


def _most_pods(caps: Limits, w: int, p: int) -> tuple[int, int]:
    """Workers and PSs that a job which starts with `w` and `p` may grow to: what the cores feed, as the memory goes."""
    memory = caps.memory_bytes or 0
    most_w = max(w, min(caps.workers or 2**31, math.ceil((caps.cpu or 1.0) * PS_SHARE / (PS_SHARE + 1))))
    most_p = max(p, min(caps.ps or 2**31, max(2 * p, most_w // 4)))
    while most_w > w and most_w * SMALLEST_WORKER_MEMORY + most_p * SMALLEST_PS_MEMORY > memory:
        most_w -= 1
    while most_p > p and most_w * SMALLEST_WORKER_MEMORY + most_p * SMALLEST_PS_MEMORY > memory:
        most_p -= 1
    return most_w, most_p


def _fitted(plan: Plan, spec: JobSpec, caps: Limits) -> Plan:
    """`plan` with the wishes of `spec`, its replicas and cores cut to the caps."""
    most = caps.cpu or 0.0
    w = spec.workers if spec.workers is not None else min(plan.worker.replicas, caps.workers or plan.worker.replicas)
    p = spec.ps if spec.ps is not None else min(plan.ps.replicas, caps.ps or plan.ps.replicas)
    memory = caps.memory_bytes or 0
    while spec.workers is None and w > 1 and _too_many(w, p, most, memory):
        w -= 1
    while spec.ps is None and p > 1 and _too_many(w, p, most, memory):
        p -= 1
    # A record may come from a version with other least sizes.
    worker_cpu, ps_cpu = max(SMALLEST_CPU, plan.worker.cpu), max(SMALLEST_CPU, plan.ps.cpu)
    if w * worker_cpu + p * ps_cpu > most + 1e-9:
        factor = most / (w * worker_cpu + p * ps_cpu)
        worker_cpu, ps_cpu = _twentieths(worker_cpu * factor), _twentieths(ps_cpu * factor)
        if min(worker_cpu, ps_cpu) < SMALLEST_CPU:
            base = cold_plan(caps, most, memory, workers=w, ps=p)
            worker_cpu, ps_cpu = base.worker.cpu, base.ps.cpu
    return Plan(
        RolePlan(p, ps_cpu, max(SMALLEST_PS_MEMORY, plan.ps.memory_bytes)),
        RolePlan(w, worker_cpu, max(SMALLEST_WORKER_MEMORY, plan.worker.memory_bytes)),
    )


def _too_many(w: int, p: int, cpu: float, memory: int) -> bool:
    small = w * SMALLEST_WORKER_MEMORY + p * SMALLEST_PS_MEMORY > memory
    return small or (w + p) * SMALLEST_CPU > cpu + 1e-9


def _within_memory(plan: Plan, caps: Limits, wanted: Plan) -> Plan:
    """`plan` with the memory per pod that it had, or, where that does not fit, what a cold start would give it."""
    if plan.memory_bytes <= (caps.memory_bytes or 0):
        return plan
    worker, ps = _memory(caps, plan.worker.replicas, plan.ps.replicas)
    return _raise_memory(
        Plan(replace(plan.ps, memory_bytes=ps), replace(plan.worker, memory_bytes=worker)), wanted, caps
    )


def _with_floors(plan: Plan, warm: WarmStart | None, caps: Limits) -> Plan:
    """`plan` with at least the memory per pod that runs which ran out of it ask for, as far as the cap allows."""
    if warm is None or warm.plan is None or not warm.floors:
        return plan
    return _raise_memory(plan, warm.plan, caps)


def _raise_memory(plan: Plan, floor: Plan, caps: Limits) -> Plan:
    spare = (caps.memory_bytes or 0) - plan.memory_bytes
    ps_more = min(max(0, floor.ps.memory_bytes - plan.ps.memory_bytes), _mebi(max(0, spare) // plan.ps.replicas))
    spare -= ps_more * plan.ps.replicas
    worker_more = max(0, floor.worker.memory_bytes - plan.worker.memory_bytes)
    worker_more = min(worker_more, _mebi(max(0, spare) // plan.worker.replicas))
    return Plan(
        replace(plan.ps, memory_bytes=plan.ps.memory_bytes + ps_more),
        replace(plan.worker, memory_bytes=plan.worker.memory_bytes + worker_more),
    )


def _with_need(plan: Plan, need: MemoryNeed, spec: JobSpec, caps: Limits) -> tuple[Plan, str]:
    """`plan` with the memory per pod that is expected to be needed, and what to say of it.

    In mode auto parameter servers may come later, so that where the caps hold no pods of the wanted size, more and
    smaller ones will have to share the table.
    """
    w, p = plan.worker.replicas, plan.ps.replicas
    worker, ps = SMALLEST_WORKER_MEMORY, SMALLEST_PS_MEMORY
    if need.worker is not None:
        worker = max(worker, _mebi(int(need.worker.high) + 2**20 - 1))
    if need.table is not None:
        most = max(p, caps.ps or 2 * p) if spec.mode is Mode.AUTO else p
        room = (caps.memory_bytes or 0) - w * max(worker, plan.worker.memory_bytes)
        sizes = ((count, ps_memory_for(need.table.high * TABLE_SKEW / count)) for count in range(p, most + 1))
        ps = max(ps, next((size for count, size in sizes if count * size <= room), 0) or ps_memory_for(
            need.table.high * TABLE_SKEW / most
        ))  # fmt: skip
    floor = Plan(replace(plan.ps, memory_bytes=ps), replace(plan.worker, memory_bytes=worker))
    raised = _raise_memory(plan, floor, caps)
    if raised == plan:
        return plan, ""
    words = [in_words(need)] if raised.ps != plan.ps else []
    if raised.worker != plan.worker and need.worker is not None:
        words.append(f"a worker should need {format_memory(_mebi(int(need.worker.middle)))}")
    return raised, f"; {', '.join(words)}"


def _but_memory(plan: Plan) -> tuple[int, float, int, float]:
    return plan.worker.replicas, plan.worker.cpu, plan.ps.replicas, plan.ps.cpu


def _memory(caps: Limits, w: int, p: int) -> tuple[int, int]:
    """Bytes per worker and per PS, so that the pods which the job may grow to fit as well."""
    most_w, most_p = _most_pods(caps, w, p)
    spare = max(0, (caps.memory_bytes or 0) - most_w * SMALLEST_WORKER_MEMORY - most_p * SMALLEST_PS_MEMORY)
    worker = SMALLEST_WORKER_MEMORY + _mebi(spare // 4 // most_w)
    return worker, SMALLEST_PS_MEMORY + _mebi(spare // 2 // most_p)


def _mebi(memory_bytes: int) -> int:
    return memory_bytes >> 20 << 20


def _tenths(cores: float) -> float:
    return math.floor(cores * 10 + 1e-6) / 10


def _twentieths(cores: float) -> float:
    return math.floor(cores * 20 + 1e-6) / 20
