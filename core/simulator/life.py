"""One life of a controller in the simulated cluster: the real `step`, and the driver's part around it.

What the driver does with threads is done here with events, in the same order and with the same limits: one call at a
time to each parameter server, one write at a time, an answer for each worker's call. When the life is over its messages
still arrive where they were sent; nobody hears the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from trimtab.core.cluster.base import PodSpec, PodStatus
from trimtab.core.cluster.fake import FakeCluster
from trimtab.core.controller.actions import (
    Action,
    AnswerWorker,
    CommitDocument,
    ComputeScores,
    Consider,
    FinishJob,
    Note,
    PodName,
    RefuseWorker,
    RemoveSuperseded,
    SendPs,
    SetPods,
)
from trimtab.core.controller.inputs import (
    CommitResult,
    Decided,
    Input,
    Late,
    PodsSeen,
    PsSaid,
    ScoresReady,
    Tick,
    WorkerSaid,
)
from trimtab.core.controller.state import State
from trimtab.core.controller.step import step
from trimtab.core.domain.job import JobState
from trimtab.core.domain.values import replace
from trimtab.core.errors import StaleState
from trimtab.core.optimizer.question import Question
from trimtab.core.simulator.network import ANSWERS, REPORTS, REQUESTS
from trimtab.core.wire.messages import PsReport, WorkerOrders, WorkerSync

if TYPE_CHECKING:
    from trimtab.core.simulator.job_world import JobWorld
    from trimtab.core.simulator.workers import Worker

GRACE_SECONDS = 2.0
PS_TIMEOUT_SECONDS = 5.0
COMMIT_SECONDS = 0.02
LATE_SECONDS = 5.0  # between two looks: then the driver knows that it was not listening
BUSY_SHARE = 0.5  # of the time between two ticks, while everybody waits for parameter servers


class Life:
    """From a first state to the end of the job, or of the controller.

    Attributes:
        state: the present one. cluster: where its pods run. over: nothing of it happens any more.
        finished: how the job ended, None while it has not.
    """

    def __init__(self, world: JobWorld, state: State) -> None:
        self.world, self.state = world, state
        self.cluster = FakeCluster(world.loop.clock, world.script, grace_seconds=GRACE_SECONDS)
        self.over = False
        self.finished: FinishJob | None = None
        self._calling: dict[str, int] = {}
        self._calls = self._ticks = self._started = 0
        self._views: deque[tuple[float, tuple[PodStatus, ...]]] = deque()
        self._once: dict[str, PodStatus] = {}
        self._looked_at = world.loop.clock.now()

    # ---- steps

    def tick(self) -> None:
        """Look at everything, and again after a while."""
        if self.over:
            return
        self._ticks += 1
        number, now = self._ticks, self.world.loop.clock.now()
        late, self._looked_at = now - self._looked_at, now
        said = (Late(late),) if late > LATE_SECONDS else ()
        self.feed(*said, PodsSeen(self._view()), Tick())
        seconds = self.world.schedule.tick_seconds * (BUSY_SHARE if self.state.waits_for_servers else 1.0)

        def due() -> None:
            if number == self._ticks:
                self.tick()

        self.world.loop.after(seconds, due)

    def feed(self, *inputs: Input) -> list[AnswerWorker | RefuseWorker]:
        """One step; what is to be done is done or begun."""
        if self.over:
            return []
        before = self.state
        self.state, actions = step(before, inputs, self.world.loop.clock.now())
        self.world.promises.stepped(self, before, inputs, actions)
        for action in actions:
            self._carry_out(action)
        return [one for one in actions if isinstance(one, AnswerWorker | RefuseWorker)]

    def _carry_out(self, action: Action) -> None:
        loop = self.world.loop
        if isinstance(action, SetPods):
            self._apply(action.pods)
        elif isinstance(action, SendPs):
            self._call(action)
        elif isinstance(action, CommitDocument):
            hangs = max(0.0, self.world.commits_hang_until - loop.clock.now())
            loop.after(COMMIT_SECONDS + hangs, lambda: self._swap(action))
        elif isinstance(action, RemoveSuperseded):
            self.world.storage.remove(action.old, action.new)
            self.world.promises.removed()
        elif isinstance(action, ComputeScores):
            loop.after(0.1, lambda: self.feed(ScoresReady(0.5, 0.7, "scores.npz")))
        elif isinstance(action, Consider):
            loop.after(0.05, lambda: self._decide(action.question))
        elif isinstance(action, Note):
            self.world.tell(action.kind, action.text)
        elif isinstance(action, FinishJob):
            self._finish(action)

    # ---- pods

    def _apply(self, pods: Sequence[PodName]) -> None:
        there = self.pods()
        self.cluster.apply([PodSpec(pod.name, pod.role, (), "", pod.cpu, pod.memory_bytes) for pod in pods])
        now = self.pods()
        self.world.promises.applied(self, there, now)
        for spec in self.cluster.started[self._started :]:
            self.world.boot(self, spec.name, spec.role)
        self._started = len(self.cluster.started)
        self.world.look(now)

    def _view(self) -> tuple[PodStatus, ...]:
        """The cluster's pods, as they are or as they were a while ago; never older than what was seen before."""
        now, late = self.world.loop.clock.now(), self.world.view_seconds
        found = {one.name: one for one in self.pods()}
        self._views.append((now, tuple((self._once | found)[name] for name in sorted(self._once | found))))
        self._once = {}
        while len(self._views) > 1 and self._views[1][0] <= now - late:
            self._views.popleft()
        self.world.look(tuple(found.values()))
        return self._views[0][1]

    def pods(self) -> tuple[PodStatus, ...]:
        """All pods as they are; what the cluster shows once only is kept for the controller's next look."""
        found = self.cluster.observe()
        self._once |= {one.name: one for one in found if one.ended and one.out_of_memory}
        return found

    # ---- parameter servers

    def _call(self, action: SendPs) -> None:
        """Call one, unless the last call is still on its way."""
        if action.pod in self._calling:
            return
        self._calls += 1
        number = self._calling[action.pod] = self._calls
        self.world.loop.after(PS_TIMEOUT_SECONDS, lambda: self._give_up(action.pod, number))
        self.world.network.send(REQUESTS, lambda: self._arrive(action, number))

    def _give_up(self, pod: str, number: int) -> None:
        if self._calling.get(pod) == number:
            del self._calling[pod]

    def _arrive(self, action: SendPs, number: int) -> None:
        server = self.world.server_in(action.pod)
        if server is None:
            self._give_up(action.pod, number)
        elif server.hung:
            server.after(0.0, lambda: self._arrive(action, number))
        elif (report := server.hear(action.sync)) is not None:
            heard = report
            self.world.network.send(REPORTS, lambda: self._hear(action.pod, number, heard))
        else:
            self._give_up(action.pod, number)

    def _hear(self, pod: str, number: int, report: PsReport) -> None:
        self._give_up(pod, number)
        self.feed(PsSaid(pod, report))

    # ---- workers

    def called(self, worker: Worker, sync: WorkerSync) -> None:
        """A call has arrived; its answer goes out."""
        if sync.trouble and not self.state.waits_for_servers:
            self.world.loop.after(0.0, self.tick)
        answers = self.feed(WorkerSaid(sync))
        if self.over and not answers:
            return
        self.world.promises.answered(len(answers))
        orders: WorkerOrders | None = answers[0].orders if isinstance(answers[0], AnswerWorker) else None
        self.world.network.send(ANSWERS, lambda: worker.answered(sync, orders))

    # ---- the store, the optimizer, the end

    def _swap(self, action: CommitDocument) -> None:
        """Store; of a controller that has died meanwhile it may be stored or not."""
        world, document = self.world, action.document
        if self.over and world.loop.random.random() < 0.5:
            return
        if world.failing.get("commit_fails", 0):
            world.failing["commit_fails"] -= 1
            self.feed(CommitResult(None, error="no space left on device"))
            return
        if action.manifest is not None:
            document = replace(document, manifest=world.storage.put(action.manifest))
        try:
            stored = world.store.compare_and_swap(document, document.version)
        except StaleState as error:
            self.feed(CommitResult(None, stale=True, error=str(error)))
            return
        world.promises.stored(stored)
        self.feed(CommitResult(stored, action.manifest))
        self.world.loop.after(0.0, self.tick)

    def _decide(self, question: Question) -> None:
        self.feed(Decided(self.world.decide(question)))

    def _finish(self, action: FinishJob) -> None:
        """Store how the job ended; every pod ends."""
        document = replace(self.state.document, state=action.state, reason=action.reason)
        with suppress(StaleState):
            try:
                document = self.world.store.compare_and_swap(document, document.version)
            except StaleState:
                present = self.world.store.read()
                if present is None or present.term != document.term:
                    raise
                present = replace(present, state=action.state, reason=action.reason)
                document = self.world.store.compare_and_swap(present, present.version)
        self.over, self.finished = True, action
        self.world.promises.ended(self, action)
        self.cluster.close()
        self.world.ended(self, stopped=action.state is JobState.STOPPED)

    def die(self) -> None:
        """The controller is killed: nothing is stored, nobody is told."""
        self.over = True
