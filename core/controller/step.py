"""The controller's heart: what is known and what was said become what is known next and what to do.

Pure: no clock, network, store or chance, so any run can be replayed from its inputs. A step takes the inputs in, then
reconciles: each room below looks at the state as it is now and asks for what is missing, whatever the reason. So an
action that was lost is asked for again, and there is no way to be stuck between two events.

    changing.py    when to ask whether the plan should change, and what comes of the answer
    caps.py        what becomes of a plan when the job may use less, or more
    observing.py   what a plan brings, measured while everything runs as planned
    pods.py        which pods should run with which share of cores, what a lost one costs
    serving.py     who serves which vshard, what parameter servers are told
    unserved.py    what becomes of a job that parameter servers are missing to
    moving.py      which vshard should lie where, and how it gets there
    lending.py     workers' reports and data shards
    straggling.py  workers that have become slow
    hot_servers.py parameter servers that everybody waits for
    memory_watch.py pods that will meet their memory limit
    closing.py     copies, checkpoints, the end of training
    stopping.py    what is finished and written before a job stops
    degraded.py    what does not work outside, and what the job goes on without
    evaluating.py  scores, figures, compiled metrics
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.core.controller.actions import Action
from trimtab.core.controller.caps import caps_changed
from trimtab.core.controller.changing import decided, drive_plan, plan_committed
from trimtab.core.controller.closing import (
    ask_for_checkpoint,
    closed,
    drive_copies,
    hear_copies,
    superseded_by,
    turn,
    watch_commit,
)
from trimtab.core.controller.degraded import catch_up, take_troubles, watch_troubles
from trimtab.core.controller.evaluating import drive_evaluation, scores_ready
from trimtab.core.controller.hot_servers import watch_servers
from trimtab.core.controller.inputs import (
    CapsChanged,
    CheckpointRequested,
    CommitResult,
    Decided,
    DriverFailed,
    Input,
    Late,
    Noticed,
    PodsSeen,
    PsSaid,
    ScoresReady,
    StopRequested,
    Tick,
    WorkerSaid,
)
from trimtab.core.controller.lending import hear_worker
from trimtab.core.controller.memory_watch import watch_memory
from trimtab.core.controller.pods import end_job, see_pods, want_pods, watch_silence
from trimtab.core.controller.serving import call_servers, committed, hear_ps, reroute
from trimtab.core.controller.state import Draft, State
from trimtab.core.controller.stopping import ask_to_stop, drain, watch_stop
from trimtab.core.controller.straggling import watch_workers
from trimtab.core.controller.unserved import watch_service
from trimtab.core.domain.job import JobState


def step(state: State, inputs: Sequence[Input], now: float) -> tuple[State, list[Action]]:
    """The next state and what to do.

    Args:
        state: as the last step left it.
        inputs: what was said since, in order.
        now: monotonic seconds, never falling.
    """
    draft = Draft(state, now)
    for entry in inputs:
        _take(draft, entry)
    if not draft.over:
        _reconcile(draft, any(isinstance(entry, Tick) for entry in inputs))
    return draft.state, draft.actions


def _take(draft: Draft, entry: Input) -> None:
    """One input; after the end workers still get an answer (to leave), and a swap on its way is taken in."""
    if isinstance(entry, WorkerSaid):
        hear_worker(draft, entry)
    elif draft.over and not isinstance(entry, CommitResult):
        return
    elif isinstance(entry, PsSaid):
        hear_ps(draft, entry)
        hear_copies(draft, entry)
    elif isinstance(entry, PodsSeen):
        see_pods(draft, entry)
    elif isinstance(entry, CommitResult):
        superseded, plan = superseded_by(draft, entry), draft.state.document.plan
        committed(draft, entry)
        plan_committed(draft, plan)
        closed(draft, entry, superseded)
    elif isinstance(entry, ScoresReady):
        scores_ready(draft, entry)
    elif isinstance(entry, Decided):
        decided(draft, entry)
    elif isinstance(entry, CapsChanged):
        caps_changed(draft, entry.limits)
    elif isinstance(entry, StopRequested):
        ask_to_stop(draft, entry.reason, now=entry.now)
    elif isinstance(entry, CheckpointRequested):
        ask_for_checkpoint(draft)
    elif isinstance(entry, Noticed):
        take_troubles(draft, entry)
    elif isinstance(entry, Late):
        catch_up(draft, entry)
    elif isinstance(entry, DriverFailed):
        end_job(draft, JobState.FAILED, entry.reason)


def _reconcile(draft: Draft, tick: bool) -> None:
    """Ask for what is missing. Pods and calls to parameter servers go out with each tick."""
    turn(draft)
    drain(draft)
    reroute(draft)
    drive_copies(draft)
    drive_evaluation(draft)
    if not tick or draft.over:
        return
    watch_silence(draft)
    watch_service(draft)
    watch_commit(draft)
    watch_stop(draft)
    if draft.over:
        return
    watch_workers(draft)
    watch_servers(draft)
    watch_memory(draft)
    watch_troubles(draft)
    if draft.over:  # memory may be its end
        return
    drive_plan(draft)
    want_pods(draft)
    call_servers(draft)
