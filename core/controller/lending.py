"""Answering workers: what they report is counted, and data shards are lent to them.

A worker's answer may get lost, and with it the data shards that it gave. A worker never wants more than
`MOST_SHARDS` together with what it has; so when its wish and our loans add up to more, it does not know of some, and
all of its loans are said again (it knows their ids). Nothing else is needed for lost, late and doubled calls.
"""

from __future__ import annotations

from trimtab.core.controller.actions import AnswerWorker, KeepScores, RefuseWorker
from trimtab.core.controller.changing import waited
from trimtab.core.controller.doubled import second_shard, second_time, usual_speed
from trimtab.core.controller.holds import MOST_SHARDS, Hold, Holds, shard_size
from trimtab.core.controller.inputs import WorkerSaid
from trimtab.core.controller.observing import count_waits, count_work
from trimtab.core.controller.pods import end_job
from trimtab.core.controller.state import MOST_METRIC_TRIES, Draft, Phase, Pod, State
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState
from trimtab.core.domain.values import replace
from trimtab.core.wire.messages import EVALUATE, METRICS, TRAIN, Grant, WorkerOrders, WorkerSync


def hear_worker(draft: Draft, said: WorkerSaid) -> None:
    """Take in a worker's report and answer it."""
    sync, state = said.sync, draft.state
    settings, term = state.settings, state.document.term
    if sync.job_id != settings.job_id:
        draft.act(RefuseWorker(f"this is job {settings.job_id}, not {sync.job_id}"))
        return
    if sync.term != term:
        draft.act(RefuseWorker(f"term {sync.term} is not the controller's term {term}"))
        return
    pod = state.pods.get(sync.pod)
    stranger = pod is None or pod.role != "worker" or (pod.process != "" and pod.process != sync.process)
    if draft.over or pod is None or stranger:
        draft.act(AnswerWorker(WorkerOrders(term, stop=True)))
        return
    if sync.failure:
        end_job(draft, JobState.FAILED, f"{pod.name}: {sync.failure}")
        draft.act(AnswerWorker(WorkerOrders(term, stop=True)))
        return
    _count(draft, pod, sync)
    draft.act(AnswerWorker(_orders(draft, pod.name, sync)))


def _count(draft: Draft, pod: Pod, sync: WorkerSync) -> None:
    """Losses, scores, metrics and ended loans."""
    state = draft.state
    now = draft.now
    losses, fresh = state.losses.with_reports(sync.losses, state.settings.batches, now)
    evaluation, scores = state.evaluation.scored(sync.scores)
    if scores:
        draft.act(KeepScores(scores))
    ended = set(sync.finished)
    ledger, gone = state.ledger.ended(lambda hold: hold.id in ended and hold.pod == pod.name, state.sequence)
    holds, more = evaluation.holds.end(lambda hold: hold.id in ended and hold.pod == pod.name)
    fresh_rows = losses.all_rows - state.losses.all_rows
    pod = count_waits(state, count_work(pod, fresh, fresh_rows, sync.phase_seconds), sync.ps_seconds)
    worked = bool(fresh or scores or gone or sync.losses or sync.scores or sync.metrics)
    pod = replace(
        pod, process=sync.process, heard_at=now, cpu_seconds=max(pod.cpu_seconds, sync.cpu_seconds),
        rss_bytes=sync.rss_bytes, cache_bytes=sync.cache_bytes, worked=pod.worked or bool(fresh or scores),
        worked_at=now if worked else pod.worked_at,
    )  # fmt: skip
    done = [hold for hold in (*gone, *more) if hold.kind != METRICS]
    if done:
        seconds = now - max(pod.finished_at, min(hold.given_at for hold in done))
        speed = sum(hold.hi - hold.lo for hold in done) / max(seconds, 1e-3)
        pod = replace(pod, speed=speed if pod.speed is None else (pod.speed + speed) / 2, finished_at=now)
    outcome = state.outcome
    if sync.metrics is not None and state.phase is Phase.METRICS and outcome.metrics is None:
        outcome = replace(outcome, metrics=dict(sync.metrics))
    state = waited(state, sync.max_gap_seconds)
    draft.state = replace(
        state, losses=losses, evaluation=replace(evaluation, holds=holds), ledger=ledger, outcome=outcome,
        max_gap_seconds=max(state.max_gap_seconds, sync.max_gap_seconds),
    )  # fmt: skip
    draft.put_pod(_with_done(draft.state, pod, sync))
    if fresh or scores:
        draft.put_slot(replace(draft.state.slots[pod.slot], in_row=0))


def _orders(draft: Draft, name: str, sync: WorkerSync) -> WorkerOrders:
    """Routing when it is news, and data shards."""
    state = draft.state
    routing = state.document.routing
    held = (*state.ledger.holds.of(name), *state.evaluation.holds.of(name))
    again = held if sync.want > 0 and len(held) + sync.want > MOST_SHARDS else ()
    given: list[Hold] = []
    active = state.slots[state.pods[name].slot].active  # one that leaves finishes what it has
    while active and len(held) + len(given) < MOST_SHARDS and len(given) < sync.want:
        hold = _lend(draft, name)
        if hold is None:
            break
        given.append(hold)
    path = draft.state.outcome.scores_path
    grants = tuple(
        Grant(hold.id, hold.kind, hold.lo, hold.hi, routing.version, path if hold.kind == METRICS else "")
        for hold in (*again, *given)
    )
    # While vshards change hands their old owner takes pushes until it is asked to stop: whoever knows of the new one
    # too early would wait for it. Nothing is lent meanwhile, so nothing needs the new routing before.
    early = bool(state.tenancies) and sync.routing_version > 0 and not sync.trouble
    news = routing if routing.version > sync.routing_version and not early else None
    return WorkerOrders(state.document.term, news, grants, taken_back=state.pods[name].taken_back)


def _lend(draft: Draft, name: str) -> Hold | None:
    """One more data shard for a worker, or None when there is nothing to lend now."""
    state = draft.state
    if not state.ledger.served:
        return None  # nobody could apply or answer it
    if state.phase is Phase.TRAINING:
        hold = _next(draft, name, TRAIN, state.ledger.todo)
        if hold is not None:
            draft.state = replace(draft.state, ledger=draft.state.ledger.given(hold))
        return hold
    if state.phase is Phase.EVALUATING:
        hold = _next(draft, name, EVALUATE, state.evaluation.todo)
    elif state.phase is Phase.METRICS and _metrics_wanted(state) and not _slow_one(state, name):
        hold = Hold(state.next_id, METRICS, 0, state.settings.evaluation_batches, name, draft.now)
        draft.state = replace(state, next_id=state.next_id + 1, metric_tries=state.metric_tries + 1)
    else:
        return None
    if hold is not None:
        evaluation = draft.state.evaluation
        holds: Holds = evaluation.holds.give(hold)
        draft.state = replace(draft.state, evaluation=replace(evaluation, holds=holds))
    return hold


def _metrics_wanted(state: State) -> bool:
    """Whether somebody should compute the compiled metrics: one worker at a time, and only so often."""
    return (
        state.outcome.metrics is None and not len(state.evaluation.holds) and state.metric_tries < MOST_METRIC_TRIES
    )


def _next(draft: Draft, name: str, kind: str, todo: IntervalSet) -> Hold | None:
    state = draft.state
    pod = state.pods[name]
    speed = usual_speed(state, pod)
    if todo:
        lo, end = todo.intervals[0]
        hi = lo + min(end - lo, shard_size(speed, pod.shard, len(todo), len(state.active("worker"))))
        draft.put_pod(replace(pod, shard=hi - lo))
    elif numbers := second_time(state, name, kind, draft.now):
        lo, hi = second_shard(pod, speed, numbers)
        draft.note("lent_twice", f"{name} does batches {lo} to {hi - 1} as well: their holder needs long", pod=name)
    else:
        return None
    draft.state = replace(draft.state, next_id=state.next_id + 1)
    return Hold(state.next_id, kind, lo, hi, name, draft.now)


def _with_done(state: State, pod: Pod, sync: WorkerSync) -> Pod:
    """A worker's pod with what it tells of its loans."""
    numbers = pod.done | IntervalSet((loss.number, loss.number + 1) for loss in sync.losses)
    held = IntervalSet((hold.lo, hold.hi) for hold in state.ledger.holds.of(pod.name))
    left = tuple(one for one in pod.taken_back if one not in sync.finished)
    return replace(pod, reported=pod.reported + len(sync.losses), done=numbers & held, taken_back=left)


def _slow_one(state: State, name: str) -> bool:
    """Whether a worker is slow while another one is not."""
    tracks = state.pace.tracks
    slow = {pod.name for pod in state.workers() if pod.name in tracks and tracks[pod.name].slow}
    return name in slow and any(pod.worked and pod.name not in slow for pod in state.workers())
