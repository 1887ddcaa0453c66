"""The law for pods under CPU shares: demands of both roles, fitted on CPU seconds, put into the bounds of `iteration`.

Two members of one family: with the exponent that a simulation of CPU quotas gave, and with the exponent at infinity,
which is the plain maximum of the bounds. They were equally good on real configurations (12 % apart from noise), so
both are offered and a job's own left-out configurations say which it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.core.perf.demand import STATED_PS, STATED_WORKER, Points, RoleDemand, fit_role
from trimtab.core.perf.iteration import Array, Setting, Shapes, step_seconds
from trimtab.core.perf.rows import Row

USUAL_SKEW = 1.04  # of servers with even vshards: measured 1.01 to 1.13
_MOST_SKEW = 3.0  # one hot server says nothing about plans with other numbers of servers beyond that
_SKEW_PRIOR_SECONDS = 10.0  # of observation that the usual skew counts for
QUOTA, BOTTLENECK = "quota law", "bottleneck law"


@dataclass(frozen=True)
class QuotaLaw:
    """T = (A^n + (w S)^n + L^n)^(1/n) with fitted demands.

    Attributes:
        worker, ps: CPU seconds per step of a worker, and of all servers together.
        skew: the busiest server's CPU over the mean.
        sharp: n towards infinity. held, notes: see `Law`.
    """

    worker: RoleDemand
    ps: RoleDemand
    skew: float
    sharp: bool
    held: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Which of the two."""
        return BOTTLENECK if self.sharp else QUOTA

    @property
    def coefficients(self) -> Mapping[str, float]:
        """CPU in milliseconds per step; overhead in milliseconds per quota period."""
        found: dict[str, float] = {}
        for role, one in (("worker", self.worker), ("PS", self.ps)):
            found[f"{role} CPU per step (ms)"] = 1e3 * one.fixed
            found[f"{role} CPU per 512 rows (ms)"] = 1e3 * one.per_rows
            found[f"{role} CPU per PS (ms)"] = 1e3 * one.per_ps
            found[f"{role} overhead per period (ms)"] = 1e3 * one.overhead_seconds
        found["busiest PS over the mean"] = self.skew
        return found

    def demands(self, shapes: Shapes, batch_size: int, setting: Setting) -> tuple[Array, Array]:
        """CPU seconds per step for each shape: of a worker, and of all servers together."""
        return (
            self.worker.seconds(batch_size, shapes.ps, shapes.worker_cpu, setting),
            self.ps.seconds(batch_size, shapes.ps, shapes.ps_cpu, setting),
        )

    def seconds(self, shapes: Shapes, batch_size: int, setting: Setting) -> Array:
        """Seconds of one step of one worker for each shape."""
        return step_seconds(*self.demands(shapes, batch_size, setting), shapes, setting, self.skew, self.sharp)


def fit_quota_laws(
    rows: Sequence[Row], past: Sequence[Row], setting: Setting, overheads: tuple[float, float] | None = None
) -> tuple[QuotaLaw, ...]:
    """Both members, with demands fitted once; empty where the CPU of a role is known neither here nor from the past.

    Args:
        rows: of this job, oldest first.
        past: of similar past jobs.
        setting: what holds pods back.
        overheads: of workers and servers, where they are decided already (refits without a configuration).
    """
    demands: list[RoleDemand] = []
    held: list[str] = []
    notes: list[str] = []
    for index, (role, word, stated) in enumerate((("worker", "workers'", STATED_WORKER), ("ps", "PSs'", STATED_PS))):
        overhead = overheads[index] if overheads else None
        made = fit_role(Points.of(rows, role), stated, setting, Points.of(past, role), overhead)
        if made is None:
            return ()
        demands.append(made.demand)
        held += [f"{word} {name}" for name in made.held]
        notes += [made.note] if made.note else []
    skew = skew_of([*past, *rows])
    common = (tuple(held), tuple(dict.fromkeys(notes)))
    return tuple(QuotaLaw(demands[0], demands[1], skew, sharp, *common) for sharp in (False, True))


def skew_of(rows: Sequence[Row]) -> float:
    """The busiest server's CPU over the mean, from rows with several servers, the usual one mixed in."""
    total, weight = USUAL_SKEW * _SKEW_PRIOR_SECONDS, _SKEW_PRIOR_SECONDS
    for row in rows:
        if row.plan.ps.replicas > 1 and row.ps_skew is not None and math.isfinite(row.ps_skew):
            total += row.observed_seconds * min(_MOST_SKEW, max(1.0, row.ps_skew))
            weight += row.observed_seconds
    return total / weight
