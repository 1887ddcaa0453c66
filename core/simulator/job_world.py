"""A whole job in one thread: controllers' lives one after the other, processes, wires, a store; one seed decides all.

The controller's decisions are the product's own (`controller/step.py` with everything below it). Around them stand
simulated processes that are true to the protocol and take time, the fake cluster, and the schedule that lets things go
wrong. Every step is watched by `promises`; the run ends when the job has, or when it should have long ago.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from trimtab.core.cluster.base import PodSpec, PodStatus
from trimtab.core.cluster.fake import Outcome
from trimtab.core.controller.document import Document
from trimtab.core.controller.settings import Settings
from trimtab.core.controller.state import first_state
from trimtab.core.controller.store import MemoryStore, take_term
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.plan import SMALLEST_CPU, Limits, Plan, table_room, within
from trimtab.core.domain.records import Decision
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.question import Question
from trimtab.core.simulator.faults import carry_out
from trimtab.core.simulator.life import Life
from trimtab.core.simulator.loop import DrivenLoop
from trimtab.core.simulator.network import Network
from trimtab.core.simulator.processes import Process
from trimtab.core.simulator.promises import Promises
from trimtab.core.simulator.schedules import MOST_PS, MOST_WORKERS, STEADY, Schedule
from trimtab.core.simulator.servers import Server
from trimtab.core.simulator.settings import settings_of
from trimtab.core.simulator.storage import JOB, Storage
from trimtab.core.simulator.workers import RSS_BYTES, Worker
from trimtab.core.wire.messages import WorkerSync

PATIENCE_SECONDS = 600.0  # after the last fault: whatever is repaired is repaired long before
LOOK_SECONDS = 10.0
_MOST_EVENTS = 400_000
_EVEN = (1 / VSHARDS,) * VSHARDS


@dataclass(frozen=True)
class Ending:
    """How a run ended: the job's last state and reason, lives of controllers, simulated seconds, steps."""

    state: JobState
    reason: str
    lives: int
    seconds: float
    steps: int


class JobWorld:
    """One run.

    Attributes:
        loop, network, storage, store: see there. servers: by process id, zombies included. workers: likewise.
        life: of the present controller, None between two.
        limits: what the job may use now. failing: how often what still fails, by kind.
        commits_hang_until, hanging_until: no swap ends, no copy is written before.
        view_seconds: how old the cluster's pods are seen. spawn_seconds: that a pod is pending.
        slow: times that everything takes, by role and place. events_over_at: when the last fault has passed.
    """

    def __init__(self, schedule: Schedule, listen: Callable[[str], None] | None = None) -> None:
        self.schedule = schedule
        self.loop = DrivenLoop(schedule.seed)
        self.network, self.storage, self.store = Network(self.loop), Storage(), MemoryStore()
        self.servers: dict[str, Server] = {}
        self.workers: dict[str, Worker] = {}
        self.life: Life | None = None
        self.limits = Limits(schedule.cpu, schedule.memory_bytes, MOST_WORKERS, MOST_PS)
        self.failing: dict[str, int] = {}
        self.commits_hang_until = self.hanging_until = 0.0
        self.view_seconds = self.spawn_seconds = 0.0
        self.slow: dict[tuple[str, int], float] = {}
        self.quiet_at = max((event.at for event in schedule.events), default=0.0)
        self.resume_seconds = 1.0
        self.promises = Promises(self)
        self._listen = listen
        self._born = self._lives = 0
        self.weights = _EVEN
        self._weight_of: dict[int, float] = {}
        self._cores: dict[str, float] = {}
        self._limits: dict[str, int] = {}
        self._alive: dict[str, Process] = {}  # by pod, of the present life
        self._ending: Ending | None = None

    # ---- the run

    def run(self) -> Ending:
        """From the job's start to its end.

        Raises:
            PromiseBroken: names the promise.
        """
        self.begin()
        for event in self.schedule.events:
            self.loop.after(event.at, partial(carry_out, self, event))
        while self._ending is None:
            self.loop.run(LOOK_SECONDS, _MOST_EVENTS)
            if self._ending is None:
                self.promises.in_time(self.quiet_at + 5 * self.schedule.seconds + PATIENCE_SECONDS)
        return self._ending

    def begin(self) -> None:
        """The first controller takes the job."""
        fresh = Document(JOB, JobSpec("data.csv"), self.schedule.plan, self.storage.first)
        self._live(take_term(self.store, fresh))

    def resume(self) -> None:
        """The next controller goes on from what is stored, within today's caps."""
        present = self.store.read()
        if self._ending is not None or present is None or self.life is not None:
            return
        plan = fitted(present.plan, self.limits)
        document = replace(present, term=present.term + 1, state=JobState.RUNNING, reason="", plan=plan)
        self._live(self.store.compare_and_swap(document, present.version))

    def _live(self, document: Document) -> None:
        self._lives += 1
        self.tell("controller", f"takes term {document.term} with plan {document.plan}")
        settings: Settings = settings_of(self.schedule, self.limits)
        self.life = Life(self, first_state(settings, document, self.storage.manifests[document.manifest.path]))
        self.promises.began(self.life)
        self.life.tick()

    def ended(self, life: Life, *, stopped: bool) -> None:
        """The job has ended in this life; a stopped one goes on later."""
        assert life.finished is not None
        for one in tuple(self._alive.values()):
            self.bury(one)
        self.life = None
        self.tell("end", f"{life.finished.state}: {life.finished.reason}")
        if stopped:
            self.loop.after(self.resume_seconds, self.resume)
            return
        action, now = life.finished, self.loop.clock.now()
        self._ending = Ending(action.state, action.reason, self._lives, now, self.promises.steps)

    def disturb(self, seconds: float) -> None:
        """Something is out of order for so long from now."""
        self.quiet_at = max(self.quiet_at, self.loop.clock.now() + seconds)

    def tell(self, kind: str, text: str) -> None:
        """One line of what happens, for whoever looks at this run."""
        if self._listen is not None:
            self._listen(f"{self.loop.clock.now():9.3f}  {kind:<16} {text}")

    # ---- pods and processes

    def script(self, spec: PodSpec) -> Outcome:
        """What the cluster does with a new pod."""
        stop = self.loop.random.choice((0.0, 0.1, 1.0, None))
        if self.failing.get(f"spawn_{spec.role}", 0):
            self.failing[f"spawn_{spec.role}"] -= 1
            return Outcome(0.1, 0.3, 1, stop)
        return Outcome(0.05 + self.spawn_seconds, None, 0, stop)

    def boot(self, life: Life, pod: str, role: str) -> None:
        """A pod was started: some time later its process is there, if the pod still is."""
        boot = self.schedule.boot_seconds * self.loop.random.uniform(0.7, 1.3)
        self.loop.after(0.1 + self.spawn_seconds + boot, lambda: self._be_born(life, pod, role))

    def _be_born(self, life: Life, pod: str, role: str) -> None:
        shown = {status.name: status for status in life.pods()}
        if life.over or pod not in shown or shown[pod].phase != "running":
            return
        self._born += 1
        kind = Server if role == "ps" else Worker
        made = kind(self, pod, f"p{self._born}", life.state.document.term)
        made.slow = self.slow.get((role, place_of(pod)), 1.0)
        self._alive[pod] = made
        if isinstance(made, Server):
            self.servers[made.process] = made
            made.memory_bytes = table_room(shown[pod].memory_bytes)
        else:
            self.workers[made.process] = made
            made.start()
            self.use(pod, RSS_BYTES)

    def look(self, pods: Sequence[PodStatus]) -> None:
        """Processes whose pod has ended are gone; the others have the cores that the cluster gives."""
        shown = {status.name: status.cpu for status in pods if not status.ended}
        self._cores |= shown
        self._limits = {status.name: status.memory_bytes for status in pods}
        for pod in [pod for pod in self._alive if pod not in shown]:
            self.bury(self._alive[pod])

    def bury(self, process: Process) -> None:
        """A process is gone."""
        process.dead = True
        self.servers.pop(process.process, None)
        self.workers.pop(process.process, None)
        if self._alive.get(process.pod) is process:
            del self._alive[process.pod]

    def forget(self, pod: str) -> Process | None:
        """The cluster does not know this pod any more; its process lives on."""
        return self._alive.pop(pod, None)

    def living(self, role: str) -> list[str]:
        """Pods of a role whose processes live, as the present controller's cluster knows them."""
        return sorted(pod for pod in self._alive if pod.startswith(f"{role}-"))

    def process_in(self, pod: str) -> Process | None:
        """The process of a pod."""
        return self._alive.get(pod)

    def server_in(self, pod: str) -> Server | None:
        """The parameter server of a pod."""
        found = self._alive.get(pod)
        return found if isinstance(found, Server) else None

    # ---- what processes ask

    def cores(self, pod: str) -> float:
        """What a pod has now, or had at last."""
        return self._cores.get(pod, 0.0)

    def use(self, pod: str, memory_bytes: int) -> None:
        """A pod uses so much; the cluster kills it when that is more than it may."""
        found = self._alive.get(pod)
        if self.life is None or found is None:
            return
        self.life.cluster.use(pod, memory_bytes)
        if memory_bytes > self._limits.get(pod, memory_bytes):
            self.tell("oom", f"{pod} uses {memory_bytes >> 20} MiB")
            self.bury(found)

    def weight(self, mask: int) -> float:
        """Share of a batch's push that these vshards get."""
        if self.weights is _EVEN:
            return mask.bit_count() / VSHARDS
        if mask not in self._weight_of:
            self._weight_of[mask] = sum(one for vshard, one in enumerate(self.weights) if mask >> vshard & 1)
        return self._weight_of[mask]

    def make_hot(self, vshards: Sequence[int], times: float) -> None:
        """Some vshards get so many times the traffic of another."""
        hot = set(vshards)
        weights = [times if vshard in hot else 1.0 for vshard in range(VSHARDS)]
        self.weights, self._weight_of = tuple(one / sum(weights) for one in weights), {}

    def called(self, worker: Worker, sync: WorkerSync) -> None:
        """A worker's call has reached the controller's address."""
        if self.life is not None:
            self.life.called(worker, sync)

    def out_of_memory(self, pod: str) -> None:
        """The kernel kills a pod over its memory, and the cluster knows why."""
        found = self._alive.get(pod)
        if self.life is not None and found is not None and not found.dead:
            self.tell("oom", pod)
            self.life.cluster.kill(pod, out_of_memory=True)
            self.bury(found)

    def decide(self, question: Question) -> Decision:
        """The optimizer: it keeps the plan; the schedule changes it."""
        return Decision(question.time_seconds, "hold", question.plan, "the schedule changes it", before=question.plan)

    @property
    def steady(self) -> bool:
        """Whether this is a job of long steps."""
        return self.schedule.pace == STEADY


def place_of(pod: str) -> int:
    """The place that a pod's name tells."""
    return int(pod.split("-")[1])


def fitted(plan: Plan, limits: Limits) -> Plan:
    """The plan, made as small as the caps want it."""
    while not within(plan, limits):
        worker, ps = plan.worker, plan.ps
        cpu = limits.cpu if limits.cpu is not None else plan.cpu
        if worker.replicas > 1:
            plan = replace(plan, worker=replace(worker, replicas=worker.replicas - 1))
        elif ps.replicas > 1:
            plan = replace(plan, ps=replace(ps, replicas=ps.replicas - 1))
        else:
            share = cpu / plan.cpu
            return Plan(replace(ps, cpu=max(SMALLEST_CPU, ps.cpu * share)), replace(worker, cpu=worker.cpu * share))
    return plan
