"""Whole jobs on the simulated world: what happens when nothing goes wrong, and when one thing does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from controller_world import World, plan_of, settings

from trimtab.core.controller.actions import Action, Note
from trimtab.core.controller.inputs import CommitResult, Input, ScoresReady, WorkerSaid
from trimtab.core.controller.state import Phase
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.job import JobState
from trimtab.core.wire.messages import CopiesWritten


def numbers(world: World) -> list[int]:
    return sorted(number for grant in world.lent for number in range(grant.lo, grant.hi))


def until(world: World, phase: Phase, rounds: int = 100) -> None:
    for _ in range(rounds):
        if world.state.phase is phase:
            return
        world.round()
    raise AssertionError(f"never {phase}")


def test_a_job_without_faults_lends_each_number_once_and_ends_on_a_complete_manifest() -> None:
    world = World(settings(batches=500, metrics=True))
    end = world.until_end()
    assert end.state is JobState.FINISHED
    assert world.state.manifest.complete(500)
    assert numbers(world) == list(range(500))
    assert world.state.losses.counted == IntervalSet.span(0, 500)
    assert (world.state.outcome.auc, world.state.outcome.metrics) == (0.5, {"auc": 0.5})


def test_without_held_out_rows_the_job_ends_after_training() -> None:
    world = World(settings(evaluation_batches=0))
    assert world.until_end().state is JobState.FINISHED
    assert world.state.outcome.auc is None


def test_scores_that_the_disk_does_not_take_cost_the_models_own_metrics_only() -> None:
    world = World(settings(metrics=True))
    until(world, Phase.EVALUATING)
    plain, said = world.feed, []

    def feed(*inputs: Input) -> list[Action]:
        full = [replace(one, path="", error="No space left") if isinstance(one, ScoresReady) else one for one in inputs]
        actions = plain(*full)
        said.extend(one.kind for one in actions if isinstance(one, Note))
        return actions

    world.feed = feed  # type: ignore[method-assign]
    assert world.until_end().state is JobState.FINISHED
    assert (world.state.outcome.auc, world.state.outcome.log_loss, world.state.outcome.metrics) == (0.5, 0.7, None)
    assert {"scores_not_kept", "metrics_missing"} <= set(said)


def test_metrics_that_never_come_do_not_keep_the_job() -> None:
    world = World(settings(metrics=True))
    until(world, Phase.METRICS)
    for _ in range(30):
        for worker in world.workers.values():
            worker.finished += [grant.id for grant in worker.grants]  # done with, and no metrics to show
            worker.grants = []
        if world.ended:
            break
        world.round()
    assert world.ended is not None
    assert world.ended.state is JobState.FINISHED


@pytest.mark.parametrize("role", ["ps", "worker"])
def test_a_killed_pod_is_replaced_by_a_new_name_and_the_job_finishes(role: str) -> None:
    world = World(settings(batches=200))
    until(world, Phase.TRAINING)
    world.round()
    world.kill(f"{role}-0-t1-g1")
    assert world.until_end().state is JobState.FINISHED
    started = [pod.name for pod in world.cluster.started if pod.name.startswith(f"{role}-0-")]
    assert started == [f"{role}-0-t1-g1", f"{role}-0-t1-g2"]


def test_what_a_lost_ps_had_is_lent_again_and_nothing_else_once_a_checkpoint_is_there() -> None:
    world = World(settings(batches=400, checkpoint_seconds=0.5))
    until(world, Phase.TRAINING)
    while len(world.state.manifest.applied()) < 40:
        world.round()
    closed = world.state.manifest.applied()
    world.kill("ps-1-t1-g1")
    world.until_end()
    again = {number for number in numbers(world) if numbers(world).count(number) > 1}
    assert again
    assert not again & set(closed)


def test_a_ps_that_dies_while_evaluating_is_restored_and_evaluation_goes_on() -> None:
    world = World(settings(batches=20, evaluation_batches=200))
    until(world, Phase.EVALUATING)
    world.round()
    world.kill("ps-0-t1-g1")
    assert world.until_end().state is JobState.FINISHED
    assert world.state.evaluation.done == IntervalSet.span(0, 200)


def test_a_ps_that_dies_between_the_reports_and_the_copies_sends_the_job_back_to_training() -> None:
    """Trace 4: reports say all is applied, then the process dies with its rows; only the manifest may end the job."""
    world = World(settings(checkpoint_seconds=1e9))
    until(world, Phase.CLOSING)
    world.kill("ps-0-t1-g1")
    until(world, Phase.TRAINING)
    assert not world.state.manifest.complete(12)
    assert world.until_end().state is JobState.FINISHED
    assert world.state.manifest.complete(12)


def test_a_worker_of_a_failed_place_is_given_up_with_a_reason_that_names_it() -> None:
    world = World(settings(failures_in_row=3))
    for _ in range(200):
        world.tick(1.0)
        for status in world.cluster.observe():
            if status.role == "worker" and status.name.startswith("worker-1-") and not status.ended:
                world.cluster.kill(status.name)
        if world.ended:
            break
    assert world.ended is not None
    assert world.ended.state is JobState.FAILED
    assert world.ended.reason.startswith("worker-1-t1-g3 ended with exit code 137 (signal 9), failure 3 in a row")


def test_a_refused_pod_fails_the_job_at_once() -> None:
    world = World(settings())
    world.round()
    world.cluster.kill("worker-0-t1-g1", 4)
    world.tick()
    assert world.ended is not None
    assert "worker-0-t1-g1 ended with exit code 4 (it was refused" in world.ended.reason


def test_a_silent_worker_loses_its_loans_and_then_its_place() -> None:
    world = World(settings(batches=200, hold_seconds=5.0, silence_seconds=30.0), plan_of(workers=1))
    until(world, Phase.TRAINING)
    world.round()
    assert len(world.state.ledger.holds)
    world.tick(6.0)
    assert not len(world.state.ledger.holds)
    world.tick(30.0)
    assert "worker-0-t1-g1" not in world.state.pods


def test_completed_stays_completed_when_the_pods_record_is_deleted() -> None:
    """Case 6: an evicted pod is replaced under a new name, its own is never used again."""
    world = World(settings(batches=100))
    until(world, Phase.TRAINING)
    world.cluster.evict("worker-0-t1-g1")
    world.until_end()
    names = [pod.name for pod in world.cluster.started]
    assert len(names) == len(set(names))


def test_data_shards_of_a_lost_answer_are_said_again() -> None:
    world = World(settings(batches=200), plan_of(workers=1))
    until(world, Phase.TRAINING)
    (worker,) = world.workers.values()
    lost = [grant.id for grant in worker.grants]
    assert len(lost) == 2
    worker.grants.clear()  # as if the answer had never come
    worker.seen.clear()
    world.call(worker)
    world.deliver_call()
    assert [grant.id for grant in world.answers.pop()[1].grants] == lost
    assert len(world.state.ledger.holds) == 2


def test_a_lost_or_doubled_call_counts_nothing_twice() -> None:
    world = World(settings(batches=200), plan_of(workers=1))
    until(world, Phase.TRAINING)
    world.round()
    (worker,) = world.workers.values()
    for _ in range(5):
        worker.work(world)
    world.call(worker)
    world.deliver_call(again=True)
    counted = world.state.losses
    world.deliver_call()
    assert world.state.losses == counted
    assert counted.all_rows == 8 * len(counted.counted) > 0


def test_a_worker_that_gets_nothing_done_is_replaced() -> None:
    world = World(settings(batches=200, stall_seconds=20.0), plan_of(workers=1))
    until(world, Phase.TRAINING)
    world.round()
    (worker,) = world.workers.values()
    for _ in range(30):  # it is heard of, and does nothing
        world.tick(1.0)
        while world.requests:
            world.deliver_request()
        while world.reports:
            world.deliver_report()
        world.call(worker)
        world.deliver_call()
    assert "worker-0-t1-g1" not in world.state.pods
    assert world.until_end().state is JobState.FINISHED


def test_a_workers_failure_and_a_servers_error_end_the_job_by_name() -> None:
    world = World(settings())
    until(world, Phase.TRAINING)
    (first, *_) = world.workers.values()
    world.feed(WorkerSaid(replace(first.message(1), failure="your layer raised ValueError: bad shape")))
    assert world.ended is not None
    assert world.ended.reason == f"{first.pod}: your layer raised ValueError: bad shape"
    world = World(settings())
    until(world, Phase.TRAINING)
    world.tick()
    world.deliver_request()
    said = world.reports.pop()
    world.feed(replace(said, report=replace(said.report, error="memory is full")))
    assert world.ended is not None
    assert world.ended.reason == f"{said.pod}: memory is full"


def test_copies_that_cannot_be_written_fail_the_job_after_a_few_rounds() -> None:
    world = World(settings(checkpoint_seconds=1e9))
    until(world, Phase.CLOSING)
    began, orders = world.clock.now(), set()
    for _ in range(1000):
        world.tick()
        orders |= {request.sync.copy.id for request in world.requests if request.sync.copy is not None}
        while world.requests:
            world.deliver_request()
        for said in world.reports:
            copies = said.report.copies
            if copies is not None:
                copies = CopiesWritten(copies.id, error="No space left on device")
            world.feed(replace(said, report=replace(said.report, copies=copies)))
        world.reports.clear()
        while world.commits:
            world.commit()
        if world.ended:
            break
    assert world.ended is not None
    assert world.ended.state is JobState.FAILED
    assert "final checkpoint could not be written, 8 times: No space left on device" in world.ended.reason
    assert len(orders) == 8
    assert world.clock.now() - began >= 1 + 2 + 4 + 8 + 16 + 30 + 30


def test_a_state_that_cannot_be_stored_while_training_is_tried_again_later() -> None:
    world = World(settings(batches=200))
    until(world, Phase.TRAINING)
    world.kill("ps-0-t1-g1")
    failed: list[float] = []
    for _ in range(60):
        world.tick()
        while world.requests:
            world.deliver_request()
        while world.reports:
            world.deliver_report()
        while world.commits:
            world.commits.pop()
            failed.append(world.clock.now())
            world.feed(CommitResult(None, error="No space left on device"))
    assert world.ended is None
    assert [round(later - now) for now, later in pairwise(failed)] == [1, 2, 4]
    assert world.until_end().state is JobState.FINISHED


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.CLOSING])
def test_a_state_that_can_never_be_stored_ends_the_job_where_nothing_goes_on_without_it(phase: Phase) -> None:
    world = World(settings(checkpoint_seconds=1e9))
    until(world, phase)
    tries = 0
    for _ in range(1000):
        if world.ended:
            break
        world.tick()
        while world.requests:
            world.deliver_request()
        while world.reports:
            world.deliver_report()
        while world.commits:
            world.commits.pop()
            tries += 1
            world.feed(CommitResult(None, error="No space left on device"))
    assert world.ended is not None
    assert world.ended.reason == "the job's state can't be stored: No space left on device"
    assert tries == (1 if phase is Phase.STARTING else 8)


def test_a_lost_ps_begins_a_new_tenure_and_the_others_keep_theirs() -> None:
    world = World(settings(batches=200))
    until(world, Phase.TRAINING)
    world.kill("ps-0-t1-g1")
    world.tick()
    assert not world.state.ledger.served  # nothing is lent on the word of a dead process
    assert world.state.ledger.todo == EMPTY
    until_routing = 0
    while world.state.document.routing.version == 1 and until_routing < 50:
        world.round()
        until_routing += 1
    routing = world.state.document.routing
    assert routing.version == 2
    assert set(zip(routing.owner, routing.since, strict=True)) == {(0, 2), (1, 1)}


def test_a_process_that_was_restarted_unseen_is_another_one() -> None:
    world = World(settings(batches=200))
    until(world, Phase.TRAINING)
    world.tick()
    world.deliver_request()
    said = world.reports.pop()
    world.feed(replace(said, report=replace(said.report, process="somebody else")))
    assert said.pod not in world.state.pods
    assert not world.state.ledger.served
    assert world.until_end().state is JobState.FINISHED
