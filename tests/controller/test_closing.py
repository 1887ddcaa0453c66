"""What follows the committed manifest: evaluation, the end, or a reason why the job is of no use."""

from dataclasses import replace

import pytest
from controller_world import Server, World, empty_manifest, new_state, plan_of, settings

from trimtab.core.controller.actions import FinishJob
from trimtab.core.controller.closing import MOST_PATIENCE, closed
from trimtab.core.controller.inputs import CheckpointRequested, CommitResult, StopRequested
from trimtab.core.controller.state import Draft, Phase
from trimtab.core.domain.job import JobState
from trimtab.core.wire.messages import CopiesWritten, CopySet, PsReport, PsSync


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


def training(**changes: object) -> World:
    world = World(settings(batches=3000, checkpoint_seconds=1e9, **changes), plan_of(1, 1))
    while world.state.phase is not Phase.TRAINING or not len(world.state.ledger.applied):
        world.round()
    return world


def rounds_until(world: World, done: int, most: int = 50) -> None:
    for _ in range(most):
        if world.state.checkpoints.done >= done:
            return
        world.round()
    raise AssertionError(f"never done: {world.state.checkpoints}")


def test_a_checkpoint_that_is_asked_for_begins_now() -> None:
    world = training()
    world.feed(CheckpointRequested())
    assert world.state.round is not None
    rounds_until(world, 1)
    first = len(world.state.manifest.applied())
    assert first > 0
    assert (world.state.checkpoints.error, world.state.checkpoints.at) == ("", world.clock.now())
    world.round()
    world.feed(CheckpointRequested())
    rounds_until(world, 2)
    assert len(world.state.manifest.applied()) > first


def test_one_that_is_asked_for_while_another_is_written_gets_its_own() -> None:
    """Whoever asks wants what is trained by now to be in it."""
    world = training()
    world.feed(CheckpointRequested())
    running = world.state.round
    world.feed(CheckpointRequested())
    assert world.state.round == running
    ids = set()
    while world.state.checkpoints.done < 2:
        world.round()
        ids |= {world.state.round.id} if world.state.round is not None else set()
    assert running is not None and ids - {running.id}


def test_without_anything_new_one_that_is_asked_for_is_there_already() -> None:
    world = training()
    for worker in world.workers.values():
        worker.work = lambda *_: None  # type: ignore[method-assign]
    world.feed(CheckpointRequested())
    rounds_until(world, 1)
    ledger = world.state.ledger
    world.state = replace(world.state, ledger=replace(ledger, holds=type(ledger.holds)()))
    manifests = len(world.manifests)
    world.feed(CheckpointRequested())
    assert world.state.checkpoints.done == 2
    assert len(world.manifests) == manifests


def test_at_the_start_it_waits_for_training_and_after_training_it_is_there() -> None:
    world = World(settings(batches=40, checkpoint_seconds=1e9), plan_of(1, 1))
    world.feed(CheckpointRequested())
    assert (world.state.checkpoints.done, world.state.round) == (0, None)
    rounds_until(world, 1)
    while world.state.phase is not Phase.EVALUATING:
        world.round()
    world.feed(CheckpointRequested())
    assert world.state.checkpoints.done == world.state.checkpoints.asked == 2


def test_while_the_job_stops_none_is_asked_for() -> None:
    world = training()
    world.feed(StopRequested("interrupted"))
    world.feed(CheckpointRequested())
    assert world.state.checkpoints.asked == 0


def test_one_that_fails_is_done_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    world, plain = training(), Server.sync

    def full(self: Server, world: World, request: PsSync) -> PsReport | None:
        report = plain(self, world, request)
        wanted = report is not None and request.copy is not None
        failed = CopiesWritten(request.copy.id, error="No space left") if request.copy is not None else None
        return replace(report, copies=failed) if wanted and report is not None else report

    monkeypatch.setattr(Server, "sync", full)
    world.feed(CheckpointRequested())
    rounds_until(world, 1)
    assert (world.state.checkpoints.error, world.state.checkpoints.at) == ("No space left", None)
    assert world.state.phase is Phase.TRAINING


def test_an_end_that_was_stored_behind_a_swap_stays_the_end() -> None:
    """The swap's result comes late: another thread has stored it, and the end after it."""
    world = training()
    late = CommitResult(replace(world.state.document, version=world.state.document.version + 1), empty_manifest())
    ended = replace(world.state.document, version=world.state.document.version + 2, state=JobState.STOPPED)
    world.feed(StopRequested("interrupted", now=True))
    world.state = replace(world.state, document=ended)
    world.feed(late)
    assert world.state.document == ended
