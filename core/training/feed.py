"""A worker's line to its controller: data shards in, finished ones and losses out.

One thread calls `WorkerSync` several times a second, at once when work runs short, so that the training thread never
waits for a call. Everything reported is kept until the call that carried it was answered: a lost answer means it is
reported again, and the controller counts each number and each grant once.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from trimtab.core.clock import Clock
from trimtab.core.errors import Refused, WireError
from trimtab.core.wire.control import ControllerStub
from trimtab.core.wire.messages import (
    TRAIN,
    BatchLoss,
    BatchScores,
    Grant,
    Routing,
    WorkerConfig,
    WorkerOrders,
    WorkerSync,
)

log = logging.getLogger(__name__)

_SYNC_SECONDS = 0.5
_HUNGRY_SECONDS = 0.03
_HURRY_SECONDS = 0.02
_CALL_SECONDS = 5.0
_HELD_SHARDS = 2


@dataclass(frozen=True)
class Task:
    """One batch to do: its grant, its number, and whether it is the grant's last."""

    grant: Grant
    number: int
    last: bool


@dataclass
class _Unsent:
    """What the next call reports."""

    finished: list[int] = field(default_factory=list)
    losses: list[BatchLoss] = field(default_factory=list)
    scores: list[BatchScores] = field(default_factory=list)
    metrics: dict[str, float] | None = None
    phases: dict[str, float] = field(default_factory=dict)
    ps_seconds: dict[str, float] = field(default_factory=dict)
    max_gap: float = 0.0
    failure: str = ""


class Feed:
    """Grants, and reports about them. `take` and `done` are for the training thread."""

    def __init__(
        self, config: WorkerConfig, process: str, secret: bytes, on_routing: Callable[[Routing], None], clock: Clock
    ) -> None:
        """`on_routing` hears every newer routing before any grant that needs it is handed out."""
        self.stopping = threading.Event()
        self.orphaned = False
        self.broken = False
        self.cache_bytes: Callable[[], int] = lambda: 0  # of the gradients that are kept, as the client knows it
        self._config, self._process, self._clock, self._on_routing = config, process, clock, on_routing
        self._stub = ControllerStub(config.controller_address, secret)
        self._tasks: deque[Task] = deque()
        self._outstanding: set[int] = set()
        self._in_work: Counter[int] = Counter()  # batches handed out and not done, by grant
        self._returned: set[int] = set()  # grants of which nothing more is begun
        self._finished: deque[int] = deque(maxlen=64)
        self._unsent = _Unsent()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._routing_version = 0
        self._last_contact = clock.now()
        self._last_step: float | None = None
        self._hurried_at = -math.inf
        self._trouble = False
        self._me = psutil.Process()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Begin to call the controller."""
        self._thread.start()

    def close(self) -> None:
        """Report what is left, best effort, and stop calling."""
        self.stopping.set()
        self._wake.set()
        self._thread.join(_CALL_SECONDS)
        self._stub.close()

    def take(self, block: bool) -> Task | None:
        """The next batch; without `block`, only a training batch that is here already. None: stopping, or nothing."""
        with self._arrived:
            while not self._tasks:
                if not block or self.stopping.is_set():
                    return None
                self._wake.set()
                self._arrived.wait(0.5)
            if not block and self._tasks[0].grant.kind != TRAIN:
                return None
            task = self._tasks.popleft()
            self._in_work[task.grant.id] += 1
            if len({one.grant.id for one in self._tasks}) < _HELD_SHARDS - 1:
                self._wake.set()
            return task

    def done(
        self,
        task: Task,
        loss: BatchLoss | None = None,
        scores: BatchScores | None = None,
        metrics: dict[str, float] | None = None,
        phases: dict[str, float] | None = None,
        ps_seconds: dict[str, float] | None = None,
    ) -> None:
        """Report a batch; the grant is finished with its last one."""
        now = self._clock.now()
        with self._lock:
            unsent = self._unsent
            if loss is not None:
                unsent.losses.append(loss)
                if self._last_step is not None:
                    unsent.max_gap = max(unsent.max_gap, now - self._last_step)
                else:  # the first batch: until the controller hears of it, others lend their cores to this worker
                    self._wake.set()
                self._last_step = now
            if scores is not None:
                unsent.scores.append(scores)
            if metrics is not None:
                unsent.metrics = metrics
            for name, seconds in (phases or {}).items():
                unsent.phases[name] = unsent.phases.get(name, 0.0) + seconds
            for process, seconds in (ps_seconds or {}).items():
                unsent.ps_seconds[process] = unsent.ps_seconds.get(process, 0.0) + seconds
            self._in_work[task.grant.id] -= 1
            over = task.last or (task.grant.id in self._returned and not self._in_work[task.grant.id])
            if over and task.grant.id in self._outstanding:
                self._finish(task.grant.id)

    def hurry(self) -> None:
        """Ask for newer routing now; called as often as one likes, it costs a call every few milliseconds at most."""
        now = self._clock.now()
        if now - self._hurried_at >= _HURRY_SECONDS:
            self._hurried_at = now
            self._trouble = True
            self._wake.set()

    def fail(self, reason: str) -> None:
        """Report a failure that no repetition mends."""
        with self._lock:
            self._unsent.failure = reason
        self._wake.set()

    def sync_once(self) -> None:
        """One call: report, take orders. An unreachable controller is no error until `orphan_grace_seconds`."""
        with self._lock:
            sending, self._unsent = self._unsent, _Unsent()
            want = max(0, _HELD_SHARDS - len(self._outstanding))
        try:
            orders = self._stub.worker_sync(self._message(sending, want), _CALL_SECONDS)
        except Refused as error:
            log.error("controller refused this worker: %s", error)
            self._end()
            return
        except WireError as error:
            log.info("controller: %s", error)
            self._keep(sending)
            if self._clock.now() - self._last_contact > self._config.orphan_grace_seconds:
                log.warning("no controller for %.1f s: leaving", self._config.orphan_grace_seconds)
                self.orphaned = True
                self._end()
            return
        self._last_contact = self._clock.now()
        self._obey(orders)

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.sync_once()
                with self._lock:
                    hungry = not self._tasks
                self._clock.wait(self._wake, _HUNGRY_SECONDS if hungry else _SYNC_SECONDS)
                self._wake.clear()
            if not self.orphaned:
                self.sync_once()
        except Exception:  # whatever ended this thread, the training thread must not wait for it
            log.exception("the line to the controller broke")
            self.broken = True
        finally:
            self._end()

    def _message(self, sending: _Unsent, want: int) -> WorkerSync:
        memory = self._me.memory_info().rss
        return WorkerSync(
            self._config.job_id, self._config.term, self._config.pod, self._process,
            0 if self.stopping.is_set() else want, tuple(sending.finished), self._routing_version,
            tuple(sending.losses), tuple(sending.scores), sending.metrics, dict(sending.phases), sending.max_gap,
            time.process_time(), memory, sending.failure, self._trouble, ps_seconds=dict(sending.ps_seconds),
            cache_bytes=self.cache_bytes(),
        )  # fmt: skip

    def _keep(self, sent: _Unsent) -> None:
        """What an unanswered call reported goes in front of what came since."""
        with self._lock:
            new = self._unsent
            for name, seconds in new.phases.items():
                sent.phases[name] = sent.phases.get(name, 0.0) + seconds
            for process, seconds in new.ps_seconds.items():
                sent.ps_seconds[process] = sent.ps_seconds.get(process, 0.0) + seconds
            self._unsent = _Unsent(
                sent.finished + new.finished, sent.losses + new.losses, sent.scores + new.scores,
                new.metrics or sent.metrics, sent.phases, sent.ps_seconds, max(sent.max_gap, new.max_gap),
                new.failure or sent.failure,
            )  # fmt: skip

    def _obey(self, orders: WorkerOrders) -> None:
        if orders.routing is not None and orders.routing.version > self._routing_version:
            self._routing_version = orders.routing.version
            self._trouble = False
            self._on_routing(orders.routing)
        with self._arrived:
            for grant in orders.grants:
                if grant.id in self._outstanding or grant.id in self._finished:
                    continue  # said again because an answer was lost or late
                self._outstanding.add(grant.id)
                numbers = range(grant.lo, grant.hi)
                self._tasks.extend(Task(grant, number, number == grant.hi - 1) for number in numbers)
            self._give_back(orders.taken_back)
            self._arrived.notify_all()
        if orders.stop:
            self._end()

    def _give_back(self, grants: Sequence[int]) -> None:
        """Begin nothing more of these; they are finished once what was begun of them is done."""
        for grant in grants:
            if grant not in self._finished:
                self._tasks = deque(task for task in self._tasks if task.grant.id != grant)
                self._returned.add(grant)
                if not self._in_work[grant]:
                    self._finish(grant)

    def _finish(self, grant: int) -> None:
        """A grant is done with."""
        self._unsent.finished.append(grant)
        self._outstanding.discard(grant)
        self._finished.append(grant)
        self._returned.discard(grant)
        del self._in_work[grant]
        if not self._tasks:
            self._wake.set()

    def _end(self) -> None:
        self.stopping.set()
        with self._arrived:
            self._arrived.notify_all()
