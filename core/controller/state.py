"""The controller's state: one immutable value, and the draft that a step works on.

All that a decision rests on is here, so a test can build any situation, and a trace of a failure can be replayed. The
draft exists only inside `step`: it collects the next state and the actions, and is thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from trimtab.core.controller.actions import Action, Note
from trimtab.core.controller.document import Document
from trimtab.core.controller.ledger import EvaluationLedger, Ledger
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.ps.manifest import Manifest
from trimtab.core.wire.messages import BatchLoss, CopiesWritten, PsReport

RATE_WINDOW_SECONDS = 10.0
MOST_FAILED_ROUNDS = 8  # of final checkpoints, or of swaps that nothing can go on without: a minute and a half
_LONGEST_PAUSE_SECONDS = 30.0
MOST_METRIC_TRIES = 3  # then the job is finished without the model's own metrics


class Phase(StrEnum):
    """What the job is doing. The end is decided on the committed manifest, never on reports."""

    STARTING = "starting"
    TRAINING = "training"
    CLOSING = "closing"
    EVALUATING = "evaluating"
    SCORING = "scoring"
    METRICS = "metrics"
    OVER = "over"


@dataclass(frozen=True)
class Settings:
    """What is fixed for the job's life. Seconds are chosen so that a healthy but busy machine never meets a limit.

    Attributes:
        job_id, batches (N), evaluation_batches (M, 0: none), ps, workers (replicas).
        copies_directory: where parameter servers write copies.
        metrics: whether the model has compiled metrics to evaluate.
        hold_seconds: a worker not heard of for so long loses its data shards.
        silence_seconds: a pod not heard of for so long, though it runs, is replaced; start_seconds: before its first
            word. stall_seconds: a worker that holds work and gets nothing done for so long is replaced.
        checkpoint_seconds: between periodic checkpoints. copy_seconds: deadline of one round of copies.
        failures_in_row, failures_total: a pod's place that fails so often (without getting anything done; in all)
            fails the job.
    """

    job_id: str
    batches: int
    evaluation_batches: int
    ps: int
    workers: int
    copies_directory: str
    metrics: bool = False
    hold_seconds: float = 20.0
    silence_seconds: float = 60.0
    start_seconds: float = 180.0
    stall_seconds: float = 180.0
    checkpoint_seconds: float = 60.0
    copy_seconds: float = 300.0
    failures_in_row: int = 5
    failures_total: int = 50


@dataclass(frozen=True)
class Slot:
    """A place in a role. Its pods come and go; each has the next generation.

    Attributes:
        generation: of the present or next pod, from 1. starts_at: the next pod is not wanted before.
        in_row, total: failures of its pods, without getting anything done and in all.
    """

    role: str
    index: int
    generation: int = 1
    starts_at: float = 0.0
    in_row: int = 0
    total: int = 0

    def pod_name(self, term: int) -> str:
        """Unique for ever: role, place, controller term, generation."""
        return f"{self.role}-{self.index}-t{term}-g{self.generation}"


@dataclass(frozen=True)
class Pod:
    """A pod that should run, and what it has said.

    Attributes:
        seen: the cluster has shown it. wanted_at: since when it should run. heard_at: last word, None for none.
        process: its random id, "" before its first word. worked: it has got something done.
        report: a PS's last one. first_applied: how many numbers a PS had when it first served everything.
        speed, shard, finished_at, worked_at: a worker's batches per second, last shard size, times of the last
            finished shard and of the last sign of work.
        cpu_seconds, rss_bytes: as last reported.
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

    @property
    def role(self) -> str:
        """Its place's role."""
        return self.slot[0]


@dataclass(frozen=True)
class CopyRound:
    """One order to all parameter servers to write copies, and what they answered (by process)."""

    id: int
    began_at: float
    results: Mapping[str, CopiesWritten] = field(default_factory=dict)


@dataclass(frozen=True)
class Losses:
    """Losses of trained batches, each number counted once, first report.

    Attributes:
        counted: numbers. rows, weighted: rows of finite ones, and their losses times rows. not_finite: how many.
        all_rows: of all counted ones; first_rows: of those in the first report.
        recent: moving average over about the last 50 batches, None before the first.
        samples: (time, rows) of the last seconds, for the present rate. first_at, last_at: times of reports.
    """

    counted: IntervalSet = EMPTY
    rows: int = 0
    weighted: float = 0.0
    not_finite: int = 0
    all_rows: int = 0
    first_rows: int = 0
    recent: float | None = None
    samples: tuple[tuple[float, int], ...] = ()
    first_at: float | None = None
    last_at: float | None = None

    def with_reports(self, losses: tuple[BatchLoss, ...], batches: int, now: float) -> tuple[Losses, int]:
        """These losses and new ones; and how many of them count."""
        counted, rows, weighted, bad, recent, fresh_rows, fresh = (
            self.counted, self.rows, self.weighted, self.not_finite, self.recent, 0, 0
        )  # fmt: skip
        for entry in losses:
            if entry.number in counted or not 0 <= entry.number < batches:
                continue
            counted, fresh, fresh_rows = counted.add(entry.number), fresh + 1, fresh_rows + entry.rows
            if entry.loss is None:
                bad += 1
                continue
            rows, weighted = rows + entry.rows, weighted + entry.loss * entry.rows
            recent = entry.loss if recent is None else recent + (entry.loss - recent) / 50
        if not fresh:
            return self, 0
        samples = tuple(sample for sample in self.samples if sample[0] > now - RATE_WINDOW_SECONDS)
        first = self.first_at is None
        return Losses(
            counted, rows, weighted, bad, self.all_rows + fresh_rows, fresh_rows if first else self.first_rows,
            recent, (*samples, (now, fresh_rows)), now if first else self.first_at, now,
        ), fresh  # fmt: skip

    @property
    def throughput(self) -> float | None:
        """Rows per second from the first report to the last: without start and compilation. None: too short to tell."""
        if self.first_at is None or self.last_at is None or self.last_at <= self.first_at:
            return None
        return (self.all_rows - self.first_rows) / (self.last_at - self.first_at)

    def rate(self, now: float) -> float:
        """Rows per second over the last seconds."""
        recent = [sample for sample in self.samples if sample[0] > now - RATE_WINDOW_SECONDS]
        if not recent:
            return 0.0
        began = self.first_at if self.first_at is not None else now
        return sum(rows for _, rows in recent) / max(1.0, min(RATE_WINDOW_SECONDS, now - began))


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
        committing: a swap is on its way. slots, pods: places by (role, index); pods that should run, by name.
        sequence: highest sent to any PS. next_id: of the next grant or copy round.
        failed_commits, commit_at: swaps in a row that could not be stored; the next routing waits until then.
        round: the running round of copies. copied_at: when the last one ended. failed_rounds: in a row, while closing.
        resends: dropped pushes of PSs that have gone.
        served_at: since when everything is served without a break, None while it is not.
        metric_tries: how often the compiled metrics were asked for.
    """

    settings: Settings
    document: Document
    manifest: Manifest
    ledger: Ledger
    evaluation: EvaluationLedger
    slots: Mapping[tuple[str, int], Slot]
    phase: Phase = Phase.STARTING
    pods: Mapping[str, Pod] = field(default_factory=dict)
    committing: bool = False
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
    max_gap_seconds: float = 0.0
    resends: int = 0
    metric_tries: int = 0

    def servers(self) -> list[Pod]:
        """Parameter-server pods, by place."""
        return sorted((pod for pod in self.pods.values() if pod.role == "ps"), key=lambda pod: pod.slot)

    def workers(self) -> list[Pod]:
        """Worker pods, by place."""
        return sorted((pod for pod in self.pods.values() if pod.role == "worker"), key=lambda pod: pod.slot)


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
    slots = {("ps", index): Slot("ps", index) for index in range(settings.ps)}
    slots |= {("worker", index): Slot("worker", index) for index in range(settings.workers)}
    ledger = Ledger(settings.batches).routed(document.routing)
    evaluation = EvaluationLedger(settings.evaluation_batches)
    # Ids of another term must never be taken for ours, nor ours for theirs.
    first_id = document.term * 1_000_000_000 + 1
    return State(settings, document, manifest, ledger, evaluation, slots, next_id=first_id)
