"""Which batches are applied, on loan, or to do.

The to-do is a subtraction, computed anew whenever it is asked for: all numbers, minus those that every vshard's owner
says it has, minus those on loan. First issue and the repair of any loss are this one subtraction; there is no second
bookkeeping that could disagree with the rows. Rules (see "How exactly-once works" in docs/design.md):

* a report counts only when it comes from the process that owns the vshard now, about the tenure (`since`) it has now;
  with a new tenure everything known of the vshard is forgotten;
* a worker's "finished" only ends its loan. Its numbers stay out of the to-do until each owner has answered a request
  that was sent after that, so nothing is lent again merely because reports lag behind workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce

from trimtab.core.controller.holds import Hold, Holds
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.values import replace
from trimtab.core.wire.messages import BatchScores, Routing, Served

ALL_VSHARDS = (1 << VSHARDS) - 1


@dataclass(frozen=True)
class Group:
    """Vshards (as a bit mask) of one tenure with one applied and one skipped set."""

    mask: int
    since: int
    applied: IntervalSet
    skipped: IntervalSet


@dataclass(frozen=True)
class Known:
    """What one owner said last, and to which request that was the answer."""

    sequence: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Settling:
    """Numbers of an ended loan, and the last request that had been sent when it ended."""

    numbers: IntervalSet
    after: int


@dataclass(frozen=True)
class Ledger:
    """The training ledger of one job; an immutable value.

    Attributes:
        batches: N; numbers are 0 .. N-1.
        tenures: of each owner process, the vshards (mask) it owns under each since.
        known: reports that count, by process.
        holds: data shards on loan.
        settling: ended loans whose outcome the owners have not told yet.
    """

    batches: int
    tenures: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    known: Mapping[str, Known] = field(default_factory=dict)
    holds: Holds = field(default_factory=Holds)
    settling: tuple[Settling, ...] = ()

    @cached_property
    def _counted(self) -> tuple[Group, ...]:
        """The parts of the reports that are about present tenures."""
        found = []
        for process, known in self.known.items():
            owned = self.tenures.get(process, {})
            for group in known.groups:
                mask = group.mask & owned.get(group.since, 0)
                if mask:
                    found.append(group if mask == group.mask else replace(group, mask=mask))
        return tuple(found)

    @cached_property
    def served(self) -> bool:
        """Whether the owner of every vshard has said that it serves it."""
        return not self.missing

    @cached_property
    def missing(self) -> int:
        """Vshards (a mask) whose owner has not said that it serves them."""
        return ALL_VSHARDS & ~reduce(lambda mask, group: mask | group.mask, self._counted, 0)

    @cached_property
    def applied(self) -> IntervalSet:
        """Numbers that every vshard's owner has, skipped ones included; empty while a vshard is not served."""
        if not self.served:
            return EMPTY
        return reduce(lambda one, other: one & other, (group.applied for group in self._counted))

    @cached_property
    def skipped(self) -> IntervalSet:
        """Numbers that any vshard's owner counts as skipped."""
        return reduce(lambda one, other: one | other, (group.skipped for group in self._counted), EMPTY)

    @cached_property
    def todo(self) -> IntervalSet:
        """Numbers that can be lent now; empty while a vshard is not served, for then nothing is known."""
        if not self.served:
            return EMPTY
        left = IntervalSet.span(0, self.batches) - self.applied - self.holds.numbers()
        return reduce(lambda numbers, entry: numbers - entry.numbers, self.settling, left)

    @property
    def all_applied(self) -> bool:
        """Whether the owners' reports say that nothing is left. A reason to write copies, never proof of the end."""
        return self.served and self.applied == IntervalSet.span(0, self.batches)

    def routed(self, routing: Routing) -> Ledger:
        """This ledger under a new routing: what was known of vshards with a new owner or since is forgotten."""
        tenures: dict[str, dict[int, int]] = {}
        for vshard, (owner, since) in enumerate(zip(routing.owner, routing.since, strict=True)):
            if owner >= 0 and routing.processes[owner]:
                masks = tenures.setdefault(routing.processes[owner], {})
                masks[since] = masks.get(since, 0) | 1 << vshard
        known = {process: known for process, known in self.known.items() if process in tenures}
        return replace(self, tenures=tenures, known=known)

    def reported(self, process: str, sequence: int, served: tuple[Served, ...]) -> Ledger:
        """This ledger with an owner's report; others' reports, and older ones than the last, change nothing."""
        last = self.known.get(process)
        if process not in self.tenures or (last is not None and sequence <= last.sequence):
            return self
        groups = tuple(
            Group(int(entry.vshards, 16), entry.since, IntervalSet(entry.applied), IntervalSet(entry.skipped))
            for entry in served
        )
        known = {**self.known, process: Known(sequence, groups)}
        heard = min((known[owner].sequence if owner in known else -1) for owner in self.tenures)
        settling = tuple(entry for entry in self.settling if entry.after >= heard)
        return replace(self, known=known, settling=settling)

    def forgotten(self, process: str) -> Ledger:
        """This ledger without what `process` said: it has died."""
        if process not in self.known:
            return self
        return replace(self, known={name: known for name, known in self.known.items() if name != process})

    def given(self, hold: Hold) -> Ledger:
        """This ledger with one more loan."""
        return replace(self, holds=self.holds.give(hold))

    def ended(self, which: Callable[[Hold], bool], sequence: int) -> tuple[Ledger, tuple[Hold, ...]]:
        """This ledger without the loans for which `which` is true, and those loans.

        Args:
            which: whether a loan ends.
            sequence: the highest that has been sent to any parameter server so far.
        """
        holds, gone = self.holds.end(which)
        if not gone:
            return self, ()
        numbers = IntervalSet((hold.lo, hold.hi) for hold in gone)
        return replace(self, holds=holds, settling=(*self.settling, Settling(numbers, sequence))), gone


@dataclass(frozen=True)
class EvaluationLedger:
    """The same for held-out rows: a number is done when its scores have come, and counts once.

    Attributes:
        batches: M; numbers are 0 .. M-1.
        done: numbers whose scores are merged.
        holds: data shards on loan.
    """

    batches: int
    done: IntervalSet = EMPTY
    holds: Holds = field(default_factory=Holds)

    @property
    def todo(self) -> IntervalSet:
        """Numbers that can be lent now."""
        return IntervalSet.span(0, self.batches) - self.done - self.holds.numbers()

    @property
    def complete(self) -> bool:
        """Whether every number has its scores."""
        return self.done == IntervalSet.span(0, self.batches)

    def scored(self, scores: tuple[BatchScores, ...]) -> tuple[EvaluationLedger, tuple[BatchScores, ...]]:
        """This ledger with new scores, and those of them that count: the first of each number in range."""
        done, fresh = self.done, []
        for entry in scores:
            if 0 <= entry.number < self.batches and entry.number not in done:
                done = done.add(entry.number)
                fresh.append(entry)
        return (replace(self, done=done) if fresh else self), tuple(fresh)
