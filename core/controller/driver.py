"""The thin driver around `step`: threads, network, store and cluster, and no decision.

One lock guards the state, and nothing that may take time happens under it. Workers' calls run in the server's threads
and are answered at once from what `step` says; everything else that it asks for goes through one queue to the caller's
thread, in order. Calls to parameter servers run in a small pool, so that one that doesn't answer delays nobody; what is
stored has threads of its own, for a disk may hang. Asked to stop, the loop goes on until `step` says that the job is
over. However it ends, the pods are ended with it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Protocol

from trimtab.core.clock import Clock
from trimtab.core.cluster.base import Cluster, PodSpec
from trimtab.core.controller.actions import (
    Action,
    AnswerWorker,
    CommitDocument,
    ComputeScores,
    Consider,
    FinishJob,
    KeepScores,
    Note,
    PodName,
    RefuseWorker,
    RemoveSuperseded,
    SendPs,
    SetPods,
)
from trimtab.core.controller.document import Document
from trimtab.core.controller.events import EventLog, last_lines
from trimtab.core.controller.inputs import (
    CapsChanged,
    CommitResult,
    Decided,
    DriverFailed,
    Input,
    Late,
    Noticed,
    PodsSeen,
    PsSaid,
    ScoresReady,
    StopRequested,
    Tick,
    Trouble,
    WorkerSaid,
)
from trimtab.core.controller.progress import Progress, Showing
from trimtab.core.controller.scores import ScoreBook, auc, log_loss, save
from trimtab.core.controller.state import Phase, State
from trimtab.core.controller.step import step
from trimtab.core.controller.stopping import stop_words
from trimtab.core.controller.store import StateStore
from trimtab.core.controller.storing import Storing
from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import Limits
from trimtab.core.domain.records import Decision
from trimtab.core.errors import CorruptCopy, Interrupted, Refused, StaleState, TrimtabError, WireError
from trimtab.core.optimizer.question import Question
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.ps.snapshots import remove_of_others
from trimtab.core.wire.messages import PsReport, PsSync, WorkerOrders, WorkerSync

log = logging.getLogger(__name__)

SYNC_SECONDS = 0.33  # between two calls to a parameter server while training
BUSY_SYNC_SECONDS = 0.05  # while everybody waits for them: start, close
LATE_SECONDS = 5.0  # between two looks: then something held this process up
HEALTH_SECONDS = 1.0  # between two looks at what is around the job
PROGRESS_SECONDS = 0.5
PS_TIMEOUT_SECONDS = 5.0
MESSAGE_SECONDS = 10.0  # that a message is shown
_TOLD_OTHERWISE = ("plan", "hold", "advice")  # decisions stand above the line
PS_CALLS = 16  # at the same time
_SOLVERS = ("scipy.optimize", "scipy.special")  # what fits and forecasts import when they first need it


class PsLine(Protocol):
    """What the driver needs of a parameter server's stub."""

    def sync(self, request: PsSync, timeout_seconds: float) -> PsReport:
        """Say what should be, hear what is; raises WireError."""
        ...

    def close(self) -> None:
        """Give the connection up."""
        ...


class Server(Protocol):
    """What the driver needs of its own server."""

    def close(self) -> None:
        """Stop answering."""
        ...


@dataclass(frozen=True)
class Ports:
    """The driver's ways to the outside, so that tests can put others in their place.

    Attributes:
        cluster, store, clock: see there. pod_spec: a pod's command line and files, made once per pod.
        connect: a stub of the parameter server in a pod. serve: begins to answer workers.
        snapshots: directory of this node's snapshots, "" for none.
        copies: directory (or URL) of copies and manifests. scores: file for merged scores. events: the log.
        decide: the optimizer. watch: sees the state now and then, for the record.
        progress: is shown how the job goes. stop: set by whoever wants the job to stop, with a last checkpoint.
        health: what does not work around the job at present; it never raises or waits.
        caps: what pods may use together from now on, None: as before; asked with each look at the cluster.
    """

    cluster: Cluster
    store: StateStore
    clock: Clock
    pod_spec: Callable[[PodName], PodSpec]
    connect: Callable[[str], PsLine]
    serve: Callable[[Callable[[WorkerSync], WorkerOrders]], Server]
    copies: str
    scores: Path
    events: EventLog
    decide: Callable[[Question], Decision]
    watch: Callable[[State, float], None]
    progress: Callable[[Progress], None]
    stop: threading.Event
    snapshots: str = ""
    caps: Callable[[State], Limits | None] = lambda _: None
    health: Callable[[], tuple[Trouble, ...]] = tuple


def load_solvers() -> None:
    """Import early what takes half a second: `step` forecasts under the lock, and workers would wait for it."""
    for name in _SOLVERS:
        import_module(name)


class Driver:
    """Runs one job from a first state to its end."""

    def __init__(self, state: State, ports: Ports) -> None:
        self.state = state
        self._ports = ports
        self._progress = Showing(ports.progress)
        self._lock = threading.Lock()
        self._queue: deque[Action] = deque()
        self._wake = threading.Event()
        self._pool = ThreadPoolExecutor(PS_CALLS, thread_name_prefix="ps-call")
        self._lines: dict[str, PsLine] = {}
        self._calling: set[str] = set()
        self._specs: dict[str, PodSpec] = {}
        self._book = ScoreBook()
        self._broken: Exception | None = None
        self._ending: FinishJob | None = None
        self._over = self._asked_to_stop = False
        self._next_tick = self._next_progress = self._next_health = self._looked_at = ports.clock.now()
        self._noticed: tuple[Trouble, ...] = ()
        self._unwritten = ""
        self._shown: Phase | None = None
        self._message = "starting"
        self._message_until = math.inf
        self._storing = Storing(ports.store, ports.copies, ports.snapshots, state.document.manifest.path, self._stored)

    def run(self) -> State:
        """Drive the job to its end and return the last state; every pod has ended when this returns or raises.

        Raises:
            Interrupted: when `stop` was set or a command stopped the job, after its last checkpoint; at once on
                KeyboardInterrupt. The state was stored as stopped before.
        """
        server: Server | None = None
        try:
            self._pool.submit(load_solvers)
            self._show()
            self._looked_at = self._ports.clock.now()
            server = self._ports.serve(self._answer)
            while not self._over:
                self._turn()
        except KeyboardInterrupt:
            self._halt(StopRequested("interrupted", now=True))
        except Exception as error:
            self._halt(DriverFailed(f"the controller met an error of its own: {type(error).__name__}: {error}"))
            raise
        finally:
            self._close(server)
        if self.state.document.state is JobState.FINISHED:  # else a later `resume` starts from them
            remove_of_others(self._ports.snapshots, ())
        with suppress(KeyboardInterrupt):  # all is stored, and every pod has ended
            self._show(force=True)
        if self.state.document.state is JobState.STOPPED:
            raise Interrupted(self.state.document.reason or "interrupted")
        return self.state

    def _close(self, server: Server | None) -> None:
        """End every pod, then all that this process has opened; each step is taken, whatever the others raise."""
        with ExitStack() as steps:  # the last one in is the first to go
            steps.callback(self._storing.close, self._ports.clock)
            if server is not None:
                steps.callback(server.close)
            steps.callback(self._pool.shutdown, wait=True, cancel_futures=True)
            for line in self._lines.values():
                steps.callback(line.close)
            steps.callback(self._end_pods)

    def _end_pods(self) -> None:
        """Also when the caller loses patience meanwhile."""
        while True:
            try:
                self._ports.cluster.close()
                return
            except KeyboardInterrupt:
                log.info("the pods are being ended already")

    def _turn(self) -> None:
        """One round of the loop: queued actions, then, when it is time, a look at everything."""
        now = self._ports.clock.now()
        if self._ports.stop.is_set() and not self._asked_to_stop:
            self._asked_to_stop = True
            self._feed(StopRequested("interrupted"))
        if now >= self._next_tick:
            self._next_tick = now + (BUSY_SYNC_SECONDS if self.state.waits_for_servers else SYNC_SECONDS)
            seen: tuple[Input, ...] = (*self._troubles(now), *self._new_caps(), self._look())
            self._feed(*self._late(), *seen, Tick())
        self._work()
        self._ports.watch(self.state, now)
        self._show()
        if self._broken is not None:
            raise self._broken
        if not self._over:
            self._ports.clock.wait(self._wake, max(0.0, self._next_tick - self._ports.clock.now()))
            self._wake.clear()

    def _work(self) -> None:
        """Carry out what is queued, in order; what that leads to is queued behind it."""
        while self._queue:
            self._carry_out(self._queue.popleft())

    def _feed(self, *inputs: Input) -> list[AnswerWorker | RefuseWorker]:
        """One step; answers to workers are returned, the rest is queued."""
        with self._lock:
            self.state, actions = step(self.state, inputs, self._ports.clock.now())
            answers = [action for action in actions if isinstance(action, AnswerWorker | RefuseWorker)]
            rest = [action for action in actions if not isinstance(action, AnswerWorker | RefuseWorker)]
            self._queue.extend(rest)
        if rest:
            self._wake.set()
        return answers

    def _answer(self, sync: WorkerSync) -> WorkerOrders:
        """A worker's call, in one of the server's threads."""
        if sync.trouble and not self.state.waits_for_servers:  # a worker may see a lost server before the cluster does
            self._next_tick = min(self._next_tick, self._ports.clock.now())
            self._wake.set()
        try:
            answers = self._feed(WorkerSaid(sync))
        except Exception as error:
            self._broken = error
            self._wake.set()
            raise
        for answer in answers:
            if isinstance(answer, AnswerWorker):
                return answer.orders
            if isinstance(answer, RefuseWorker):
                raise Refused(answer.reason)
        raise AssertionError("a worker's call was not answered")

    def command(self, *wanted: Input) -> tuple[State, float, str]:
        """What a person asks for, in any thread: the state after it, the clock's seconds, and what is shown."""
        if wanted:
            try:
                self._feed(*wanted)
            except Exception as error:
                self._broken = error
                raise
            finally:
                self._next_tick = self._ports.clock.now()  # who waits for it should see it at once
                self._wake.set()
        return self.state, self._ports.clock.now(), stop_words(self.state) or self._message

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, SetPods):
            self._set(action)
        elif isinstance(action, SendPs):
            self._call(action)
        elif isinstance(action, CommitDocument):
            self._storing.commit(action)
        elif isinstance(action, RemoveSuperseded):
            self._storing.remove(action, self.state.document.manifest.path)
        elif isinstance(action, KeepScores):
            self._keep(action)
        elif isinstance(action, ComputeScores):
            self._feed(self._score())
        elif isinstance(action, Note):
            if action.kind not in _TOLD_OTHERWISE:
                self._message, self._message_until = action.text, self._ports.clock.now() + MESSAGE_SECONDS
            self._ports.events.append(action.kind, action.text, **action.data)
        elif isinstance(action, Consider):
            self._feed(self._consider(action))
            self._next_tick = self._ports.clock.now()  # what was decided is carried out at once
        elif isinstance(action, FinishJob):
            self._finish(action)

    def _consider(self, action: Consider) -> Decided:
        """Ask the optimizer, outside the lock: workers are answered meanwhile. A fault of it never ends a job."""
        try:
            return Decided(self._ports.decide(action.question))
        except Exception as error:
            log.exception("the optimizer failed")
            return Decided(None, f"{type(error).__name__}: {error}")

    def _set(self, action: SetPods) -> None:
        """Say which pods should run. One whose configuration can't be written (a full disk) is not there for now."""
        specs, self._unwritten = [], ""
        for pod in action.pods:
            try:
                specs.append(self._spec(pod))
            except OSError as error:
                self._unwritten = f"{pod.name} can't be started: {error}"
        self._ports.cluster.apply(specs)

    def _troubles(self, now: float) -> list[Noticed]:
        """What does not work around the job, when it is time to look and something has changed."""
        if now < self._next_health:
            return []
        self._next_health = now + HEALTH_SECONDS
        unwritten = (Trouble("disk", "pods", self._unwritten),) if self._unwritten else ()
        found = (*self._ports.health(), *unwritten)
        if found == self._noticed:
            return []
        self._noticed = found
        return [Noticed(found)]

    def _spec(self, pod: PodName) -> PodSpec:
        if pod.name not in self._specs:
            self._specs[pod.name] = self._ports.pod_spec(pod)
        return replace(self._specs[pod.name], cpu=pod.cpu, memory_bytes=pod.memory_bytes)

    def _call(self, action: SendPs) -> None:
        """Call a parameter server, unless the last call is still on its way."""
        if action.pod in self._calling:
            return
        self._calling.add(action.pod)
        if action.pod not in self._lines:
            self._lines[action.pod] = self._ports.connect(action.pod)
        self._pool.submit(self._sync, action, self._lines[action.pod])

    def _sync(self, action: SendPs, line: PsLine) -> None:
        try:
            report = line.sync(action.sync, PS_TIMEOUT_SECONDS)
            self._feed(PsSaid(action.pod, report))
        except WireError as error:  # not up yet, just killed, or cut off: the cluster or the silence will tell
            log.debug("%s: %s", action.pod, error)
        except Exception as error:
            self._broken = error
            self._wake.set()
            raise
        finally:
            self._calling.discard(action.pod)

    def _late(self) -> tuple[Late, ...]:
        """Whether something has held this process up since the last look; say it before anybody is taken for silent."""
        now = self._ports.clock.now()
        late, self._looked_at = now - self._looked_at, now
        return (Late(late),) if late > LATE_SECONDS else ()

    def _new_caps(self) -> tuple[CapsChanged, ...]:
        """What has become of the job's part of the machine."""
        caps = self._ports.caps(self.state)
        return (CapsChanged(caps),) if caps is not None else ()

    def _look(self) -> PodsSeen:
        """The cluster's pods, with the last log lines of those that ended by themselves."""
        pods = self._ports.cluster.observe()
        ended = [pod.name for pod in pods if pod.ended and pod.name in self._specs]
        return PodsSeen(pods, {name: last_lines(self._specs[name].log_path) for name in ended})

    def _stored(self, result: CommitResult) -> None:
        """A swap has ended; maybe in another thread."""
        try:
            self._feed(result)
        except Exception as error:
            self._broken = error
            raise
        finally:
            self._next_tick = self._ports.clock.now()  # who waits for it should hear at once
            self._wake.set()

    def _keep(self, action: KeepScores) -> None:
        try:
            for entry in action.scores:
                self._book.add(entry)
        except WireError as error:
            self._feed(DriverFailed(str(error)))

    def _score(self) -> ScoresReady:
        """The figures need no disk; the model's own metrics do, for a worker computes them."""
        rows, error = self._book.merged(), ""
        try:
            save(rows, self._ports.scores)
        except OSError as failure:
            error = str(failure)
        return ScoresReady(auc(rows), log_loss(rows), "" if error else str(self._ports.scores), error)

    def _finish(self, action: FinishJob) -> None:
        """Store how the job ended; a document that another controller took over is left alone."""
        self._ending = action
        document, manifest = replace(self.state.document, state=action.state, reason=action.reason), self.state.manifest
        with suppress(OSError, TrimtabError):
            document = self._store_end(document)
        if document.manifest != self.state.document.manifest:
            with suppress(CorruptCopy):
                manifest = read_manifest(document.manifest)
        with self._lock:
            self.state = replace(self.state, document=document, manifest=manifest)
        self._over = True
        self._message = action.reason or "finished"
        self._ports.events.append("end", action.reason or "the job is finished", state=str(action.state))

    def _store_end(self, document: Document) -> Document:
        """Swap the end in. A swap of our own that was interrupted may have been stored without our knowing."""
        try:
            return self._ports.store.compare_and_swap(document, document.version)
        except StaleState:
            present = self._ports.store.read()
            if present is None or present.term != document.term:
                raise
            present = replace(present, state=document.state, reason=document.reason)
            return self._ports.store.compare_and_swap(present, present.version)

    def _halt(self, ended: StopRequested | DriverFailed) -> None:
        """End the job from outside the loop, and write that down."""
        if self._over:
            return
        if self._ending is not None:  # it was interrupted while it was stored
            self._finish(self._ending)
            return
        self._feed(ended)
        for action in tuple(self._queue):
            if isinstance(action, FinishJob):
                self._finish(action)

    def _show(self, force: bool = False) -> None:
        now = self._ports.clock.now()
        state = self.state
        if now < self._next_progress and state.phase is self._shown and not force:
            return
        self._next_progress, self._shown = now + PROGRESS_SECONDS, state.phase
        trained = state.phase in (Phase.EVALUATING, Phase.SCORING, Phase.METRICS)
        done = state.settings.batches if trained else len(state.ledger.applied)
        if state.phase is Phase.OVER:
            done = len(state.manifest.applied())
        if now > self._message_until:
            self._message = ""
        message = stop_words(state) or self._message
        rate = state.losses.rate(now)
        if state.phase not in (Phase.STARTING, Phase.TRAINING):  # the whole job's, not its decay
            rate = state.losses.throughput or rate
        batches, plan = state.settings.batches, state.document.plan
        self._progress(
            Progress(done, batches, rate, state.losses.recent, plan, str(state.phase), message, state.decisions)
        )
