"""Applied sets of all vshards of one parameter server, equal sets shared.

Most of the time every vshard has seen the same batches, so the sets are kept as classes: (applied, skipped) → the
vshards that have exactly these, as a 512-bit integer. A push touches one class; a push that is partly a double or
partly refused splits one, and classes that become equal again melt together.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.core.domain.intervals import EMPTY, IntervalSet


@dataclass(frozen=True)
class AppliedClass:
    """Vshards (a bitmap) that share their sets; `skipped` is a subset of `applied`."""

    members: int
    applied: IntervalSet
    skipped: IntervalSet


class AppliedSets:
    """Which batch numbers are in the rows of each vshard. Never forgets one, except with the vshard itself."""

    def __init__(self) -> None:
        self._classes: tuple[AppliedClass, ...] = ()

    def classes(self) -> tuple[AppliedClass, ...]:
        """All classes; their members are disjoint."""
        return self._classes

    def members(self) -> int:
        """All vshards that have a set."""
        return sum(one.members for one in self._classes)

    def of(self, vshard: int) -> AppliedClass:
        """The class of one vshard (its sets are empty when the vshard is not here)."""
        for one in self._classes:
            if one.members >> vshard & 1:
                return one
        return AppliedClass(0, EMPTY, EMPTY)

    def lacking(self, number: int, cover: int) -> int:
        """Those of `cover`'s vshards that are here and have not seen `number`."""
        lacking = 0
        for one in self._classes:
            if one.members & cover and number not in one.applied:
                lacking |= one.members & cover
        return lacking

    def mark(self, number: int, cover: int, skipped: bool) -> None:
        """Note that `number` is in the rows of `cover`'s vshards (all of them here and lacking it)."""
        made: list[AppliedClass] = []
        for one in self._classes:
            hit = one.members & cover
            if not hit:
                made.append(one)
                continue
            if hit != one.members:
                made.append(AppliedClass(one.members & ~cover, one.applied, one.skipped))
            skips = one.skipped.add(number) if skipped else one.skipped
            made.append(AppliedClass(hit, one.applied.add(number), skips))
        self._classes = _melted(made)

    def put(self, vshards: int, applied: IntervalSet, skipped: IntervalSet) -> None:
        """Replace what is known of `vshards` by these sets."""
        made = self._without(vshards)
        if vshards:
            made.append(AppliedClass(vshards, applied, skipped))
        self._classes = _melted(made)

    def remove(self, vshards: int) -> None:
        """Forget vshards that are no longer here."""
        self._classes = tuple(self._without(vshards))

    def _without(self, vshards: int) -> list[AppliedClass]:
        return [
            AppliedClass(one.members & ~vshards, one.applied, one.skipped)
            for one in self._classes
            if one.members & ~vshards
        ]


def _melted(classes: list[AppliedClass]) -> tuple[AppliedClass, ...]:
    if len(classes) < 2:
        return tuple(classes)
    together: dict[tuple[IntervalSet, IntervalSet], int] = {}
    for one in classes:
        sets = (one.applied, one.skipped)
        together[sets] = together.get(sets, 0) | one.members
    return tuple(AppliedClass(members, applied, skipped) for (applied, skipped), members in together.items())
