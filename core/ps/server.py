"""One parameter server: the table behind its data plane, and orders behind its control plane.

Orders are level-triggered: `sync` is called several times a second with everything that should be, does what is
missing and answers what is. Loading, moving and copying take long, so they run in one background thread; a report says
whether they are done. An order to serve a vshard is obeyed only if it names this process and its tenure is newer than
the one last held, so late and doubled orders change nothing. Preparing a move is done in small pieces between all else.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from trimtab.core.clock import Clock
from trimtab.core.domain.model_spec import VSHARDS, ModelSpec
from trimtab.core.errors import CorruptCopy, Refused, TrimtabError, WireError
from trimtab.core.ps import held
from trimtab.core.ps.copying import Copying, SnapshotRule
from trimtab.core.ps.exchange import Exchange
from trimtab.core.ps.holdings import Holdings
from trimtab.core.ps.incoming import Dial, Incoming
from trimtab.core.ps.loading import Loading
from trimtab.core.ps.outgoing import Outgoing
from trimtab.core.ps.table import RowTable, TableFull
from trimtab.core.ps.traffic import Rates
from trimtab.core.ps.watch import members
from trimtab.core.wire import frames
from trimtab.core.wire.frames import ReplyHeader, RequestHeader
from trimtab.core.wire.messages import (
    DropOrder,
    Origin,
    PrepareOrder,
    PsReport,
    PsSync,
    ServeOrder,
    from_bitmap,
    to_bitmap,
)

log = logging.getLogger(__name__)

GIVE_WAY_SECONDS = 0.001
ROOM_SECONDS = 0.1  # a push without room for its new rows is held so long: more may come meanwhile
CROWDED_SECONDS = 1.2  # so long after such a push the table counts as full
WATCH_SECONDS = 30.0  # nobody asked for changes for so long: the move was given up
LOAD_AGAIN_SECONDS = 1.0  # after a store that did not answer
UNREACHABLE_SECONDS = 20.0  # an origin that answers nothing for so long while it is asked: the move can't be made

_Order = ServeOrder | DropOrder


class ParameterServer:
    """State and orders of one parameter-server process."""

    def __init__(
        self,
        job_id: str,
        process: str,
        term: int,
        model: ModelSpec,
        table: RowTable,
        batches: int,
        clock: Clock,
        dial: Dial | None = None,
        snapshots: SnapshotRule | None = None,
    ) -> None:
        """`dial` opens a line to another parameter server; without it no vshard can come from one.

        `snapshots`: when and where to write some, and where to look for those of others; None for none.
        """
        self.process, self.address = process, ""
        self.refusals: Callable[[], int] = lambda: 0  # of the planes, which know this server and not the other way
        self.exchange = Exchange(table, batches)
        self.stopping = threading.Event()
        # A lock that is taken again at once is never got by those who wait for it: training would stand still while
        # hundreds of vshards are copied or dropped one after the other.
        self.exchange.give_way = self._give_way
        self.exchange.wait_for_room = self._wait_for_room
        self._job_id, self._term, self._clock = job_id, term, clock
        self._last_contact = clock.now()
        self._holdings = Holdings(self.exchange)
        self._outgoing, self._incoming = Outgoing(self._holdings), Incoming(self._holdings, dial, clock)
        rule = snapshots if snapshots is not None else SnapshotRule()
        self._copying = Copying(self._holdings, model, job_id, process, rule, clock)
        self._loading = Loading(job_id, model, rule.directory)
        self._rates = Rates(len(model.tables), clock.now())
        self._loads_told = False
        self._asked_at = 0.0
        self._pending = 0
        self._orders_lock = threading.Lock()
        self._arrived = threading.Condition(self._orders_lock)
        self._work: deque[_Order] = deque()
        self._prepare: tuple[PrepareOrder, ...] = ()
        self._to_prepare: list[PrepareOrder] = []
        self._tidy = self._compact = False
        self._missing: dict[int, tuple[int, Origin | None]] = {}
        self._load_again_at = -math.inf
        self._failing_since: dict[Origin, float] = {}
        self._move_errors: dict[Origin, str] = {}
        self._error = self._load_error = ""
        self._full = False
        self._crowded, self._crowded_at = 0, -math.inf
        self._me = psutil.Process()
        threading.Thread(target=self._work_off, name="orders", daemon=True).start()
        self._copying.start()

    def seconds_without_contact(self) -> float:
        """How long the controller has been silent."""
        return self._clock.now() - self._last_contact

    def sync(self, request: PsSync) -> PsReport:
        """Take orders, report.

        Raises:
            Refused: another job or process is meant, or a higher term has been heard.
        """
        if request.job_id != self._job_id:
            raise Refused(f"this is job {self._job_id}, not {request.job_id}")
        if request.process not in ("", self.process):
            raise Refused(f"this is process {self.process}, not {request.process}")
        with self._orders_lock:
            if request.term < self._term:
                raise Refused(f"term {request.term} is over; the present one is {self._term}")
            self._term = request.term
            self._last_contact = self._clock.now()
            if request.process:
                if request.memory_bytes:
                    self.exchange.table.allow(request.memory_bytes)
                for order in request.serve:
                    self._accept_serve(order)
                if request.copy is not None:
                    self._copying.order(request.copy)
                for drop in request.drop:
                    self._accept_drop(drop)
                self._prepare, self._to_prepare = request.prepare, list(request.prepare)
                self._tidy = not request.prepare and self._incoming.holds_any()
                self._compact = self.exchange.table.wants_compaction and not self._copying.forked
                origins = {prepare.origin for prepare in request.prepare}
                for gone in self._move_errors.keys() - origins:
                    del self._move_errors[gone]
                for gone in self._failing_since.keys() - origins:
                    del self._failing_since[gone]
                self._arrived.notify()
            if request.stop:
                self.stopping.set()
        return self._report(request.sequence)

    def handle(
        self, peer: str, header: RequestHeader, body: npt.NDArray[np.uint8]
    ) -> tuple[ReplyHeader, Sequence[npt.NDArray[np.generic] | bytes]]:
        """One frame of the data plane: of a worker, or of another parameter server that takes vshards over."""
        if header.flags & frames.MOVE:
            self._asked_at = self._clock.now()
            return self._outgoing.handle(body)
        if header.flags & frames.HELD:
            return held.answer(self.exchange, self._holdings.since, body)
        return self.exchange.handle(peer, header, body)

    def look(self) -> None:
        """What time alone asks for: a snapshot that is due. Call it several times a second."""
        self._copying.look()

    def leave_snapshot(self) -> None:
        """Write a last snapshot of what is served; nobody reaches this server any more."""
        with self.exchange.lock:
            self._copying.last()

    def _give_way(self) -> None:
        self._clock.wait(self.stopping, GIVE_WAY_SECONDS)

    def _wait_for_room(self) -> None:
        self._clock.wait(self.stopping, ROOM_SECONDS)

    # ---- taking orders

    def _accept_serve(self, order: ServeOrder) -> None:
        if order.origin is None and self._clock.now() < self._load_again_at:
            return  # it comes again
        since, wanted = self._holdings.since, self._holdings.wanted
        fresh = [
            v for v in from_bitmap(order.vshards)
            if order.since > max(since[v], wanted[v]) and self._missing.get(v) != (order.since, order.origin)
        ]  # fmt: skip
        if fresh:
            for vshard in fresh:
                wanted[vshard] = order.since
                self._missing.pop(vshard, None)
            self._enqueue(order)

    def _accept_drop(self, order: DropOrder) -> None:
        holdings = self._holdings
        idle = holdings.held & ~self.exchange.served & int(order.vshards, 16)
        if any(holdings.since[vshard] < order.since for vshard in from_bitmap(f"{idle:x}")):
            self._enqueue(order)

    def _enqueue(self, order: _Order) -> None:
        if order in self._work:
            return
        self._pending += not isinstance(order, DropOrder)
        self._work.append(order)
        self._arrived.notify()

    # ---- carrying them out, in one thread

    def _work_off(self) -> None:
        while True:
            with self._arrived:
                while not (self._work or self._to_prepare or self._tidy or self._compact):
                    self._arrived.wait()
                order = self._work.popleft() if self._work else None
                preparing = self._to_prepare[0] if order is None and self._to_prepare else None
                wanted, tidy, self._tidy = self._prepare, self._tidy, False
            if order is not None:
                self._carry_out(order)
                continue
            try:
                if preparing is not None:
                    self._prepare_piece(preparing, wanted)
                elif tidy:
                    self._incoming.keep_only(wanted)
                else:
                    self._compact_piece()
            except Exception as error:  # as in _carry_out: the thread must live, and what broke must be seen
                log.exception("preparing failed")
                self._error = f"{type(error).__name__}: {error}"
                with self._orders_lock:
                    self._to_prepare, self._compact = [], False

    def _carry_out(self, order: _Order) -> None:
        try:
            if isinstance(order, DropOrder):
                self._drop(order)
            elif order.origin is None:
                self._load(order)
            elif order.origin.process == self.process:
                self._keep(order, order.origin)
            else:
                self._take_over(order, order.origin)
        except TrimtabError as error:
            log.error("order failed: %s", error)
            self._error, self._full = str(error), isinstance(error, TableFull)
        except Exception as error:  # an order thread that died would leave a server that answers and does nothing
            log.exception("order failed")
            self._error = f"{type(error).__name__}: {error}"
        finally:
            with self._orders_lock:
                self._pending -= not isinstance(order, DropOrder)

    def _compact_piece(self) -> None:
        """Give a little memory of dropped rows back; the next orders go before the next piece."""
        with self.exchange.lock:
            more = self.exchange.table.compact_piece()
        with self._orders_lock:
            self._compact = self._compact and more and not self._copying.forked
        self.exchange.give_way()

    def _prepare_piece(self, order: PrepareOrder, wanted: tuple[PrepareOrder, ...]) -> None:
        """A little of what may wait; a failure is tried again with the next call, and told if it stays."""
        more, failed, full = False, "", False
        try:
            self._incoming.keep_only(wanted)
            more = self._incoming.prepare(order)
        except (OSError, WireError, TableFull) as error:
            log.info("vshards could not be prepared: %s", error)
            failed, full = str(error) or type(error).__name__, isinstance(error, TableFull)
        now = self._clock.now()
        with self._orders_lock:
            if not failed:
                self._failing_since.pop(order.origin, None)
                self._move_errors.pop(order.origin, None)
            elif order in self._prepare:  # else nobody asks for it any more
                since = self._failing_since.setdefault(order.origin, now)
                if full or now - since >= UNREACHABLE_SECONDS:
                    self._move_errors[order.origin] = failed
            if not more and order in self._to_prepare:
                self._to_prepare.remove(order)

    def _load(self, order: ServeOrder) -> None:
        """As `_load_copies`; a store that does not answer now may do so when the order comes again."""
        try:
            self._load_copies(order)
            self._load_error = ""
        except TableFull as error:  # the limit may rise, and then the same order succeeds
            log.warning("copies could not be loaded, to be tried again: %s", error)
            self._load_error, self._crowded_at = str(error), self._clock.now()
            self._load_again_at = self._clock.now() + LOAD_AGAIN_SECONDS
            self._not_done(order, 0, lost=False)
        except CorruptCopy as error:
            if not isinstance(error.__cause__, OSError) or isinstance(error.__cause__, FileNotFoundError):
                raise
            log.warning("copies could not be loaded, to be tried again: %s", error)
            self._load_error = str(error)
            self._load_again_at = self._clock.now() + LOAD_AGAIN_SECONDS
            self._not_done(order, 0, lost=False)

    def _load_copies(self, order: ServeOrder) -> None:
        """Replace each vshard of the order by the freshest copy that can be read, then serve it."""
        sources = self._loading.sources(order.manifest, [v for v in from_bitmap(order.vshards) if self._open(v, order)])
        for read in self._loading.copies(sources):
            copies = [copy for copy in read if self._open(copy.vshard, order)]
            if not copies:
                continue
            with self.exchange.lock:
                for copy in copies:
                    self._incoming.discard(copy.vshard)
                self.exchange.table.replace_all({copy.vshard: copy.content for copy in copies})
                for copy in copies:
                    self.exchange.sets.put(1 << copy.vshard, copy.applied, copy.skipped)
                    self._holdings.serve(copy.vshard, order.since)
        log.info("serving %d vshards since %d", self.exchange.served.bit_count(), order.since)

    def _open(self, vshard: int, order: ServeOrder) -> bool:
        """Whether an order to serve is still the one that counts for a vshard, and not carried out."""
        return self._holdings.wanted[vshard] == order.since > self._holdings.since[vshard]

    def _keep(self, order: ServeOrder, origin: Origin) -> None:
        """Serve again what this server still holds of a tenure of its own."""
        kept = 0
        with self.exchange.lock:
            for vshard in from_bitmap(order.vshards):
                held = self._holdings.held >> vshard & 1 and self._holdings.since[vshard] == origin.since
                if held and self._holdings.wanted[vshard] == order.since:
                    self._holdings.serve(vshard, order.since)
                    kept |= 1 << vshard
        self._not_done(order, kept, lost=True)

    def _take_over(self, order: ServeOrder, origin: Origin) -> None:
        """Serve what another server hands over; what it does not hold has to come from elsewhere."""
        try:
            done = self._incoming.take_over(order, origin)
        except (OSError, WireError, TableFull) as error:
            log.warning("vshards could not be taken over from %s: %s", origin.process[:12], error)
            self._not_done(order, 0, lost=isinstance(error, TableFull))
            return
        log.info("serving %d vshards more since %d", done.bit_count(), order.since)
        self._not_done(order, done, lost=True)

    def _not_done(self, order: ServeOrder, done: int, *, lost: bool) -> None:
        """Accept the order again for what could not be done; `lost`: its origin can't help."""
        with self._orders_lock:
            for vshard in from_bitmap(order.vshards):
                open_ = not done >> vshard & 1 and self._holdings.since[vshard] < order.since
                if open_ and self._holdings.wanted[vshard] == order.since:
                    self._holdings.wanted[vshard] = self._holdings.since[vshard]
                    if lost:  # the same order again would be as vain
                        self._missing[vshard] = (order.since, order.origin)

    def _drop(self, order: DropOrder) -> None:
        """Give up rows that others serve, one vshard at a time."""
        for vshard in from_bitmap(order.vshards):
            with self.exchange.lock:
                idle = self._holdings.held & ~self.exchange.served
                if not (idle >> vshard & 1 and self._holdings.since[vshard] < order.since):
                    continue
                self._holdings.empty(vshard)
            self.exchange.give_way()

    def _loads(self) -> dict[str, Any]:
        """What lies on each vshard and table and what comes for them, now and then; the lock is held.

        A thousand numbers are most of what a report would cost both ends, and each says little new in a moment.
        """
        now = self._clock.now()
        if self._loads_told and not self._rates.due(now):
            return {}
        if self._rates.due(now):
            self._rates.add(self.exchange.take_traffic(), members(self.exchange.served), now)
        self._loads_told = True
        return {
            "vshard_rows": tuple(self.exchange.table.index.counts.tolist()),
            "vshard_traffic": tuple(self._rates.rates.round(1).tolist()),
            "table_traffic": tuple(self._rates.by_table.round(1).tolist()),
        }

    def _is_crowded(self, crowded: int) -> bool:
        """Whether pushes wait for room, by how many were refused for want of it so far."""
        now = self._clock.now()
        if crowded != self._crowded:
            self._crowded, self._crowded_at = crowded, now
        return now - self._crowded_at < CROWDED_SECONDS

    def _report(self, sequence: int) -> PsReport:
        copying = self._copying
        # Before the look at what is served: "done" must never describe less than done.
        loading, writing = self._pending > 0, copying.writing
        served = held.served_of(self.exchange, self._holdings.since, (1 << VSHARDS) - 1)
        with self.exchange.lock:
            loads = self._loads()
            table_rows = tuple(self.exchange.table.table_rows.tolist())
            rows, table_bytes = self.exchange.table.row_count, self.exchange.table.bytes_held
            counters = self.exchange.counters
            pushes, duplicates, slow = counters.pushes, counters.duplicates, counters.slow
            busy, queued = counters.busy_seconds, counters.queue_seconds
            crowded, memory_bytes = counters.crowded, self.exchange.table.memory_bytes
            if self.exchange.watch.mask and self._clock.now() - self._asked_at > WATCH_SECONDS:
                self.exchange.watch.end(self.exchange.watch.mask)
        times = self._me.cpu_times()
        return PsReport(
            self.process, self.address, sequence, served, loading, copying.written, rows, table_bytes,
            pushes, duplicates, slow, times.user + times.system, self._me.memory_info().rss, self._error,
            self._full or self._is_crowded(crowded), self._incoming.staged(),
            to_bitmap(tuple(self._missing)) if self._missing else "",
            next(iter(tuple(self._move_errors.values())), ""), writing=writing, load_error=self._load_error,
            snapshots=copying.snapshots, snapshot_seconds=copying.snapshot_seconds,
            snapshot_error=copying.snapshot_error, freeze_seconds=self._incoming.freeze_seconds,
            refused=self.refusals(), table_rows=table_rows, copying=copying.forked or writing,
            busy_seconds=busy, queue_seconds=queued, memory_bytes=memory_bytes, **loads,
        )  # fmt: skip
