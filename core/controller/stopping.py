"""Stopping in order: what is begun is finished, a last checkpoint is written, and then the job ends.

Without the last checkpoint a job that goes on would train again what came after the one before. Nothing is promised to
whoever waits but that it ends soon: each part has a bound of its own, whatever hangs or fails costs only what it would
have saved, and the reason says what the checkpoint holds. Where the committed checkpoint holds all there is (before the
first batch, after the last one) there is nothing to write.
"""

from __future__ import annotations

from trimtab.core.controller.pods import end_job
from trimtab.core.controller.rounds import Stop
from trimtab.core.controller.state import Draft, Phase, State
from trimtab.core.domain.job import JobState
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.values import replace

DRAIN_SECONDS = 3.0  # for batches that are begun
UNSERVED_SECONDS = 5.0  # for a parameter server that was just lost, or a move on its way
SILENT_SECONDS = 15.0  # for one that neither answers nor says that it writes
PAUSE_SECONDS = 1.0  # between two tries
MOST_TRIES = 2


def ask_to_stop(
    draft: Draft, reason: str, *, now: bool = False, state: JobState = JobState.STOPPED, out_of_memory: str = ""
) -> None:
    """End the job in order; asked for again it changes nothing, unless it is to be `now`.

    Args:
        draft: the step's.
        reason: for the record, as the beginning of a sentence; what the checkpoint holds is said behind it.
        now: without a last checkpoint.
        state: how it ends. out_of_memory: the role whose memory is the reason, "" for another one.
    """
    held = draft.state
    if draft.over:
        return
    if now or held.phase not in (Phase.TRAINING, Phase.STOPPING, Phase.CLOSING):
        end_job(draft, state, reason, out_of_memory)
    elif held.stop is None:
        draft.state = replace(held, stop=Stop(reason, draft.now, state, out_of_memory))
        if held.phase is Phase.TRAINING:
            draft.enter(Phase.STOPPING, f"{reason}: what is begun is finished, then a last checkpoint is written")
            _take_back(draft)
        else:
            draft.note("stop", f"{reason}: the job ends when the final checkpoint is written")


def _take_back(draft: Draft) -> None:
    """Workers begin no further batch. Their loans end when they say so, as always: once the batch in work is done."""
    for pod in draft.state.workers():
        held = {hold.id for hold in draft.state.ledger.holds.of(pod.name)}
        if held:
            draft.put_pod(replace(pod, taken_back=tuple(sorted({*pod.taken_back, *held}))))


def drain(draft: Draft) -> None:
    """See whether workers still have batches that are waited for."""
    state, stop = draft.state, draft.state.stop
    if stop is None or state.phase is not Phase.STOPPING or stop.drained_at is not None:
        return
    if not len(state.ledger.holds) or draft.now - stop.began_at >= DRAIN_SECONDS:
        draft.state = replace(state, stop=replace(stop, drained_at=draft.now))


def watch_stop(draft: Draft) -> None:
    """End the job with what its checkpoint holds when the last one does not come about in time."""
    state, stop = draft.state, draft.state.stop
    if stop is None or draft.over:
        return
    unserved = None if state.ledger.served else draft.now if stop.unserved_at is None else stop.unserved_at
    if unserved != stop.unserved_at:
        draft.state = state = replace(state, stop=replace(stop, unserved_at=unserved))
    if unserved is not None and draft.now - unserved >= UNSERVED_SECONDS:
        count = state.ledger.missing.bit_count()
        end_stop(draft, f"{count} of {VSHARDS} vshards were served by nobody for {draft.now - unserved:.0f} s")
    elif draft.now - stop.began_at >= state.settings.copy_seconds:
        end_stop(draft, stop.why or f"it was not written within {state.settings.copy_seconds:.0f} s")
    elif state.phase is Phase.CLOSING and state.failed_rounds >= MOST_TRIES:
        end_stop(draft, state.checkpoints.error or "the copies do not hold every batch")


def nothing_new(state: State) -> bool:
    """Whether the committed checkpoint holds all that was trained. Reports may lag, so nothing may be on its way."""
    ledger = state.ledger
    on_its_way = bool(len(ledger.holds)) or bool(ledger.settling)
    return ledger.served and not on_its_way and ledger.applied == state.manifest.applied()


def failed_try(draft: Draft, why: str) -> None:
    """A last checkpoint, or a part of it, could not be written or stored."""
    stop = draft.state.stop
    if stop is not None:
        draft.state = replace(draft.state, stop=replace(stop, written=False, failed=stop.failed + 1, why=why))


def end_stop(draft: Draft, why: str = "") -> None:
    """End the job, and say what its checkpoint holds; `why`: the reason why it holds less than was trained."""
    state, stop = draft.state, draft.state.stop
    if stop is None:
        return
    held = f"{len(state.manifest.applied())} of {state.settings.batches} batches"
    failed = f"the last checkpoint could not be written ({why}); the job's" if why else "its"
    end_job(draft, stop.state, f"{stop.reason}; {failed} checkpoint holds {held}", stop.out_of_memory)


def stop_words(state: State) -> str:
    """How far the stop is, for whoever waits; "" when the job is not to stop."""
    stop = state.stop
    if stop is None or state.phase is Phase.OVER:
        return ""
    if state.phase is Phase.STOPPING and stop.drained_at is None:
        doing = "finishing the batches that are begun"
    elif state.round is not None:
        doing = f"writing a last checkpoint ({len(state.round.results)} of {len(state.ledger.known)} PSs have)"
    else:
        doing = "storing the last checkpoint" if state.committing else "waiting for the parameter servers"
    return f"{doing}; asked once more, the job ends at once"
