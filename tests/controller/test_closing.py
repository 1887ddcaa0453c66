"""What follows the committed manifest: evaluation, the end, or a reason why the job is of no use."""

from dataclasses import replace

import pytest
from controller_world import Server, World, empty_manifest, new_state, plan_of, settings

from trimtab.core.controller.actions import FinishJob
from trimtab.core.controller.closing import MOST_PATIENCE, closed
from trimtab.core.controller.inputs import CommitResult
from trimtab.core.controller.state import Draft, Phase
from trimtab.core.domain.job import JobState
from trimtab.core.wire.messages import CopySet, PsReport, PsSync


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


@pytest.mark.parametrize(("every", "phase"), [(1e9, Phase.CLOSING), (0.1, Phase.TRAINING)])
def test_a_manifest_whose_writing_never_ends_ends_the_job(every: float, phase: Phase) -> None:
    world = World(settings(batches=400, checkpoint_seconds=every, copy_seconds=1.0), plan_of(1, 1))
    plain, hanging = world.commit, []

    def commit() -> None:
        if world.commits[0].manifest is None:
            plain()
        else:
            hanging.append(world.commits.pop(0))

    world.commit = commit  # type: ignore[method-assign]
    while not hanging:
        world.round()
    began, seen = world.clock.now(), world.state.phase
    ended = world.until_end()
    assert (seen, ended.state) == (phase, JobState.FAILED)
    assert "writing a manifest into copies does not end" in ended.reason
    assert MOST_PATIENCE <= world.clock.now() - began < MOST_PATIENCE + 1
    assert len(hanging) == 1 and world.state.committing, "it may still be stored"
    world.commits = hanging
    plain()
    assert world.state.document == world.store.read()
    assert world.state.phase is Phase.OVER


def test_copies_that_are_still_being_written_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(settings(batches=2000, checkpoint_seconds=1.0, copy_seconds=1.0), plan_of(1, 1))
    plain = Server.sync

    def slow(self: Server, world: World, request: PsSync) -> PsReport | None:
        report = plain(self, world, request)
        return replace(report, copies=None, writing=request.copy is not None) if report is not None else None

    monkeypatch.setattr(Server, "sync", slow)
    while world.state.round is None:
        world.round()
    first = world.state.round
    while world.state.round is not None and world.state.round.id == first.id:
        world.round()
    assert MOST_PATIENCE <= world.clock.now() - first.began_at < MOST_PATIENCE + 1
