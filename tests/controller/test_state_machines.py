"""State machines over the controller's pure parts: the ledger alone, and whole jobs under every fault at once.

The invariants are those of the protocol's model check. I1: every copy is true about itself. I2: at the end each batch
is in each vshard's committed copy. I4: what was closed stays in: committed sets never shrink, and no owner serves less
than they hold. The end is reached whenever the faults stop.
"""

from __future__ import annotations

from dataclasses import replace

from controller_world import World, plan_of, settings
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from test_chaos import SHORT, JobUnderChaos

from trimtab.core.controller.actions import CommitDocument, SendPs
from trimtab.core.controller.holds import Hold
from trimtab.core.controller.inputs import CommitResult, PsSaid
from trimtab.core.controller.ledger import Ledger
from trimtab.core.controller.state import MOST_FAILED_ROUNDS
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.job import JobState
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.errors import StaleState
from trimtab.core.ps.manifest import Manifest
from trimtab.core.wire.messages import TRAIN, CopiesWritten, PsReport, Routing, Served, to_bitmap

place = st.integers(0, 10**6)
BATCHES = 80  # of a whole job: several checkpoints, also between the faults
BLOCKS, NUMBERS, NAMES = 4, 24, ("p0", "p1", "p2")
MEMBERS = [range(block, VSHARDS, BLOCKS) for block in range(BLOCKS)]


class LedgerAlone(RuleBasedStateMachine):
    """The ledger against a plain model: owners, what they said last, loans. Vshards come in four blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(NUMBERS)
        self.version, self.sequence, self.next_hold = 0, 0, 0
        self.owner = [(name, 1) for name in ("p0", "p1", "p0", "p1")]  # of each block: process, since
        self.rows = [EMPTY] * BLOCKS  # what the present owner of each block has
        self.said: dict[str, tuple[int, dict[tuple[int, int], IntervalSet]]] = {}
        self.holds: dict[int, tuple[int, int]] = {}
        self.route()

    def route(self) -> None:
        self.version += 1
        owners = [NAMES.index(self.owner[vshard % BLOCKS][0]) for vshard in range(VSHARDS)]
        since = [self.owner[vshard % BLOCKS][1] for vshard in range(VSHARDS)]
        addresses = tuple(f"unix:{name}" for name in NAMES)
        self.ledger = self.ledger.routed(Routing(self.version, NAMES, addresses, tuple(owners), tuple(since)))
        owning = {name for name, _ in self.owner}
        self.said = {name: told for name, told in self.said.items() if name in owning}

    @rule(block=st.integers(0, BLOCKS - 1), name=st.sampled_from(NAMES), restored=st.booleans())
    def a_block_gets_a_new_tenure(self, block: int, name: str, restored: bool) -> None:
        self.owner[block] = (name, self.version + 1)
        if restored:  # from an older copy
            self.rows[block] = self.rows[block].first(len(self.rows[block]) // 2)
        self.route()

    @rule(number=st.integers(0, NUMBERS - 1), blocks=st.sets(st.integers(0, BLOCKS - 1)))
    def a_push_arrives(self, number: int, blocks: set[int]) -> None:
        for block in blocks:
            self.rows[block] = self.rows[block].add(number)

    @rule(name=st.sampled_from(NAMES), late=st.integers(0, 3), stale=st.booleans())
    def a_server_reports(self, name: str, late: int, stale: bool) -> None:
        """`late`: an answer to an older request; `stale`: about tenures that are over."""
        told, mine = [], {}
        for block, (owner, since) in enumerate(self.owner):
            if owner == name:
                of = since - 1 if stale else since
                told.append(Served(to_bitmap(MEMBERS[block]), of, self.rows[block].intervals, ()))
                mine[block, of] = self.rows[block]
        self.sequence += 1
        sequence = self.sequence - late
        known = self.said.get(name, (-NUMBERS, {}))[0]  # the first one heard counts, whatever its number
        self.ledger = self.ledger.reported(name, sequence, tuple(told))
        if any(owner == name for owner, _ in self.owner) and sequence > known:
            self.said[name] = (sequence, mine)

    @rule(name=st.sampled_from(NAMES))
    def a_server_dies(self, name: str) -> None:
        self.ledger = self.ledger.forgotten(name)
        self.said.pop(name, None)

    @rule(count=st.integers(1, 5))
    def a_shard_is_lent(self, count: int) -> None:
        if self.ledger.todo:
            lo, end = self.ledger.todo.intervals[0]
            hi = min(end, lo + count)
            taken = {number for one in self.holds.values() for number in range(*one)}
            assert not taken & set(range(lo, hi)), "lent twice"
            self.next_hold += 1
            self.ledger = self.ledger.given(Hold(self.next_hold, TRAIN, lo, hi, "w", 0.0))
            self.holds[self.next_hold] = (lo, hi)

    @precondition(lambda self: bool(self.holds))
    @rule(at=place)
    def a_loan_ends(self, at: int) -> None:
        key = sorted(self.holds)[at % len(self.holds)]
        self.ledger, gone = self.ledger.ended(lambda hold: hold.id == key, self.sequence)
        assert [(hold.lo, hold.hi) for hold in gone] == [self.holds.pop(key)]

    @invariant()
    def it_is_the_subtraction_that_it_says(self) -> None:
        parts = [self.said.get(name, (0, {}))[1].get((block, since)) for block, (name, since) in enumerate(self.owner)]
        known = [one for one in parts if one is not None]
        assert self.ledger.served == (len(known) == BLOCKS)
        if not self.ledger.served:
            assert (self.ledger.applied, self.ledger.todo) == (EMPTY, EMPTY)
            return
        applied = known[0] & known[1] & known[2] & known[3]
        held = IntervalSet(self.holds.values())
        settling = IntervalSet(one for entry in self.ledger.settling for one in entry.numbers.intervals)
        assert self.ledger.applied == applied
        assert not self.ledger.todo & applied, "a number is never to do and applied at once"
        assert not self.ledger.todo & held
        assert self.ledger.todo | applied | held | settling == IntervalSet.span(0, NUMBERS), "nothing is lost"

    def teardown(self) -> None:
        """All loans end, all owners speak twice: nothing stays unsettled, and to do is just what is not applied."""
        for key in sorted(self.holds):
            self.ledger, _ = self.ledger.ended(lambda hold, key=key: hold.id == key, self.sequence)
        self.holds.clear()
        for name in (*NAMES, *NAMES):
            self.a_server_reports(name, 0, stale=False)
        self.it_is_the_subtraction_that_it_says()
        assert self.ledger.settling == ()
        assert self.ledger.todo == IntervalSet.span(0, NUMBERS) - self.ledger.applied


class JobUnderEverything(JobUnderChaos):
    """Also swaps that fail, controllers that die and come back from the document, and what the dead had sent."""

    def __init__(self) -> None:
        super().__init__()
        self.truth: dict[str, dict[int, IntervalSet]] = {}  # by file and vshard: what the writer had
        self.written: list[tuple[str, str, CopiesWritten]] = []  # all copies ever: pod, process, what
        self.seen: Manifest | None = None
        self.of_the_dead: list[SendPs] = []
        self.swaps_of_the_dead: list[CommitDocument] = []

    @initialize(ps=st.integers(1, 3), workers=st.integers(1, 2), fair=st.integers(2, 8))
    def start(self, ps: int, workers: int, fair: int) -> None:
        self.world = World(settings(batches=BATCHES, evaluation_batches=0, **SHORT), plan_of(ps, workers))
        for _ in range(fair):
            if self.world.ended is None:
                self.fair_round()

    def running(self) -> bool:
        return self.world.ended is None

    @precondition(running)
    @rule()
    def fair_round(self) -> None:
        self.world.round()
        self.closed_stays_closed()

    @precondition(lambda self: self.running() and self.world.commits and self.world.state.failed_commits < 3)
    @rule()
    def a_swap_fails(self) -> None:
        assert MOST_FAILED_ROUNDS > 4
        self.world.commits.pop(0)
        self.world.feed(CommitResult(None, error="no space left on device"))

    @precondition(lambda self: self.running() and self.world.state.document.term < 4)
    @rule()
    def the_controller_dies_and_is_resumed(self) -> None:
        """Its successor knows the stored document and nothing else; what the dead one sent may still arrive."""
        world = self.world
        self.of_the_dead += world.requests
        self.swaps_of_the_dead += world.commits
        world.successor()

    @precondition(running)
    @rule(answers=st.integers(0, 2), at=place)
    def a_checkpoint_is_due_and_older_copies_answer_it(self, answers: int, at: int) -> None:
        """Whatever their writers were then, and hold by now; what they would have written now comes too late."""
        world = self.world
        world.state = replace(world.state, copied_at=-1e9)
        world.tick()
        known = [one for one in self.written if one[0] in world.state.pods]
        for number in range(answers):
            if known and world.state.round is not None:
                pod, process, copies = known[(at + number) % len(known)]
                late = PsReport(process, f"unix:{process}", 0, copies=replace(copies, id=world.state.round.id))
                world.feed(PsSaid(pod, late))
        if world.ended is None:
            self.fair_round()

    @precondition(lambda self: bool(self.of_the_dead))
    @rule(at=place, again=st.booleans())
    def an_order_of_a_dead_controller_arrives(self, at: int, again: bool) -> None:
        """Servers in this world don't look at terms: exactness must not rest on it."""
        at %= len(self.of_the_dead)
        order = self.of_the_dead[at] if again else self.of_the_dead.pop(at)
        for server in tuple(self.world.servers.values()):
            if server.pod == order.pod:
                server.sync(self.world, order.sync)

    @precondition(lambda self: bool(self.swaps_of_the_dead))
    @rule()
    def a_swap_of_a_dead_controller_arrives(self) -> None:
        document = self.swaps_of_the_dead.pop(0).document
        try:
            self.world.store.compare_and_swap(document, document.version)
        except StaleState:
            return
        raise AssertionError("a stale controller changed the document")

    @invariant()
    def closed_stays_closed(self) -> None:
        """I1 and I4."""
        world = self.world
        for server in world.servers.values():
            if server.copies is not None and all(server.copies is not copies for _, _, copies in self.written):
                self.written.append((server.pod, server.process, server.copies))
                for entry in server.copies.entries:
                    held = self.truth.setdefault(entry.file, {})
                    held.setdefault(entry.vshard, IntervalSet(server.copies.sets[entry.set_index].applied))
        manifest, routing = world.state.manifest, world.state.document.routing
        sets = [IntervalSet(one.applied) for one in manifest.sets]
        if manifest is not self.seen:
            for entry in manifest.entries:
                now = sets[entry.set_index]
                assert entry.file == "initial" or self.truth[entry.file][entry.vshard] == now, "I1"
                assert self.seen is None or now.issuperset(self.seen.applied_of(entry.vshard)), "I4: a set shrank"
            self.seen = manifest
        for server in world.servers.values():
            for part in server.parts:
                if not part.served:
                    continue
                closed = {
                    manifest.entries[vshard].set_index
                    for vshard in range(VSHARDS)
                    if part.mask >> vshard & 1 and routing.since[vshard] == part.since and routing.owner[vshard] >= 0
                    and routing.processes[routing.owner[vshard]] == server.process
                }  # fmt: skip
                assert all(part.applied.issuperset(sets[index]) for index in closed), "I4: an owner serves less"

    @invariant()
    def counted_once_and_ended_rightly(self) -> None:
        """I2, judged on the committed manifest and on what its writers really had."""
        world = self.world
        if world.ended is None:
            return
        assert world.ended.state is JobState.FINISHED, world.ended.reason
        assert world.state.manifest.complete(BATCHES)
        whole = IntervalSet.span(0, BATCHES)
        assert all(self.truth[entry.file][entry.vshard] == whole for entry in world.state.manifest.entries), "I2"

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for _ in range(600):
            if self.world.ended is None:
                self.fair_round()
        assert self.world.ended is not None, f"no end: {self.world.state.phase}, to do {self.world.state.ledger.todo}"
        self.counted_once_and_ended_rightly()


def bounded(machine: type[RuleBasedStateMachine], examples: int, steps: int, *phases: Phase) -> type:
    """The machine as a test: a fixed sequence of examples, so that CI judges the change and not the dice."""
    machine.TestCase.settings = hypothesis_settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck), phases=phases or tuple(Phase),
    )  # fmt: skip
    return machine.TestCase


TestLedgerAlone = bounded(LedgerAlone, 60, 50)
TestJobUnderEverything = bounded(JobUnderEverything, 30, 40, Phase.generate)  # shrinking a whole job takes minutes
