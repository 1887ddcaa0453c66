"""Parameter servers that don't come back: the job goes on without their places where it can, else it ends naming them.

All of it in the simulated world, whose clock is driven.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from controller_world import Server, World, plan_of, settings
from test_plan_changes import BATCHES, CAP, as_planned, training, until, world_of

from trimtab.core.cluster.base import PodSpec
from trimtab.core.cluster.fake import Outcome
from trimtab.core.controller.actions import Action, Note
from trimtab.core.controller.inputs import Input, PsSaid
from trimtab.core.controller.state import Phase, State, first_state
from trimtab.core.controller.store import take_term
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState
from trimtab.core.wire.messages import PsReport, PsSync, Served

WHOLE = IntervalSet([(0, BATCHES)])


def crashing(world: World, place: str) -> None:
    """From now on the pods of a place end as soon as they run."""

    def outcome(spec: PodSpec) -> Outcome:
        return Outcome(run_seconds=0.0, exit_code=1) if spec.name.startswith(place) else Outcome()

    world.cluster._outcome = outcome
    for status in world.cluster.observe():
        if status.name.startswith(place):
            world.kill(status.name)


def finished_whole(world: World) -> bool:
    ended = world.until_end(3000)
    return ended.state is JobState.FINISHED and all(
        world.state.manifest.applied_of(vshard) == WHOLE for vshard in range(512)
    )


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_place_whose_servers_come_to_nothing_is_given_up_wherever_it_stands(place: int) -> None:
    world = world_of(3, 2, failures_in_row=4, failures_total=50)
    until(world, training)
    until(world, lambda world: all(pod.worked for pod in world.state.servers()))
    before = {pod.slot[1]: pod.name for pod in world.state.servers()}
    crashing(world, f"ps-{place}-")
    until(world, lambda world: world.state.document.plan.ps.replicas == 2 and as_planned(world), 400)
    left = {pod.slot[1]: pod.name for pod in world.state.servers()}
    assert left == {index: name for index, name in before.items() if index != place}, "the others keep their pods"
    decision = world.state.decisions[-1]
    assert decision.barred and f"ps-{place}" in decision.reason
    assert finished_whole(world)


def test_a_plan_that_grows_again_gets_another_place_than_the_one_that_was_given_up() -> None:
    world = world_of(3, 1, failures_in_row=3, failures_total=50)
    until(world, training)
    until(world, lambda world: all(pod.worked for pod in world.state.servers()))
    crashing(world, "ps-1-")
    until(world, lambda world: world.state.document.plan.ps.replicas == 2 and as_planned(world), 400)
    world.wish(plan_of(3, 1))
    until(world, lambda world: world.state.document.plan.ps.replicas == 3 and as_planned(world), 400)
    assert world.state.active("ps") == [0, 2, 3]
    assert finished_whole(world)


def test_tables_that_do_not_fit_into_fewer_servers_end_the_job_naming_the_place() -> None:
    world = world_of(2, 1, failures_in_row=3, failures_total=50)
    until(world, training)
    until(world, lambda world: all(pod.worked for pod in world.state.servers()))
    full = world.state.document.plan.ps.memory_bytes
    plain = Server.sync

    def heavy(self: Server, world: World, request: PsSync) -> PsReport | None:
        report = plain(self, world, request)
        return replace(report, table_bytes=full // 2) if report is not None else None

    Server.sync = heavy  # type: ignore[method-assign]
    try:
        world.round()
        crashing(world, "ps-0-")
        for _ in range(400):
            if world.ended:
                break
            world.round()
    finally:
        Server.sync = plain  # type: ignore[method-assign]
    assert world.ended is not None and world.ended.state is JobState.FAILED
    assert "ps-0-t1" in world.ended.reason and "3 in a row" in world.ended.reason


def test_the_only_server_gone_for_good_ends_the_job_naming_it() -> None:
    world = world_of(1, 1, failures_in_row=3, failures_total=50)
    until(world, training)
    crashing(world, "ps-0-")
    assert world.until_end().state is JobState.FAILED
    assert world.ended is not None and "ps-0-t1" in world.ended.reason


def pending(world: World, place: str) -> None:
    """The place's pod is killed, and no machine takes its next one."""

    def outcome(spec: PodSpec) -> Outcome:
        return Outcome(start_seconds=1e9) if spec.name.startswith(place) else Outcome()

    world.cluster._outcome = outcome
    for status in world.cluster.observe():
        if status.name.startswith(place):
            world.kill(status.name)


def rounds_until(world: World, done: object, most: int = 4000) -> float:
    began = world.clock.now()
    for _ in range(most):
        if done(world):  # type: ignore[operator]
            return world.clock.now() - began
        world.round()
    raise AssertionError(f"never: {world.state.phase}, {world.state.pods}")


def test_a_server_that_no_machine_takes_is_done_without_after_the_stated_time() -> None:
    world = world_of(3, 1, unserved_seconds=40.0, start_seconds=1e6)
    until(world, training)
    until(world, lambda world: all(pod.worked for pod in world.state.servers()))
    pending(world, "ps-1-")
    took = rounds_until(world, lambda world: world.state.document.plan.ps.replicas == 2)
    assert 40.0 <= took < 42.0
    assert "ps-1" in world.state.decisions[-1].reason
    until(world, as_planned, 400)
    assert world.state.active("ps") == [0, 2]
    assert finished_whole(world)


def test_without_another_server_the_job_ends_after_the_stated_time_and_names_the_pod() -> None:
    world = world_of(1, 1, unserved_seconds=40.0, start_seconds=1e6)
    until(world, training)
    pending(world, "ps-0-")
    took = rounds_until(world, lambda world: world.ended is not None)
    assert world.ended is not None and world.ended.state is JobState.FAILED
    assert 40.0 <= took < 42.0
    assert "512 of 512 vshards" in world.ended.reason and "ps-0-t1-g2 (said nothing) is missing" in world.ended.reason


def test_at_the_start_the_patience_is_longer_and_the_missing_place_is_named() -> None:
    world = world_of(2, 1, unserved_seconds=40.0, start_seconds=60.0)
    pending(world, "ps-1-")
    world.round()
    took = rounds_until(world, lambda world: world.ended is not None)
    assert world.ended is not None and world.ended.state is JobState.FAILED
    assert 99.0 <= took < 102.0
    assert "ps-1" in world.ended.reason


def test_a_server_that_says_that_it_loads_is_waited_for() -> None:
    world = world_of(1, 1, unserved_seconds=20.0)
    loading = True
    plain = Server.sync

    def slow(self: Server, world: World, request: PsSync) -> PsReport | None:
        if loading:
            return PsReport(self.process, f"unix:{self.process}", request.sequence, (), loading=True)
        return plain(self, world, request)

    Server.sync = slow  # type: ignore[method-assign]
    try:
        for _ in range(1500):  # five minutes
            world.round()
        assert world.ended is None
        loading = False
        assert finished_whole(world)
    finally:
        Server.sync = plain  # type: ignore[method-assign]


def test_a_server_that_loads_for_ever_ends_the_job_in_the_end(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Its storage hangs: an hour with the settings that jobs have, and the pod is named."""
    world = world_of(1, 1, unserved_seconds=2.0)

    def hanging(self: Server, world: World, request: PsSync) -> PsReport | None:
        return PsReport(self.process, f"unix:{self.process}", request.sequence, (), loading=True)

    monkeypatch.setattr(Server, "sync", hanging)
    for _ in range(400):
        if world.ended is not None:
            break
        world.round()
    assert world.ended is not None
    assert "could not be loaded within 40 s by ps-0" in world.ended.reason


def test_loading_that_fails_and_begins_again_for_ever_ends_the_job(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A source that does not answer: between two tries the server loads nothing, for a moment."""
    world = world_of(1, 1, unserved_seconds=2.0)
    calls = 0

    def trying(self: Server, world: World, request: PsSync) -> PsReport | None:
        nonlocal calls
        calls += 1
        return PsReport(self.process, f"unix:{self.process}", request.sequence, (), loading=calls % 3 != 0)

    monkeypatch.setattr(Server, "sync", trying)
    for _ in range(800):
        if world.ended is not None:
            break
        world.round()
    assert world.ended is not None
    assert "could not be loaded within 40 s by ps-0" in world.ended.reason


def test_a_server_that_answers_and_never_serves_is_given_up_and_cannot_keep_its_vshards() -> None:
    world = world_of(2, 1, unserved_seconds=40.0)
    until(world, training)
    until(world, lambda world: all(pod.worked for pod in world.state.servers()))
    plain = Server.sync

    def deaf(self: Server, world: World, request: PsSync) -> PsReport | None:
        if self.pod.startswith("ps-0-") and not self.pod.endswith("g1"):
            return PsReport(self.process, f"unix:{self.process}", request.sequence, ())
        return plain(self, world, request)

    Server.sync = deaf  # type: ignore[method-assign]
    try:
        world.kill("ps-0-t1-g1")
        rounds_until(world, lambda world: world.state.document.plan.ps.replicas == 1)
        until(world, as_planned, 400)
        assert world.state.active("ps") == [1]
        assert finished_whole(world)
    finally:
        Server.sync = plain  # type: ignore[method-assign]


# ---- a successor's state, from the document alone


def successor(world: World, **changes: object) -> State:
    """A controller of the next term that knows the stored document; every pod of before is dead."""
    for status in world.cluster.observe():
        world.kill(status.name)
    document = take_term(world.store, world.state.document)
    return first_state(replace(world.state.settings, **changes), document, world.manifests[document.manifest.path])  # type: ignore[arg-type]


@pytest.mark.parametrize(("before", "after"), [((2, 1), (2, 1)), ((3, 1), (1, 1)), ((1, 2), (3, 1)), ((3, 2), (2, 2))])
def test_a_successor_goes_on_at_any_number_of_servers(before: tuple[int, int], after: tuple[int, int]) -> None:
    world = world_of(*before)
    world.state = replace(world.state, settings=replace(world.state.settings, checkpoint_seconds=1.0))
    until(world, training)
    until(world, lambda world: len(world.state.manifest.applied()) > 20)
    present = world.store.read()
    assert present is not None
    world.store.compare_and_swap(replace(present, plan=plan_of(*after)), present.version)
    held = len(world.state.manifest.applied())
    world.state, world.commits = successor(world), []
    assert world.state.document.term == 2
    until(world, lambda world: world.state.ledger.served)
    assert len(world.state.ledger.applied) >= held, "what the committed copies hold is not trained again"
    until(world, as_planned, 400)
    assert {pod.slot[1] for pod in world.state.servers()} == set(range(after[0]))
    assert finished_whole(world)


def test_a_job_whose_batches_are_all_closed_goes_on_with_what_is_left_of_its_end() -> None:
    world = World(settings(batches=40, evaluation_batches=4000, checkpoint_seconds=1e9, limits=CAP), plan_of(2, 1))
    until(world, lambda world: world.state.phase is Phase.EVALUATING)
    lent = len(world.lent)
    world.state, world.commits = successor(world, evaluation_batches=3), []
    assert world.until_end().state is JobState.FINISHED
    assert all(grant.kind != "train" for grant in world.lent[lent:])


def test_what_the_dead_said_means_nothing_to_a_successor() -> None:
    world = world_of(2, 1)
    until(world, training)
    old = tuple(world.servers.values())
    world.state, world.commits = successor(world), []
    for server in old:
        served = (Served("f" * 128, world.state.document.routing.version, ((0, BATCHES),), ()),)
        world.feed(PsSaid(server.pod, PsReport(server.process, "unix:x", 10**9, served)))
    assert not world.state.ledger.served
    assert finished_whole(world)


def test_a_server_gone_for_good_is_not_waited_for_while_another_writes_copies(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    world = world_of(3, 1, unserved_seconds=40.0, start_seconds=1e6)
    until(world, training)
    until(world, lambda world: all(pod.worked for pod in world.state.servers()))
    plain = Server.sync

    def writing(self: Server, world: World, request: PsSync) -> PsReport | None:
        report = plain(self, world, request)
        return replace(report, writing=True) if report is not None else None

    monkeypatch.setattr(Server, "sync", writing)
    pending(world, "ps-1-")
    assert 40.0 <= rounds_until(world, lambda world: world.state.document.plan.ps.replicas == 2) < 42.0


def test_why_nothing_can_be_loaded_is_told_once_and_at_the_end(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    world = world_of(1, 1, unserved_seconds=2.0)
    told: list[Note] = []
    feed = world.feed

    def listening(*inputs: Input) -> list[Action]:
        actions = feed(*inputs)
        told.extend(action for action in actions if isinstance(action, Note) and action.kind == "load_failed")
        return actions

    def trying(self: Server, world: World, request: PsSync) -> PsReport | None:
        report = PsReport(self.process, f"unix:{self.process}", request.sequence, (), loading=request.sequence % 3 > 0)
        return replace(report, load_error="503 Service Unavailable")

    monkeypatch.setattr(world, "feed", listening)
    monkeypatch.setattr(Server, "sync", trying)
    while world.ended is None:
        world.round()
    assert "see to its storage; 503 Service Unavailable" in world.ended.reason
    assert [note.text for note in told] == ["ps-0-t1-g1: 503 Service Unavailable; trying again"]
