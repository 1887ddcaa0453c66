"""Deliberate breaks of the controller's rules, one at a time: what a simulation that is worth its time must find.

Each takes pytest's `monkeypatch` and breaks one rule the way a careless change would. `python tests/simulator/
mutations.py` tries all of them and says after how many seeds each was found; the suite tries a few.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import reduce
from typing import Any

from trimtab.core.controller import (
    closing,
    doubled,
    ledger,
    lending,
    moving,
    observing,
    pods,
    serving,
    shares,
    state,
    step,
    straggling,
    successors,
)
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.ps.manifest import Manifest
from trimtab.core.simulator.runs import run_seeds

SEEDS = 200


def lends_what_others_have(patch: Any) -> None:
    """The to-do forgets that numbers are on loan."""

    def todo(self: Any) -> IntervalSet:
        left = IntervalSet.span(0, self.batches) - self.applied if self.served else EMPTY
        return reduce(lambda numbers, entry: numbers - entry.numbers, self.settling, left)

    patch.setattr(ledger.Ledger, "todo", property(todo))


def believes_reports_at_the_end(patch: Any) -> None:
    """The job ends when reports say that all is applied, whatever the manifest holds."""
    patch.setattr(Manifest, "complete", lambda self, batches: True)


def takes_any_copy(patch: Any) -> None:
    """A copy enters the manifest whoever wrote it, under whichever tenure, and whatever it lacks."""

    def merge(old: Any, written: Any, routing: Any, process: str) -> Any:
        entries, sets = list(old.entries), [*old.sets, *written.sets]
        for entry in written.entries:
            entries[entry.vshard] = replace(entry, set_index=len(old.sets) + entry.set_index)
        return replace(old, entries=tuple(entries), sets=tuple(sets))

    patch.setattr(closing, "merge", merge)


def forgets_who_leaves(patch: Any) -> None:
    """Pods that are told to end are taken to have no cores any more."""
    plain = shares.shares
    patch.setattr(pods, "shares", lambda given: plain(replace(given, departed={})))


def uses_a_name_again(patch: Any) -> None:
    """The next pod of a place has the name of the last."""
    patch.setattr(state.Slot, "pod_name", lambda self, term: f"{self.role}-{self.index}-t{term}-g1")


def keeps_the_tenure(patch: Any) -> None:
    """Vshards change hands under the tenure that they had."""
    plain = moving.next_routing
    patch.setattr(serving, "next_routing", lambda old, up, owners: (
        replace(plain(old, up, owners), since=old.since) if old.version else plain(old, up, owners)
    ))  # fmt: skip


def has_room_for_all(patch: Any) -> None:
    """Nothing waits for the memory of what leaves."""
    for room in (pods, successors):
        patch.setattr(room, "has_room", lambda *given: True)


def lends_while_it_stops(patch: Any) -> None:
    """Data shards are lent although the job stops."""
    plain = lending._lend

    def lend(draft: Any, name: str) -> Any:
        given = draft.state
        if given.phase is not state.Phase.STOPPING:
            return plain(draft, name)
        draft.state = replace(given, phase=state.Phase.TRAINING)
        found = plain(draft, name)
        draft.state = replace(draft.state, phase=state.Phase.STOPPING)
        return found

    patch.setattr(lending, "_lend", lend)


def leaves_loans_with_the_dead(patch: Any) -> None:
    """A pod's loans do not end with it."""
    plain = pods._forget

    def forget(draft: Any, pod: Any) -> int:
        before = draft.state.ledger
        found: int = plain(draft, pod)
        draft.state = replace(draft.state, ledger=replace(draft.state.ledger, holds=before.holds))
        return found

    patch.setattr(pods, "_forget", forget)


def measures_what_has_changed(patch: Any) -> None:
    """A window goes on over whatever comes, goes and moves."""
    patch.setattr(observing, "settled", lambda given: given.phase is state.Phase.TRAINING)


def deletes_what_is_in_force(patch: Any) -> None:
    """What the new manifest names is deleted with the old one."""
    plain = closing.RemoveSuperseded
    patch.setattr(closing, "RemoveSuperseded", lambda old, new, alive: plain(new, old, alive))


def swaps_two_at_once(patch: Any) -> None:
    """A swap goes out while another one is on its way."""
    plain = serving.commit

    def commit(draft: Any, action: Any) -> None:
        plain(draft, action)
        draft.state = replace(draft.state, committing=False)

    for room in (serving, closing):
        patch.setattr(room, "commit", commit)


def keeps_what_it_had(patch: Any) -> None:
    """Caps that fall are not heard of."""
    patch.setattr(step, "caps_changed", lambda draft, limits: None)


def lends_to_everybody_at_the_end(patch: Any) -> None:
    """Near the end a number goes to a third worker, and a fourth."""
    patch.setattr(doubled, "_twice", lambda holds: EMPTY)


def judges_by_old_samples(patch: Any) -> None:
    """Who is slow is told from what was sampled before the last change."""
    patch.setattr(straggling, "cleared", dict)


MUTATIONS = (
    lends_what_others_have, believes_reports_at_the_end, takes_any_copy, forgets_who_leaves, uses_a_name_again,
    keeps_the_tenure, has_room_for_all, lends_while_it_stops, leaves_loans_with_the_dead, measures_what_has_changed,
    deletes_what_is_in_force, swaps_two_at_once, keeps_what_it_had, lends_to_everybody_at_the_end,
    judges_by_old_samples,
)  # fmt: skip


def found_by(most: int = SEEDS) -> tuple[int, str] | None:
    """The first seed that finds something wrong, and what; None: none of them does."""
    return next(((run.schedule.seed, run.wrong) for run in run_seeds(range(most)) if run.wrong), None)


def main() -> int:
    """Try all of them; returns 1 when one is not found."""
    import pytest

    missed = 0
    for mutation in MUTATIONS:
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            found = found_by()
        missed += found is None
        sys.stdout.write(f"{mutation.__name__}: {f'seed {found[0]}: {found[1]}' if found else 'NOT FOUND'}\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
