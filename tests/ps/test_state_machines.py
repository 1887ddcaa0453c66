"""State machines over the pure parts of exactly-once: applied sets, the manifest, and the choice of a source.

Each is held against the plainest model of itself: a Python set per vshard, and a diary of what was really written.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps.applied import AppliedSets
from trimtab.core.ps.manifest import Manifest, merge
from trimtab.core.ps.snapshots import SnapshotIndex, sources_of
from trimtab.core.wire.messages import CopiesWritten, CopyEntry, CopySet, Routing

V, NUMBERS = 6, 12
BLOCKS, NAMES = 4, ("p0", "p1", "p2")
covers, numbers, place = st.integers(0, 2**V - 1), st.integers(0, NUMBERS - 1), st.integers(0, 10**6)
BOUNDED = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


class TwoServersSets(RuleBasedStateMachine):
    """The applied sets of two servers between which vshards move, against a pair of Python sets per vshard."""

    def __init__(self) -> None:
        super().__init__()
        self.sets = (AppliedSets(), AppliedSets())
        self.model: tuple[dict[int, tuple[set[int], set[int]]], ...] = ({}, {})
        self.load(0, 2**V - 1, 0)

    @rule(server=st.integers(0, 1), cover=covers, count=numbers)
    def load(self, server: int, cover: int, count: int) -> None:
        """A copy replaces all that was known."""
        self.sets[server].put(cover, IntervalSet.span(0, count), IntervalSet.span(0, count // 3))
        for vshard in (v for v in range(V) if cover >> v & 1):
            self.model[server][vshard] = (set(range(count)), set(range(count // 3)))

    @rule(server=st.integers(0, 1), number=numbers, cover=covers, skipped=st.booleans())
    def push(self, server: int, number: int, cover: int, skipped: bool) -> None:
        mine = self.model[server]
        lacking = self.sets[server].lacking(number, cover)
        hit = [v for v in mine if cover >> v & 1 and number not in mine[v][0]]
        assert lacking == sum(1 << v for v in hit), "doubles are dropped, and only doubles"
        self.sets[server].mark(number, lacking, skipped)
        for vshard in hit:
            mine[vshard][0].add(number)
            if skipped:
                mine[vshard][1].add(number)

    @rule(source=st.integers(0, 1), vshard=st.integers(0, V - 1))
    def move(self, source: int, vshard: int) -> None:
        if vshard not in self.model[source]:
            return
        held = self.sets[source].of(vshard)
        self.sets[1 - source].put(1 << vshard, held.applied, held.skipped)
        self.sets[source].remove(1 << vshard)
        self.model[1 - source][vshard] = self.model[source].pop(vshard)

    @rule(server=st.integers(0, 1), cover=covers)
    def drop(self, server: int, cover: int) -> None:
        self.sets[server].remove(cover)
        for vshard in range(V):
            if cover >> vshard & 1:
                self.model[server].pop(vshard, None)

    @invariant()
    def each_set_is_that_of_the_model(self) -> None:
        for sets, model in zip(self.sets, self.model, strict=True):
            assert sets.members() == sum(1 << vshard for vshard in model)
            for vshard in range(V):
                held = sets.of(vshard)
                applied, skipped = model.get(vshard, (set(), set()))
                assert (set(held.applied), set(held.skipped)) == (applied, skipped)
                assert held.applied.issuperset(held.skipped)
            classes = sets.classes()
            assert sum(one.members.bit_count() for one in classes) == len(model), "classes are disjoint"
            assert len({(one.applied, one.skipped) for one in classes}) == len(classes), "equal sets are one class"


class ManifestUnderMoves(RuleBasedStateMachine):
    """Manifests that take copies of owners, zombies and former owners, early and late. Vshards come in four blocks."""

    def __init__(self) -> None:
        super().__init__()
        entries = tuple(CopyEntry(v, 0, "initial", 0, 0, "", 0) for v in range(VSHARDS))
        self.manifest = Manifest(1, "job", "f", VSHARDS, entries, (CopySet((), ()),))
        self.version = 1
        self.owner = [("p0", 1)] * BLOCKS
        self.tenures: dict[tuple[str, int, int], IntervalSet] = {("p0", block, 1): EMPTY for block in range(BLOCKS)}
        self.written: list[tuple[str, CopiesWritten]] = []
        self.truth: dict[tuple[str, int], tuple[str, int, IntervalSet]] = {}

    @rule(at=place, number=numbers)
    def push(self, at: int, number: int) -> None:
        """To any tenure that anybody still believes in: zombies go on."""
        key = sorted(self.tenures)[at % len(self.tenures)]
        self.tenures[key] = self.tenures[key].add(number)

    @rule(block=st.integers(0, BLOCKS - 1), name=st.sampled_from(NAMES), handed_over=st.booleans())
    def a_block_changes_hands(self, block: int, name: str, handed_over: bool) -> None:
        """From its owner, or from the manifest when that has died."""
        self.version += 1
        old = self.tenures[self.owner[block][0], block, self.owner[block][1]]
        self.owner[block] = (name, self.version)
        self.tenures[name, block, self.version] = old if handed_over else self.manifest.applied_of(block)

    @rule(name=st.sampled_from(NAMES), tenures=st.integers(1, 4))
    def a_server_writes_copies(self, name: str, tenures: int) -> None:
        """Of what it owns, or thinks that it owns; they are not read at once."""
        file = f"{name}-{len(self.truth)}-{len(self.written)}"
        entries, sets = [], []
        for process, block, since in sorted(self.tenures, key=lambda key: -key[2])[: 3 * tenures]:
            if process == name and (file, block) not in self.truth:
                held = self.tenures[process, block, since]
                self.truth[file, block] = (name, since, held)
                sets.append(CopySet(held.intervals, ()))
                entries += [CopyEntry(v, since, file, 0, 0, "", len(sets) - 1) for v in range(block, VSHARDS, BLOCKS)]
        self.written.append((name, CopiesWritten(len(self.written) + 1, tuple(entries), tuple(sets))))

    @precondition(lambda self: bool(self.written))
    @rule(at=place, again=st.booleans())
    def the_copies_are_merged(self, at: int, again: bool) -> None:
        at %= len(self.written)
        name, written = self.written[at] if again else self.written.pop(at)
        owners = tuple(NAMES.index(self.owner[v % BLOCKS][0]) for v in range(VSHARDS))
        since = tuple(self.owner[v % BLOCKS][1] for v in range(VSHARDS))
        old = self.manifest
        self.manifest = new = merge(old, written, Routing(self.version, NAMES, ("",) * 3, owners, since), name)
        for block in range(BLOCKS):
            assert new.applied_of(block).issuperset(old.applied_of(block)), "a committed set shrank"
            if new.entries[block] != old.entries[block] and new.entries[block].file != old.entries[block].file:
                assert self.truth[new.entries[block].file, block][:2] == self.owner[block], "a copy of a non-owner"

    @invariant()
    def it_tells_the_truth_and_wastes_nothing(self) -> None:
        used = {entry.set_index for entry in self.manifest.entries}
        assert used == set(range(len(self.manifest.sets)))
        for block in range(BLOCKS):
            for entry in self.manifest.entries[block::BLOCKS][:2]:
                told = IntervalSet(self.manifest.sets[entry.set_index].applied)
                assert told == (self.truth[entry.file, block][2] if entry.file != "initial" else EMPTY)
        common = [self.manifest.applied_of(block) for block in range(BLOCKS)]
        assert self.manifest.applied() == common[0] & common[1] & common[2] & common[3]
        assert self.manifest.complete(NUMBERS) == all(len(one) == NUMBERS for one in common)


some_sets = st.frozensets(numbers).map(lambda found: IntervalSet((one, one + 1) for one in found))


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(closed=st.tuples(some_sets, some_sets), snapshots=st.lists(st.tuples(some_sets, some_sets), max_size=4))
def test_trace_14_no_source_holds_less_than_the_manifest(
    closed: tuple[IntervalSet, IntervalSet], snapshots: list[tuple[IntervalSet, IntervalSet]]
) -> None:
    """A node-local snapshot that is older than the committed copy would undo what was closed."""

    def entries(file: str) -> tuple[CopyEntry, ...]:
        return tuple(CopyEntry(vshard, 1, file, 0, 0, "", vshard % 2) for vshard in range(VSHARDS))

    def sets(pair: tuple[IntervalSet, IntervalSet]) -> tuple[CopySet, ...]:
        return tuple(CopySet(one.intervals, ()) for one in pair)

    manifest = Manifest(1, "job", "f", VSHARDS, entries("manifest"), sets(closed))
    indexes = [
        SnapshotIndex(1, "job", "f", f"p{number}", entries(f"s{number}"), sets(pair))
        for number, pair in enumerate(snapshots)
    ]
    for vshard, found in sources_of(range(8), manifest, indexes).items():
        held = closed[vshard % 2]
        best = max([len(held), *(len(pair[vshard % 2]) for pair in snapshots if pair[vshard % 2].issuperset(held))])
        assert len(found[0].applied) == best, "the freshest comes first"
        assert all(source.applied.issuperset(held) for source in found)
        assert "manifest" in {source.entry.file for source in found}
        assert all(source.entry.vshard == vshard for source in found)


TwoServersSets.TestCase.settings = BOUNDED
TestTwoServersSets = TwoServersSets.TestCase
ManifestUnderMoves.TestCase.settings = settings(BOUNDED, max_examples=25, stateful_step_count=30)
TestManifestUnderMoves = ManifestUnderMoves.TestCase
