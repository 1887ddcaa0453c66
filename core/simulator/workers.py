"""A simulated worker: takes data shards, trains their batches one by one, and tells its controller now and then.

It keeps what it has to tell until the call that carried it was answered, resends what a server does not have, and asks
for newer routing when something is not where it should be: the same promises as `training/feed.py` and `ps/client.py`
keep, with times in the place of work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from trimtab.core.controller.ledger import ALL_VSHARDS
from trimtab.core.ps.client import covers_of
from trimtab.core.simulator.network import CALLS, PUSHES
from trimtab.core.simulator.processes import Place, Process
from trimtab.core.simulator.storage import JOB
from trimtab.core.wire.messages import EVALUATE, TRAIN, BatchLoss, BatchScores, Grant, Routing, WorkerOrders, WorkerSync

ROWS = 8  # of a batch
MOST_SHARDS = 2
CALL_SECONDS = 5.0  # patience with one call
RETRY_SECONDS = 0.15
RSS_BYTES = 700 << 20
_FLOAT = b"\x00\x00\x00\x3f"


@dataclass
class _Shard:
    """A data shard in hand: `next` is the first number not begun, `end` the first that is not to be."""

    grant: Grant
    next: int
    end: int


@dataclass
class _Unsent:
    """What the next call tells."""

    finished: list[int] = field(default_factory=list)
    losses: list[BatchLoss] = field(default_factory=list)
    scores: list[BatchScores] = field(default_factory=list)
    metrics: dict[str, float] | None = None
    phases: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    gap: float = 0.0

    def join(self, later: _Unsent) -> None:
        """What came since goes behind what could not be told."""
        self.finished += later.finished
        self.losses += later.losses
        self.scores += later.scores
        self.metrics = later.metrics or self.metrics
        self.gap = max(self.gap, later.gap)
        for mine, theirs in ((self.phases, later.phases), (self.waits, later.waits)):
            for name, seconds in theirs.items():
                mine[name] = mine.get(name, 0.0) + seconds


class Worker(Process):
    """One process."""

    def __init__(self, world: Place, pod: str, process: str, term: int) -> None:
        super().__init__(world, pod, process, term)
        self.routing: Routing | None = None
        self.stopped = False
        self._covers: list[tuple[str, int]] = []
        self._shards: list[_Shard] = []
        self._seen: set[int] = set()
        self._unsent = _Unsent()
        self._sent: tuple[WorkerSync, _Unsent, float] | None = None
        self._working = self._waiting = self._trouble = False
        self._acked = 0
        self._begun_at = 0.0
        self._last_step: float | None = None

    def start(self) -> None:
        """Begin to call the controller."""
        self.after(0.0, self._speak)

    # ---- calls

    def _speak(self) -> None:
        """The periodic call."""
        if self.stopped:
            return
        self.after(self.world.schedule.call_seconds, self._speak)
        self._call()

    def _call(self) -> None:
        now = self.world.loop.clock.now()
        if self._sent is not None:
            if now < self._sent[2]:
                return
            self._sent[1].join(self._unsent)
            self._unsent, self._sent = self._sent[1], None
        sending, self._unsent = self._unsent, _Unsent()
        version = self.routing.version if self.routing else 0
        sync = WorkerSync(
            JOB, self.term, self.pod, self.process, max(0, MOST_SHARDS - len(self._shards)),
            tuple(sending.finished), version, tuple(sending.losses), tuple(sending.scores), sending.metrics,
            sending.phases, sending.gap, self.cpu_seconds, RSS_BYTES, trouble=self._trouble,
            ps_seconds=sending.waits,
        )  # fmt: skip
        self._sent = sync, sending, now + CALL_SECONDS
        self.world.network.send(CALLS, lambda: self.world.called(self, sync))

    def answered(self, sync: WorkerSync, orders: WorkerOrders | None) -> None:
        """An answer has arrived; None: it was refused."""
        if self.dead:
            return
        if self.hung:
            self.after(0.0, lambda: self.answered(sync, orders))
            return
        if self._sent is not None and self._sent[0] is sync:  # else it is told again
            self._sent = None
        if orders is None or orders.stop:
            self.stopped = True
            return
        if orders.routing and (self.routing is None or orders.routing.version > self.routing.version):
            self._route(orders.routing)
        for grant in orders.grants:
            if grant.id not in self._seen:
                self._seen.add(grant.id)
                self._shards.append(_Shard(grant, grant.lo, grant.hi))
        for shard in tuple(self._shards):
            if shard.grant.id in orders.taken_back:
                self._give_back(shard)
        self._begin()

    def _route(self, routing: Routing) -> None:
        self.routing, self._acked, self._trouble = routing, 0, False
        self._covers = [
            (routing.processes[place], cover) for place, cover in enumerate(covers_of(routing)) if cover
        ]  # fmt: skip

    def _give_back(self, shard: _Shard) -> None:
        """Begin nothing more of a shard; the batch in work is done all the same."""
        shard.end = shard.next
        if not (self._working and shard is self._shards[0]):
            self._finish(shard)

    # ---- batches

    def _begin(self) -> None:
        """The next batch, if there is one and nothing is in work."""
        if self._working or self.stopped or self.routing is None or not self._shards:
            return
        shard = self._shards[0]
        if self.routing.version < shard.grant.least_routing:
            if not self._waiting:
                self._waiting = True
                self._ask()
                self.after(RETRY_SECONDS, self._look_again)
            return
        self._working, self._acked = True, 0
        shard.next += 1
        self._begun_at = self.world.loop.clock.now()
        self.cpu_seconds += self.world.schedule.step_cpu
        number = shard.next - 1
        self.after(self.seconds(self.world.schedule.step_cpu), lambda: self._computed(shard, number))

    def _look_again(self) -> None:
        self._waiting = False
        self._begin()

    def _computed(self, shard: _Shard, number: int) -> None:
        """The gradients are there: push them, or tell what else was asked for."""
        kind, ready = shard.grant.kind, self.world.loop.clock.now()
        if kind == TRAIN:
            self._push(shard, number)
            return
        if kind == EVALUATE:
            self._unsent.scores.append(BatchScores(number, _FLOAT, _FLOAT, _FLOAT))
        else:
            self._unsent.metrics, shard.next = {"auc": 0.5}, shard.end
        self._done(shard, ready)

    def _push(self, shard: _Shard, number: int) -> None:
        now = answered = self.world.loop.clock.now()
        fate, chance = self.world.network.fate(PUSHES), self.world.loop.random
        for process, cover in self._covers:
            cover &= ~self._acked
            server = self.world.servers.get(process)
            if not cover or server is None or (fate.lost and chance.random() < fate.lost):
                continue
            got, ready = server.push(number, cover)
            self._unsent.waits[process] = self._unsent.waits.get(process, 0.0) + ready - now
            answered = max(answered, ready)
            if fate.doubled and chance.random() < fate.doubled:
                server.after(chance.uniform(0, fate.seconds), partial(server.push, number, cover))
            if not (fate.lost and chance.random() < fate.lost):
                self._acked |= got
        if self._acked == ALL_VSHARDS:
            self._unsent.losses.append(BatchLoss(number, 0.5, ROWS))
            phases = self._unsent.phases
            phases["compute"] = phases.get("compute", 0.0) + now - self._begun_at
            phases["exchange"] = phases.get("exchange", 0.0) + answered - now
            self._done(shard, answered)
            return
        self._ask()
        self.after(max(RETRY_SECONDS, answered - now), lambda: self._push(shard, number))

    def _ask(self) -> None:
        """Something is not where the routing says."""
        self._trouble = True
        self._call()

    def _done(self, shard: _Shard, at: float) -> None:
        """A batch is done, at `at`; the next one begins then."""
        if self._last_step is not None:
            self._unsent.gap = max(self._unsent.gap, at - self._last_step)
        self._last_step = at
        if shard.next >= shard.end:
            self._finish(shard)
        self.after(max(0.0, at - self.world.loop.clock.now()), self._free)

    def _finish(self, shard: _Shard) -> None:
        self._shards.remove(shard)
        self._unsent.finished.append(shard.grant.id)
        if not self._shards:
            self._call()

    def _free(self) -> None:
        self._working = False
        self._begin()
