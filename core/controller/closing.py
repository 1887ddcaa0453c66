"""Copies, checkpoints and the end of training.

A checkpoint is one order to all parameter servers; what they write enters the last manifest copy by copy, so a server
that dies in the middle costs nothing but its own part. It makes no difference who asked for it: the time, a person, or
a stop. The end uses the same step and one more rule: training is over only when the *committed manifest* holds every
number for every vshard. Reports merely say when it is worth looking.
"""

from __future__ import annotations

from trimtab.core.controller.actions import CommitDocument, RemoveSuperseded
from trimtab.core.controller.inputs import CommitResult, PsSaid
from trimtab.core.controller.pods import end_job
from trimtab.core.controller.rounds import CopyRound
from trimtab.core.controller.serving import commit
from trimtab.core.controller.state import MOST_FAILED_ROUNDS, Draft, Phase, State, pause_seconds
from trimtab.core.controller.stopping import (
    MOST_TRIES,
    PAUSE_SECONDS,
    SILENT_SECONDS,
    end_stop,
    failed_try,
    nothing_new,
)
from trimtab.core.domain.job import JobState
from trimtab.core.domain.values import replace
from trimtab.core.ps.manifest import merge

MOST_PATIENCE = 12  # times copy_seconds, while copies are being written, or a manifest


def ask_for_checkpoint(draft: Draft) -> None:
    """Begin a round of copies now, or as soon as one can be; refused while the job stops, for then one is written."""
    state = draft.state
    if draft.over or state.stop is not None:
        return
    known = replace(state.checkpoints, asked=state.checkpoints.asked + 1)
    if state.phase not in (Phase.STARTING, Phase.TRAINING, Phase.CLOSING):  # the committed one holds everything
        known = replace(known, taken=known.asked, done=known.asked)
    draft.state = replace(state, checkpoints=known)
    draft.note("checkpoint_asked", "a checkpoint is asked for")


def drive_copies(draft: Draft) -> None:
    """Begin a round of copies when one is due, end it when all have answered or its time is over."""
    state = draft.state
    if state.round is not None:
        _end_round(draft)
    elif state.phase is Phase.CLOSING:
        due = draft.now - state.copied_at >= pause_seconds(state.failed_rounds)
        if due and state.ledger.served and not state.committing:
            _begin_round(draft)
    elif state.phase is Phase.STOPPING:
        _last_round(draft)
    elif state.phase is Phase.TRAINING and state.ledger.served and not state.committing:
        asked = state.checkpoints.asked > state.checkpoints.taken
        due = draft.now - state.copied_at >= state.settings.checkpoint_seconds
        if asked and nothing_new(state):
            known = state.checkpoints
            draft.state = replace(state, checkpoints=replace(known, taken=known.asked, done=known.asked, error=""))
        elif asked or (due and state.ledger.applied != state.manifest.applied()):
            _begin_round(draft)


def watch_commit(draft: Draft) -> None:
    """End the job when a swap neither succeeds nor fails: nothing may change while it might still be stored.

    It is never taken for failed. What is stored late belongs to a job that has ended, and a resume begins from it.
    """
    state = draft.state
    if not state.committing or state.committing_since is None or draft.over:
        return
    waited = draft.now - state.committing_since
    if waited > state.settings.copy_seconds * MOST_PATIENCE:
        text = f"the job's state could not be stored within {waited:.0f} s: writing a manifest into"
        end_job(draft, JobState.FAILED, f"{text} {state.settings.copies_directory} does not end; see to that store")


def hear_copies(draft: Draft, said: PsSaid) -> None:
    """Keep a parameter server's answer to the running round; whether its copies may count is decided at the merge."""
    state, written = draft.state, said.report.copies
    running = state.round
    if running is None or written is None or written.id != running.id or said.pod not in state.pods:
        return
    process = said.report.process
    if process in running.results:
        return
    if written.error:
        draft.note("copy_failed", f"{said.pod} could not write its copies: {written.error}", pod=said.pod)
    draft.state = replace(state, round=replace(running, results={**running.results, process: written}))


def turn(draft: Draft) -> None:
    """From training to closing when reports say all is applied, back when they do not, on when the manifest does."""
    state = draft.state
    if state.phase is Phase.STARTING and state.ledger.served:
        draft.enter(Phase.TRAINING, f"training {state.settings.batches} batches")
        draft.state = replace(draft.state, copied_at=draft.now)
    elif state.phase in (Phase.TRAINING, Phase.STOPPING) and state.ledger.all_applied:
        draft.enter(Phase.CLOSING, "every batch is applied; writing the final checkpoint")
    elif state.phase is Phase.CLOSING and not state.ledger.all_applied and state.round is None and not state.committing:
        left = state.settings.batches - len(state.ledger.applied)
        if state.stop is None:
            draft.enter(Phase.TRAINING, f"{left} batches are to be trained again")
        else:
            draft.enter(Phase.STOPPING, f"{left} batches are to be trained again when the job goes on")


def closed(draft: Draft, result: CommitResult, superseded: bool) -> None:
    """After a swap: drop what a new manifest superseded, and leave training if the committed one is complete.

    Args:
        draft: the step's, with the committed document and manifest already in its state.
        result: of the swap.
        superseded: whether the manifest changed.
    """
    _know_outcome(draft, result, superseded)
    state = draft.state
    if superseded:
        number, batches = len(state.manifest.applied()), state.settings.batches
        draft.note("checkpoint", f"checkpoint committed: {number} of {batches} batches closed", closed=number)
    if state.phase is not Phase.CLOSING or not state.manifest.complete(state.settings.batches):
        return
    if len(state.manifest.skipped()) == state.settings.batches:  # counted right, and of no use to anybody
        why = "no batch could be applied: in every one the loss or a gradient was not finite"
        end_job(draft, JobState.FAILED, f"{why}; look at the data and the model, or use a smaller learning rate")
    elif not state.settings.evaluation_batches:
        end_job(draft, JobState.FINISHED, "")
    elif state.stop is not None:
        end_stop(draft)
    else:
        draft.enter(Phase.EVALUATING, f"evaluating {state.settings.evaluation_batches} held-out batches")


def _know_outcome(draft: Draft, result: CommitResult, superseded: bool) -> None:
    """Keep what became of a round whose manifest was on its way."""
    state, known = draft.state, draft.state.checkpoints
    if not known.storing:
        return
    stored = result.document is not None
    known = replace(
        known, storing=False, done=known.taken, error=known.error if stored else result.error,
        at=draft.now if superseded else known.at,
    )  # fmt: skip
    draft.state = replace(state, checkpoints=known)
    if not stored and state.phase is Phase.STOPPING:
        failed_try(draft, result.error)


def _last_round(draft: Draft) -> None:
    """A stop's own round of copies, once what is begun is finished; and its end."""
    state, stop = draft.state, draft.state.stop
    if stop is None or stop.drained_at is None or state.committing:
        return
    if stop.written:
        end_stop(draft)
    elif stop.failed >= MOST_TRIES:
        end_stop(draft, stop.why)
    elif nothing_new(state) and not stop.failed:
        end_stop(draft)
    elif state.ledger.served and (not stop.failed or draft.now - state.copied_at >= PAUSE_SECONDS):
        _begin_round(draft)


def _begin_round(draft: Draft) -> None:
    state, known = draft.state, draft.state.checkpoints
    draft.state = replace(
        state, round=CopyRound(state.next_id, draft.now), next_id=state.next_id + 1,
        checkpoints=replace(known, taken=known.asked),
    )  # fmt: skip


def _end_round(draft: Draft) -> None:
    """Merge what has been written once nobody is waited for; a swap on its way comes first."""
    state, running = draft.state, draft.state.round
    if running is None or state.committing:
        return
    # A round that began before a stop's batches were finished holds too little: what it has brought counts, no more.
    drained = state.stop.drained_at if state.stop is not None and state.phase is Phase.STOPPING else None
    cut = drained is not None and running.began_at < drained
    waiting = [process for process in state.ledger.known if process not in running.results]
    late = draft.now - running.began_at > _patience(state, waiting)
    if waiting and not late and not cut:
        return
    new = state.manifest
    for process, written in running.results.items():
        if not written.error:
            new = merge(new, written, state.document.routing, process)
    why = running.errors or ("no answer in time" if waiting and not cut else "")
    closing = state.phase is Phase.CLOSING and state.ledger.all_applied
    failed = not new.complete(state.settings.batches)
    rounds = state.failed_rounds + failed if closing else 0  # a swap that could not be stored has counted too
    storing = new != state.manifest or (closing and not failed)
    known = replace(state.checkpoints, error=why, storing=storing)
    known = known if storing else replace(known, done=known.taken)
    draft.state = replace(state, round=None, copied_at=draft.now, failed_rounds=rounds, checkpoints=known)
    if drained is not None and not cut:
        _end_last_round(draft, why)
    if rounds >= MOST_FAILED_ROUNDS and state.stop is None:
        why = why or "the copies do not hold every batch"
        end_job(draft, JobState.FAILED, f"the final checkpoint could not be written, {rounds} times: {why}")
    elif storing:
        commit(draft, CommitDocument(state.document, new if new != state.manifest else None))


def _end_last_round(draft: Draft, why: str) -> None:
    """A stop's own round is over, well or not."""
    stop = draft.state.stop
    if why:
        failed_try(draft, why)
    elif stop is not None:
        draft.state = replace(draft.state, stop=replace(stop, written=True))


def _patience(state: State, waiting: list[str]) -> float:
    """How long a round may take: a slow disk is not a silent server, and whoever stops a job waits for it."""
    writing = any(
        pod.process in waiting and pod.report is not None and (pod.report.loading or pod.report.writing)
        for pod in state.servers()
    )
    if state.stop is not None:
        return state.settings.copy_seconds if writing else min(SILENT_SECONDS, state.settings.copy_seconds)
    return state.settings.copy_seconds * (MOST_PATIENCE if writing else 1)


def superseded_by(draft: Draft, result: CommitResult) -> bool:
    """Ask for the old manifest's own files to be deleted; call before the new one is taken in."""
    if result.document is None or result.manifest is None or draft.over:
        return False
    state = draft.state
    # Once everything is served nobody reads what dead servers left, and the new copies hold all that it brought.
    alive = tuple(sorted(state.ledger.tenures)) if state.ledger.served else ()
    draft.act(RemoveSuperseded(state.manifest, result.manifest, alive))
    return True
