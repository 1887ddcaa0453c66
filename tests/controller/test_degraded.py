"""What does not work around a job: training goes on, a finding says so while it lasts, and events at both ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_world import Server, World, plan_of, settings

from trimtab.core.controller.actions import Note
from trimtab.core.controller.degraded import SLOW_COMMIT_SECONDS, troubles_of
from trimtab.core.controller.inputs import CommitResult, Late, Noticed, Tick, Trouble
from trimtab.core.controller.state import Phase
from trimtab.core.domain.job import JobState
from trimtab.core.wire.messages import CopiesWritten, PsReport, PsSync

AWAY = Trouble("history", "history", "connection refused: the record is kept and delivered later")


def notes(world: World, *inputs: object) -> list[Note]:
    actions = world.feed(*inputs, Tick())  # type: ignore[arg-type]
    return [one for one in actions if isinstance(one, Note) and one.kind in ("degraded", "recovered")]


def training(**changes: object) -> World:
    world = World(settings(batches=3000, **changes), plan_of(1, 1))
    while world.state.phase is not Phase.TRAINING or not len(world.state.ledger.applied):
        world.round()
    return world


def test_what_is_wrong_is_a_finding_from_when_it_is_seen_until_it_is_over() -> None:
    world = training()
    began = world.state.seconds(world.clock.now())
    (told,) = notes(world, Noticed((AWAY,)))
    assert (told.kind, told.text, told.data) == ("degraded", AWAY.text, {"trouble": "history", "subject": "history"})
    world.round()
    found = world.state.findings["history", "history"]
    assert (found.text, found.since_seconds) == (AWAY.text, began)
    assert notes(world, Noticed((replace(AWAY, text="timed out"),))) == [], "the same trouble in other words"
    assert world.state.findings["history", "history"].text == "timed out"
    assert world.state.findings["history", "history"].since_seconds == began
    world.clock.advance(30)
    (over,) = notes(world, Noticed(()))
    assert over.kind == "recovered" and over.text.startswith("over after 30 s: timed out")
    assert world.state.findings == {}


def test_others_findings_are_left_alone() -> None:
    world = training()
    notes(world, Noticed((AWAY,)))
    foreign = replace(world.state.findings["history", "history"], kind="straggler", subject="worker-0")
    world.state = replace(world.state, findings={**world.state.findings, ("straggler", "worker-0"): foreign})
    notes(world, Noticed(()))
    assert list(world.state.findings) == [("straggler", "worker-0")]


def test_what_was_said_before_the_job_began_is_no_event() -> None:
    world = training()
    note = "CPU shares are not enforced: no control group"
    told = troubles_of(cpu=note, said=note)
    assert notes(world, Noticed(told)) == []
    assert world.state.findings["cpu", "shares"].text == note
    (lost,) = notes(world, Noticed(troubles_of(cpu="the group is gone", said="")), Noticed(()))[:1] or [None]
    assert lost is None or lost.kind == "recovered"


def test_a_control_group_that_is_lost_while_the_job_runs_is_told() -> None:
    world = training()
    (told,) = notes(world, Noticed(troubles_of(cpu="CPU shares are not enforced: the group is gone")))
    assert told.data == {"trouble": "cpu", "subject": "shares"}


def test_each_part_has_its_words() -> None:
    found = troubles_of(events="No space left", files="record.json can't be written", history="away", memory="no group")
    assert [(one.kind, one.subject) for one in found] == [
        ("events", "events.jsonl"), ("disk", "job directory"), ("history", "history"), ("memory", "limits"),
    ]  # fmt: skip
    assert troubles_of() == ()


def test_a_disk_without_room_for_checkpoints_is_told_training_goes_on_and_it_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, full = training(checkpoint_seconds=1.0), [True]
    plain = Server.sync

    def sync(self: Server, world: World, request: PsSync) -> PsReport | None:
        report = plain(self, world, request)
        if report is None or request.copy is None or not full[0]:
            return report
        return replace(report, copies=CopiesWritten(request.copy.id, error="No space left on device"))

    monkeypatch.setattr(Server, "sync", sync)
    while ("disk", "checkpoints") not in world.state.findings:
        world.round()
    text = world.state.findings["disk", "checkpoints"].text
    assert text == (
        "the last checkpoint could not be written: No space left on device; the one before holds 0 of 3000 batches"
    )
    before = len(world.state.ledger.applied)
    for _ in range(20):
        world.round()
    assert len(world.state.ledger.applied) > before
    assert world.state.phase is Phase.TRAINING
    full[0] = False
    while world.state.findings:
        world.round()
    assert len(world.state.manifest.applied()) > 0
    assert world.until_end(2000).state is JobState.FINISHED


def test_a_state_that_can_not_be_stored_is_told_and_recovers() -> None:
    world = training(checkpoint_seconds=1.0)
    plain = world.commit

    def fails() -> None:
        world.commits.pop(0)
        world.feed(CommitResult(None, error="Read-only file system"))

    world.commit = fails  # type: ignore[method-assign]
    while not world.state.findings:
        world.round()
    assert "Read-only file system" in world.state.findings["disk", "checkpoints"].text
    world.commit = plain  # type: ignore[method-assign]
    while world.state.findings:
        world.round()
    assert world.state.phase is Phase.TRAINING


def test_a_slow_store_is_told() -> None:
    world = training(checkpoint_seconds=1.0)
    world.commit = lambda: None  # type: ignore[method-assign]
    while not world.commits:
        world.tick()
        while world.requests:
            world.deliver_request()
        while world.reports:
            world.deliver_report()
        for worker in world.workers.values():
            worker.work(world)
    world.tick(SLOW_COMMIT_SECONDS + 1)
    assert "more than 10 s" in world.state.findings["disk", "state"].text


def test_snapshots_that_fail_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world, plain = training(), Server.sync

    def sync(self: Server, world: World, request: PsSync) -> PsReport | None:
        report = plain(self, world, request)
        return None if report is None else replace(report, snapshot_error="No space left on device")

    monkeypatch.setattr(Server, "sync", sync)
    world.round()
    world.round()
    assert "ps-0-t1-g1 can't write snapshots: No space left" in world.state.findings["disk", "snapshots of ps-0"].text


def test_nobody_was_silent_while_the_controller_did_not_listen() -> None:
    """A stopped controller, or one whose disk hung: with one look after it nobody has had a chance to speak."""
    world = training(silence_seconds=60.0)
    pods = set(world.state.pods)
    world.clock.advance(300.0)
    world.feed(Late(300.0))
    world.tick()
    assert set(world.state.pods) == pods
    for _ in range(5):
        world.round()
    assert set(world.state.pods) == pods
    deaf = training(silence_seconds=60.0)
    deaf.tick(300.0)
    assert not set(deaf.state.pods) & pods, "the same silence while it did listen"
