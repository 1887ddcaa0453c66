"""What a caller sees while a job runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Decision

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """One look at a running job.

    Attributes:
        batches_done: applied at every vshard's owner, as last reported; it falls when a parameter server is lost.
        batches_expected: N.
        samples_per_second: of the last seconds while training, of the whole job afterwards.
        loss: moving average over recent batches, None before the first.
        plan: in force, None while there is none.
        phase: preparing | columns (once: the message says which was taken for what) | starting | training | stopping |
            closing | evaluating | scoring | metrics | over.
        message: what happened last, as a sentence.
        decisions: all of the job so far, the first plan among them.
    """

    batches_done: int
    batches_expected: int
    samples_per_second: float
    loss: float | None
    plan: Plan | None
    phase: str
    message: str
    decisions: tuple[Decision, ...] = ()


class Showing:
    """Calls a caller's function with progress until it fails: a display that broke is no reason to end a job."""

    def __init__(self, show: Callable[[Progress], None] | None) -> None:
        self._show = show

    def __call__(self, progress: Progress) -> None:
        """Show it; KeyboardInterrupt passes."""
        if self._show is None:
            return
        try:
            self._show(progress)
        except Exception:
            self._show = None
            log.warning("the progress function failed and is not called any more", exc_info=True)


def _nothing(*_: object) -> None:
    """Nobody wants to hear of it."""


@dataclass(frozen=True)
class Milestones:
    """Who hears of a job's first steps, in the calling thread.

    Attributes:
        claimed: the job has an id and a directory; whether it can be started is not known yet.
        begun: it has begun: all that was given is right, and its controller answers.
    """

    claimed: Callable[[str, Path], None] = _nothing
    begun: Callable[[], None] = _nothing


UNHEARD = Milestones()
