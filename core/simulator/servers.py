"""A simulated parameter server: true to the protocol, with the times that a real one takes, and real sets.

It obeys newer tenures only, loads whole copies, applies and marks a number once, stages what it will get, and writes
what it had at the instant of the order. Everything it does takes cores and time, so one that has too few, or that
carries too much, is late as a real one is.
"""

from __future__ import annotations

from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.simulator.processes import Place, Process
from trimtab.core.simulator.rows import Rows
from trimtab.core.simulator.storage import Copy, copies_of
from trimtab.core.wire.messages import CopiesWritten, PrepareOrder, PsReport, PsSync, Served, ServeOrder, Staged

BASE_BYTES = 60 << 20  # of a process without rows
PUSH_BYTES = float(4 << 20)  # of a whole batch's push
LOAD_CPU, COPY_CPU, STAGE_CPU = 0.05, 0.1, 0.1  # core seconds for all vshards
_FAR_PATIENCE = 2.0  # that a worker waits for an answer
_NO_TRAFFIC = (0.0,) * VSHARDS


class Server(Process):
    """One process.

    Attributes:
        rows: what it holds. busy_seconds, queue_seconds: as real ones tell.
        pushed: batches' worth of pushes so far.
    """

    def __init__(self, world: Place, pod: str, process: str, term: int) -> None:
        super().__init__(world, pod, process, term)
        self.rows = Rows()
        self.busy_seconds = self.queue_seconds = self.pushed = 0.0
        self.memory_bytes = 0  # as it was told last
        self._free_at = 0.0
        self._orders: tuple[ServeOrder, ...] = ()
        self._loading = self._writing = False
        self._missing, self._load_error = 0, ""
        self._prepare: dict[PrepareOrder, float] = {}
        self._copied = 0
        self._copies: CopiesWritten | None = None
        self._rate_at: tuple[float, float] = (0.0, 0.0)
        self._traffic = _NO_TRAFFIC

    # ---- the controller's calls

    def hear(self, request: PsSync) -> PsReport | None:
        """Take a call in; None when it is for another process or of an older term."""
        if request.process not in ("", self.process) or request.term < self.term:
            return None
        now = self.world.loop.clock.now()
        self.memory_bytes = request.memory_bytes or self.memory_bytes
        self._orders = request.serve
        if not self._loading and any(self.rows.newer(int(one.vshards, 16), one.since) for one in request.serve):
            self._loading = True
            self.after(0.05 + self.seconds(LOAD_CPU), self._load)
        for drop in request.drop:
            self.rows.drop(int(drop.vshards, 16), drop.since)
        ready = now + 0.1 + self.seconds(STAGE_CPU)
        self._prepare = {one: self._prepare.get(one, ready) for one in request.prepare}
        if request.copy is not None and request.copy.id > self._copied and not self._writing:
            self._write(request.copy.id)
        return self._report(request.sequence, now)

    def _report(self, sequence: int, now: float) -> PsReport:
        """What is."""
        rows = self.rows
        told = tuple(Served(f"{p.mask:0128x}", p.since, p.applied.intervals, ()) for p in rows.parts if p.served)
        staged = tuple(
            Staged(one.vshards, one.origin.process, one.origin.since, 0)
            for one, ready in self._prepare.items() if now >= ready and one.origin.process in self.world.servers
        )  # fmt: skip
        table = self.table_bytes()
        self.world.use(self.pod, self._rss())
        count = int(table) // 100
        self.cpu_seconds += 0.001
        return PsReport(
            self.process, f"unix:{self.process}", sequence, told, loading=self._loading, writing=self._writing,
            copies=self._copies, rows=count, table_bytes=int(table), pushes=int(self.pushed),
            duplicates=rows.duplicates, cpu_seconds=self.cpu_seconds, rss_bytes=self._rss(),
            staged=staged, missing=f"{self._missing:0128x}" if self._missing else "",
            vshard_rows=(count // VSHARDS + 1,) * VSHARDS, vshard_traffic=self._vshard_traffic(now),
            load_error=self._load_error, full=self._is_full(), memory_bytes=self.memory_bytes, copying=self._writing,
            busy_seconds=self.busy_seconds, queue_seconds=self.queue_seconds,
        )  # fmt: skip

    def table_bytes(self) -> float:
        """Of all rows here, staged ones included, by how many batches have been trained on."""
        each = self.world.schedule.key_bytes / VSHARDS
        return sum(each * len(part.applied) * part.mask.bit_count() for part in self.rows.parts)

    def _rss(self) -> int:
        return BASE_BYTES + int(self.table_bytes() * 1.1)

    def _vshard_traffic(self, now: float) -> tuple[float, ...]:
        """Bytes per second to each vshard; measured anew after some seconds, as a mean."""
        before, pushed = self._rate_at
        if now - before >= 2.0:
            rate = (self.pushed - pushed) / (now - before) * PUSH_BYTES
            self._rate_at = now, self.pushed
            whole = self.world.weight(self.rows.served) or 1.0
            self._traffic = tuple(map((rate / whole).__mul__, self.world.weights))  # of others nobody asks
        return self._traffic

    # ---- loads and copies

    def _load(self) -> None:
        """Carry out what is ordered by now."""
        self._loading, self._missing, self._load_error = False, 0, ""
        for order in self._orders:
            mask = self.rows.newer(int(order.vshards, 16), order.since)
            if not mask:
                continue
            if order.origin is None:
                try:
                    found = self.world.storage.read(order.manifest, mask)
                except KeyError as error:  # an order of a moment ago, whose manifest is not in force any more
                    self._load_error = f"{error} is not there"
                    continue
            else:
                source = self.world.servers.get(order.origin.process)
                if source is None or (source.hung and source is not self):
                    continue
                found = source.rows.hand_over(mask, order.origin.since)
                if self._lost():
                    continue
            for part, applied in found:
                self.rows.load(part, order.since, applied)
                mask &= ~part
            self._missing |= mask

    def _lost(self) -> bool:
        """Whether an answer of another server gets lost."""
        fate = self.world.network.fate("pushes")
        return fate.lost > 0 and self.world.loop.random.random() < fate.lost

    def _write(self, order: int) -> None:
        """Write what is here at this instant; it takes a while."""
        self._writing, taken = True, copies_of(self.rows)
        hangs = max(0.0, self.world.hanging_until - self.world.loop.clock.now())
        disk = self.world.loop.random.choice((0.0, 0.2, 3.0))  # they end in any order
        self.after(0.1 + disk + hangs + self.seconds(COPY_CPU), lambda: self._written(order, taken))

    def _written(self, order: int, taken: tuple[Copy, ...]) -> None:
        self._writing, self._copied = False, order
        if self.world.failing.get("copy_fails", 0):
            self.world.failing["copy_fails"] -= 1
            self._copies = CopiesWritten(order, error="no space left on device")
        else:
            self._copies = self.world.storage.write(f"{self.process}-{order}", order, taken)

    # ---- workers' pushes

    def push(self, number: int, cover: int) -> tuple[int, float]:
        """Apply a number; which vshards of `cover` have it now, and when the answer is ready."""
        now = self.world.loop.clock.now()
        if self._is_full():  # no new row has room
            return 0, now + 0.1
        if self.hung:  # it lies in a buffer; the worker gives the answer up, and resends
            self.after(0.0, lambda: self._apply(number, cover))
            return 0, now + _FAR_PATIENCE
        share = self.world.weight(cover & self.rows.served)
        work = self.world.schedule.push_cpu * share
        begin = max(now, self._free_at)
        self._free_at = begin + self.seconds(work)
        self.busy_seconds += self._free_at - begin
        self.queue_seconds += begin - now
        self.cpu_seconds += work
        self.pushed += share
        return self._apply(number, cover), self._free_at

    def _is_full(self) -> bool:
        """Whether the table has no room for the rows of one more batch."""
        more = self.world.schedule.key_bytes * self.rows.served.bit_count() / VSHARDS
        return more > 0 and self.table_bytes() + more > self.memory_bytes

    def _apply(self, number: int, cover: int) -> int:
        done = self.rows.push(number, cover)
        if self.world.schedule.key_bytes:
            self.world.use(self.pod, self._rss())
        return done
