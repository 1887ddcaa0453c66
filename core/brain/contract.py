"""What an allocation of one capacity to many jobs must keep, whatever rule makes it.

Two half-started jobs that wait for each other's share are the classic fault (case 22), so a job gets at least its
smallest plan or nothing. The rule that allocates comes later; this is what it will be held to, by tests and at run
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.core.domain.plan import Limits, Plan


@dataclass(frozen=True)
class Capacity:
    """What there is for all jobs: cores and bytes."""

    cpu: float
    memory_bytes: int


@dataclass(frozen=True)
class Claim:
    """One job's wish.

    Attributes:
        run_id: the job.
        smallest: below this it cannot run at all.
        wanted: what it would use if it could.
    """

    run_id: str
    smallest: Plan
    wanted: Plan


@dataclass(frozen=True)
class Allotment:
    """One job's answer.

    Attributes:
        run_id: the job.
        limits: the caps it may grow to (cores and bytes always given); None: it waits and holds nothing.
        reason: why, in words.
    """

    run_id: str
    limits: Limits | None
    reason: str


class Allocator(Protocol):
    """A rule that shares a capacity out."""

    def allocate(self, capacity: Capacity, claims: Sequence[Claim]) -> tuple[Allotment, ...]:
        """One allotment per claim, in the order of the claims, without a `violation`."""
        ...


def violations(capacity: Capacity, claims: Sequence[Claim], allotments: Sequence[Allotment]) -> tuple[str, ...]:
    """Everything that is wrong with `allotments`, as sentences; empty when they keep the contract."""
    found: list[str] = []
    claimed = {claim.run_id: claim for claim in claims}
    answers = Counter(allotment.run_id for allotment in allotments)
    found += [f"{run_id}: {answers[run_id]} answers to one claim" for run_id in claimed if answers[run_id] != 1]
    found += [f"{run_id}: an answer without a claim" for run_id in answers if run_id not in claimed]
    cpu, memory = 0.0, 0
    for allotment in allotments:
        if not allotment.reason.strip():
            found.append(f"{allotment.run_id}: no reason given")
        limits = allotment.limits
        if limits is None:
            continue
        if limits.cpu is None or limits.memory_bytes is None:
            found.append(f"{allotment.run_id}: cores and memory must both be capped")
            continue
        cpu, memory = cpu + limits.cpu, memory + limits.memory_bytes
        claim = claimed.get(allotment.run_id)
        if claim is not None and (limits.cpu < claim.smallest.cpu or limits.memory_bytes < claim.smallest.memory_bytes):
            found.append(f"{allotment.run_id}: less than its smallest plan; it must get that or wait")
    if cpu > capacity.cpu * (1 + 1e-9):
        found.append(f"{cpu:g} cores are given out of {capacity.cpu:g}")
    if memory > capacity.memory_bytes:
        found.append(f"{memory} bytes are given out of {capacity.memory_bytes}")
    return tuple(found)
