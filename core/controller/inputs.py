"""What `step` is told. Every input may come late, twice, out of order or never; none is proof of more than it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.core.cluster.base import PodStatus
from trimtab.core.controller.document import Document
from trimtab.core.domain.plan import Limits
from trimtab.core.domain.records import Decision
from trimtab.core.ps.manifest import Manifest
from trimtab.core.wire.messages import PsReport, WorkerSync


@dataclass(frozen=True)
class Tick:
    """Time has passed: say again what should be, and look at deadlines."""


@dataclass(frozen=True)
class PodsSeen:
    """What the cluster shows: every desired pod and those still ending; `tails`: last log lines of ended ones."""

    pods: tuple[PodStatus, ...]
    tails: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerSaid:
    """A worker's call; answered by exactly one `AnswerWorker` or `RefuseWorker`."""

    sync: WorkerSync


@dataclass(frozen=True)
class PsSaid:
    """A parameter server's answer, from the pod that was asked."""

    pod: str
    report: PsReport


@dataclass(frozen=True)
class CommitResult:
    """How a `CommitDocument` ended.

    Attributes:
        document: as stored, None when it was not.
        manifest: content of the manifest that it names, None when that did not change.
        stale: another controller has changed the document: this one must stop acting.
        error: why it could not be stored.
    """

    document: Document | None
    manifest: Manifest | None = None
    stale: bool = False
    error: str = ""


@dataclass(frozen=True)
class ScoresReady:
    """The figures over all merged scores, and the file that holds the scores for compiled metrics.

    `error`: why there is no such file, "" when there is.
    """

    auc: float | None
    log_loss: float | None
    path: str
    error: str = ""


@dataclass(frozen=True)
class StopRequested:
    """The caller wants the job to stop.

    Attributes:
        reason: what the job's record says. now: without a last checkpoint; else one is written first.
    """

    reason: str
    now: bool = False


@dataclass(frozen=True)
class CheckpointRequested:
    """Somebody wants a checkpoint now, not when the next one is due."""


@dataclass(frozen=True)
class CapsChanged:
    """What the job's pods may use together has changed: others came or went on this machine."""

    limits: Limits


@dataclass(frozen=True)
class Trouble:
    """Something outside the job's own processes that does not work at present, and that the job goes on without.

    Attributes:
        kind, subject, text: as of a `Finding`.
        said: it stood in what was shown before the job began, so no event repeats it.
    """

    kind: str
    subject: str
    text: str
    said: bool = False


@dataclass(frozen=True)
class Noticed:
    """All that is wrong outside at present; what was told before and is not among it is over."""

    troubles: tuple[Trouble, ...]


@dataclass(frozen=True)
class Late:
    """The controller itself could not look or speak for so many seconds: a stopped process, a disk that hung.

    What others did not say meanwhile says nothing about them.
    """

    seconds: float


@dataclass(frozen=True)
class DriverFailed:
    """The driver could not carry out an action; the job can't go on."""

    reason: str


@dataclass(frozen=True)
class Decided:
    """The optimizer's answer; `decision` is None when it could not be asked or failed, and `error` says why."""

    decision: Decision | None
    error: str = ""


Input = (
    Tick | PodsSeen | WorkerSaid | PsSaid | CommitResult | ScoresReady | StopRequested | CheckpointRequested
    | CapsChanged | Noticed | Late | DriverFailed | Decided
)  # fmt: skip
