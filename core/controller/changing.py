"""Plans that change while the job runs: when to ask, what to do with the answer, and what became of it.

The optimizer is asked once per settled window. What it decides is committed in the state document first, with its
reason; the places of workers and parameter servers then follow the document, and the other rooms do the rest. A
decision is finished when it has been measured: how long the switch took, how long a worker waited, how fast it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from trimtab.core.controller.actions import CommitDocument, Consider
from trimtab.core.controller.caps import keep_caps
from trimtab.core.controller.growing import table_memory, watch_growth
from trimtab.core.controller.inputs import Decided
from trimtab.core.controller.observing import observe
from trimtab.core.controller.serving import commit
from trimtab.core.controller.shares import fits_beyond, memory_beyond, memory_free
from trimtab.core.controller.state import Draft, Phase, State, Switch
from trimtab.core.controller.successors import fit_places, take_back
from trimtab.core.domain.job import Mode, PlanChange
from trimtab.core.domain.plan import Limits, Plan, within
from trimtab.core.domain.records import Decision, Observation, seconds_without
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.lattice import needed_ps
from trimtab.core.optimizer.question import Question

DEFAULT_SWITCH_SECONDS = {"worker": 0.5, "ps": 1.0, "cpu": 0.1}  # of lost training, until this job has measured it
SAME_HOLD_SECONDS = 60.0  # an answer that changes nothing is written down again after so long


def drive_plan(draft: Draft) -> None:
    """Follow the document's plan, look at what it brings, ask, and commit what was decided."""
    fit_places(draft)
    watch_growth(draft)
    seen = observe(draft)
    _measure_hold(draft, seen)
    _watch_switch(draft, seen)
    keep_caps(draft, lambda: servers_needed(draft.state, draft.now))
    state = draft.state
    free = not state.committing and draft.now >= state.commit_at
    if state.wish is not None and free and state.phase is Phase.TRAINING:
        wish = replace(state.wish, number=_next_number(state))
        slim = replace(wish, considered=(), evidence=())  # the document stays small; the record holds all of it
        draft.state = replace(state, wish=wish)
        commit(draft, CommitDocument(replace(state.document.decided(slim), plan=wish.plan)))
    elif seen is not None and state.settings.mode is not Mode.FIXED and not state.considering and state.wish is None:
        draft.state = replace(state, considering=True)
        draft.act(Consider(_question(draft.state, draft.now)))


def decided(draft: Draft, answer: Decided) -> None:
    """Take the optimizer's answer in; one that has become pointless meanwhile is dropped."""
    draft.state = state = replace(draft.state, considering=False)
    decision = answer.decision
    if decision is None:
        draft.note("optimizer_failed", f"the optimizer could not answer: {answer.error}; the plan stays")
        return
    plan = state.document.plan
    if state.phase is not Phase.TRAINING or state.wish is not None or decision.before not in (None, plan):
        return
    if decision.plan != plan and memory_beyond(state) and not fits_beyond(state, decision.plan):
        return  # a pod was given memory meanwhile; the next question knows it
    if decision.plan == plan:
        _hold(draft, decision)
    elif state.caps_fell and not within(decision.plan, state.settings.limits):
        return  # the caps have fallen since it was asked for
    elif state.settings.mode is Mode.ADVISE:
        _advise(draft, replace(decision, advised=True))
    else:
        draft.state = replace(state, wish=decision)


def servers_needed(state: State, now: float) -> int:
    """How many parameter servers of the present size hold the tables, now and as they are expected to become."""
    return needed_ps(_question(state, now))


def plan_committed(draft: Draft, before: Plan) -> None:
    """After a swap that changed the plan: write down what was decided, and let the places follow."""
    state = draft.state
    plan, wish = state.document.plan, state.wish
    if plan == before or wish is None:
        return
    seconds = state.seconds(draft.now)
    barred = state.barred if state.giving_up is None else state.barred | {state.giving_up}
    draft.state = replace(
        state, wish=None, barred=barred, giving_up=None, plans=(*state.plans, PlanChange(seconds, plan, wish.reason)),
        decisions=(*state.decisions, wish), switch=Switch(wish.number, draft.now), settled_at=None, marks={},
        waiting={},
    )  # fmt: skip
    draft.note("plan", f"{wish.action}: {wish.reason}", plan=plan.as_dict(), decision=wish.number)
    fit_places(draft)


def waited(state: State, gap_seconds: float) -> State:
    """Note a worker's wait between two steps for the change under way."""
    switch = state.switch
    if switch is None or switch.settled or gap_seconds <= switch.max_gap_seconds:
        return state
    return replace(state, switch=replace(switch, max_gap_seconds=gap_seconds))


def _watch_switch(draft: Draft, seen: Observation | None) -> None:
    """Fill in what became of the last decision as it becomes known."""
    state, switch = draft.state, draft.state.switch
    if switch is None:
        _give_up_growth(draft)
        return
    now, pause = draft.now, state.settings.settle_seconds  # workers tell of their waits a moment later
    if not switch.settled and state.settled_at is not None and now - state.settled_at >= pause:
        took, gap = state.settled_at - switch.began_at, switch.max_gap_seconds
        draft.state = replace(state, switch=replace(switch, settled=True))
        _amend(draft, switch.number, switch_seconds=took, paused_seconds=gap)
    elif switch.settled and seen is not None:
        _amend(draft, switch.number, measured=seen.throughput)
        draft.state = replace(draft.state, switch=None)
    _give_up_growth(draft)


def _measure_hold(draft: Draft, seen: Observation | None) -> None:
    """What came of a decision to keep the plan: the next window, so that its prediction is told right or wrong too."""
    last = draft.state.decisions[-1] if draft.state.decisions else None
    if seen is None or last is None or last.kind != "hold" or last.measured is not None:
        return
    if seen.plan == last.plan:
        _amend(draft, last.number, measured=seen.throughput)


def _give_up_growth(draft: Draft) -> None:
    """Parameter servers without room for what they should take over: go back to fewer."""
    state = draft.state
    plan = state.document.plan
    errors = [pod.report.move_error for pod in state.servers() if pod.report is not None and pod.report.move_error]
    if not errors or state.wish is not None or not state.moving:
        return
    if any(role == "ps" for role, _ in state.retired):  # not the plan's fault, and fewer would have less room still
        if take_back(draft, "ps"):
            text = f"a PS stays though another one came for it: the move can't be made: {errors[0]}"
            draft.note("successor_failed", text, role="ps")
        return
    before = next((one.plan for one in reversed(state.plans) if one.plan.ps.replicas != plan.ps.replicas), None)
    if before is None:
        return
    back = Plan(before.ps, plan.worker)
    if not within(back, state.settings.limits):
        back = before
    words = f"Back to {before.ps.replicas} PS{'s' if before.ps.replicas > 1 else ''}"
    reason = f"The move can't be made: {errors[0]}"
    draft.state = replace(
        state, wish=Decision(state.seconds(draft.now), "memory", back, reason, action=words, before=plan, barred=True)
    )


def _amend(draft: Draft, number: int, **known: float) -> None:
    decisions = tuple(
        replace(one, **known) if one.number == number else one  # type: ignore[arg-type]
        for one in draft.state.decisions
    )
    draft.state = replace(draft.state, decisions=decisions)


def _hold(draft: Draft, decision: Decision) -> None:
    """Keep a hold unless one was written down a moment ago: its numbers change with every window."""
    last = draft.state.decisions[-1] if draft.state.decisions else None
    recent = last is not None and decision.time_seconds - last.time_seconds < SAME_HOLD_SECONDS
    if last is not None and last.kind == "hold" and recent:
        return
    _keep(draft, decision)


def _advise(draft: Draft, decision: Decision) -> None:
    """Keep advice unless the last one was the same."""
    last = draft.state.decisions[-1] if draft.state.decisions else None
    if last is None or not last.advised or last.plan != decision.plan:
        _keep(draft, decision)


def _keep(draft: Draft, decision: Decision) -> None:
    kept = replace(decision, number=_next_number(draft.state))
    draft.state = replace(draft.state, decisions=(*draft.state.decisions, kept))
    kind = "advice" if kept.advised else "hold"
    draft.note(kind, f"{kept.action}: {kept.reason}", decision=kept.number)


def _next_number(state: State) -> int:
    return max((one.number for one in state.decisions), default=0) + 1


def _question(state: State, now: float) -> Question:
    settings = state.settings
    done = len(state.ledger.applied)
    table = table_memory(state)
    return Question(
        time_seconds=state.seconds(now), plan=state.document.plan, batch_size=settings.batch_size,
        batches_left=settings.batches - done, observations=state.observations, prior=settings.prior,
        limits=_limits(state), objective=settings.objective, prices=settings.prices, decisions=state.decisions,
        switch_seconds=_switch_seconds(state.decisions), table_bytes=table.now,
        table_bytes_at_end=table.at_end, table_bytes_high=table.high, table_skew=table.skew,
        ps_memory_bytes=_ps_memory(state),
        cpu_enforced=settings.cpu_enforced,
        budget=settings.budget, spent=_spent(state, now), deadline_seconds=settings.deadline_seconds,
    )  # fmt: skip


def _limits(state: State) -> Limits:
    """The caps without what places were given beyond the plan."""
    limits = state.settings.limits
    if limits.memory_bytes is None:
        return limits
    return replace(limits, memory_bytes=limits.memory_bytes - memory_beyond(state))


def _ps_memory(state: State) -> int:
    """What each parameter server can be given at most, if all get the same and the plan stays; 0: nothing is given."""
    if state.settings.mode is Mode.ADVISE:
        return 0
    plan = state.document.plan.ps
    beyond = sum(max(0, state.slots["ps", at].memory_bytes - plan.memory_bytes) for at in state.active("ps"))
    return plan.memory_bytes + (beyond + memory_free(state)) // plan.replicas


def _spent(state: State, now: float) -> float:
    """What the plans that were in force have cost so far, in money; nothing was while no controller ran the job."""
    ends = [change.time_seconds for change in state.plans[1:]] + [state.seconds(now)]
    return sum(
        seconds_without(change.time_seconds, end, state.idle) / 3600 * state.settings.prices.per_hour(change.plan)
        for change, end in zip(state.plans, ends, strict=True)
    )


def _switch_seconds(decisions: Sequence[Decision]) -> dict[str, float]:
    """What changes of each kind cost so far in this job, in seconds that a worker waited; else the default."""
    found: dict[str, list[float]] = {}
    for one in decisions:
        if one.before is not None and one.paused_seconds is not None and one.changes_plan:
            kind = "cpu"
            if one.plan.ps.replicas != one.before.ps.replicas:
                kind = "ps"
            elif one.plan.worker.replicas != one.before.worker.replicas:
                kind = "worker"
            found.setdefault(kind, []).append(one.paused_seconds)
    return DEFAULT_SWITCH_SECONDS | {kind: median(values) for kind, values in found.items()}
