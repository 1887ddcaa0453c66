"""The part of the controller's state that is about copies: the running round, what was asked for, and a stop.

A stop is here because it is nothing but a last checkpoint with a bound on its time: every way to end a job in order
(a signal, a command, a machine without memory for it) goes through this one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.core.domain.job import JobState
from trimtab.core.wire.messages import CopiesWritten


@dataclass(frozen=True)
class CopyRound:
    """One order to all parameter servers to write copies, and what they answered (by process)."""

    id: int
    began_at: float
    results: Mapping[str, CopiesWritten] = field(default_factory=dict)

    @property
    def errors(self) -> str:
        """What went wrong with the copies of this round, "" for nothing."""
        return "; ".join(written.error for written in self.results.values() if written.error)


@dataclass(frozen=True)
class Checkpoints:
    """What became of checkpoints so far.

    Attributes:
        asked: how often somebody asked for one. taken: how many of these the last round of copies was begun for.
            done: of how many the outcome is known.
        storing: what a round has brought is on its way into the state document.
        at: when the last one was committed, None before the first of this controller.
        error: why the last round brought nothing, or less than all; "" when it did.
    """

    asked: int = 0
    taken: int = 0
    done: int = 0
    storing: bool = False
    at: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Stop:
    """The job is to stop, with a last checkpoint.

    Attributes:
        reason: for the record. began_at: when it was asked for.
        state, out_of_memory: how the job ends then, as for `pods.end_job`.
        drained_at: since when no worker holds begun work that is waited for, None before.
        unserved_at: since when something is not served, None while everything is.
        written: the last copies are written and on their way into the manifest.
        failed: how many tries failed. why: the last one's reason.
    """

    reason: str
    began_at: float
    state: JobState = JobState.STOPPED
    out_of_memory: str = ""
    drained_at: float | None = None
    unserved_at: float | None = None
    written: bool = False
    failed: int = 0
    why: str = ""
