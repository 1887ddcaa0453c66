"""What a job's own windows say about plans that it has not tried, with an honest range.

Three steps. Demands of both roles are fitted (or, where CPU is not known, time alone). The law turns them into the
time of a step. Then the prediction is *anchored*: the machine moves more than the law errs (the same plans were 14 %
slower half an hour later), so what the plan in force measures now, against what the law says of it, scales everything
else. Plans that were measured before pull the predictions of their neighbours in the same way; that is what keeps a
loop from asking again and again for a step that did not pay for a reason the law does not know.

Ranges come from leaving one plan out, refitting, and looking how far off it is: in-sample residuals covered 20 to 74 %
where 80 % was meant. Without a recent window of the plan in force there is no range at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Observation, Range
from trimtab.core.perf.additive import Additive, fit_additive
from trimtab.core.perf.demand import STATED_PS, STATED_WORKER, Points, RoleDemand, RoleFit, fit_role
from trimtab.core.perf.iteration import Array, Setting, Shapes, step_seconds
from trimtab.core.perf.rows import DEFAULT_WINDOW_SECONDS, WINDOW_NOISE, Row, gap_seconds, rows_of

RECENT_SECONDS = 300.0  # an anchor must be of the last minutes
_ANCHOR_HALF = 0.3  # k windows weigh k / (k + 0.3) against the law
_FORGET_SECONDS = 1800.0  # measured residuals of other plans fade: conditions of half an hour ago are others
_NEAR = 0.15  # plans nearer than that (1 = one doubling) count as the same for residuals
# log sd of a prediction before anything says otherwise: noise .063, law .035 and demand .08 together; 6 degrees
_PRIOR_SD, _PRIOR_SD_TIME, _PRIOR_FREEDOM = 0.11, 0.20, 6
_LAW_SHARE = math.sqrt(0.035**2 + 0.08**2) / _PRIOR_SD  # the part of it that is not noise of the measurement
_HELD_PS = 0.10  # more log sd per doubling of the servers while their cost is held
_DRIFT_SD = 0.14  # log sd of what half an hour changed
_TO_80 = 1.2816  # log sd to the half-width of 80 %


@dataclass(frozen=True)
class Fit:
    """A fitted law, anchored. Made by `fit`.

    Attributes:
        worker, ps: the demands, None where time alone was fitted (then `additive` is set).
        setting: what holds pods back. batch_size: rows per batch.
        rows: this job's visits. present: the recent visit to the plan in force, None without one.
        residuals: log of measured over law, one per row.
        half_width: of the 80 % range, in logs, for a plan a doubling away; None without `present`.
        held: names of coefficients that the data could not identify. notes: what went wrong on the way.
        now: seconds since the job's start.
    """

    worker: RoleDemand | None
    ps: RoleDemand | None
    additive: Additive | None
    setting: Setting
    batch_size: int
    rows: tuple[Row, ...]
    present: Row | None
    residuals: tuple[float, ...]
    half_width: float | None
    held: tuple[str, ...]
    notes: tuple[str, ...]
    now: float

    @property
    def time_only(self) -> bool:
        """Whether the CPU of a step is not known, so that the law was fitted on time alone."""
        return self.additive is not None

    @property
    def law_text(self) -> str:
        """What the predictions rest on, in a few words."""
        plans = len({row.plan for row in self.rows})
        form = "additive law, fitted on time alone" if self.time_only else "quota law, fitted on CPU seconds"
        return f"{form}, on {plans} plan{'' if plans == 1 else 's'}"

    def throughput(self, shapes: Shapes) -> Array:
        """Samples per second in the middle for each shape."""
        log_time = np.log(_law(self.worker, self.ps, self.additive, shapes, self.batch_size, self.setting))
        return np.asarray(shapes.workers * self.batch_size / np.exp(log_time + self._correction(shapes)))

    def caution(self, shapes: Shapes) -> Array:
        """How much less than the middle a plan may bring compared with the plan in force, in logs (80 %).

        It grows with the distance from what was measured, up to one doubling; that is an assumption: the ranges of
        the law were measured over plans that differed by as much. A plan that was measured itself is known as well as
        its windows are, less what may have changed since. The noise of one more window is not in it: over the rest
        of a job that averages out.
        """
        if self.present is None or self.half_width is None:
            return np.full(len(shapes.workers), np.inf)
        square = np.full(len(shapes.workers), np.inf)
        for row in self.rows:
            mine = row.plan == self.present.plan
            if mine and row != self.present:
                continue
            far = _distance(shapes, row.plan, self.setting)
            law = self.half_width * _LAW_SHARE * np.minimum(1.0, far)
            more_ps = np.abs(np.log2(shapes.ps / row.plan.ps.replicas))
            unknown = _TO_80 * _HELD_PS * more_ps if any(one.endswith("per PS") for one in self.held) else 0.0
            beside = self.beside(row)
            moved = _DRIFT_SD * min(1.0, max(gap_seconds(row, beside), 0.1 * (self.now - row.end)) / _FORGET_SECONDS)
            # The plan in force scales itself and what is predicted from it alike, so its own error cancels.
            error = 0.0 if mine else beside.standard_error**2 + row.standard_error**2 + moved**2
            square = np.minimum(square, law**2 + unknown**2 + _TO_80**2 * error)
        return np.asarray(np.sqrt(square))

    def range(self, plan: Plan) -> Range:
        """The prediction for one plan; bounds only with a recent window of the plan in force."""
        shapes = Shapes.of([plan])
        middle = float(self.throughput(shapes)[0])
        if self.present is None or self.half_width is None:
            return Range(middle)
        noise = _TO_80 * WINDOW_NOISE
        half = math.sqrt(float(self.caution(shapes)[0]) ** 2 + noise**2)
        return Range(middle, middle * math.exp(-half), middle * math.exp(half))

    def demand(self, plan: Plan) -> tuple[float, float] | None:
        """CPU seconds per step of a worker and of all servers under `plan`; None where time alone was fitted."""
        if self.worker is None or self.ps is None:
            return None
        one = Shapes.of([plan])
        worker = self.worker.seconds(self.batch_size, one.ps, one.worker_cpu, self.setting)
        return float(worker[0]), float(self.ps.seconds(self.batch_size, one.ps, one.ps_cpu, self.setting)[0])

    def beside(self, row: Row) -> Row:
        """The visit to the plan in force that is nearest to `row` in time; what differs between them is the plan."""
        assert self.present is not None, "asked for only with a recent visit"
        mine = [one for one in self.rows if one.plan == self.present.plan]
        return min(reversed(mine), key=lambda one: gap_seconds(one, row))

    def measured(self, plan: Plan) -> Row | None:
        """The newest visit to `plan`, if it is not forgotten."""
        found = [row for row in self.rows if row.plan == plan and self.now - row.end <= _FORGET_SECONDS]
        return found[-1] if found else None

    def _correction(self, shapes: Shapes) -> Array:
        """Log of what measured plans say beyond the law: the anchor, and neighbours by inverse square distance."""
        if self.present is None:  # what is not of the last minutes says nothing about the machine as it is now
            return np.zeros(len(shapes.workers))
        residual_of = dict(zip(self.rows, self.residuals, strict=True))
        total = np.zeros(len(shapes.workers))
        weights = 1 / (_distance(shapes, self.present.plan, self.setting) ** 2 + _NEAR**2)
        for row in self.rows:
            if row.plan == self.present.plan:
                continue
            fading = math.exp(-max(0.0, self.now - row.end) / _FORGET_SECONDS)
            pull = fading * _trust(row) / (_distance(shapes, row.plan, self.setting) ** 2 + _NEAR**2)
            total += pull * (residual_of[row] - residual_of[self.beside(row)])
            weights += pull
        own = residual_of[self.present]
        return np.asarray(own * _trust(self.present) + total / weights)


def fit(
    observations: Sequence[Observation],
    prior: Sequence[Observation],
    plan: Plan,
    batch_size: int,
    now: float,
    changes: Sequence[tuple[float, float]] = (),
    setting: Setting | None = None,
) -> Fit | None:
    """The law for this job, None where neither the job nor its history has a usable window.

    Args:
        observations: this job's settled windows, oldest first.
        prior: of similar past runs: they give the shape of the demands, never the level.
        plan: in force.
        batch_size: rows per batch.
        now: seconds since the job's start.
        changes: when (begin, settled) the plan changed, seconds since the job's start.
        setting: what holds pods back.
    """
    setting = setting or Setting()
    rows, past = rows_of(observations, changes), rows_of(prior)
    since = max((settled for _, settled in changes), default=-math.inf)
    recent = [row for row in rows if row.plan == plan and row.end > since and now - row.end <= RECENT_SECONDS]
    present = recent[-1] if recent else None
    made = _fit_law(rows, past, setting)
    if made is None:
        return None
    worker, ps, additive = made
    law = (worker.demand if worker else None, ps.demand if ps else None, additive)
    residuals = _residuals(rows, law, setting)
    half = None if present is None else _half_width(rows, past, setting, present, additive is not None, law)
    held = [f"workers' {name}" for name in worker.held] if worker else []
    held += [f"PSs' {name}" for name in ps.held] if ps else []
    held += list(additive.held) if additive else []
    notes = [one.note for one in (worker, ps, additive) if one is not None and one.note]
    return Fit(
        *law, setting, batch_size, rows, present, tuple(residuals), half, tuple(held),
        tuple(dict.fromkeys(notes)), now,
    )  # fmt: skip


_Law = tuple[RoleDemand | None, RoleDemand | None, Additive | None]


def _fit_law(
    rows: Sequence[Row], past: Sequence[Row], setting: Setting, overheads: tuple[float, float] | None = None
) -> tuple[RoleFit | None, RoleFit | None, Additive | None] | None:
    """Demands where the CPU of both roles is known in some row, time alone where not."""
    fits = []
    for index, (role, stated) in enumerate((("worker", STATED_WORKER), ("ps", STATED_PS))):
        overhead = overheads[index] if overheads else None
        history = fit_role(Points.of(past, role), stated, setting)
        own = fit_role(Points.of(rows, role), stated, setting, history.demand if history else None, overhead)
        if own is None and history is not None:
            own = replace(history, held=(*history.held, "CPU per step: from past runs"))
        fits.append(own)
    if fits[0] is not None and fits[1] is not None:
        return fits[0], fits[1], None
    additive = fit_additive(rows or past, setting)
    return None if additive is None else (None, None, additive)


def _law(
    worker: RoleDemand | None, ps: RoleDemand | None, additive: Additive | None,
    shapes: Shapes, batch_size: int, setting: Setting,
) -> Array:  # fmt: skip
    if additive is not None:
        return additive.seconds(shapes, batch_size, setting)
    assert worker is not None and ps is not None
    return step_seconds(
        worker.seconds(batch_size, shapes.ps, shapes.worker_cpu, setting),
        ps.seconds(batch_size, shapes.ps, shapes.ps_cpu, setting),
        shapes, setting,
    )  # fmt: skip


def _residuals(rows: Sequence[Row], law: _Law, setting: Setting) -> list[float]:
    return [
        math.log(row.seconds / float(_law(*law, Shapes.of([row.plan]), row.batch_size, setting)[0])) for row in rows
    ]


def _half_width(
    rows: Sequence[Row], past: Sequence[Row], setting: Setting, present: Row, time_only: bool, law: _Law
) -> float:
    """Half the 80 % range in logs: t(0.9, n + 6) sqrt((6 sd^2 + sum r^2) / (n + 6)).

    r is how far off each plan is that the fit did not see, by its law and by its anchor; all visits to a plan are
    left out together, or the rest of them would give it away.
    """
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    overheads = (law[0].overhead_seconds, law[1].overhead_seconds) if law[0] and law[1] else None
    misses = []
    for plan in dict.fromkeys(row.plan for row in rows if row.plan != present.plan):
        kept = [row for row in rows if row.plan != plan]
        made = _fit_law(kept, past, setting, overheads)
        if made is None or (made[2] is not None) != time_only:
            continue
        without: _Law = (made[0].demand if made[0] else None, made[1].demand if made[1] else None, made[2])
        left = [row for row in rows if row.plan == plan]
        anchor = _residuals([present], without, setting)[0] * _trust(present)
        misses.append(_residuals(left[-1:], without, setting)[0] - anchor)
    sd = _PRIOR_SD_TIME if time_only else _PRIOR_SD
    freedom = len(misses) + _PRIOR_FREEDOM
    spread = math.sqrt((_PRIOR_FREEDOM * sd**2 + sum(one**2 for one in misses)) / freedom)
    return float(stdtrit(freedom, 0.9)) * spread


def _trust(row: Row) -> float:
    """Weight of a visit against the law: k / (k + 0.3), k in usual windows."""
    k = row.observed_seconds / DEFAULT_WINDOW_SECONDS
    return k / (k + _ANCHOR_HALF)


def _distance(shapes: Shapes, plan: Plan, setting: Setting) -> Array:
    """How far plans are from `plan`, in doublings of what differs and counts."""
    usable, one = shapes.usable(setting), Shapes.of([plan]).usable(setting)
    parts = (
        (usable.workers, one.workers), (usable.worker_cpu, one.worker_cpu),
        (usable.ps, one.ps), (usable.ps_cpu, one.ps_cpu),
    )  # fmt: skip
    return np.asarray(np.sqrt(sum(np.log2(array / value[0]) ** 2 for array, value in parts)))
