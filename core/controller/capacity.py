"""The capacity file: how the jobs of one machine come to share it, without a server between them.

One small JSON file in TRIMTAB_HOME holds the machine's size and every job's lease. It is changed under a lock and
replaced as a whole, so whoever reads it sees a state in which the leases fit the machine. Nobody tidies up for others
in the background: a lease whose holder is gone is free for the next one who looks, once the dead job's processes are
gone too. A file that is damaged or was removed is begun anew, and for some seconds nothing is given to newcomers, so
that the jobs that run enter what they hold first. Times are the machine's monotonic seconds, the same for all its
processes, so that a clock that is set changes nothing; a lease of before a restart of the machine is void.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from trimtab.core.clock import Clock
from trimtab.core.cluster.leftovers import pods_in
from trimtab.core.controller.leases import Holder, Lease, Room
from trimtab.core.controller.machine import usable_cpu, usable_memory_bytes
from trimtab.core.controller.process import process_began, process_place, process_runs

log = logging.getLogger(__name__)

FILE, LOCK = "capacity.json", "capacity.lock"
VERSION = 1
LEASE_SECONDS = 60.0  # a lease counts so long without a word, where nobody can tell whether its holder lives
LIVING_SECONDS = 600.0  # and so much longer where the holder's process is there: its disk may be full
SETTLE_SECONDS = 5.0  # after a file was begun anew, while jobs that run may still have to enter their leases
_LOCK_SECONDS = 5.0
_POLL_SECONDS = 0.05
_FORGET_SECONDS = 7 * 86_400.0  # what other machines wrote into a shared home


@dataclass(frozen=True)
class Book:
    """What the file says of this machine.

    Attributes:
        machine: its size, as the first of the jobs that run found it.
        leases: of all jobs. ticket: the next one's. settles: until when newcomers wait, see above.
    """

    machine: Room
    leases: tuple[Lease, ...] = ()
    ticket: int = 1
    settles: float = 0.0

    def lease(self, run_id: str) -> Lease | None:
        """A job's."""
        return next((one for one in self.leases if one.run_id == run_id), None)

    def with_lease(self, lease: Lease) -> Book:
        """The same with a job's lease put in, or in the place of its earlier one."""
        others = (one for one in self.leases if one.run_id != lease.run_id)
        return replace(self, leases=(*others, lease))

    def without(self, run_id: str) -> Book:
        """The same without a job."""
        return replace(self, leases=tuple(one for one in self.leases if one.run_id != run_id))


@dataclass(frozen=True)
class _Page:
    """The file as it lies there: this machine's book, None where it says nothing, and what other machines wrote.

    `lost`: leases may have been in it that nobody can read.
    """

    book: Book | None = None
    others: tuple[dict[str, Any], ...] = ()
    lost: bool = False
    damaged: bool = False


def machine_room() -> Room:
    """What all jobs of this machine may use together: asked the same way whoever asks."""
    return Room(round(usable_cpu(), 3), usable_memory_bytes())


def this_process() -> Holder:
    """This process as the holder of leases."""
    return Holder(os.getpid(), process_began(os.getpid()), process_place()["namespace"])


class Capacity:
    """Reads and changes the file.

    Args:
        home: TRIMTAB_HOME.
        clock: of this machine.
        measure: how large the machine is.
    """

    def __init__(self, home: Path, clock: Clock, measure: Callable[[], Room] = machine_room) -> None:
        self.path = home / FILE
        self._lock, self._clock, self._measure = home / LOCK, clock, measure
        place = process_place()
        self._host, self._boot, self._namespace = place["host"], place["boot"], place["namespace"]
        self._never = Event()

    def read(self) -> Book:
        """The book as it is, without waiting for anybody; nothing is changed.

        Raises:
            OSError: it cannot be read, or a newer trimtab wrote it.
        """
        return self._cleared(self._page().book or Book(Room()))

    def change(self, rule: Callable[[Book], Book]) -> Book:
        """Change the book and return the new one; nobody else changes it meanwhile.

        Args:
            rule: from what is to what should be.

        Raises:
            OSError: it cannot be locked in time, read or written, or a newer trimtab wrote it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        first = not self._lock.exists()  # then there has never been a lease
        with self._locked():
            page = self._page()
            if page.damaged:
                self.path.replace(self.path.with_suffix(".damaged"))
            settles = self._clock.now() + SETTLE_SECONDS if page.lost and not first else 0.0
            book = rule(self._cleared(page.book or Book(Room(), settles=settles)))
            if book != page.book:
                self._write(book, page.others)
        return book

    def _cleared(self, book: Book) -> Book:
        """The book without the leases of those that are gone; the machine is measured anew where nobody is left."""
        leases = tuple(one for one in book.leases if self._counts(one))
        machine = self._measure() if not leases else book.machine
        return replace(book, machine=machine, leases=leases)

    def _counts(self, lease: Lease) -> bool:
        """Whether a lease is to be respected."""
        now, holder = self._clock.now(), lease.holder
        if holder.namespace != self._namespace:
            return now <= lease.expires
        if process_runs(holder.pid, holder.began):
            return now <= lease.expires + LIVING_SECONDS
        # A dead controller's pods go on for their grace, and use what it held.
        return not lease.waits and bool(pods_in(Path(lease.job_dir)))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = self._clock.now() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if self._clock.now() >= end:
                        raise
                self._clock.wait(self._never, _POLL_SECONDS)
            yield
        finally:
            os.close(handle)

    def _page(self) -> _Page:
        """What lies there.

        Raises:
            OSError: it cannot be read, or a newer trimtab wrote it.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return _Page(lost=True)
        except UnicodeDecodeError:
            return _Page(lost=True, damaged=True)
        try:
            told = json.loads(text)
            if int(told["version"]) > VERSION:
                raise OSError(f"{self.path.name} was written by a newer trimtab")
            sections = [section for section in told["machines"] if isinstance(section, dict)]
            mine = [section for section in sections if self._is_mine(section)]
            others = tuple(section for section in sections if section["host"] != self._host and self._is_fresh(section))
            return _Page(_book(mine[0]) if mine else None, others)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            log.warning("%s is damaged and is begun anew: %s", self.path, error)
            return _Page(lost=True, damaged=True)

    def _is_mine(self, section: dict[str, Any]) -> bool:
        return bool(section["host"] == self._host and section["boot"] == self._boot)

    def _is_fresh(self, section: dict[str, Any]) -> bool:
        return bool(abs(self._clock.wall() - float(section["written"])) < _FORGET_SECONDS)

    def _write(self, book: Book, others: tuple[dict[str, Any], ...]) -> None:
        mine = {"host": self._host, "boot": self._boot, "written": round(self._clock.wall()), **_section(book)}
        text = json.dumps({"version": VERSION, "machines": [mine, *others]}, indent=1, allow_nan=False) + "\n"
        beside = self.path.with_suffix(".new")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(self.path)
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise


def _section(book: Book) -> dict[str, object]:
    return {
        **_room(book.machine), "ticket": book.ticket, "settles": book.settles,
        "leases": [
            {
                "run_id": one.run_id, "held": _room(one.held), "least": _room(one.least), "wants": _room(one.wants),
                "keeps_cpu": one.keeps_cpu, "keeps_memory": one.keeps_memory, "changes": one.changes,
                "weight": one.weight, "ticket": one.ticket, "expires": round(one.expires, 3), "pid": one.holder.pid,
                "began": one.holder.began, "namespace": one.holder.namespace, "job_dir": one.job_dir,
            }
            for one in book.leases
        ],
    }  # fmt: skip


def _room(room: Room) -> dict[str, object]:
    return {"cpu": room.cpu, "memory_bytes": room.memory_bytes}


def _book(section: dict[str, Any]) -> Book:
    leases = tuple(
        Lease(
            str(one["run_id"]), _room_of(one["held"]), _room_of(one["least"]), _room_of(one["wants"]),
            bool(one["keeps_cpu"]), bool(one["keeps_memory"]), bool(one["changes"]), _above_0(one["weight"]),
            int(one["ticket"]), float(one["expires"]),
            Holder(int(one["pid"]), float(one["began"]), str(one["namespace"])), str(one["job_dir"]),
        )
        for one in section["leases"]
    )  # fmt: skip
    return Book(_room_of(section), leases, int(section["ticket"]), float(section["settles"]))


def _room_of(told: dict[str, Any]) -> Room:
    cpu, memory = round(float(told["cpu"]), 3), int(told["memory_bytes"])
    if not (math.isfinite(cpu) and cpu >= 0 and memory >= 0):
        raise ValueError(f"{cpu} cores, {memory} bytes")
    return Room(cpu, memory)


def _above_0(value: Any) -> float:
    if not 0 < float(value) < math.inf:
        raise ValueError(f"weight {value}")
    return float(value)
