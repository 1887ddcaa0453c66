"""A stop in order: nothing more is lent, what is begun is finished, one last checkpoint, then the end with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from controller_world import Server, World, settings

from trimtab.core.cluster.base import PodSpec
from trimtab.core.controller.inputs import CommitResult, StopRequested
from trimtab.core.controller.settings import Settings
from trimtab.core.controller.shares import shares
from trimtab.core.controller.state import Draft, Phase
from trimtab.core.controller.stopping import (
    DRAIN_SECONDS,
    MOST_TRIES,
    SILENT_SECONDS,
    UNSERVED_SECONDS,
    ask_to_stop,
    stop_words,
)
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import Limits
from trimtab.core.wire.messages import CopiesWritten, PsReport, PsSync

STOP = StopRequested("interrupted")
CHANGE = Callable[[PsReport, PsSync], PsReport]


def until(world: World, phase: Phase, rounds: int = 400) -> None:
    for _ in range(rounds):
        if world.state.phase is phase:
            return
        world.round()
    raise AssertionError(f"never {phase}")


def training(least: int = 20, chosen: Settings | None = None) -> World:
    """A job in mid-training, without a checkpoint yet."""
    world = World(chosen or settings(batches=2000, checkpoint_seconds=1e9))
    while len(world.state.ledger.applied) < least:
        world.round()
    assert world.state.phase is Phase.TRAINING
    return world


def reports(monkeypatch: pytest.MonkeyPatch, change: CHANGE) -> None:
    """Parameter servers that report something else."""
    plain = Server.sync

    def other(self: Server, world: World, request: PsSync) -> PsReport | None:
        report = plain(self, world, request)
        return change(report, request) if report is not None else None

    monkeypatch.setattr(Server, "sync", other)


def lent(world: World) -> list[int]:
    return sorted(number for grant in world.lent for number in range(grant.lo, grant.hi))


def test_what_is_begun_is_finished_and_written_and_a_resume_repeats_nothing() -> None:
    world = training()
    world.feed(STOP)
    assert world.state.phase is Phase.STOPPING
    before = len(world.lent)
    end = world.until_end()
    assert len(world.lent) == before, "nothing is lent any more"
    held = world.state.manifest.applied()
    assert 20 <= len(held) < 2000
    assert held == world.state.losses.counted, "all that was trained"
    assert (end.state, end.reason) == (
        JobState.STOPPED, f"interrupted; its checkpoint holds {len(held)} of 2000 batches",
    )  # fmt: skip
    stored = world.store.read()
    assert stored is not None
    assert world.manifests[stored.manifest.path].applied() == held, "it is committed"

    world.ended, world.lent = None, []
    for pod in [status.name for status in world.cluster.observe()]:
        world.kill(pod)
    world.successor()
    assert world.until_end(2000).state is JobState.FINISHED
    assert lent(world) == [number for number in range(2000) if number not in held], "each of the rest once"
    assert sum(server.duplicates for server in world.servers.values()) == 0


def test_a_stop_takes_no_longer_than_the_batches_that_are_begun() -> None:
    world = training()
    began = world.clock.now()
    world.feed(STOP)
    world.until_end()
    assert world.clock.now() - began < DRAIN_SECONDS


def test_right_after_a_checkpoint_without_new_batches_nothing_is_written() -> None:
    world = training(chosen=settings(batches=2000, checkpoint_seconds=0.4))
    for worker in world.workers.values():
        worker.work = lambda *_: None  # type: ignore[method-assign]
    while world.state.manifest.applied() != world.state.ledger.applied or not world.state.ledger.applied:
        world.round()
    world.state = replace(world.state, ledger=replace(world.state.ledger, holds=type(world.state.ledger.holds)()))
    manifests = len(world.manifests)
    world.feed(STOP)
    end = world.until_end()
    assert len(world.manifests) == manifests
    assert f"checkpoint holds {len(world.state.manifest.applied())} of 2000" in end.reason


def test_before_training_and_after_it_a_stop_ends_the_job_at_once() -> None:
    world = World(settings())
    world.tick()
    world.feed(STOP)
    assert world.ended is not None
    assert (world.ended.state, world.ended.reason) == (JobState.STOPPED, "interrupted")
    world = World(settings(batches=40))
    until(world, Phase.EVALUATING)
    world.feed(STOP)
    assert world.ended is not None
    assert world.ended.state is JobState.STOPPED


@pytest.mark.parametrize(("evaluation", "state"), [(2, JobState.STOPPED), (0, JobState.FINISHED)])
def test_while_closing_the_final_checkpoint_is_finished_first(evaluation: int, state: JobState) -> None:
    world = World(settings(batches=40, evaluation_batches=evaluation))
    until(world, Phase.CLOSING)
    assert not world.state.manifest.complete(40)
    world.feed(STOP)
    end = world.until_end()
    assert end.state is state
    assert world.state.manifest.complete(40)
    assert end.reason == ("interrupted; its checkpoint holds 40 of 40 batches" if evaluation else "")


def test_a_stop_at_the_very_end_of_training_closes_the_job() -> None:
    world = World(settings(batches=400, evaluation_batches=0, checkpoint_seconds=1e9))
    until(world, Phase.TRAINING)
    while world.state.ledger.todo or any(len(world.state.ledger.holds.of(pod)) > 1 for pod in world.workers):
        world.round()
    assert (world.state.phase, len(world.state.ledger.holds) > 0) == (Phase.TRAINING, True)
    world.feed(STOP)
    assert world.until_end().state is JobState.FINISHED
    assert world.state.manifest.complete(400)


def test_asked_again_it_changes_nothing_and_at_once_means_at_once() -> None:
    world = training()
    world.feed(STOP)
    first = world.state.stop
    world.feed(StopRequested("another reason"))
    assert (world.state.stop, world.ended) == (first, None)
    world.feed(StopRequested("interrupted", now=True))
    assert world.ended is not None
    assert (world.ended.state, world.ended.reason) == (JobState.STOPPED, "interrupted")
    assert world.state.manifest.applied() == IntervalSet(())


def test_another_reason_and_end_can_be_given() -> None:
    """How a machine without memory for the job ends it."""
    world = training()
    draft = Draft(world.state, world.clock.now())
    ask_to_stop(draft, "no memory is left; 2Gi per PS would do", state=JobState.FAILED, out_of_memory="ps")
    world.state = draft.state
    end = world.until_end()
    assert end.state is JobState.FAILED
    assert end.reason.startswith("no memory is left; 2Gi per PS would do; its checkpoint holds ")
    assert world.state.out_of_memory == "ps"


def test_a_worker_that_hangs_is_waited_for_for_a_moment_only() -> None:
    world = training()
    world.workers["worker-0-t1-g1"].work = lambda *_: None  # type: ignore[method-assign]
    stuck = world.state.ledger.holds.of("worker-0-t1-g1")
    assert stuck
    began = world.clock.now()
    world.feed(STOP)
    end = world.until_end()
    assert DRAIN_SECONDS <= world.clock.now() - began < DRAIN_SECONDS + 2
    assert "its checkpoint holds" in end.reason
    assert not world.state.manifest.applied() & IntervalSet((hold.lo, hold.hi) for hold in stuck)


def test_a_parameter_server_lost_meanwhile_is_waited_for_when_it_comes_back_soon() -> None:
    world = training(chosen=settings(batches=2000, checkpoint_seconds=0.5))
    world.feed(STOP)
    world.kill("ps-0-t1-g1")
    end = world.until_end()
    assert "ps-0-t1-g2" in {pod.name for pod in world.cluster.started}
    assert end.reason.startswith("interrupted; its checkpoint holds ")


def test_what_nobody_serves_is_not_waited_for_for_long() -> None:
    world = training(chosen=settings(batches=2000, checkpoint_seconds=0.5))
    world.kill("ps-0-t1-g1")
    plain = world.cluster.apply

    def apply(desired: list[PodSpec]) -> None:
        plain([pod for pod in desired if not pod.name.endswith("g2")])

    world.cluster.apply = apply  # type: ignore[method-assign, assignment]
    began = world.clock.now()
    world.feed(STOP)
    end = world.until_end()
    assert UNSERVED_SECONDS <= world.clock.now() - began < UNSERVED_SECONDS + 1
    assert "vshards were served by nobody for 5 s); the job's checkpoint holds" in end.reason


def test_a_full_disk_is_tried_twice_and_then_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world, ids = training(), set()

    def full(report: PsReport, request: PsSync) -> PsReport:
        if request.copy is None:
            return report
        ids.add(request.copy.id)
        return replace(report, copies=CopiesWritten(request.copy.id, error="No space left"))

    reports(monkeypatch, full)
    began = world.clock.now()
    world.feed(STOP)
    end = world.until_end()
    assert len(ids) == MOST_TRIES
    assert world.clock.now() - began < 5
    assert end.reason == (
        "interrupted; the last checkpoint could not be written (No space left; No space left); "
        "the job's checkpoint holds 0 of 2000 batches"
    )


def test_a_disk_that_has_room_at_the_second_try_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training()
    failed: set[str] = set()

    def once(report: PsReport, request: PsSync) -> PsReport:
        if request.copy is None or report.process in failed or report.process != "p1":
            return report
        failed.add(report.process)
        return replace(report, copies=CopiesWritten(request.copy.id, error="No space left"))

    reports(monkeypatch, once)
    world.feed(STOP)
    end = world.until_end()
    assert failed == {"p1"}
    assert end.reason == f"interrupted; its checkpoint holds {len(world.state.losses.counted)} of 2000 batches"


@pytest.mark.parametrize(("writing", "least"), [(False, MOST_TRIES * SILENT_SECONDS), (True, 60.0)])
def test_copies_that_never_come_end_the_waiting(
    monkeypatch: pytest.MonkeyPatch, writing: bool, least: float
) -> None:
    world = training(chosen=settings(batches=2000, checkpoint_seconds=1e9, copy_seconds=60.0))
    hangs = lambda report, request: replace(report, copies=None, writing=writing and request.copy is not None)  # noqa: E731
    reports(monkeypatch, hangs)
    began = world.clock.now()
    world.feed(STOP)
    end = world.until_end()
    assert least <= world.clock.now() - began < least + DRAIN_SECONDS + 2
    assert "the last checkpoint could not be written (" in end.reason
    assert "checkpoint holds 0 of 2000 batches" in end.reason


def test_a_state_that_cannot_be_stored_is_tried_twice_and_then_told() -> None:
    world = training()

    def fails() -> None:
        world.commits.pop(0)
        world.feed(CommitResult(None, error="No space left on device"))

    world.commit = fails  # type: ignore[method-assign]
    world.feed(STOP)
    end = world.until_end()
    assert "could not be written (No space left on device); the job's checkpoint holds 0 of 2000" in end.reason


def test_a_round_that_runs_already_holds_too_little_and_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = training(chosen=settings(batches=2000, checkpoint_seconds=0.5))
    first: list[int] = []

    def slow(report: PsReport, request: PsSync) -> PsReport:
        if request.copy is not None and not first:
            first.append(request.copy.id)
        mine = report.copies is not None and report.copies.id in first and report.process == "p1"
        return replace(report, copies=None, writing=True) if mine else report

    reports(monkeypatch, slow)
    while world.state.round is None:
        world.round()
    running = world.state.round.id
    world.feed(STOP)
    end = world.until_end()
    assert first == [running]
    assert end.reason == f"interrupted; its checkpoint holds {len(world.state.losses.counted)} of 2000 batches"


def test_no_worker_is_started_any_more_and_servers_get_the_workers_cores() -> None:
    chosen = settings(batches=2000, checkpoint_seconds=1e9, limits=Limits(3.0, 1 << 40, 8, 8))
    world = training(chosen=chosen)
    world.feed(STOP)
    world.kill("worker-0-t1-g1")
    seen: list[dict[str, float]] = []
    while world.ended is None:
        world.round()
        if world.state.stop is not None and world.state.stop.drained_at is not None and world.ended is None:
            seen.append(dict(shares(world.state)))
    assert not any(pod.name == "worker-0-t1-g2" for pod in world.cluster.started)
    assert seen
    for one in seen:
        assert sum(one.values()) <= 3.0 + 1e-9
        assert min(cpu for name, cpu in one.items() if name.startswith("ps-")) > 0.7
        assert max(cpu for name, cpu in one.items() if name.startswith("worker-")) <= 0.31


def test_whoever_waits_sees_how_far_it_is() -> None:
    world = training()
    assert stop_words(world.state) == ""
    world.feed(STOP)
    assert stop_words(world.state).startswith("finishing the batches that are begun")
    seen = []
    while world.ended is None:
        world.tick()
        seen.append(stop_words(world.state).partition(";")[0])
        world.round()
        seen.append(stop_words(world.state).partition(";")[0])
    assert "writing a last checkpoint (0 of 2 PSs have)" in seen
    assert seen[-1] == "", "at the end"
