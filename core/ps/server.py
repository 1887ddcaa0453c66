"""One parameter server: the table behind its data plane, and orders behind its control plane.

Orders are level-triggered: `sync` is called several times a second with everything that should be, does what is
missing and answers what is. Loading and copying take long, so they run in one background thread; a report says
whether they are done. An order to serve a vshard is obeyed only if it names this process and its tenure is newer than
the one last held, so late and doubled orders change nothing.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from trimtab.core.clock import Clock
from trimtab.core.domain.model_spec import VSHARDS, ModelSpec
from trimtab.core.errors import CorruptCopy, Refused, TrimtabError
from trimtab.core.ps.copies import VshardCopy, read_copy, write_copies
from trimtab.core.ps.exchange import Exchange
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.ps.table import RowTable
from trimtab.core.wire.messages import (
    CopiesWritten,
    CopyOrder,
    PsReport,
    PsSync,
    Served,
    ServeOrder,
    from_bitmap,
)

log = logging.getLogger(__name__)


class ParameterServer:
    """State and orders of one parameter-server process."""

    def __init__(
        self, job_id: str, process: str, term: int, model: ModelSpec, table: RowTable, batches: int, clock: Clock
    ) -> None:
        self.process, self.address = process, ""
        self.exchange = Exchange(table, batches)
        self.stopping = threading.Event()
        self._job_id, self._term, self._model, self._clock = job_id, term, model, clock
        self._last_contact = clock.now()
        self._since = [0] * VSHARDS  # the tenure each vshard has, or last had
        self._wanted = [0] * VSHARDS  # the tenure that loading is under way for
        self._copies: CopiesWritten | None = None
        self._copy_ordered = 0
        self._pending = 0
        self._orders_lock = threading.Lock()
        self._work: queue.SimpleQueue[ServeOrder | CopyOrder] = queue.SimpleQueue()
        self._error = ""
        self._me = psutil.Process()
        threading.Thread(target=self._work_off, name="orders", daemon=True).start()

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
                for order in request.serve:
                    self._accept_serve(order)
                if request.copy is not None and request.copy.id > self._copy_ordered:
                    self._copy_ordered = request.copy.id
                    self._enqueue(request.copy)
            if request.stop:
                self.stopping.set()
        return self._report(request.sequence)

    def _accept_serve(self, order: ServeOrder) -> None:
        fresh = [v for v in from_bitmap(order.vshards) if order.since > max(self._since[v], self._wanted[v])]
        if fresh:
            for vshard in fresh:
                self._wanted[vshard] = order.since
            self._enqueue(order)

    def _enqueue(self, order: ServeOrder | CopyOrder) -> None:
        self._pending += 1
        self._work.put(order)

    def _work_off(self) -> None:
        while True:
            order = self._work.get()
            try:
                if isinstance(order, ServeOrder):
                    self._load(order)
                else:
                    self._copy(order)
            except TrimtabError as error:
                log.error("order failed: %s", error)
                self._error = str(error)
            except Exception as error:  # an order thread that died would leave a server that answers and does nothing
                log.exception("order failed")
                self._error = f"{type(error).__name__}: {error}"
            finally:
                with self._orders_lock:
                    self._pending -= 1

    def _load(self, order: ServeOrder) -> None:
        """Replace each vshard of the order by the manifest's copy, then serve it."""
        manifest = read_manifest(order.manifest)
        if (manifest.job_id, manifest.fingerprint) != (self._job_id, self._model.fingerprint):
            raise CorruptCopy(f"manifest {order.manifest} is of job {manifest.job_id} or of another model")
        for vshard in from_bitmap(order.vshards):
            if self._wanted[vshard] != order.since or self._since[vshard] >= order.since:
                continue
            copy = read_copy(manifest.entries[vshard], self._model.tables)
            with self.exchange.lock:
                self.exchange.served &= ~(1 << vshard)
                self.exchange.table.replace(vshard, copy.content)
                self.exchange.sets.put(1 << vshard, copy.applied, copy.skipped)
                self._since[vshard] = order.since
                self.exchange.served |= 1 << vshard
        log.info("serving %d vshards since %d", self.exchange.served.bit_count(), order.since)

    def _copy(self, order: CopyOrder) -> None:
        """Write a copy of all that is served; a failed disk is reported, not fatal."""
        if order.id < self._copy_ordered:
            return  # a newer order waits behind it
        path = Path(order.directory) / f"copies-{self.process[:12]}-{order.id}.ttc"
        try:
            self._copies = write_copies(path, self._each_vshard(), self._model.tables, order.id)
        except OSError as error:
            log.error("copies could not be written: %s", error)
            self._copies = CopiesWritten(order.id, error=f"{path}: {error.strerror or error}")

    def _each_vshard(self) -> Iterator[VshardCopy]:
        """Each served vshard at one instant of its own, the lock held for that one only."""
        for vshard in range(VSHARDS):
            with self.exchange.lock:
                if not self.exchange.served >> vshard & 1:
                    continue
                held = self.exchange.sets.of(vshard)
                content = self.exchange.table.extract(vshard)
                since = self._since[vshard]
            yield VshardCopy(vshard, since, held.applied, held.skipped, content)

    def _report(self, sequence: int) -> PsReport:
        loading = self._pending > 0  # before the look at what is served: "done" must never describe less than done
        with self.exchange.lock:
            served = self._served()
            rows, table_bytes = self.exchange.table.row_count, self.exchange.table.bytes_used
            counters = self.exchange.counters
            pushes, duplicates, slow = counters.pushes, counters.duplicates, counters.slow
            failure = self.exchange.failure
        times = self._me.cpu_times()
        return PsReport(
            self.process, self.address, sequence, served, loading, self._copies, rows, table_bytes,
            pushes, duplicates, slow, times.user + times.system, self._me.memory_info().rss, failure or self._error,
        )  # fmt: skip

    def _served(self) -> tuple[Served, ...]:
        """What is served, split by set and tenure."""
        found = []
        for one in self.exchange.sets.classes():
            by_since: dict[int, int] = {}
            for vshard in range(VSHARDS):
                if (one.members & self.exchange.served) >> vshard & 1:
                    since = self._since[vshard]
                    by_since[since] = by_since.get(since, 0) | 1 << vshard
            for since, bits in by_since.items():
                text = f"{bits:0{VSHARDS // 4}x}"
                found.append(Served(text, since, one.applied.intervals, one.skipped.intervals))
        return tuple(found)


