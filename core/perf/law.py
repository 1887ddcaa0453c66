"""What every fitted law of iteration time can do, whichever form it has.

Which form fits a job's machines is an empirical question (a maximum below one core, a sum on whole ones), so the forms
stand side by side behind one face, and the one that predicts left-out configurations best is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from trimtab.core.perf.iteration import Array, Setting, Shapes


class Law(Protocol):
    """A fitted law. Made from rows, never changed."""

    @property
    def name(self) -> str:
        """Of its form, as people are told it: "quota law", "bottleneck law", "additive law", ..."""
        ...

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Fitted numbers by name, with units in the names; all finite and >= 0."""
        ...

    @property
    def held(self) -> tuple[str, ...]:
        """Names of coefficients that the rows could not identify and that stand at their prior."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What went wrong on the way and what was used instead; empty if nothing."""
        ...

    def seconds(self, shapes: Shapes, batch_size: int, setting: Setting) -> Array:
        """Seconds of one step of one worker for each shape, all finite and above 0."""
        ...
