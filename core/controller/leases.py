"""Who may use how much of one machine: the rules, without a file, a clock or a process.

Every job holds a lease, and the sum of what is held never exceeds the machine, whatever was asked for. What a job
should have is the level at which water would stand: everybody the same, but nobody more than it can use or less than it
needs, and jobs that keep what they hold (a fixed plan, caps that the caller gave) keep it. Who comes later stands in
line; the first of the line starts with cores and memory at once or not at all, so that two half-started jobs never wait
for each other (case 22), and nobody overtakes it, so that it cannot starve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ENOUGH = 0.5  # of what a newcomer should have in the end, to begin with: the rest comes as others give way
STEP_CPU, STEP_BYTES = 0.05, 64 * 2**20  # less is not worth a change
_MILLI = 0.001
_DUST = 1e-6  # cores: sums of thousandths are not exact


@dataclass(frozen=True)
class Room:
    """Cores and bytes."""

    cpu: float = 0.0
    memory_bytes: int = 0

    def __add__(self, other: Room) -> Room:
        return Room(round(self.cpu + other.cpu, 3), self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: Room) -> Room:
        return Room(round(self.cpu - other.cpu, 3), self.memory_bytes - other.memory_bytes)

    def holds(self, other: Room) -> bool:
        """Whether `other` fits in."""
        return other.cpu <= self.cpu + _DUST and other.memory_bytes <= self.memory_bytes

    def least(self, other: Room) -> Room:
        """The smaller of both, in each."""
        return Room(min(self.cpu, other.cpu), min(self.memory_bytes, other.memory_bytes))

    def most(self, other: Room) -> Room:
        """The larger of both, in each."""
        return Room(max(self.cpu, other.cpu), max(self.memory_bytes, other.memory_bytes))


NOTHING = Room()


@dataclass(frozen=True)
class Holder:
    """The process that a lease belongs to: its id, when it began, and where such an id means something."""

    pid: int = 0
    began: float = 0.0
    namespace: str = ""


@dataclass(frozen=True)
class Lease:
    """What one job holds, or waits for.

    Attributes:
        run_id: of the job. holder: its controller. job_dir: where its pods' configurations lie.
        held: what it may use now; nothing: it stands in line.
        least: with less it cannot run. wants: it can't use more.
        keeps_cpu, keeps_memory: it gives nothing of that away, because its caller gave the cap.
        changes: its plan may change while it runs; else it keeps what it began with.
        weight: its part, compared with others'.
        ticket: who came first. expires: the machine's monotonic seconds until which it counts without a word.
    """

    run_id: str
    held: Room
    least: Room
    wants: Room
    keeps_cpu: bool = False
    keeps_memory: bool = False
    changes: bool = True
    weight: float = 1.0
    ticket: int = 0
    expires: float = 0.0
    holder: Holder = field(default_factory=Holder)
    job_dir: str = ""

    @property
    def waits(self) -> bool:
        """Whether it stands in line."""
        return self.held == NOTHING


@dataclass(frozen=True)
class _Bounds:
    """Of one job and one kind of room: what it should have at least and at most."""

    low: float
    high: float
    weight: float


def held(leases: Sequence[Lease]) -> Room:
    """What all of them hold together."""
    return sum((one.held for one in leases), NOTHING)


def free(machine: Room, leases: Sequence[Lease]) -> Room:
    """What nobody holds; never below nothing."""
    return (machine - held(leases)).most(NOTHING)


def line(leases: Sequence[Lease]) -> list[Lease]:
    """Who waits, in the order of coming."""
    return sorted((one for one in leases if one.waits), key=lambda one: one.ticket)


def targets(machine: Room, leases: Sequence[Lease]) -> Mapping[str, Room]:
    """What each job that runs, and each that could start if others gave way, should have, by run id.

    Their sum is within the machine, if what is held and kept is. Who waits and is not named can't be helped before
    another job has ended.
    """
    among = _served(machine, leases)
    cpu = _filled(machine.cpu, _bounds(machine, among, memory=False))
    memory = _filled(machine.memory_bytes, _bounds(machine, among, memory=True))
    return {
        one.run_id: Room(_floor(cores, _MILLI, _DUST), int(size))
        for one, cores, size in zip(among, cpu, memory, strict=True)
    }


def grant(machine: Room, leases: Sequence[Lease], run_id: str, most: Room | None = None) -> Room | None:
    """What a job that stands in line may begin with now; None: it goes on waiting.

    Args:
        machine, leases: as they are.
        run_id: of the job.
        most: more it is not to get now, whatever is free.
    """
    waiting = line(leases)
    if not waiting or waiting[0].run_id != run_id:
        return None
    me, target = waiting[0], targets(machine, leases).get(run_id)
    if target is None:
        return None
    target = target if most is None else target.least(most)
    given = _whole(free(machine, leases).least(target))
    enough = me.least.most(_part(target, ENOUGH) if me.changes else target)
    return given if given.holds(enough) else None


def grown(machine: Room, leases: Sequence[Lease], run_id: str, most: Room | None = None) -> Room:
    """What a running job may hold from now on, at least what it holds: it grows where room is free and nobody waits.

    Args:
        machine, leases, run_id: as for `grant`.
        most: what may come to what it holds.
    """
    (me,) = [one for one in leases if one.run_id == run_id]
    if line(leases) or not me.changes:
        return me.held
    more = free(machine, leases) if most is None else free(machine, leases).least(most.most(NOTHING))
    to = _whole((me.held + more).least(targets(machine, leases)[run_id]))
    return Room(
        to.cpu if to.cpu >= me.held.cpu + STEP_CPU else me.held.cpu,
        to.memory_bytes if to.memory_bytes >= me.held.memory_bytes + STEP_BYTES else me.held.memory_bytes,
    )


def shrunk(machine: Room, leases: Sequence[Lease], run_id: str) -> Room:
    """What a running job should come down to, at most what it holds: its target, where another one needs the rest."""
    (me,) = [one for one in leases if one.run_id == run_id]
    found = targets(machine, leases)
    needy = any(one.run_id in found and not one.held.holds(found[one.run_id]) for one in leases if one != me)
    return me.held.least(found[run_id]) if needy and run_id in found else me.held


def _served(machine: Room, leases: Sequence[Lease]) -> list[Lease]:
    """The jobs that run, and as many of the line, from its head, as could run beside them."""
    among = [one for one in leases if not one.waits]
    for one in line(leases):
        more = [*among, one]
        cpu = sum(bound.low for bound in _bounds(machine, more, memory=False))
        memory = sum(bound.low for bound in _bounds(machine, more, memory=True))
        if not machine.holds(Room(cpu, int(memory))):
            break
        among = more
    return among


def _bounds(machine: Room, among: Sequence[Lease], *, memory: bool) -> list[_Bounds]:
    """Bounds of each job in cores, or in bytes."""
    whole = sum(one.weight for one in among)

    def of(room: Room) -> float:
        return room.memory_bytes if memory else room.cpu

    found = []
    for one in among:
        now, least, wants = of(one.held), of(one.least), max(of(one.least), of(one.wants))
        keeps = one.keeps_memory if memory else one.keeps_cpu
        fair = of(machine) * one.weight / whole
        if one.waits:
            low = wants if keeps and not one.changes else least
        elif not one.changes:
            low = wants = now
        else:
            low = now if keeps else min(now, max(least, fair))
            wants = max(wants, low)
        found.append(_Bounds(low, wants, one.weight))
    return found


def _filled(size: float, bounds: Sequence[_Bounds]) -> list[float]:
    """Everybody as much as the others by weight, within the bounds, and all together `size` at most."""
    if sum(one.high for one in bounds) <= size:
        return [one.high for one in bounds]

    def at(level: float) -> list[float]:
        return [min(one.high, max(one.low, level * one.weight)) for one in bounds]

    under, over = 0.0, max((one.high / one.weight for one in bounds), default=0.0)
    for _ in range(80):
        middle = (under + over) / 2
        under, over = (middle, over) if sum(at(middle)) <= size else (under, middle)
    return at(under)


def _part(room: Room, share: float) -> Room:
    return Room(room.cpu * share, int(room.memory_bytes * share))


def _whole(room: Room) -> Room:
    """Whole thousandths of a core."""
    return Room(_floor(room.cpu, _MILLI, _DUST), room.memory_bytes)


def _floor(value: float, step: float, dust: float) -> float:
    return round(int((value + dust) / step) * step, 3)
