"""A whole job in one thread: the real `step`, a fake cluster, and simulated parameter servers and workers.

Every message lies in a list until somebody delivers it, so a test may lose, double, delay or reorder any of them, kill
any process, or leave a zombie alive that the controller believes dead. The simulated parameter server is true to the
protocol and nothing else: it obeys newer tenures only, loads whole copies, applies and marks a number once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce

from trimtab.core.clock import ManualClock
from trimtab.core.cluster.base import PodSpec
from trimtab.core.cluster.fake import FakeCluster
from trimtab.core.controller.actions import (
    Action,
    AnswerWorker,
    CommitDocument,
    ComputeScores,
    Consider,
    FinishJob,
    SendPs,
    SetPods,
)
from trimtab.core.controller.document import Document
from trimtab.core.controller.inputs import CommitResult, Decided, Input, PodsSeen, PsSaid, ScoresReady, Tick, WorkerSaid
from trimtab.core.controller.settings import Settings
from trimtab.core.controller.state import State, first_state
from trimtab.core.controller.step import step
from trimtab.core.controller.store import MemoryStore, take_term
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Decision
from trimtab.core.errors import StaleState
from trimtab.core.ps.client import covers_of
from trimtab.core.ps.manifest import Manifest, ManifestRef
from trimtab.core.simulator.rows import Part, Rows
from trimtab.core.wire.messages import (
    EVALUATE,
    TRAIN,
    BatchLoss,
    BatchScores,
    CopiesWritten,
    CopyEntry,
    CopySet,
    Grant,
    PrepareOrder,
    PsReport,
    PsSync,
    Routing,
    Served,
    ServeOrder,
    Staged,
    WorkerOrders,
    WorkerSync,
    from_bitmap,
)

JOB = "job"


def empty_manifest() -> Manifest:
    entries = tuple(CopyEntry(v, 0, "initial", 0, 0, "", 0) for v in range(VSHARDS))
    return Manifest(1, JOB, "model", VSHARDS, entries, (CopySet((), ()),))


def settings(**changes: object) -> Settings:
    plain = Settings(JOB, 12, 2, "copies", failures_in_row=1000, failures_total=10_000, checkpoint_seconds=3.0)
    return replace(plain, **changes)  # type: ignore[arg-type]


def plan_of(ps: int = 2, workers: int = 2) -> Plan:
    return Plan(RolePlan(ps, 0.5, 2**28), RolePlan(workers, 1.0, 2**30))


def new_state(chosen: Settings, store: MemoryStore | None = None, plan: Plan | None = None) -> State:
    plan = plan or plan_of()
    fresh = Document(JOB, JobSpec("data.csv"), plan, ManifestRef("manifest-0", "0"))
    return first_state(chosen, take_term(store or MemoryStore(), fresh), empty_manifest())


@dataclass
class Server:
    """A simulated parameter-server process, true to the protocol and nothing else."""

    pod: str
    process: str
    rows: Rows = field(default_factory=Rows)
    staged: tuple[PrepareOrder, ...] = ()
    copies: CopiesWritten | None = None
    copied: int = 0
    missing: int = 0
    move_error: str = ""

    @property
    def parts(self) -> list[Part]:
        """What it holds."""
        return self.rows.parts

    @property
    def duplicates(self) -> int:
        """Pushes that it had before."""
        return self.rows.duplicates

    @property
    def applied(self) -> IntervalSet:
        """What every served vshard has."""
        served = [part.applied for part in self.parts if part.served]
        return reduce(lambda one, other: one & other, served) if served else EMPTY

    @applied.setter
    def applied(self, numbers: IntervalSet) -> None:
        for part in self.parts:
            part.applied = numbers

    @property
    def mask(self) -> str:
        """The served vshards, as messages carry them."""
        return f"{self.rows.served:0128x}"

    @property
    def since(self) -> int:
        """The newest tenure."""
        return max((part.since for part in self.parts), default=0)

    def sync(self, world: World, request: PsSync) -> PsReport | None:
        if request.process not in ("", self.process):
            return None
        self.missing = 0
        for order in request.serve:
            self.obey(world, order)
        for drop in request.drop:
            self.rows.drop(int(drop.vshards, 16), drop.since)
        self.staged = () if self.move_error else request.prepare
        if request.copy is not None and request.copy.id > self.copied:
            self.copied = request.copy.id
            file = f"{self.process}-{request.copy.id}"
            entries, sets = [], []
            for part in self.parts:
                if part.served:
                    sets.append(CopySet(part.applied.intervals, ()))
                    entries += [
                        CopyEntry(v, part.since, file, 0, 0, "", len(sets) - 1) for v in from_bitmap(f"{part.mask:x}")
                    ]
            self.copies = CopiesWritten(request.copy.id, tuple(entries), tuple(sets))
        served = tuple(Served(f"{p.mask:0128x}", p.since, p.applied.intervals, ()) for p in self.parts if p.served)
        staged = tuple(Staged(one.vshards, one.origin.process, one.origin.since, 0) for one in self.staged)
        return PsReport(
            self.process, f"unix:{self.process}", request.sequence, served, copies=self.copies, staged=staged,
            missing=f"{self.missing:0128x}" if self.missing else "", move_error=self.move_error,
        )  # fmt: skip

    def obey(self, world: World, order: ServeOrder) -> None:
        mask, origin = self.rows.newer(int(order.vshards, 16), order.since), order.origin
        if origin is None:
            manifest = world.manifests[order.manifest]
            found = [(1 << vshard, manifest.applied_of(vshard)) for vshard in from_bitmap(f"{mask:x}")]
        elif origin.process == self.process:
            found = self.rows.hand_over(mask, origin.since)
        elif origin.process in world.servers:
            found = world.servers[origin.process].rows.hand_over(mask, origin.since)
        else:
            return
        for part, applied in found:
            self.rows.load(part, order.since, applied)
            mask &= ~part
        self.missing |= mask

    def hand_over(self, vshard: int, since: int) -> IntervalSet | None:
        """End a tenure; what it had, or None when this is not what is held."""
        return next((applied for _, applied in self.rows.hand_over(1 << vshard, since)), None)

    def push(self, number: int, cover: int) -> int:
        """Which of `cover` have the number in their rows afterwards."""
        return self.rows.push(number, cover)


@dataclass
class Worker:
    """A simulated worker process; `acked`: vshards (a mask) that have the present number."""

    pod: str
    process: str
    routing: Routing | None = None
    grants: list[Grant] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    finished: list[int] = field(default_factory=list)
    losses: list[BatchLoss] = field(default_factory=list)
    scores: list[BatchScores] = field(default_factory=list)
    metrics: dict[str, float] | None = None
    at: int = 0
    acked: int = 0
    stopped: bool = False

    def message(self, term: int) -> WorkerSync:
        """What the next call says; reports stay until `said` forgets them."""
        version = self.routing.version if self.routing else 0
        return WorkerSync(
            JOB, term, self.pod, self.process, max(0, 2 - len(self.grants)), tuple(self.finished), version,
            tuple(self.losses), tuple(self.scores), self.metrics,
        )  # fmt: skip

    def hear(self, orders: WorkerOrders) -> None:
        if orders.routing and (self.routing is None or orders.routing.version > self.routing.version):
            self.routing, self.acked = orders.routing, 0
        fresh = [grant for grant in orders.grants if grant.id not in self.seen]
        self.seen |= {grant.id for grant in fresh}
        self.grants += fresh
        for grant in orders.taken_back:
            if self.grants and self.grants[0].id == grant:  # the batch in work is done all the same
                self.grants[0] = replace(self.grants[0], hi=max(self.at, self.grants[0].lo) + 1)
            elif grant not in self.seen or any(one.id == grant for one in self.grants):
                self.grants = [one for one in self.grants if one.id != grant]
                self.seen.add(grant)
                self.finished.append(grant)
        self.stopped |= orders.stop

    def work(self, world: World, loses: frozenset[int] = frozenset()) -> None:
        """One attempt at the present batch; pushes to the places in `loses` get lost on the way."""
        if not self.grants or self.routing is None or self.stopped:
            return
        grant = self.grants[0]
        number = max(self.at, grant.lo)
        if grant.kind == TRAIN:
            if self.routing.version < grant.least_routing:
                return
            for place, cover in enumerate(covers_of(self.routing)):
                server = world.servers.get(self.routing.processes[place])
                if cover and place not in loses and server is not None:
                    world.pushes.append((server.process, number, cover))  # may come again at any time
                    self.acked |= server.push(number, cover)
            if self.acked != (1 << VSHARDS) - 1:
                return
            self.losses.append(BatchLoss(number, 0.5, 8))
        elif grant.kind == EVALUATE:
            array = b"\x00\x00\x00\x3f"
            self.scores.append(BatchScores(number, array, array, array))
        else:
            self.metrics, number = {"auc": 0.5}, grant.hi - 1
        self.acked = 0
        self.at = number + 1
        if self.at >= grant.hi:
            self.finished.append(grant.id)
            self.grants.pop(0)
            self.at = 0


class World:
    """The job, its processes and all messages on their way."""

    def __init__(self, chosen: Settings, plan: Plan | None = None) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.store = MemoryStore()
        self.state = new_state(chosen, self.store, plan)
        self.manifests: dict[str, Manifest] = {"manifest-0": empty_manifest()}
        self.servers: dict[str, Server] = {}  # by process, zombies included
        self.workers: dict[str, Worker] = {}  # by pod
        self.born = 0
        self.pushes: list[tuple[str, int, int]] = []
        self.requests: list[SendPs] = []
        self.reports: list[PsSaid] = []
        self.calls: list[WorkerSync] = []
        self.answers: list[tuple[str, WorkerOrders]] = []
        self.commits: list[CommitDocument] = []
        self.lent: list[Grant] = []
        self.ended: FinishJob | None = None
        self.answer: Callable[[Consider], Decided] = lambda asked: Decided(None, "nobody answers")

    def feed(self, *inputs: Input) -> list[Action]:
        before, cap = set(self.state.ledger.holds.by_id), self.state.settings.limits.cpu
        self.state, actions = step(self.state, inputs, self.clock.now())
        self.check(cap or 0)
        holds = self.state.ledger.holds.by_id
        lent = [(number, hold.pod) for hold in holds.values() for number in range(hold.lo, hold.hi)]
        assert len(lent) == len(set(lent)), "a worker has a number twice"
        doubled = {number for number, times in Counter(number for number, _ in lent).items() if times > 1}
        assert all(times <= 2 for times in Counter(number for number, _ in lent).values())
        if any(key not in before and doubled & set(range(hold.lo, hold.hi)) for key, hold in holds.items()):
            assert not self.state.ledger.todo, "a second worker only gets what nobody else could be lent"
        self.lent += [
            Grant(hold.id, hold.kind, hold.lo, hold.hi, 0)
            for key, hold in self.state.ledger.holds.by_id.items() if key not in before
        ]  # fmt: skip
        for action in actions:
            if isinstance(action, SetPods):
                self.cluster.apply([
                    PodSpec(pod.name, pod.role, (), "", pod.cpu, pod.memory_bytes) for pod in action.pods
                ])  # fmt: skip
            elif isinstance(action, SendPs):
                self.requests.append(action)
            elif isinstance(action, CommitDocument):
                self.commits.append(action)
            elif isinstance(action, ComputeScores):
                self.feed(ScoresReady(0.5, 0.7, "scores.npz"))
            elif isinstance(action, Consider):
                self.feed(self.answer(action))
            elif isinstance(action, FinishJob):
                assert self.ended is None
                self.ended = action
        return actions

    def wish(self, plan: Plan) -> None:
        """Decide for another plan, as an optimizer might."""
        present = self.state.document.plan
        decision = Decision(0.0, "replace", plan, "because", action="Change", before=present)
        if plan != present and self.state.wish is None:
            self.state = replace(self.state, wish=decision)

    def check(self, cap: float) -> None:
        """What must hold after every step; `cap` of cores, for which shares were made before it."""
        state = self.state
        if state.outcome.auc is not None or str(state.phase) in ("evaluating", "scoring", "metrics"):
            assert state.manifest.complete(state.settings.batches)  # the end of training is judged on the manifest
        shares = [status.cpu for status in self.cluster.observe() if not status.ended]
        assert sum(shares) <= cap + 1e-9
        assert not self.state.ledger.holds.numbers() & IntervalSet([(state.settings.batches, 10**9)])

    def tick(self, seconds: float = 0.2) -> None:
        self.clock.advance(seconds)
        pods = self.cluster.observe()
        self.born_processes()
        self.feed(PodsSeen(pods), Tick())

    def born_processes(self) -> None:
        for status in self.cluster.observe():
            known = {server.pod for server in self.servers.values()} | set(self.workers)
            if status.phase == "running" and status.name not in known:
                self.born += 1
                process = f"p{self.born}"
                if status.role == "ps":
                    self.servers[process] = Server(status.name, process)
                else:
                    self.workers[status.name] = Worker(status.name, process)

    def commit(self) -> None:
        """Carry out the oldest swap."""
        action = self.commits.pop(0)
        document = action.document
        if action.manifest is not None:
            ref = ManifestRef(f"manifest-{len(self.manifests)}", "0")
            self.manifests[ref.path] = action.manifest
            document = replace(document, manifest=ref)
        try:
            stored = self.store.compare_and_swap(document, document.version)
        except StaleState as error:
            self.feed(CommitResult(None, stale=True, error=str(error)))
            return
        self.feed(CommitResult(stored, action.manifest))

    def deliver_request(self, at: int = 0, again: bool = False) -> None:
        action = self.requests[at] if again else self.requests.pop(at)
        for server in tuple(self.servers.values()):
            if server.pod == action.pod:
                report = server.sync(self, action.sync)
                if report is not None:
                    self.reports.append(PsSaid(action.pod, report))

    def deliver_report(self, at: int = 0, again: bool = False) -> None:
        self.feed(self.reports[at] if again else self.reports.pop(at))

    def call(self, worker: Worker) -> None:
        """A worker speaks; what it said is said again until an answer comes."""
        if not worker.stopped:
            self.calls.append(worker.message(self.state.document.term))

    def deliver_call(self, at: int = 0, again: bool = False) -> None:
        sync = self.calls[at] if again else self.calls.pop(at)
        for action in self.feed(WorkerSaid(sync)):
            if isinstance(action, AnswerWorker):
                self.answers.append((sync.pod, action.orders))
                worker = self.workers.get(sync.pod)
                if worker is not None:  # the answer may be lost; the worker forgets only what was answered
                    self.heard(worker, sync)

    def heard(self, worker: Worker, sync: WorkerSync) -> None:
        worker.finished = [one for one in worker.finished if one not in sync.finished]
        worker.losses = [one for one in worker.losses if one not in sync.losses]
        worker.scores = [one for one in worker.scores if one not in sync.scores]

    def deliver_answer(self, at: int = 0) -> None:
        pod, orders = self.answers.pop(at)
        if pod in self.workers:
            self.workers[pod].hear(orders)

    def kill(self, pod: str, *, zombie: bool = False) -> None:
        """kill -9, or a false death: the cluster says it is gone and the process lives on."""
        if zombie:
            self.cluster.evict(pod)
            return
        self.cluster.kill(pod)
        self.workers.pop(pod, None)
        self.servers = {process: server for process, server in self.servers.items() if server.pod != pod}

    def successor(self) -> None:
        """The controller dies, and another one takes the job over: it knows the stored document and nothing else."""
        for waiting in (self.requests, self.reports, self.calls, self.answers, self.commits):
            waiting.clear()
        document = take_term(self.store, self.state.document)
        self.state = first_state(self.state.settings, document, self.manifests[document.manifest.path])

    def round(self, answers: bool = True) -> None:
        """One fair round: everything on its way arrives, everybody works."""
        self.tick()
        while self.commits:
            self.commit()
        while self.requests:
            self.deliver_request()
        while self.reports:
            self.deliver_report()
        for worker in tuple(self.workers.values()):
            for _ in range(4):
                worker.work(self)
            self.call(worker)
        while self.calls:
            self.deliver_call()
        while self.answers:
            self.deliver_answer()
        while self.commits:
            self.commit()

    def until_end(self, rounds: int = 400) -> FinishJob:
        for _ in range(rounds):
            if self.ended is not None:
                return self.ended
            self.round()
        state = self.state
        raise AssertionError(
            f"no end after {rounds} rounds: {state.phase}, to do {state.ledger.todo}, held {state.ledger.holds.by_id}, "
            f"settling {state.ledger.settling}, served {state.ledger.served}, committing {state.committing}, "
            f"pods {list(state.pods.values())}, round {state.round}"
        )
