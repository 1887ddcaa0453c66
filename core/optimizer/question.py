"""Everything a decision may look at, as one value, so that the same question always gets the same answer.

No clock, no store, no cluster: who asks (the controller, the simulator, a test) fills it in, and what it holds can be
written down and asked again later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.core.domain.job import Objective
from trimtab.core.domain.plan import Limits, Plan, Prices
from trimtab.core.domain.records import Decision, Observation

LOCAL_PERIOD_SECONDS = 0.02  # over which the local cluster's CPU shares are accounted


@dataclass(frozen=True)
class Question:
    """Should this plan change?

    Attributes:
        time_seconds: since the job's start.
        plan: in force, settled.
        batch_size: rows per batch.
        batches_left: not yet applied.
        observations: this job's settled windows, oldest first, several per plan.
        prior: those of similar past runs; they weigh less and never anchor.
        limits: resolved caps for the job's pods: cpu, memory_bytes, workers and ps are all given.
        objective: what a better plan is.
        prices: of cores and memory.
        budget: most money that the whole job may cost; spent: so far. None: no budget.
        deadline_seconds: since the job's start, when it should have ended; None: whenever.
        decisions: of this job, oldest first, with what was measured filled in where known.
        switch_seconds: seconds of lost training of a change of "worker", "ps" or "cpu", measured or default.
        table_bytes: rows, slots and index of all PSs together now.
        table_bytes_at_end: forecast of the same; 0: unknown. table_bytes_high: the high end of its range when twice as
            many rows have been seen as now, or at the end where that comes first; 0: unknown.
        table_skew: bytes of the fullest PS over the mean of all; 0: unknown.
        not_started: nothing runs yet, so each number of PSs can have the memory that it needs.
        ps_memory_bytes: what each of the present PSs can be given without a change of the plan; 0: what the plan says.
        cpu_enforced: False: shares do not hold here, so a pod is bound by its threads and the machine alone.
        period_seconds: over which shares are accounted.
    """

    time_seconds: float
    plan: Plan
    batch_size: int
    batches_left: int
    observations: tuple[Observation, ...]
    prior: tuple[Observation, ...]
    limits: Limits
    objective: Objective
    prices: Prices
    decisions: tuple[Decision, ...]
    switch_seconds: Mapping[str, float]
    table_bytes: int = 0
    table_bytes_at_end: int = 0
    table_bytes_high: int = 0
    table_skew: float = 0.0
    ps_memory_bytes: int = 0
    not_started: bool = False
    cpu_enforced: bool = True
    period_seconds: float = LOCAL_PERIOD_SECONDS
    budget: float | None = None
    spent: float = 0.0
    deadline_seconds: float | None = None
