"""What is observed, decided and remembered.

`PodReport` is what one process says about one interval; settled reports of one plan become an `Observation`; a job
ends as a `JobRecord`. Decisions carry their reason in words, because explaining them is half of the product.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.plan import Plan


@dataclass(frozen=True)
class PodReport:
    """One pod's measurements since its last report.

    Attributes:
        pod: its name; role: worker | ps.
        interval_seconds: wall time covered.
        cpu_seconds: CPU time used in it (None: not known, which is not zero).
        rss_bytes: resident memory at its end.
        steps: batches computed (worker) or pushes applied (PS).
        phase_seconds: seconds per phase (worker: read, pull, compute, push, wait).
    """

    pod: str
    role: str
    interval_seconds: float
    cpu_seconds: float | None
    rss_bytes: int
    steps: int
    phase_seconds: dict[str, float]


@dataclass(frozen=True)
class Observation:
    """Settled behaviour of one plan: what `perf` fits.

    Attributes:
        plan: what was in force.
        throughput: samples per second of the job.
        worker_cpu_seconds, ps_cpu_seconds: CPU seconds per batch, all pods of the role together (None: not known).
        batch_size: rows per batch.
    """

    plan: Plan
    throughput: float
    worker_cpu_seconds: float | None
    ps_cpu_seconds: float | None
    batch_size: int


@dataclass(frozen=True)
class Decision:
    """One answer to "should the plan change?", also when the answer is to hold.

    Attributes:
        time_seconds: since the job's start.
        kind: grow | shrink | replace | rebalance | memory | hold | stop.
        plan: the plan in force afterwards.
        reason: a sentence a person can act on.
    """

    time_seconds: float
    kind: str
    plan: Plan
    reason: str


@dataclass(frozen=True)
class JobRecord:
    """What history keeps of one job.

    Attributes:
        run_id: the job id; job_name: its family.
        state: finished | stopped | failed.
        tags: identity that warm start matches on (model, dataset fingerprint, batch size, ...).
        plans: every plan that was in force.
        observations: settled behaviour per plan.
        decisions: every decision with its reason.
        figures: outcome numbers (auc, log_loss, samples_per_second, ...); only finite ones.
    """

    run_id: str
    job_name: str
    state: JobState
    tags: dict[str, str]
    plans: tuple[PlanChange, ...]
    observations: tuple[Observation, ...]
    decisions: tuple[Decision, ...]
    figures: dict[str, float]
