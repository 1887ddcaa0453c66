"""The controller's state: one immutable value, and the draft that a step works on.

All that a decision rests on is here, so a test can build any situation, and a trace of a failure can be replayed. The
draft exists only inside `step`: it collects the next state and the actions, and is thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import islice
from operator import attrgetter
from typing import ClassVar

from trimtab.core.controller.actions import Action, Note
from trimtab.core.controller.document import Document
from trimtab.core.controller.inputs import Trouble
from trimtab.core.controller.ledger import EvaluationLedger, Ledger
from trimtab.core.controller.losses import Losses
from trimtab.core.controller.rounds import Checkpoints, CopyRound, Stop
from trimtab.core.controller.settings import Settings
from trimtab.core.controller.spreading import Balance, Layout
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.job import PlanChange
from trimtab.core.domain.records import Decision, Finding, Observation
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.stability.hot_ps import ServerWatch
from trimtab.core.optimizer.stability.memory import MemoryWatch
from trimtab.core.optimizer.stability.stragglers import Pace
from trimtab.core.perf.memory import Growth, KeyGrowth
from trimtab.core.ps.manifest import Manifest
from trimtab.core.wire.messages import Origin, PsReport

MOST_FAILED_ROUNDS = 8  # of final checkpoints, or of swaps that nothing can go on without: a minute and a half
_LONGEST_PAUSE_SECONDS = 30.0
_SLOT = attrgetter("slot")
MOST_METRIC_TRIES = 3  # then the job is finished without the model's own metrics


class Phase(StrEnum):
    """What the job is doing. The end is decided on the committed manifest, never on reports."""

    STARTING = "starting"
    TRAINING = "training"
    STOPPING = "stopping"
    CLOSING = "closing"
    EVALUATING = "evaluating"
    SCORING = "scoring"
    METRICS = "metrics"
    OVER = "over"


@dataclass(frozen=True)
class Slot:
    """A place in a role. Its pods come and go; each has the next generation.

    Attributes:
        generation: of the present or next pod, from 1. starts_at: the next pod is not wanted before.
        in_row, total: failures of its pods, without getting anything done and in all.
        active: the plan has it. An inactive place's pod finishes what it has and leaves.
        started: it has had a pod since the plan has it, so its memory is its own also while it waits for a new one.
        cpu: cores of its pods where it has more than the plan gives, 0: the plan's. Others give them.
        tight_bytes: what its pods get instead of the plan's memory while the one that they come for is there, 0: all.
        memory_bytes: what its pods get in the place of the plan's memory, 0: the plan's. out_of_memory: how often its
            pods were killed for want of it; kills_before: of these, before it was taken up anew, for other work.
            killed_at: when last. lost_since: since then nobody works here, None while somebody does. lost_seconds: how
            long that was in all.
    """

    role: str
    index: int
    generation: int = 1
    starts_at: float = 0.0
    in_row: int = 0
    total: int = 0
    active: bool = True
    started: bool = False
    memory_bytes: int = 0
    out_of_memory: int = 0
    kills_before: int = 0
    cpu: float = 0.0
    tight_bytes: int = 0
    killed_at: float | None = None
    lost_since: float | None = None
    lost_seconds: float = 0.0

    def pod_name(self, term: int) -> str:
        """Unique for ever: role, place, controller term, generation."""
        return f"{self.role}-{self.index}-t{term}-g{self.generation}"

    def anew(self) -> Slot:
        """The same place for new pods with other work: what its pods so far needed or failed at says nothing of these.

        Names and the count of kills go on.
        """
        return Slot(
            self.role, self.index, self.generation, out_of_memory=self.out_of_memory, kills_before=self.out_of_memory
        )


@dataclass(frozen=True)
class Succession:
    """A place that is to take over from another of its role, and is up beside it before that one goes.

    Attributes:
        new: index of the place that comes. The plan has it only once it has taken over. began_at: since when.
        why: what is wrong with the old one, as a clause.
    """

    new: int
    began_at: float
    why: str


@dataclass(frozen=True)
class Pod:
    """A pod that should run, and what it has said.

    Attributes:
        seen: the cluster has shown it. wanted_at: since when it should run. heard_at: last word, None for none.
        process: its random id, "" before its first word. worked: it has got something done.
        report: a PS's last one. first_applied: how many numbers a PS had when it first served everything.
        speed, shard, finished_at, worked_at: a worker's batches per second, last shard size, times of the last
            finished shard and of the last sign of work.
        cpu_seconds, rss_bytes: as last reported. cache_bytes: likewise, of gradients that a worker keeps.
        memory_limit, memory_used: bytes as the cluster enforces and sees them, 0 where it does not.
        batches, rows: a worker's that counted (each number once). phase_seconds: its time by phase. waits: how long it
            has waited for answers of each parameter server that there is, by process.
        reported: training batches it told of, also those that others had told of before.
        taken_back: loans that were ended though it has them, until it says that it begins nothing of them.
        done: numbers of its loans that it told of.
    """

    name: str
    slot: tuple[str, int]
    wanted_at: float
    seen: bool = False
    heard_at: float | None = None
    process: str = ""
    worked: bool = False
    report: PsReport | None = None
    first_applied: int | None = None
    speed: float | None = None
    shard: int = 0
    finished_at: float = 0.0
    worked_at: float = 0.0
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    cache_bytes: int = 0
    memory_limit: int = 0
    memory_used: int = 0
    batches: int = 0
    rows: int = 0
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)
    reported: int = 0
    taken_back: tuple[int, ...] = ()
    done: IntervalSet = EMPTY

    @property
    def role(self) -> str:
        """Its place's role."""
        return self.slot[0]


@dataclass(frozen=True)
class Departed:
    """What a pod that was told to end keeps until it has: cores and bytes; and its place."""

    cpu: float
    memory_bytes: int
    slot: tuple[str, int] = ("", 0)


@dataclass(frozen=True)
class Tenancy:
    """Vshards (a mask) that were given to a new owner since `since`, and who still holds their freshest rows."""

    mask: int
    since: int
    origin: Origin


@dataclass(frozen=True)
class Switch:
    """A plan that has come into force and is watched until it is measured.

    Attributes:
        number: of its decision. began_at: when it was decided. max_gap_seconds: longest wait of a worker since.
        settled: the new plan is in full force.
    """

    number: int
    began_at: float
    max_gap_seconds: float = 0.0
    settled: bool = False


@dataclass(frozen=True)
class Mark:
    """What one pod had reported at one time."""

    at: float
    cpu_seconds: float
    batches: int
    rows: int
    phase_seconds: Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """What evaluation brought; None where it has not (or could not)."""

    auc: float | None = None
    log_loss: float | None = None
    metrics: Mapping[str, float] | None = None
    scores_path: str = ""


@dataclass(frozen=True)
class State:
    """All of it. `document` and `manifest` are as committed.

    Attributes:
        committing: a swap is on its way; committing_since: since when.
        slots, pods: places by (role, index); pods that should run, by name.
        sequence: highest sent to any PS. next_id: of the next grant or copy round.
        failed_commits, commit_at: swaps in a row that could not be stored; the next routing waits until then.
        round: the running round of copies. copied_at: when the last one ended. failed_rounds: in a row, while closing.
        resends: dropped pushes of PSs that have gone.
        served_at: since when everything is served without a break, None while it is not. unserved_at: since when
            something is not, and nobody loads. loading_at: since when something is not, and somebody has loaded.
        barred: places that no plan gets any more, because their pods came to nothing. giving_up: the one that the
            wish is about.
        successions: places that others are to take over from, by (role, index); see `successors`. retired: places that
            others have taken over from, until their pods are gone. pace: what is known of the workers' speeds.
        metric_tries: how often the compiled metrics were asked for.
        out_of_memory: the role whose memory ended the job, "" otherwise.
        cpu_gone: CPU seconds of pods that are gone, as last reported.
        departed: pods that were told to end and are still there, with what they keep.
        waiting: places (by role) that wait for the memory of pods that leave.
        tenancies: moves whose new owner does not serve yet. coming: those of a routing on its way to the store.
        hot: what is remembered about the parameter servers' times.
        layout: where each vshard should lie, None until the first routing is in force. balance: what was measured of
            them. moving: some should move. staged_at: since when all of these are prepared.
            staged_rows: what their last refreshes brought.
        plans: every plan in force so far. decisions: all of them. observations: settled windows.
        wish: a decision that is to be committed. considering: a question is being answered.
        caps_fell: the caps are not those that the job began with, and have been lower than before.
        switch: the last change, until it is measured.
        settled_at: since when everything runs as planned. marks: of the running window, by pod.
        growth: samples of the tables' growth. idle: seconds since the job's start in which no controller ran it.
        checkpoints: what was asked for, and what came of it. stop: the job is to stop.
        noticed: what is wrong outside, as last told; degraded: findings that come of that and of what `degraded` sees.
        memory: what is known of the pods' memory.
        findings: what is wrong at present, by kind and subject.
    """

    MADE_OF: ClassVar = {  # see domain/values
        "_by_role": ("pods",), "_active": ("slots", "successions"), "key_growth": ("growth",)
    }  # fmt: skip

    settings: Settings
    document: Document
    manifest: Manifest
    ledger: Ledger
    evaluation: EvaluationLedger
    slots: Mapping[tuple[str, int], Slot]
    phase: Phase = Phase.STARTING
    pods: Mapping[str, Pod] = field(default_factory=dict)
    committing: bool = False
    committing_since: float | None = None
    failed_commits: int = 0
    commit_at: float = 0.0
    sequence: int = 0
    next_id: int = 1
    round: CopyRound | None = None
    copied_at: float = 0.0
    failed_rounds: int = 0
    losses: Losses = field(default_factory=Losses)
    outcome: Outcome = field(default_factory=Outcome)
    served_at: float | None = None
    unserved_at: float | None = None
    loading_at: float | None = None
    barred: frozenset[tuple[str, int]] = frozenset()
    giving_up: tuple[str, int] | None = None
    successions: Mapping[tuple[str, int], Succession] = field(default_factory=dict)
    retired: frozenset[tuple[str, int]] = frozenset()
    pace: Pace = field(default_factory=Pace)
    max_gap_seconds: float = 0.0
    resends: int = 0
    metric_tries: int = 0
    out_of_memory: str = ""
    cpu_gone: float = 0.0
    departed: Mapping[str, Departed] = field(default_factory=dict)
    waiting: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tenancies: tuple[Tenancy, ...] = ()
    coming: tuple[Tenancy, ...] = ()
    hot: ServerWatch = field(default_factory=ServerWatch)
    layout: Layout | None = None
    balance: Balance = field(default_factory=Balance)
    moving: bool = False
    staged_at: float | None = None
    staged_rows: int | None = None
    plans: tuple[PlanChange, ...] = ()
    decisions: tuple[Decision, ...] = ()
    observations: tuple[Observation, ...] = ()
    wish: Decision | None = None
    considering: bool = False
    caps_fell: bool = False
    switch: Switch | None = None
    settled_at: float | None = None
    marks: Mapping[str, Mark] = field(default_factory=dict)
    growth: tuple[Growth, ...] = ()
    idle: tuple[tuple[float, float], ...] = ()
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    stop: Stop | None = None
    noticed: tuple[Trouble, ...] = ()
    degraded: frozenset[tuple[str, str]] = frozenset()
    memory: MemoryWatch = field(default_factory=MemoryWatch)
    findings: Mapping[tuple[str, str], Finding] = field(default_factory=dict)

    @property
    def waits_for_servers(self) -> bool:
        """Whether somebody waits for parameter servers to be called again: start, end, moves that can be carried out.

        Not while moves are being prepared: with small shares the calls alone would take what that needs.
        """
        if self.phase is Phase.TRAINING:
            return not self.ledger.served or self.staged_at is not None or bool(self.tenancies)
        return self.phase in (Phase.STARTING, Phase.STOPPING, Phase.CLOSING)

    def servers(self) -> list[Pod]:
        """Parameter-server pods, by place, leaving ones included."""
        return list(self._by_role["ps"])

    def workers(self) -> list[Pod]:
        """Worker pods, by place, leaving ones included."""
        return list(self._by_role["worker"])

    def active(self, role: str) -> list[int]:
        """Places of a role that the plan has; one that is to take over is not among them yet."""
        return list(self._active[role])

    @cached_property
    def key_growth(self) -> KeyGrowth:
        """The law of the tables' growth, fitted to what was seen of it."""
        return KeyGrowth(self.growth)

    @cached_property
    def _by_role(self) -> Mapping[str, list[Pod]]:
        pods = sorted(self.pods.values(), key=_SLOT)
        return {role: [pod for pod in pods if pod.slot[0] == role] for role in ("ps", "worker")}

    @cached_property
    def _active(self) -> Mapping[str, list[int]]:
        coming = {(role, one.new) for (role, _), one in self.successions.items()}
        found: dict[str, list[int]] = {"ps": [], "worker": []}
        for key, slot in sorted(self.slots.items()):
            if slot.active and key not in coming:
                found[key[0]].append(key[1])
        return found

    def of_plan(self, key: tuple[str, int]) -> bool:
        """Whether a place's pod has what the present plan gives: the plan has the place, or had it until just now."""
        return self.slots[key].active or key in self.retired

    def places(self, role: str, count: int) -> list[int]:
        """The places that a plan with `count` pods of a role has: those it has had, and then the first free ones."""
        kept = [index for index in self.active(role) if (role, index) not in self.barred][:count]
        passed = {index for of, index in self.barred | self.retired if of == role}
        passed |= {one.new for (of, _), one in self.successions.items() if of == role} | set(kept)
        fresh = islice((index for index in range(count + len(passed)) if index not in passed), count - len(kept))
        return sorted([*kept, *fresh])

    def seconds(self, now: float) -> float:
        """Since the job's start."""
        return now - self.settings.began_at


def pause_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row: 0, 1, 2, 4, ... 30 seconds. A full disk may get room again."""
    return min(_LONGEST_PAUSE_SECONDS, 2.0 ** (failures - 1)) if failures else 0.0


class Draft:
    """A step's working copy."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.actions: list[Action] = []

    @property
    def over(self) -> bool:
        """Whether the job has ended: nothing is decided any more."""
        return self.state.phase is Phase.OVER

    def act(self, action: Action) -> None:
        """One more thing to do."""
        self.actions.append(action)

    def note(self, kind: str, text: str, **data: object) -> None:
        """One more line of the events file."""
        self.actions.append(Note(kind, text, data))

    def put_pod(self, pod: Pod) -> None:
        """Replace (or add) a pod."""
        self.state = replace(self.state, pods={**self.state.pods, pod.name: pod})

    def put_slot(self, slot: Slot) -> None:
        """Replace a place."""
        self.state = replace(self.state, slots={**self.state.slots, (slot.role, slot.index): slot})

    def enter(self, phase: Phase, text: str) -> None:
        """Change the phase, and say so."""
        if self.state.phase is not phase:
            self.state = replace(self.state, phase=phase)
            self.note("phase", text, phase=str(phase))


def first_state(settings: Settings, document: Document, manifest: Manifest) -> State:
    """A controller that has just taken its term: it knows the document and nothing of any pod."""
    plan = document.plan
    slots = {("ps", index): Slot("ps", index) for index in range(plan.ps.replicas)}
    slots |= {("worker", index): Slot("worker", index) for index in range(plan.worker.replicas)}
    ledger = Ledger(settings.batches).routed(document.routing)
    evaluation = EvaluationLedger(settings.evaluation_batches)
    # Ids of another term must never be taken for ours, nor ours for theirs.
    first_id = document.term * 1_000_000_000 + 1
    first = document.decisions[-1] if document.decisions else None
    at = first.time_seconds if first is not None else 0.0
    return State(
        settings, document, manifest, ledger, evaluation, slots, next_id=first_id,
        plans=(PlanChange(at, plan, first.reason if first is not None else ""),), decisions=document.decisions,
        switch=Switch(first.number, settings.began_at + at) if first is not None else None,
    )  # fmt: skip
