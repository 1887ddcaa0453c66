"""What a simulated parameter server holds: vshards with the real sets of numbers in their rows, and nothing else.

The set is the row's truth here: a number enters it when a push is applied, a copy takes it as it is at that instant, a
load replaces it whole. So after a run the sets say which batches are in the rows, whatever anybody believed. Vshards
that share a tenure and a set are kept as one mask, which makes 512 of them as cheap as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trimtab.core.domain.intervals import IntervalSet


@dataclass
class Part:
    """Vshards (a mask) of one tenure with one set; not `served`: its tenure has ended, the rows are still there."""

    mask: int
    since: int
    applied: IntervalSet
    served: bool = True


@dataclass
class Rows:
    """The rows of one process.

    Attributes:
        parts: what is there. last: newest tenure that a vshard has or had, as (since, mask), disjoint masks.
        duplicates: pushed numbers (per part) that were there already.
    """

    parts: list[Part] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    duplicates: int = 0

    @property
    def served(self) -> int:
        """The served vshards, as a mask."""
        mask = 0
        for part in self.parts:
            if part.served:
                mask |= part.mask
        return mask

    def newer(self, mask: int, since: int) -> int:
        """Which of the vshards have never been held here under this tenure or a later one."""
        for known, of in self.last.items():
            if known >= since:
                mask &= ~of
        return mask

    def load(self, mask: int, since: int, applied: IntervalSet) -> None:
        """Serve vshards with a whole copy: it replaces everything that is held of them."""
        self.cut(mask)
        for known in tuple(self.last):
            self.last[known] &= ~mask
            if not self.last[known]:
                del self.last[known]
        self.last[since] = self.last.get(since, 0) | mask
        for part in self.parts:
            if part.served and part.since == since and part.applied == applied:
                part.mask |= mask
                return
        self.parts.append(Part(mask, since, applied))

    def hand_over(self, mask: int, since: int) -> list[tuple[int, IntervalSet]]:
        """End a tenure of vshards; what is held of them, as masks with their sets. What is not held is not there."""
        found = []
        for part in tuple(self.parts):
            hit = part.mask & mask if part.since == since else 0
            if hit:
                found.append((hit, part.applied))
                if part.served:
                    self._take(part, hit)
                    self.parts.append(Part(hit, since, part.applied, served=False))
        return found

    def drop(self, mask: int, since: int) -> None:
        """Rows of tenures that ended before `since` go."""
        for part in tuple(self.parts):
            if not part.served and part.since < since:
                self._take(part, mask)

    def push(self, number: int, cover: int) -> int:
        """Apply a number to those of `cover` that are served and lack it; which of them have it afterwards."""
        done = 0
        for part in tuple(self.parts):
            hit = part.mask & cover if part.served else 0
            if not hit:
                continue
            done |= hit
            if number in part.applied:
                self.duplicates += 1
                continue
            if hit != part.mask:
                self.parts.append(Part(part.mask & ~hit, part.since, part.applied))
                part.mask = hit
            part.applied = part.applied.add(number)
        self._join()
        return done

    def cut(self, mask: int) -> None:
        """Forget everything of these vshards."""
        for part in tuple(self.parts):
            self._take(part, mask)

    def _take(self, part: Part, mask: int) -> None:
        part.mask &= ~mask
        if not part.mask:
            self.parts.remove(part)

    def _join(self) -> None:
        """Parts that have become alike are one."""
        if len(self.parts) < 2:
            return
        kept: dict[tuple[int, bool, IntervalSet], Part] = {}
        for part in self.parts:
            alike = kept.setdefault((part.since, part.served, part.applied), part)
            if alike is not part:
                alike.mask |= part.mask
        self.parts = list(kept.values())


def holders(servers: Iterable[Rows], mask: int, since: int) -> int:
    """How many of these serve any of the vshards under this tenure."""
    return sum(any(part.served and part.since == since and part.mask & mask for part in one.parts) for one in servers)
