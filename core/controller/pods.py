"""Which pods should run, and what happens when one is lost.

Places come and go with the plan; a pod whose place the plan has no more finishes what it has and leaves. A pod that
ends before is replaced by one with a new name, never started again. Losing a pod is normal (preemption, kill -9)
and costs only what it held, and one that was killed for want of memory is followed by one with more (`out_of_memory`);
losing pods of one place again and again without anything getting done is not: the job goes on without the place where
its others can carry that, else it ends with a reason that names the pod, its exit code and the last lines of its log
(cases 2, 7, 8).
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.core.cluster.base import LEAVING_CPU, PodStatus
from trimtab.core.controller.actions import FinishJob, PodName, SetPods
from trimtab.core.controller.inputs import PodsSeen
from trimtab.core.controller.out_of_memory import count_kill
from trimtab.core.controller.shares import has_room, memory_beyond, memory_of, shares
from trimtab.core.controller.state import Departed, Draft, Phase, Pod, Slot, State
from trimtab.core.controller.successors import give_up, pods_room, predecessor, take_over
from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import Plan, table_room
from trimtab.core.domain.records import Decision
from trimtab.core.domain.values import replace

REFUSED_EXIT = 4  # a pod's exit code for "my configuration is bad or I was refused": trying again is useless
ORPHANED_EXIT = 3
SUCCESSOR_FAILURES = 2  # of a place that is to take over: then the old one stays
_LONGEST_DELAY_SECONDS = 10.0


def end_job(draft: Draft, state: JobState, reason: str, out_of_memory: str = "") -> None:
    """Finish, stop or fail: from here on nothing is decided any more. The first end counts.

    Args:
        draft: the step's. state, reason: how it ended.
        out_of_memory: the role whose memory was the reason, "" for another one.
    """
    if not draft.over:
        draft.state = replace(draft.state, out_of_memory=out_of_memory)
        draft.enter(Phase.OVER, reason or "the job is finished")
        draft.act(FinishJob(state, reason))


def lose_pod(
    draft: Draft, pod: Pod, reason: str, tail: str = "", *, fatal: bool = False, gone: bool = False
) -> None:
    """A pod is gone (or given up): its loans end, what it said is forgotten, its place gets a new pod or ends the job.

    Args:
        draft: the step's.
        pod: a pod that should run.
        reason: what became of it, as a clause ("ended with exit code 137 (signal 9)").
        tail: last lines of its log.
        fatal: no new pod could do better.
        gone: its process has ended for certain; else it may live on for a while and keeps what it has.
    """
    if not gone:
        draft.state = replace(draft.state, departed={**draft.state.departed, pod.name: _kept(draft.state, pod)})
    state = draft.state
    slot = state.slots[pod.slot]
    if not slot.active:
        _forget(draft, pod)
        draft.put_slot(replace(slot, generation=slot.generation + 1))
        draft.note("pod_left", f"{pod.name} {reason}; the plan has no place for it", pod=pod.name, role=pod.role)
        return
    in_row = 1 if pod.worked else slot.in_row + 1
    slot = replace(slot, generation=slot.generation + 1, in_row=in_row, total=slot.total + 1)
    delay = 0.0 if in_row == 1 else min(_LONGEST_DELAY_SECONDS, 0.5 * 2 ** (in_row - 2))
    # One that may live on keeps its memory until it is gone: its place has none of its own before.
    slot = replace(slot, starts_at=draft.now + delay, started=slot.started and gone)
    lent = _forget(draft, pod)
    draft.put_slot(slot)
    draft.note("pod_lost", f"{pod.name} {reason}", pod=pod.name, role=pod.role, released=lent, in_row=in_row)
    settings = draft.state.settings
    said = f"; its log ends with:\n{tail}" if tail else ""
    if fatal:
        end_job(draft, JobState.FAILED, f"{pod.name} {reason}{said}")
    elif _succeeded(draft, slot):
        return
    elif slot.total >= settings.failures_total:
        end_job(draft, JobState.FAILED, f"{pod.name} {reason}, failure {slot.total} of this {pod.role}{said}")
    elif in_row >= settings.failures_in_row and not without_place(draft, slot, f"{pod.name} {reason}"):
        text = f"{pod.name} {reason}, failure {in_row} in a row of this {pod.role} without anything done"
        end_job(draft, JobState.FAILED, text + said)


def _succeeded(draft: Draft, slot: Slot) -> bool:
    """What the loss of a pod means for a place that another takes over from, or that takes over; False: it is neither.

    A failing successor ends nothing: the place that it came for is still there.
    """
    key = (slot.role, slot.index)
    if key in draft.state.successions:
        take_over(draft, key)
        return True
    old = predecessor(draft.state, key)
    if old is not None and slot.in_row >= SUCCESSOR_FAILURES:
        give_up(draft, old)
        text = f"{slot.role} {slot.index} comes to nothing, {slot.in_row} times in a row; {old[0]} {old[1]} stays"
        draft.note("successor_failed", text, role=slot.role)
    return old is not None


def start_again(draft: Draft, pod: Pod, why: str) -> None:
    """End a pod that lives, so that a new one comes to its place as soon as the caps have room for it.

    Args:
        draft: the step's. pod: of a place that the plan has. why: as a clause.
    """
    slot = draft.state.slots[pod.slot]
    draft.state = replace(draft.state, departed={**draft.state.departed, pod.name: _kept(draft.state, pod)})
    _forget(draft, pod)
    draft.put_slot(replace(slot, generation=slot.generation + 1, started=False))
    draft.note("pod_left", f"{pod.name} {why}; it goes first, then a new one comes", pod=pod.name, role=pod.role)


def _forget(draft: Draft, pod: Pod) -> int:
    """A pod is there no more: its loans end, what it said is forgotten. Returns how many batches it had on loan."""
    state = draft.state
    ledger, gone = state.ledger.ended(lambda hold: hold.pod == pod.name, state.sequence)
    holds, more = state.evaluation.holds.end(lambda hold: hold.pod == pod.name)
    draft.state = replace(
        state,
        ledger=ledger.forgotten(pod.process),
        evaluation=replace(state.evaluation, holds=holds),
        pods={name: other for name, other in state.pods.items() if name != pod.name},
        resends=state.resends + (pod.report.duplicates if pod.report is not None else 0),
        cpu_gone=state.cpu_gone + pod.cpu_seconds,
    )
    return sum(hold.hi - hold.lo for hold in (*gone, *more))


def see_pods(draft: Draft, seen: PodsSeen) -> None:
    """Compare the cluster's pods with those that should run."""
    shown = {status.name: status for status in seen.pods}
    for name, one in draft.state.departed.items():
        if name in shown and shown[name].out_of_memory:  # it was told to end before anybody knew (case 24)
            _killed(draft, one.slot, name)
    alive = {name: one for name, one in draft.state.departed.items() if name in shown and not shown[name].ended}
    if alive != draft.state.departed:
        draft.state = replace(draft.state, departed=alive)
    for pod in tuple(draft.state.pods.values()):
        if draft.over:
            return
        status = shown.get(pod.name)
        if status is None:
            if pod.seen:
                lose_pod(draft, pod, "was removed from the cluster", gone=True)
        elif status.ended:
            if status.out_of_memory:
                _killed(draft, pod.slot, pod.name)
                if draft.over:
                    return
            fatal = status.exit_code == REFUSED_EXIT
            lose_pod(draft, pod, _end_of(status), seen.tails.get(pod.name, ""), fatal=fatal, gone=True)
        elif not pod.seen or (pod.memory_limit, pod.memory_used) != (status.memory_bytes, status.memory_used):
            draft.put_pod(replace(
                pod, seen=True, memory_limit=status.memory_bytes, memory_used=status.memory_used
            ))  # fmt: skip


def _killed(draft: Draft, key: tuple[str, int], name: str) -> None:
    """A pod was killed for want of memory; the job ends when more of it has not helped."""
    over = count_kill(draft, key, name)
    if over:
        end_job(draft, JobState.FAILED, over, key[0])


def watch_silence(draft: Draft) -> None:
    """Give up pods that run and say nothing; end the loans of workers long before that."""
    for pod in tuple(draft.state.pods.values()):
        settings = draft.state.settings
        if draft.over:
            return
        if pod.heard_at is None:
            if draft.now - pod.wanted_at > settings.start_seconds:
                lose_pod(draft, pod, f"said nothing within {settings.start_seconds:g} s of its start")
            continue
        silent = draft.now - pod.heard_at
        if silent > settings.silence_seconds:
            lose_pod(draft, pod, f"was silent for {silent:.0f} s")
        elif pod.role == "worker" and silent > settings.hold_seconds:
            _end_loans(draft, pod)
        elif pod.role == "worker" and _stalled(draft, pod):
            lose_pod(draft, pod, f"held work and got nothing done for {settings.stall_seconds:g} s")


def want_pods(draft: Draft) -> None:
    """Every place has its present pod; say which should run."""
    state = draft.state
    term = state.document.term
    _let_go(draft)
    state = draft.state
    taken = {pod.slot for pod in state.pods.values()}
    for key in sorted(state.slots):
        slot = state.slots[key]
        needed = slot.active and (slot.role == "ps" or state.stop is None)  # a job that stops needs no new worker
        if needed and key not in taken and draft.now >= slot.starts_at and _room(draft, slot):
            name = slot.pod_name(term)
            draft.put_pod(Pod(name, key, wanted_at=draft.now))
            draft.put_slot(replace(slot, started=True))
            draft.note("pod_started", f"{name} should run", pod=name, role=slot.role, generation=slot.generation)
    state = draft.state
    share = shares(state)
    draft.act(SetPods(tuple(
        PodName(pod.name, pod.role, pod.slot[1], share[pod.name], memory_of(state, pod.slot))
        for pod in sorted(state.pods.values(), key=lambda pod: pod.slot)
    )))  # fmt: skip


def _room(draft: Draft, slot: Slot) -> bool:
    """Whether a pod fits beside those that are there; where it has to wait for one that leaves, that is said once."""
    state = draft.state
    leaving = bool(state.departed) or any(not state.slots[pod.slot].active for pod in state.pods.values())
    beside = predecessor(state, (slot.role, slot.index)) is not None
    if slot.started or not (leaving or beside or memory_beyond(state)):
        return True  # without anything leaving the plan itself was made to fit
    room = has_room(state, slot.role, slot.memory_bytes, slot.tight_bytes)
    if room and pods_room(state, slot.role):
        return True
    if slot.index not in state.waiting.get(slot.role, ()):
        waiting = {**state.waiting, slot.role: (*state.waiting.get(slot.role, ()), slot.index)}
        draft.state = replace(state, waiting=waiting)
        cap = f"the cap on {slot.role}s" if room else "the memory cap"
        text = f"{slot.role} {slot.index} waits: {cap} has no room until a pod that leaves is gone"
        draft.note("waiting_for_pods" if room else "waiting_for_memory", text, role=slot.role)
    return False


def _let_go(draft: Draft) -> None:
    """Pods whose place the plan has no more end when nothing is left to them: no loan, no vshard, no handing over."""
    for pod in tuple(draft.state.pods.values()):
        state = draft.state
        slot = state.slots[pod.slot]
        if slot.active or not _has_nothing(state, pod):
            continue
        _forget(draft, pod)
        draft.put_slot(replace(slot, generation=slot.generation + 1))
        draft.state = replace(draft.state, departed={**draft.state.departed, pod.name: _kept(draft.state, pod)})
        draft.note("pod_left", f"{pod.name} has nothing left to do and leaves", pod=pod.name, role=pod.role)


def _kept(state: State, pod: Pod) -> Departed:
    """What a pod that is to end keeps until it has."""
    return Departed(LEAVING_CPU, memory_of(state, pod.slot), pod.slot)


def _has_nothing(state: State, pod: Pod) -> bool:
    if pod.role == "worker":
        return not state.ledger.holds.of(pod.name) and not state.evaluation.holds.of(pod.name)
    routing = state.document.routing
    place = pod.slot[1]
    owns = place in routing.owner and place < len(routing.processes) and routing.processes[place] == pod.process
    return not owns and not state.tenancies and not state.committing and (state.ledger.served or not pod.process)


def without_place(draft: Draft, slot: Slot, why: str) -> bool:
    """A plan without a place of a role whose pods come to nothing, while others of its role get something done.

    The plan's other places keep their pods, and what the place had goes to them. One among others is barred with it;
    the last one may be asked for again, when there is a reason to grow.

    Args:
        draft: the step's. slot: the place. why: what becomes of its pods, as a clause.

    Returns:
        Whether there is such a plan, or another one is on its way already; else the job can't go on.
    """
    state = draft.state
    plan = state.document.plan
    role = getattr(plan, slot.role)
    others = [pod for pod in state.pods.values() if pod.role == slot.role and pod.slot != (slot.role, slot.index)]
    if not any(pod.worked for pod in others) or state.phase is not Phase.TRAINING:
        return False
    if state.wish is not None:
        return True
    if role.replicas < 2 or (slot.role == "ps" and not _others_have_room(state, others)):
        return False
    smaller = replace(role, replicas=role.replicas - 1)
    new = Plan(smaller, plan.worker) if slot.role == "ps" else Plan(plan.ps, smaller)
    word = "PS" if slot.role == "ps" else "worker"
    last = slot.index == max(state.active(slot.role))
    draft.state = replace(state, giving_up=None if last else (slot.role, slot.index), wish=Decision(
        state.seconds(draft.now), "shrink", new, f"{why}, again and again: go on without it.",
        action=f"Take 1 {word} back: {role.replicas} → {role.replicas - 1}", before=plan, barred=True,
    ))  # fmt: skip
    return True


def _others_have_room(state: State, others: Sequence[Pod]) -> bool:
    """Whether the tables fit into one parameter server less, as far as those that are there can tell."""
    owner = state.document.routing.owner
    told = [pod for pod in others if pod.report is not None and pod.slot[1] in owner]
    owned = sum(owner.count(pod.slot[1]) for pod in told)
    if not owned:
        return True
    whole = sum(pod.report.table_bytes for pod in told if pod.report is not None) * len(owner) / owned
    return whole / (state.document.plan.ps.replicas - 1) <= table_room(state.document.plan.ps.memory_bytes)


def _end_loans(draft: Draft, pod: Pod) -> None:
    state = draft.state
    ledger, gone = state.ledger.ended(lambda hold: hold.pod == pod.name, state.sequence)
    holds, more = state.evaluation.holds.end(lambda hold: hold.pod == pod.name)
    if gone or more:
        draft.state = replace(state, ledger=ledger, evaluation=replace(state.evaluation, holds=holds))
        draft.note("loans_ended", f"{pod.name} has not been heard of; its data shards go back", pod=pod.name)


def _stalled(draft: Draft, pod: Pod) -> bool:
    """Whether a worker that is heard of gets nothing done, while parameter servers serve everything."""
    state = draft.state
    if state.served_at is None:
        return False
    held = (*state.ledger.holds.of(pod.name), *state.evaluation.holds.of(pod.name))
    if not held:
        return False
    since = max(pod.worked_at, state.served_at, min(hold.given_at for hold in held))
    return draft.now - since > state.settings.stall_seconds


def _end_of(status: PodStatus) -> str:
    code = status.exit_code
    if status.out_of_memory:
        return "was killed for want of memory"
    if code is None:
        return "ended"
    if code > 128:
        return f"ended with exit code {code} (signal {code - 128})"
    meaning = {
        0: ", though it was not told to end",
        ORPHANED_EXIT: " (it had no contact with the controller)",
        REFUSED_EXIT: " (it was refused, or its configuration is bad)",
    }.get(code, "")
    return f"ended with exit code {code}{meaning}"
