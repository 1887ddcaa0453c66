"""What follows the committed manifest: evaluation, the end, or a reason why the job is of no use."""

from dataclasses import replace

import pytest
from controller_world import empty_manifest, new_state, settings

from trimtab.core.controller.actions import FinishJob
from trimtab.core.controller.closing import closed
from trimtab.core.controller.inputs import CommitResult
from trimtab.core.controller.state import Draft, Phase
from trimtab.core.domain.job import JobState
from trimtab.core.wire.messages import CopySet


@pytest.mark.parametrize(
    ("skipped", "state", "phase"),
    [(((0, 12),), JobState.FAILED, Phase.OVER), (((0, 11),), JobState.RUNNING, Phase.EVALUATING)],
)
def test_a_job_whose_every_batch_was_skipped_has_failed(skipped, state, phase) -> None:
    whole = replace(empty_manifest(), sets=(CopySet(((0, 12),), skipped),))
    begun = replace(new_state(settings(batches=12)), phase=Phase.CLOSING, manifest=whole)
    draft = Draft(begun, 0.0)
    closed(draft, CommitResult(begun.document, whole), superseded=False)
    assert draft.state.phase is phase
    ends = [action for action in draft.actions if isinstance(action, FinishJob)]
    assert [end.state for end in ends] == ([state] if state is JobState.FAILED else [])
    assert all("not finite" in end.reason for end in ends)
