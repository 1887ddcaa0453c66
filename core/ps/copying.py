"""What one server writes: the copies of a checkpoint when told to, and snapshots on its own node now and then.

Both are written by a forked child (`copy_child`), so training waits for the fork only, whatever the table's size. One
thread sees to both: an order goes before a snapshot, and a newer order ends whatever is being written. A snapshot is
due after some time or some bytes of pushes, but never so often that writing takes more than a fifth of the time.

Pages that change while a child writes are there twice. Where they would not fit into the memory that the plan sets
aside for it, or no process can be made, the same is written vshard by vshard under the lock: every vshard at an instant
of its own, which is as true, and makes training wait a little for each.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.domain.model_spec import VSHARDS, ModelSpec
from trimtab.core.domain.plan import SNAPSHOT_SHARE
from trimtab.core.errors import TrimtabError
from trimtab.core.ps.copies import VshardCopy, write_copies
from trimtab.core.ps.copy_child import ChildFailed, ChildTooLarge, fork_child, lasting, progressed, rest
from trimtab.core.ps.holdings import Holdings
from trimtab.core.ps.snapshots import data_path, prune, write_index
from trimtab.core.ps.storage import is_local, join, prepare
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.messages import CopiesWritten, CopyOrder

log = logging.getLogger(__name__)

COPY_SILENCE_SECONDS = 120.0  # of a checkpoint's child without a vshard written: its disk hangs, or it does
UPLOAD_SECONDS = 3600.0  # when all is given to a store at a distance: some send everything only now
MOST_REST = 0.5  # of the time that a vshard took to write, while training goes on


@dataclass(frozen=True)
class SnapshotRule:
    """When and where snapshots are written.

    Attributes:
        directory: on this node; "" for none.
        seconds, bytes: one is due after so long, or so many bytes of pushes.
        deadline_seconds: of its child. share: of the time, that writing takes at most.
    """

    directory: str = ""
    seconds: float = 20.0
    bytes: int = 64 << 20
    deadline_seconds: float = 120.0
    share: float = 0.2


@dataclass(frozen=True)
class _Way:
    """How vshards are read: with the server's lock held for each, and with a rest after each."""

    locks: bool
    rests: bool


_CHILD, _CHILD_RESTING, _PIECES, _ALONE = _Way(False, False), _Way(False, True), _Way(True, True), _Way(False, False)


class Copying:
    """The writing side of one server.

    Attributes:
        written: what came of the latest order. writing: an order is being carried out.
        snapshots: how many were written. snapshot_seconds: what the last one took.
        snapshot_error: why the last one was not written, "" when it was.
        forked: a child lives, so every page that changes now is there twice.
    """

    def __init__(
        self, holdings: Holdings, model: ModelSpec, job_id: str, process: str, rule: SnapshotRule, clock: Clock
    ) -> None:
        self.written: CopiesWritten | None = None
        self.snapshots, self.snapshot_seconds, self.snapshot_error = 0, 0.0, ""
        self.forked = False
        self._holdings, self._exchange = holdings, holdings.exchange
        self._model, self._job_id, self._process = model, job_id, process
        self._rule, self._clock = rule, clock
        self._order: CopyOrder | None = None
        self._ordered = 0
        self._busy = self._left = False
        self._lock = threading.Lock()  # of the next order, and of which snapshot is the last one
        self._ended = threading.Event()  # somebody wants the running snapshot to end
        self._wake = threading.Event()
        self._number = self._whole = 0  # of the last snapshot begun, and of the last whole one
        self._last_end = clock.now()
        self._bytes = self._pushes = 0

    @property
    def writing(self) -> bool:
        """Whether an order waits or is being carried out."""
        return self._busy or self._order is not None

    def start(self) -> None:
        """Begin to look after snapshots and orders."""
        threading.Thread(target=self._run, name="copies", daemon=True).start()

    def order(self, order: CopyOrder) -> None:
        """Write copies of all that is served; an order is carried out once, and the newest counts."""
        with self._lock:  # with `_ended`: an order that is taken between the two would end itself
            if order.id <= self._ordered:
                return
            self._ordered = order.id
            self._order = order
            self._ended.set()
        self._wake.set()

    def look(self) -> None:
        """See whether a snapshot is due; call it several times a second."""
        self._wake.set()

    def last(self) -> None:
        """Write a snapshot here and now, in this thread: the server is about to leave, and takes no pushes any more."""
        if not self._rule.directory or not self._holdings.held:
            return
        self._ended.set()
        with self._lock:  # from here on the other thread prunes nothing
            self._left = True
            self._number += 1
        try:
            self._write_snapshot(self._number, _ALONE)
            prune(self._rule.directory, self._process, self._number)
        except (OSError, TrimtabError) as error:
            log.warning("no last snapshot: %s", error)

    def turn(self) -> None:
        """Carry out what is to be done now."""
        with self._lock:
            self._ended.clear()
            order = self._order
            self._busy = order is not None
            self._order = None
        if order is not None:
            self.written = self._copy(order)
            self._busy = False
        elif self._due():
            self._snapshot()
        self._pushes = self._exchange.counters.pushes

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            try:
                self.turn()
            except Exception:  # the thread must live: a later snapshot or checkpoint may do
                log.exception("copies could not be written")
                self._busy = False

    def _due(self) -> bool:
        rule, pushed = self._rule, self._exchange.counters.bytes - self._bytes
        waited = self._clock.now() - self._last_end
        if not rule.directory or not pushed or not self._holdings.held:
            return False
        if waited < (1 / rule.share - 1) * self.snapshot_seconds:
            return False
        return waited >= rule.seconds or pushed >= rule.bytes

    # ---- writing

    def _copy(self, order: CopyOrder) -> CopiesWritten:
        """A checkpoint's part; a failed disk is reported, not fatal."""
        path = join(order.directory, f"copies-{self._process[:12]}-{order.id}.ttc")
        began = self._clock.now()
        try:
            prepare(order.directory)  # in the parent: what a store's library imports must not begin in a fork
            answer, pushed = self._written_by_child(
                lambda way: to_json(self._write(path, order.id, way)), math.inf, self._ended
            )
            written = from_json(CopiesWritten, answer)
        except Exception as error:  # whatever it was, the controller waits for an answer to its order
            log.error("copies could not be written: %s", error, exc_info=not isinstance(error, OSError | TrimtabError))
            return CopiesWritten(order.id, error=f"{path}: {error}")
        self._bytes, self._last_end = pushed, self._clock.now()
        log.info("copies written in %.2f s", self._last_end - began)
        return written

    def _snapshot(self) -> None:
        """A snapshot; a failure costs nothing but the snapshot."""
        began = self._clock.now()
        with self._lock:
            if self._left:
                return
            self._number += 1
            number = self._number
        try:
            _, pushed = self._written_by_child(
                lambda way: self._write_snapshot(number, way), self._rule.deadline_seconds, self._ended
            )
        except (OSError, ChildFailed) as error:
            if not self._ended.is_set():
                log.warning("no snapshot: %s", error)
                self.snapshot_error = str(error)
        else:
            self._whole = number
            self._bytes = pushed
            self.snapshots, self.snapshot_error = self.snapshots + 1, ""
        with self._lock:
            if not self._left:  # else the last one, which this one does not know, would go
                prune(self._rule.directory, self._process, self._whole)
        self._last_end = self._clock.now()
        if not self._ended.is_set():
            self.snapshot_seconds = self._last_end - began

    def _written_by_child(
        self, work: Callable[[_Way], bytes], deadline_seconds: float, given_up: threading.Event
    ) -> tuple[bytes, int]:
        """What `work` answers, from a child or, where none is possible, from here; and the bytes of pushes in it."""
        training = self._exchange.counters.pushes != self._pushes
        table = self._exchange.table
        room = SNAPSHOT_SHARE * table.memory_bytes + max(0, table.memory_bytes - table.bytes_used)
        try:
            with self._exchange.lock:
                pushed, self.forked = self._exchange.counters.bytes, True
                child = fork_child(lambda: work(_CHILD_RESTING if training else _CHILD))
            answer = child.wait(self._clock, deadline_seconds, given_up, room, COPY_SILENCE_SECONDS, UPLOAD_SECONDS)
            return answer, pushed
        except (ChildTooLarge, OSError) as error:
            log.info("copies are written vshard by vshard: %s", error)
        finally:
            self.forked = False
        return work(_PIECES), self._exchange.counters.bytes

    def _write(self, path: str, order_id: int, way: _Way) -> CopiesWritten:
        def each() -> Iterator[VshardCopy]:
            yield from self._each_vshard(way)
            if not is_local(path):
                lasting()

        return write_copies(path, each(), self._model.tables, order_id)

    def _write_snapshot(self, number: int, way: _Way) -> bytes:
        directory = self._rule.directory
        Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        path = str(data_path(directory, self._process, number))
        # Also what is being handed over: its rows and sets are true, and nobody else may have them yet.
        copies = self._each_vshard(way, held=True)
        written = write_copies(path, copies, self._model.tables, number, durable=False)
        write_index(directory, self._job_id, self._model.fingerprint, self._process, number, written)
        return b"written"

    def _each_vshard(self, way: _Way, *, held: bool = False) -> Iterator[VshardCopy]:
        """Each served (or `held`) vshard; where others may change it meanwhile, with the lock held for that one."""
        guard = self._exchange.lock if way.locks else nullcontext()
        for vshard in range(VSHARDS):
            began = self._clock.now()
            with guard:
                if not (self._holdings.held if held else self._exchange.served) >> vshard & 1:
                    continue
                sets = self._exchange.sets.of(vshard)
                content = self._exchange.table.extract(vshard)
                since = self._holdings.since[vshard]
            yield VshardCopy(vshard, since, sets.applied, sets.skipped, content)
            progressed()
            if way.rests:
                rest(self._clock, MOST_REST * (self._clock.now() - began))
