"""Traces of the protocol's model check that concern the controller, as regression tests of the pure step.

The numbers are those of the model check: each trace once broke an earlier version of the rules. Where each is tested
(a test that only names it in its docstring stands in brackets):

    1   a push marks what it does not name             tests/ps/test_traces.py (test_exchange.py)
    2   sets forget closed batches                     tests/ps/test_traces.py (test_exchange.py)
    3   a load on top of left-over rows                tests/ps/test_traces.py (test_server.py)
    4   the end judged by reports                      here, twice
    5   a late report of a former tenure               here, twice; test_ledger.py, twice
    6   a zombie that goes on accepting                here
    7   frozen, and then nobody gives the word         here; tests/ps/test_traces.py
    8   a rolling move refuses whole messages          tests/ps/test_traces.py (test_exchange.py)
    9   a late or doubled copy or "serve"              tests/ps/test_traces.py (test_server.py)
    10  attempt 2 takes what was said to attempt 1     here; tests/ps/test_traces.py
    11  a stale controller's swap                      test_store.py
    12  what was told to a predecessor arrives         here; tests/ps/test_traces.py (test_server.py)
    13  a zombie's copy, or an older one, comes in     here, twice (tests/ps/test_copies_and_manifest.py)
    14  a source older than the committed copy         tests/ps/test_snapshots.py (tests/ps/test_state_machines.py)

All of them together, in any order: test_chaos.py, test_state_machines.py.
"""

from __future__ import annotations

from dataclasses import replace

from controller_world import Server, World, plan_of, settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from trimtab.core.controller.actions import AnswerWorker, FinishJob, SendPs
from trimtab.core.controller.inputs import CommitResult, PsSaid, Tick, WorkerSaid
from trimtab.core.controller.state import Phase
from trimtab.core.controller.step import step
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState
from trimtab.core.ps.manifest import merge
from trimtab.core.wire.messages import CopiesWritten, CopyEntry, CopySet, Served, WorkerSync, from_bitmap


def trained(batches: int = 12, **changes: object) -> World:
    """A world in which everything is served and training has begun."""
    world = World(settings(batches=batches, checkpoint_seconds=1e9, **changes), plan_of(workers=1))
    while world.state.phase is not Phase.TRAINING:
        world.round()
    return world


def servers(world: World) -> list[Server]:
    return sorted(world.servers.values(), key=lambda server: server.pod)


def say(world: World, server: Server, applied: IntervalSet, since: int | None = None) -> None:
    """A report of `server` that answers the latest request."""
    world.feed(Tick())
    world.requests.clear()
    report = server.sync(world, replace_request(world, server))
    assert report is not None
    told = (Served(server.mask, server.since if since is None else since, applied.intervals, ()),)
    world.feed(PsSaid(server.pod, replace(report, served=told)))


def replace_request(world: World, server: Server) -> object:
    state, actions = step(world.state, [Tick()], world.clock.now())
    world.state = state
    return next(one.sync for one in actions if isinstance(one, SendPs) and one.pod == server.pod)


def test_trace_4_reports_alone_never_end_the_job() -> None:
    """All owners report everything applied; one dies unseen; only committed copies may end training."""
    world = trained(evaluation_batches=0)
    everything = IntervalSet.span(0, 12)
    for server in servers(world):
        say(world, server, everything)
    assert world.state.phase is Phase.CLOSING
    assert world.ended is None
    for _ in range(20):  # the copies are asked for, and do not hold what the reports said
        world.tick()
        while world.requests:
            world.deliver_request()
        while world.reports:
            world.deliver_report()
        while world.commits:
            world.commit()
    assert world.ended is None or world.ended.state.value == "failed"
    assert not world.state.manifest.complete(12)


def test_trace_4_a_complete_manifest_ends_training_and_an_incomplete_one_does_not() -> None:
    world = trained(evaluation_batches=0)
    for server in servers(world):
        server.applied = IntervalSet.span(0, 12)
        say(world, server, server.applied)
    whole = replace(world.state.manifest, sets=(CopySet(((0, 12),), ()),))
    short = replace(world.state.manifest, sets=(CopySet(((0, 11),), ()),))
    document = replace(world.state.document, version=world.state.document.version + 1)
    _, actions = step(world.state, [CommitResult(document, short)], world.clock.now())
    assert not any(isinstance(action, FinishJob) for action in actions)
    _, actions = step(world.state, [CommitResult(document, whole)], world.clock.now())
    assert any(isinstance(action, FinishJob) for action in actions)


def test_trace_5_a_late_report_of_a_lost_process_counts_for_nothing() -> None:
    world = trained(batches=200)
    old = servers(world)[0]
    for server in servers(world):
        say(world, server, IntervalSet.span(100, 103))
    assert 100 in world.state.ledger.applied
    late = PsSaid(old.pod, old.sync(world, replace_request(world, old)))  # type: ignore[arg-type]
    late = replace(late, report=replace(late.report, served=(Served(old.mask, old.since, ((100, 103),), ()),)))
    world.kill(old.pod)
    for _ in range(30):
        world.tick()
        world.feed(late)
        while world.requests:
            world.deliver_request()
        while world.reports:
            world.deliver_report()
        while world.commits:
            world.commit()
    world.feed(late)
    assert world.state.ledger.served
    assert 100 not in world.state.ledger.applied
    assert 100 in world.state.ledger.todo


def test_trace_5_a_late_report_of_a_former_tenure_of_the_same_process_does_not_count() -> None:
    world = trained()
    first = servers(world)[0]
    for server in servers(world):
        say(world, server, IntervalSet.span(0, 3))
    routing = world.state.document.routing
    fresh = tuple(9 if routing.owner[v] == 0 else routing.since[v] for v in range(len(routing.since)))
    document = replace(world.state.document, routing=replace(routing, version=9, since=fresh))
    world.feed(CommitResult(document))
    say(world, first, IntervalSet.span(0, 3), since=routing.since[from_bitmap(first.mask)[0]])
    assert not world.state.ledger.served
    assert not world.state.ledger.applied


def test_trace_6_a_lent_again_batch_carries_the_routing_that_leaves_the_zombie_out() -> None:
    """A PS wrongly believed dead goes on accepting; the next order names the least routing that a worker must use."""
    world = trained(batches=200)
    before = world.state.document.routing
    zombie = servers(world)[0]
    world.kill(zombie.pod, zombie=True)
    for _ in range(30):
        world.tick()
        while world.requests:
            world.deliver_request()
        while world.reports:
            world.deliver_report()
        while world.commits:
            world.commit()
    assert world.state.document.routing.version > before.version
    assert zombie.process not in world.state.document.routing.processes
    worker = next(iter(world.workers.values()))
    call = WorkerSync("job", 1, worker.pod, worker.process, want=2, routing_version=before.version)
    (answer,) = (one.orders for one in world.feed(WorkerSaid(call)) if isinstance(one, AnswerWorker))
    assert answer.grants
    assert {grant.least_routing for grant in answer.grants} == {world.state.document.routing.version}
    assert answer.routing == world.state.document.routing


def moving() -> World:
    """A world in which a swap has just given vshards of two servers to a third one, which serves none yet."""
    world = trained(batches=200)
    world.wish(plan_of(3, 1))
    for _ in range(200):
        if world.state.tenancies:
            return world
        world.tick()
        while world.commits and not world.state.tenancies:
            world.commit()
        for waiting, deliver in ((world.requests, world.deliver_request), (world.reports, world.deliver_report)):
            while waiting and not world.state.tenancies:
                deliver()
        for worker in tuple(world.workers.values()):
            world.call(worker)
        while world.calls and not world.state.tenancies:
            world.deliver_call()
    raise AssertionError("no vshard ever changed hands")


def test_trace_7_a_controller_that_dies_after_the_swap_leaves_nobody_frozen() -> None:
    """The source has frozen what it gave, the order to serve was never heard: the successor's orders are newer."""
    world = moving()
    routing = world.state.document.routing
    for tenancy in world.state.tenancies:
        source = world.servers[tenancy.origin.process]
        for vshard in from_bitmap(f"{tenancy.mask:x}"):
            assert source.hand_over(vshard, tenancy.origin.since) is not None
        assert not int(source.mask, 16) & tenancy.mask, "nobody serves them now"
    world.successor()
    assert world.until_end().state is JobState.FINISHED
    last = world.state.document.routing
    assert all(new > old for new, old in zip(last.since, routing.since, strict=True))
    assert world.state.manifest.applied() == IntervalSet.span(0, 200)


def test_trace_7_a_lost_order_to_serve_is_said_again_until_it_is_done() -> None:
    world = moving()
    wanted = sum(one.mask for one in world.state.tenancies)
    for _ in range(10):
        world.tick()
        said = [order for one in world.requests for order in one.sync.serve if order.origin is not None]
        assert sum(int(order.vshards, 16) for order in said) == wanted, "each call says it all"
        world.requests.clear()  # each is lost
    assert world.until_end().state is JobState.FINISHED


def test_trace_10_what_was_prepared_for_another_tenure_is_not_prepared() -> None:
    """Attempt 1 was staged from an older tenure of the source: attempt 2 must not change hands on its word."""
    world = trained(batches=200)
    world.wish(plan_of(3, 1))
    before = world.state.document.routing
    for _ in range(60):
        world.tick()
        while world.commits:
            world.commit()
        while world.requests:
            world.deliver_request()
        for at, said in enumerate(world.reports):
            old = tuple(replace(one, since=one.since - 1) for one in said.report.staged)
            world.reports[at] = replace(said, report=replace(said.report, staged=old))
        while world.reports:
            world.deliver_report()
    assert len(servers(world)) == 3, "the third server is up"
    assert world.state.moving, "and something should move"
    assert world.state.document.routing == before
    assert world.until_end().state is JobState.FINISHED


def test_trace_12_a_process_that_is_not_known_yet_is_told_nothing_to_serve() -> None:
    world = World(settings())
    world.tick()
    for action in world.requests:
        assert (action.sync.process, action.sync.serve) == ("", ())


def test_trace_13_a_copy_of_a_process_that_is_no_owner_does_not_enter_the_manifest() -> None:
    world = trained()
    for server in servers(world):
        server.applied = IntervalSet.span(0, 12)
        say(world, server, server.applied)
    assert world.state.round is not None
    running = world.state.round.id
    entries = tuple(CopyEntry(v, 1, "zombie", 0, 0, "", 0) for v in from_bitmap(servers(world)[0].mask))
    zombies = CopiesWritten(running, entries, (CopySet(((0, 12),), ()),))
    report = servers(world)[0].sync(world, replace_request(world, servers(world)[0]))  # type: ignore[arg-type]
    assert report is not None
    world.feed(PsSaid(servers(world)[0].pod, replace(report, process="zombie", copies=zombies, sequence=10**6)))
    for _ in range(20):
        world.round()
    assert "zombie" not in {entry.file for entry in world.state.manifest.entries}


def test_trace_13_an_older_copy_of_the_owner_itself_does_not_enter_the_manifest() -> None:
    """The present owner under the present tenure, and yet less than what the committed copy holds."""
    world = trained()
    for server in servers(world):
        server.applied = IntervalSet.span(0, 12)
        say(world, server, server.applied)
    routing = world.state.document.routing
    entries = tuple(CopyEntry(v, routing.since[v], "old", 0, 0, "", 0) for v in range(len(routing.since)))
    closed = replace(world.state.manifest, sets=(CopySet(((0, 9),), ()),))
    process = routing.processes[0]
    older = merge(closed, CopiesWritten(1, entries, (CopySet(((0, 8),), ()),)), routing, process)
    newer = merge(closed, CopiesWritten(1, entries, (CopySet(((0, 9), (11, 12)), ()),)), routing, process)
    assert older == closed
    taken = {entry.vshard for entry in newer.entries if entry.file == "old"}
    assert taken == {vshard for vshard, owner in enumerate(routing.owner) if owner == 0}


def test_what_a_leaving_server_had_goes_to_those_that_stay_when_it_dies() -> None:
    """Also when a new process came up at its place before the plan was stored: found by the state machine of jobs."""
    world = trained(batches=4000)
    world.wish(plan_of(3, 1))
    for _ in range(60):
        world.round()
    assert len(set(world.state.document.routing.owner)) == 3
    owner = world.servers[world.state.document.routing.processes[1]]
    world.wish(plan_of(1, 1))
    while not any(one.document.plan.ps.replicas == 1 for one in world.commits):
        world.tick()
    world.kill(owner.pod)
    for _ in range(40):  # the plan is not stored yet, so a new process comes up at that place
        world.tick()
        while world.requests:
            world.deliver_request()
        while world.reports:
            world.deliver_report()
    assert {pod.process for pod in world.state.servers() if pod.slot == ("ps", 1)} - {"", owner.process}
    for _ in range(100):
        world.round()
    assert world.state.ledger.served
    assert set(world.state.document.routing.owner) == {0}


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.data())
def test_reports_and_calls_that_lag_make_nothing_be_lent_twice(data: st.DataObject) -> None:
    """Messages between controller and PSs may wait and overtake each other; without a loss each number is lent once."""
    world = World(settings(batches=60, checkpoint_seconds=1e9))
    for _ in range(40):
        if world.ended is not None:
            break
        world.tick()
        while world.commits:
            world.commit()
        for waiting, deliver in ((world.requests, world.deliver_request), (world.reports, world.deliver_report)):
            for _ in range(data.draw(st.integers(0, len(waiting)))):
                deliver(data.draw(st.integers(0, len(waiting) - 1)))
        for worker in tuple(world.workers.values()):
            for _ in range(data.draw(st.integers(0, 6))):
                worker.work(world)
            world.call(worker)
        while world.calls:
            world.deliver_call()
        while world.answers:
            world.deliver_answer()
    world.until_end()
    numbers = sorted(number for grant in world.lent for number in range(grant.lo, grant.hi))
    assert numbers == list(range(60))
