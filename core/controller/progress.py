"""What a caller sees while a job runs."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.core.domain.plan import Plan


@dataclass(frozen=True)
class Progress:
    """One look at a running job.

    Attributes:
        batches_done: applied at every vshard's owner, as last reported; it falls when a parameter server is lost.
        batches_expected: N.
        samples_per_second: of the last seconds while training, of the whole job afterwards.
        loss: moving average over recent batches, None before the first.
        plan: in force.
        phase: starting | training | closing | evaluating | scoring | metrics | over.
        message: what happened last, as a sentence.
    """

    batches_done: int
    batches_expected: int
    samples_per_second: float
    loss: float | None
    plan: Plan
    phase: str
    message: str
