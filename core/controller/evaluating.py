"""After training: scores of the held-out rows, the figures over them, the model's own metrics.

Routing is held still: whoever serves has loaded or written the complete checkpoint, so every pull sees one consistent
model, also after a parameter server was lost and restored on the way. Compiled metrics are computed by a worker, where
the user's code lives; when that does not work after a few tries, or the scores can't be handed to it because the disk
has no room for them, the job is finished without them and says so.
"""

from __future__ import annotations

from dataclasses import replace

from trimtab.core.controller.actions import ComputeScores
from trimtab.core.controller.inputs import ScoresReady
from trimtab.core.controller.pods import end_job
from trimtab.core.controller.state import MOST_METRIC_TRIES, Draft, Outcome, Phase
from trimtab.core.domain.job import JobState


def drive_evaluation(draft: Draft) -> None:
    """From evaluating to scoring when all scores are there; from metrics to the end when they are, or never will be."""
    state = draft.state
    if state.phase is Phase.EVALUATING and state.evaluation.complete:
        draft.enter(Phase.SCORING, "computing AUC and log loss")
        draft.act(ComputeScores())
    elif state.phase is Phase.METRICS:
        if state.outcome.metrics is not None:
            end_job(draft, JobState.FINISHED, "")
        elif state.metric_tries >= MOST_METRIC_TRIES and not len(state.evaluation.holds):
            draft.note("metrics_missing", "the model's compiled metrics could not be computed")
            end_job(draft, JobState.FINISHED, "")


def scores_ready(draft: Draft, ready: ScoresReady) -> None:
    """Take in the figures over all scores."""
    if draft.state.phase is not Phase.SCORING:
        return
    outcome = Outcome(ready.auc, ready.log_loss, None, ready.path)
    evaluation = draft.state.evaluation
    holds, _ = evaluation.holds.end(lambda hold: True)
    draft.state = replace(draft.state, outcome=outcome, evaluation=replace(evaluation, holds=holds))
    if ready.error:
        draft.note("scores_not_kept", f"the merged scores could not be written: {ready.error}")
    if draft.state.settings.metrics and ready.error:
        draft.note("metrics_missing", "the model's compiled metrics could not be computed")
        end_job(draft, JobState.FINISHED, "")
    elif draft.state.settings.metrics:
        draft.enter(Phase.METRICS, "computing the model's own metrics")
    else:
        end_job(draft, JobState.FINISHED, "")
