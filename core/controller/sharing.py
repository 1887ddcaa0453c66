"""One job's part of a machine that others use too: waited for at the start, followed while it runs, given back.

Two threads work on it and neither waits for the other. One looks at the capacity file now and then, renews the lease,
and takes or returns room in it; the driver's thread follows with the caps of the job. The order keeps the sum of what
all jobs *use* within the machine, not only the sum of what stands in the file: room is used after the file has given
it, and given back after it is not used any more, which for memory means that the pods are gone. A file that can't be
used (a read-only home, a full disk) never keeps a job from running: then it has the machine as if it were alone, and
says so.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.cluster.base import Cluster
from trimtab.core.controller.capacity import LEASE_SECONDS, Book, Capacity, this_process
from trimtab.core.controller.caps import least_plan, memory_needed, raised_memory
from trimtab.core.controller.changing import servers_needed
from trimtab.core.controller.leases import NOTHING, Lease, Room, free, grant, grown, line, shrunk, targets
from trimtab.core.controller.machine import usable_memory_bytes
from trimtab.core.controller.progress import Progress
from trimtab.core.controller.resources import Resources, limits_in, part_of, resources_of
from trimtab.core.controller.state import State
from trimtab.core.domain.job import JobSpec, Mode
from trimtab.core.domain.plan import SMALLEST_CPU, SMALLEST_PS_MEMORY, SMALLEST_WORKER_MEMORY, Limits
from trimtab.core.errors import Interrupted
from trimtab.core.optimizer.start import ZYGOTE_MEMORY

log = logging.getLogger(__name__)

WAITING = "waiting"  # the phase of a job that stands in line
LOOK_SECONDS = 1.0
_LEAST_SECONDS = 2.0  # between two looks at how little the job could do with
_MANY_CORES, _MUCH_MEMORY = 1 << 20, 1 << 62


@dataclass(frozen=True)
class _May:
    """What the file says.

    Attributes:
        machine: its size. held: what the job holds of it. target: to what it should come down.
        least: with how little it could do. others: there are other jobs.
    """

    machine: Room
    held: Room
    target: Room
    least: Room
    others: bool = False


class Sharing:
    """One job's part of the machine.

    Args:
        capacity: the file. spec, run_id: of the job. clock: the machine's.
        free_memory: bytes that could be taken now, whatever is promised to whom.
    """

    def __init__(
        self,
        capacity: Capacity,
        spec: JobSpec,
        run_id: str,
        clock: Clock,
        free_memory: Callable[[], int] = usable_memory_bytes,
    ) -> None:
        self._capacity, self._spec, self._run_id, self._clock = capacity, spec, run_id, clock
        self._free_memory = free_memory
        self._holder = this_process()
        self._job_dir = ""
        self._whole: Resources | None = None
        self._zygotes = 0
        self._entered = self._unusable = False
        self._may: _May | None = None  # written by whoever looks
        self._used: tuple[_May | None, Room] = (None, NOTHING)  # by the driver's thread: what it acts on, what it uses
        self._least = NOTHING  # by the driver's thread
        self._least_at = -1e9
        self._caps: tuple[float | None, int | None] | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem = ""  # why the machine can't be shared, "" while it is
        self.waits = False  # the job stands in line

    def whole(self) -> Resources:
        """What the job could use if it had the machine for itself; nothing is entered."""
        if self._whole is None:
            machine: Room | None = None
            try:
                book = self._capacity.read()
                machine = book.machine if book.machine != NOTHING else None
            except OSError as error:
                self._give_up(error)
            self._whole = resources_of(self._spec, machine)
        return self._whole

    def join(self, job_dir: Path, show: Callable[[Progress], None], stop: threading.Event) -> Resources:
        """Enter the job, wait until there is room for it, and return what it may use from then on.

        Args:
            job_dir: of the job. show: hears who holds what, while it waits.
            stop: ends the waiting.

        Raises:
            Interrupted: `stop` was set; nothing of the job is left in the file.
        """
        self._job_dir = str(job_dir)
        while not self._unusable:
            self.waits = False
            try:
                book = self._capacity.change(self._asking)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
                    self._wait(show, stop, "somebody keeps the capacity file locked")
                    continue
                self._give_up(error)
                break
            self._entered = True
            mine = book.lease(self._run_id)
            if mine is not None and not mine.waits:
                self._may = _May(book.machine, mine.held, mine.held, mine.least)
                return self._part(self._may)
            self._wait(show, stop, waiting_words(book, self._run_id))
        return self.whole()

    def begin(self, resources: Resources, *, thread: bool = True) -> None:
        """The job runs from now on with `resources`; the file is looked at now and then, unless `thread` is False."""
        self._zygotes = ZYGOTE_MEMORY if resources.zygotes else 0
        if self._may is None:
            return
        self._used, self._least = (self._may, self._may.held), self._may.least
        self._caps = (resources.caps.cpu, resources.caps.memory_bytes)
        if thread:
            self._thread = threading.Thread(target=self._keep_looking, name="capacity", daemon=True)
            self._thread.start()

    def follow(self, state: State, cluster: Cluster) -> Limits | None:
        """The caps that the job's pods should have from now on, None where they have them. From the driver's thread."""
        may = self._may
        if may is None or not self._changes:
            return None
        aim = may.held.least(may.target)
        caps, present = self._caps_in(may.machine, aim), state.settings.limits
        wanted = replace(present, cpu=caps.cpu, memory_bytes=(caps.memory_bytes or 0) - self._zygotes)
        now = self._clock.now()
        if may.others and now - self._least_at >= _LEAST_SECONDS:
            self._least_at, self._least = now, self._least_of(state, now)
        if may.least != self._least:
            return None  # the file asks for room that the job needs, or does not know yet that it can give more
        if wanted != present:
            self._give(cluster, _largest(self._caps, (caps.cpu, caps.memory_bytes)))
            return wanted
        memory = max(memory_needed(state) + self._zygotes, aim.memory_bytes)
        self._give(cluster, (caps.cpu, max(memory, caps.memory_bytes or 0)))
        self._used = (may, Room(aim.cpu, memory))
        return None

    def look(self) -> None:
        """Renew the lease, and take or return room, as far as the job uses it no more."""
        if self._may is None:
            return
        try:
            book = self._capacity.read()
            if self._renewed(book) != book:
                book = self._capacity.change(self._renewed)
        except OSError as error:
            self.problem = _problem(error)
            return
        self.problem = ""
        mine = book.lease(self._run_id)
        held = mine.held if mine is not None else NOTHING
        target = shrunk(book.machine, book.leases, self._run_id) if mine is not None else held
        least = mine.least if mine is not None else self._least
        self._may = _May(book.machine, held, target, least, len(book.leases) > 1)
        if not held.holds(self._used[1].least(book.machine)):
            self.problem = (
                f"this job uses more of the machine than it holds of it ({room_words(held)}): its lease was lost, and "
                "others have taken room meanwhile"
            )

    def close(self) -> None:
        """The job uses nothing any more, or was never begun."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._entered:
            with suppress(OSError):
                self._capacity.change(lambda book: book.without(self._run_id))
                self._entered = False
        self._may = None

    @property
    def _changes(self) -> bool:
        """Whether the plan may change while the job runs."""
        return self._spec.mode is Mode.AUTO

    def _asking(self, book: Book) -> Book:
        """The book with the job in it, and with its lease where there is room."""
        now = self._clock.now()
        mine = book.lease(self._run_id)
        if mine is None or mine.holder != self._holder:
            mine = self._lease(book.machine, NOTHING, book.ticket)
            book = replace(book, ticket=book.ticket + 1)
        book = book.with_lease(replace(mine, expires=now + LEASE_SECONDS))
        if not mine.waits or now < book.settles:
            return book
        given = grant(book.machine, book.leases, self._run_id, self._free(book))
        return book if given is None else book.with_lease(replace(mine, held=given, expires=now + LEASE_SECONDS))

    def _lease(self, machine: Room, held: Room, ticket: int) -> Lease:
        spec, asked = self._spec, self._spec.limits
        wants = machine.least(Room(asked.cpu or machine.cpu, asked.memory_bytes or machine.memory_bytes))
        workers = spec.workers or (1 if self._changes else max(1, int(wants.cpu)))
        servers = spec.ps or (1 if self._changes else max(1, workers // 4))
        memory = workers * SMALLEST_WORKER_MEMORY + servers * SMALLEST_PS_MEMORY
        least = Room(round((workers + servers) * SMALLEST_CPU, 3), memory).least(wants)
        return Lease(
            self._run_id, held, least, wants, asked.cpu is not None, asked.memory_bytes is not None, self._changes,
            ticket=ticket, expires=self._clock.now() + LEASE_SECONDS, holder=self._holder, job_dir=self._job_dir,
        )  # fmt: skip

    def _renewed(self, book: Book) -> Book:
        """The book with what the job holds from now on."""
        may, now = self._may, self._clock.now()
        mine, machine = book.lease(self._run_id), book.machine
        if may is None:
            return book
        if mine is None:  # the file was lost, or this process said nothing for long: enter what is held again
            held = may.held.least(free(machine, book.leases))
            return book.with_lease(replace(self._lease(machine, held, 0), least=self._least))
        if mine.waits:
            held = NOTHING if now < book.settles else grant(machine, book.leases, self._run_id) or NOTHING
        else:
            acted_on, used = self._used
            # Only while the driver's thread acts on nothing older can it not take more than it says.
            in_use = used if acted_on is may else mine.held
            held = shrunk(machine, book.leases, self._run_id).most(in_use).least(mine.held)
            if held == mine.held and now >= book.settles:
                held = grown(machine, book.leases, self._run_id, self._free(book))
        expires = now + LEASE_SECONDS if mine.expires - now < LEASE_SECONDS / 2 else mine.expires
        return book.with_lease(replace(mine, held=held, least=self._least, expires=expires))

    def _free(self, book: Book) -> Room:
        """More than this is not to come to what the job holds, whatever the file says is free: other programs run, too.

        Memory that the caller gave is the caller's word.
        """
        others = any(one.run_id != self._run_id for one in book.leases)
        memory = self._free_memory() if others and self._spec.limits.memory_bytes is None else _MUCH_MEMORY
        return Room(_MANY_CORES, memory)

    def _least_of(self, state: State, now: float) -> Room:
        plan = least_plan(state, servers_needed(state, now))
        return Room(round(plan.cpu, 3), plan.memory_bytes + raised_memory(state) + self._zygotes)

    def outlook(self) -> Resources:
        """What the job would get if it were started now, or once others have given way; nothing is entered."""
        whole = self.whole()
        try:
            book = self._capacity.read()
        except OSError:
            return whole
        leases = (*book.leases, self._lease(book.machine, NOTHING, book.ticket))
        given = grant(book.machine, leases, self._run_id, self._free(book))
        given = given or targets(book.machine, leases).get(self._run_id)
        return whole if given is None else part_of(self._spec, whole, book.machine, given)

    def _caps_in(self, machine: Room, room: Room) -> Limits:
        return limits_in(self._spec, self.whole().caps, machine, room)

    def _part(self, may: _May) -> Resources:
        return part_of(self._spec, self.whole(), may.machine, may.held)

    def _give(self, cluster: Cluster, caps: tuple[float | None, int | None]) -> None:
        if caps != self._caps:
            cluster.set_caps(*caps)
            self._caps = caps

    def _wait(self, show: Callable[[Progress], None], stop: threading.Event, words: str) -> None:
        self.waits = True
        show(Progress(0, 0, 0.0, None, None, WAITING, words))
        if self._clock.wait(stop, LOOK_SECONDS):
            raise Interrupted("stopped while it waited for room; nothing was started")

    def _keep_looking(self) -> None:
        while not self._clock.wait(self._over, LOOK_SECONDS):
            try:
                self.look()
            except Exception:  # a fault here must cost no job
                log.exception("the machine could not be shared")
                self.problem = "the machine can't be shared: see the log"
                return

    def _give_up(self, error: OSError) -> None:
        self._unusable = True
        self.problem = _problem(error)
        log.warning("%s", self.problem)


def waiting_words(book: Book, run_id: str) -> str:
    """For what a job waits, and who holds it."""
    mine = book.lease(run_id)
    if mine is None:
        return "waits for room"
    before = sum(one.ticket < mine.ticket for one in line(book.leases))
    holders = sorted((one for one in book.leases if not one.waits), key=lambda one: -one.held.cpu)
    text = f"waits for room: it needs at least {room_words(mine.least)} of {room_words(book.machine)}"
    if holders:
        text += "; " + ", ".join(f"{one.run_id} holds {room_words(one.held)}" for one in holders[:4])
        text += f", {len(holders) - 4} more the rest" if len(holders) > 4 else ""
    return text + (f"; {before} wait{'s' if before == 1 else ''} before it" if before else "")


def room_words(room: Room) -> str:
    """'1.5 cores and 4.0 GiB'."""
    return f"{room.cpu:g} core{'' if room.cpu == 1 else 's'} and {room.memory_bytes / 2**30:.1f} GiB"


def _largest(
    one: tuple[float | None, int | None] | None, other: tuple[float | None, int | None]
) -> tuple[float | None, int | None]:
    """The larger cap of each kind; None is no cap."""
    if one is None:
        return other
    cpu = None if one[0] is None or other[0] is None else max(one[0], other[0])
    memory = None if one[1] is None or other[1] is None else max(one[1], other[1])
    return cpu, memory


def _problem(error: OSError) -> str:
    why = error.strerror or " ".join(str(error).split())
    return f"the machine can't be shared with other jobs: its capacity file can't be used ({why}); caps are its own"
