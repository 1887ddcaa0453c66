"""Copies, checkpoints and the end of training.

A checkpoint is one order to all parameter servers; what they write enters the last manifest copy by copy, so a server
that dies in the middle costs nothing but its own part. The end uses the same step and one more rule: training is over
only when the *committed manifest* holds every number for every vshard. Reports merely say when it is worth looking.
"""

from __future__ import annotations

from dataclasses import replace

from trimtab.core.controller.actions import CommitDocument, RemoveSuperseded
from trimtab.core.controller.inputs import CommitResult, PsSaid
from trimtab.core.controller.pods import end_job
from trimtab.core.controller.serving import commit
from trimtab.core.controller.state import MOST_FAILED_ROUNDS, CopyRound, Draft, Phase, pause_seconds
from trimtab.core.domain.job import JobState
from trimtab.core.ps.manifest import merge

MOST_PATIENCE = 12  # times copy_seconds, while copies are being written, or a manifest


def drive_copies(draft: Draft) -> None:
    """Begin a round of copies when one is due, end it when all have answered or its time is over."""
    state = draft.state
    if state.round is not None:
        _end_round(draft)
    elif state.phase is Phase.CLOSING:
        due = draft.now - state.copied_at >= pause_seconds(state.failed_rounds)
        if due and state.ledger.served and not state.committing:
            _begin_round(draft)
    elif state.phase is Phase.TRAINING and state.ledger.served:
        due = draft.now - state.copied_at >= state.settings.checkpoint_seconds
        if due and not state.committing and state.ledger.applied != state.manifest.applied():
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
    elif state.phase is Phase.TRAINING and state.ledger.all_applied:
        draft.enter(Phase.CLOSING, "every batch is applied; writing the final checkpoint")
    elif state.phase is Phase.CLOSING and not state.ledger.all_applied and state.round is None and not state.committing:
        left = state.settings.batches - len(state.ledger.applied)
        draft.enter(Phase.TRAINING, f"{left} batches are to be trained again")


def closed(draft: Draft, result: CommitResult, superseded: bool) -> None:
    """After a swap: drop what a new manifest superseded, and leave training if the committed one is complete.

    Args:
        draft: the step's, with the committed document and manifest already in its state.
        result: of the swap.
        superseded: whether the manifest changed.
    """
    state = draft.state
    if superseded:
        number, batches = len(state.manifest.applied()), state.settings.batches
        draft.note("checkpoint", f"checkpoint committed: {number} of {batches} batches closed", closed=number)
    if state.phase is not Phase.CLOSING or not state.manifest.complete(state.settings.batches):
        return
    if len(state.manifest.skipped()) == state.settings.batches:  # counted right, and of no use to anybody
        why = "no batch could be applied: in every one the loss or a gradient was not finite"
        end_job(draft, JobState.FAILED, f"{why}; look at the data and the model, or use a smaller learning rate")
        return
    if state.settings.evaluation_batches:
        draft.enter(Phase.EVALUATING, f"evaluating {state.settings.evaluation_batches} held-out batches")
    else:
        end_job(draft, JobState.FINISHED, "")


def _begin_round(draft: Draft) -> None:
    state = draft.state
    draft.state = replace(state, round=CopyRound(state.next_id, draft.now), next_id=state.next_id + 1)


def _end_round(draft: Draft) -> None:
    """Merge what has been written once nobody is waited for; a swap on its way comes first."""
    state, running = draft.state, draft.state.round
    if running is None or state.committing:
        return
    waiting = [process for process in state.ledger.known if process not in running.results]
    writing = any(
        pod.process in waiting and pod.report is not None and (pod.report.loading or pod.report.writing)
        for pod in state.servers()
    )
    patience = state.settings.copy_seconds * (MOST_PATIENCE if writing else 1)  # a slow disk is not a silent server
    late = draft.now - running.began_at > patience
    if waiting and not late:
        return
    new = state.manifest
    for process, written in running.results.items():
        if not written.error:
            new = merge(new, written, state.document.routing, process)
    closing = state.phase is Phase.CLOSING and state.ledger.all_applied
    failed = not new.complete(state.settings.batches)
    rounds = state.failed_rounds + failed if closing else 0  # a swap that could not be stored has counted too
    draft.state = replace(state, round=None, copied_at=draft.now, failed_rounds=rounds)
    if rounds >= MOST_FAILED_ROUNDS:
        reasons = "; ".join(written.error for written in running.results.values() if written.error)
        why = reasons or ("no answer in time" if late else "the copies do not hold every batch")
        end_job(draft, JobState.FAILED, f"the final checkpoint could not be written, {rounds} times: {why}")
    elif new != state.manifest or (closing and not failed):
        commit(draft, CommitDocument(state.document, new if new != state.manifest else None))


def superseded_by(draft: Draft, result: CommitResult) -> bool:
    """Ask for the old manifest's own files to be deleted; call before the new one is taken in."""
    if result.document is None or result.manifest is None or draft.over:
        return False
    state = draft.state
    # Once everything is served nobody reads what dead servers left, and the new copies hold all that it brought.
    alive = tuple(sorted(state.ledger.tenures)) if state.ledger.served else ()
    draft.act(RemoveSuperseded(state.manifest, result.manifest, alive))
    return True
