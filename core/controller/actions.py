"""What `step` wants done. Carrying one out late or twice is harmless; the next step asks again for what is missing."""

from __future__ import annotations

from dataclasses import dataclass, field

from trimtab.core.controller.document import Document
from trimtab.core.domain.job import JobState
from trimtab.core.optimizer.question import Question
from trimtab.core.ps.manifest import Manifest
from trimtab.core.wire.messages import BatchScores, PsSync, WorkerOrders


@dataclass(frozen=True)
class PodName:
    """A pod that should run: its unique name, role (ps | worker), place (slot) in the role, and what it gets."""

    name: str
    role: str
    slot: int
    cpu: float
    memory_bytes: int


@dataclass(frozen=True)
class SetPods:
    """These pods and no others should run."""

    pods: tuple[PodName, ...]


@dataclass(frozen=True)
class SendPs:
    """Call the parameter server in `pod`; its answer comes back as `PsSaid`."""

    pod: str
    sync: PsSync


@dataclass(frozen=True)
class AnswerWorker:
    """The answer to the worker whose call is in the same step."""

    orders: WorkerOrders


@dataclass(frozen=True)
class RefuseWorker:
    """The caller is of another job or of a lower term."""

    reason: str


@dataclass(frozen=True)
class CommitDocument:
    """Write `manifest` (if any), put its reference into `document`, and swap it in; answered by `CommitResult`."""

    document: Document
    manifest: Manifest | None = None


@dataclass(frozen=True)
class RemoveSuperseded:
    """Delete the files that only the old manifest named, and snapshots of processes that are gone.

    Attributes:
        alive: processes whose snapshots stay; (): all stay, for somebody may be reading them.
    """

    old: Manifest
    new: Manifest
    alive: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeepScores:
    """Scores of evaluation batches, each number once."""

    scores: tuple[BatchScores, ...]


@dataclass(frozen=True)
class ComputeScores:
    """Merge all kept scores, compute AUC and log loss; answered by `ScoresReady`."""


@dataclass(frozen=True)
class Note:
    """Something a person may want to know later: a line of the events file.

    Attributes:
        kind: a word (pod_started, pod_lost, routing, checkpoint, phase, ...). text: a sentence.
        data: plain values.
    """

    kind: str
    text: str
    data: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class FinishJob:
    """The job is over: end every pod."""

    state: JobState
    reason: str


@dataclass(frozen=True)
class Consider:
    """Ask the optimizer whether the plan should change; answered by `Decided`."""

    question: Question


Action = (
    SetPods | SendPs | AnswerWorker | RefuseWorker | CommitDocument | RemoveSuperseded
    | KeepScores | ComputeScores | Note | FinishJob | Consider
)  # fmt: skip
