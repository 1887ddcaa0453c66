"""What a job's own windows say about plans that it has not tried, with an honest range.

Three steps. The laws of `choosing` are fitted: on the CPU that both roles need, or, where that is not known, on time
alone. The one that predicts left-out configurations best gives the time of a step. Then the prediction is *anchored*:
the machine moves more than the law errs (the same plans were 14 % slower half an hour later), so what the plan in force
measures now, against what the law says of it, scales everything else. Plans that were measured before pull the
predictions of their neighbours in the same way; that is what keeps a loop from asking again and again for a step that
did not pay for a reason the law does not know.

Ranges come from leaving one plan out, refitting, and looking how far off it is: in-sample residuals covered 20 to 74 %
where 80 % was meant. Without a recent window of the plan in force there is no range at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Observation, Range
from trimtab.core.perf.choosing import choose, log_errors, preferred
from trimtab.core.perf.cleaning import clean
from trimtab.core.perf.iteration import Array, Setting, Shapes
from trimtab.core.perf.law import Law
from trimtab.core.perf.quota import QuotaLaw
from trimtab.core.perf.ranges import (
    FORGET_SECONDS,
    LAW_SHARE,
    PRIOR_SD,
    TO_80,
    half_width,
    moved_sd,
    widening,
    with_noise,
)
from trimtab.core.perf.rows import DEFAULT_WINDOW_SECONDS, Row, gap_seconds, rows_of_runs, rows_of_visits

RECENT_SECONDS = 300.0  # an anchor must be of the last minutes
_ANCHOR_HALF = 0.3  # k windows weigh k / (k + 0.3) against the law
_NEAR = 0.15  # plans nearer than that (1 = one doubling) count as the same for residuals
_MOVED_LEAST = 0.01  # log sd of the hour below which rows count as of the same
_LAW_SD = 0.05  # log sd of what a plan itself brings beyond the law
_HELD_PS = 0.10  # more log sd per doubling of the servers while their cost is held


@dataclass(frozen=True)
class Fit:
    """A fitted law, anchored. Made by `fit`.

    Attributes:
        law: the member that predicts left-out configurations best. scores: left-out RMSLE of every member.
        setting: what holds pods back. batch_size: rows per batch.
        rows: this job's visits. present: the recent visit to the plan in force, None without one.
        residuals: log of measured over law, one per row.
        half_width: of the 80 % range, in logs, for a plan a doubling away; None without `present`.
        widened: by what ranges are wider because earlier predictions missed, 1: not at all.
        left_out: what was no evidence, in words; "" if nothing.
        now: seconds since the job's start.
    """

    law: Law
    scores: Mapping[str, float]
    setting: Setting
    batch_size: int
    rows: tuple[Row, ...]
    present: Row | None
    residuals: tuple[float, ...]
    half_width: float | None
    widened: float
    left_out: str
    now: float

    @property
    def time_only(self) -> bool:
        """Whether the law rests on time alone."""
        return not isinstance(self.law, QuotaLaw)

    @property
    def held(self) -> tuple[str, ...]:
        """Names of coefficients that the data could not identify."""
        return self.law.held

    @property
    def notes(self) -> tuple[str, ...]:
        """What went wrong on the way, what was left out, and whether ranges were widened."""
        wider = f"ranges are {self.widened:.1f} times as wide: earlier predictions missed theirs"
        found = (*self.law.notes, self.left_out, wider if self.widened >= 1.05 else "")
        return tuple(one for one in found if one)

    @property
    def law_text(self) -> str:
        """What the predictions rest on, in a few words."""
        plans = len({row.plan for row in self.rows})
        score = self.scores.get(self.law.name)
        error = f", {100 * math.expm1(score):.0f} % off where left out" if score is not None else ""
        on = "time alone" if self.time_only else "CPU seconds"
        return f"{self.law.name} on {on}, {plans} plan{'' if plans == 1 else 's'}{error}"

    def throughput(self, shapes: Shapes) -> Array:
        """Samples per second in the middle for each shape."""
        log_time = np.log(self.law.seconds(shapes, self.batch_size, self.setting))
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
            law = self.half_width * LAW_SHARE * np.minimum(1.0, far)
            more_ps = np.abs(np.log2(shapes.ps / row.plan.ps.replicas))
            unknown = TO_80 * _HELD_PS * more_ps if any(one.endswith("per PS") for one in self.held) else 0.0
            beside = self.beside(row)
            moved = moved_sd(max(gap_seconds(row, beside), 0.1 * (self.now - row.end)))
            # The plan in force scales itself and what is predicted from it alike, so its own error cancels.
            error = 0.0 if mine else beside.standard_error**2 + row.standard_error**2 + moved**2
            square = np.minimum(square, law**2 + unknown**2 + TO_80**2 * error)
        return np.asarray(self.widened * np.sqrt(square))

    def range(self, plan: Plan) -> Range:
        """The prediction for one plan; bounds only with a recent window of the plan in force."""
        shapes = Shapes.of([plan])
        middle = float(self.throughput(shapes)[0])
        if self.present is None or self.half_width is None:
            return Range(middle)
        since = TO_80 * moved_sd(self.now - self.present.end)
        caution = float(self.caution(shapes)[0]) / self.widened
        half = self.widened * with_noise(math.hypot(caution, since, TO_80 * self._hour_sd()))
        return Range(middle, middle * math.exp(-half), middle * math.exp(half))

    def demand(self, plan: Plan) -> tuple[float, float] | None:
        """CPU seconds per step of a worker and of all servers under `plan`; None where time alone was fitted."""
        if not isinstance(self.law, QuotaLaw):
            return None
        worker, ps = self.law.demands(Shapes.of([plan]), self.batch_size, self.setting)
        return float(worker[0]), float(ps[0])

    def beside(self, row: Row) -> Row:
        """The visit to the plan in force that is nearest to `row` in time; what differs between them is the plan."""
        assert self.present is not None, "asked for only with a recent visit"
        return _nearest([one for one in self.rows if one.plan == self.present.plan], row)

    def measured(self, plan: Plan) -> Row | None:
        """The newest visit to `plan`, if it is not forgotten."""
        found = [row for row in self.rows if row.plan == plan and self.now - row.end <= FORGET_SECONDS]
        return found[-1] if found else None

    def _hour_sd(self) -> float:
        """Log sd of the level that older rows were brought to: one anchor cannot tell the hour from the law's error."""
        assert self.present is not None, "asked for only with a recent visit"
        gaps = [gap_seconds(row, self.present) for row in self.rows if row.plan != self.present.plan]
        hour = moved_sd(median(gaps)) ** 2 if gaps else 0.0
        return math.sqrt(hour * PRIOR_SD**2 / (hour + PRIOR_SD**2)) if hour > 0 else 0.0

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
            # Only what was measured beside the plan in force says what the plan, and not the hour, made different.
            hour = moved_sd(gap_seconds(row, self.beside(row))) / _LAW_SD
            fading = math.exp(-max(0.0, self.now - row.end) / FORGET_SECONDS) / (1 + hour**2)
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
    scores: Sequence[float] = (),
) -> Fit | None:
    """The law for this job, None where neither the job nor its history has a usable window.

    Args:
        observations: this job's settled windows, oldest first.
        prior: of similar past runs, one after the other: lighter rows that give demands their shape, never the level.
        plan: in force.
        batch_size: rows per batch.
        now: seconds since the job's start.
        changes: when (begin, settled) the plan changed, seconds since the job's start.
        setting: what holds pods back.
        scores: how far off this job's predictions were, in half-widths (`ranges.scored`).
    """
    setting = setting or Setting()
    cleaned = clean(observations, changes)
    rows, past = rows_of_visits(cleaned.visits), rows_of_runs(prior)
    since = max((settled for _, settled in changes), default=-math.inf)
    recent = [row for row in rows if row.plan == plan and row.end > since and 0 <= now - row.end <= RECENT_SECONDS]
    present = recent[-1] if recent else None
    if present is not None:
        rows = _brought_to_now(rows, past, setting, present)
    chosen = choose(rows, past, setting, present, _trust(present) if present else 0.0)
    if chosen is None:
        return None
    half = None
    if present is not None:
        newest = {row.plan: miss for row, miss in zip(rows, chosen.left_out, strict=True) if miss is not None}
        half = half_width(list(newest.values()), not isinstance(chosen.law, QuotaLaw))
    return Fit(
        chosen.law, chosen.scores, setting, batch_size, rows, present, tuple(log_errors(chosen.law, rows, setting)),
        half, widening(scores), cleaned.words(), now,
    )  # fmt: skip


def _brought_to_now(rows: Sequence[Row], past: Sequence[Row], setting: Setting, present: Row) -> tuple[Row, ...]:
    """`rows` as they would be measured now: what the plan in force says has changed, changes the older ones too.

    The law of all other rows says what the plan in force took in their time. The difference is partly the law's own
    error and partly the hour, the more so the longer ago a row was measured; so each row is moved by its own share.
    Where an earlier visit to the plan in force is nearer to a row than the present one, what that visit took says the
    same without any law. Earlier visits are moved as the rows beside them are: else the hour would part them.
    """
    others = [row for row in rows if row.plan != present.plan]
    oldest = max((gap_seconds(row, present) for row in others), default=0.0)
    if moved_sd(oldest) < _MOVED_LEAST:
        return tuple(rows)
    law = preferred(others, past, setting)
    if law is None:
        return tuple(rows)
    changed = log_errors(law, [present], setting)[0]
    error = PRIOR_SD**2 + present.standard_error**2
    mine = [row for row in rows if row.plan == present.plan]
    moved = []
    for row in rows:
        hour = moved_sd(gap_seconds(row, present)) ** 2
        if hour == 0:
            moved.append(row)
            continue
        said, weight = changed / error, 1 / error + 1 / hour
        beside = _nearest(mine, row)
        if beside != present:
            chance = present.standard_error**2 + beside.standard_error**2 + moved_sd(gap_seconds(row, beside)) ** 2
            said += math.log(present.seconds / beside.seconds) / chance
            weight += 1 / chance
        moved.append(row.slower(math.exp(said / weight)))
    return tuple(moved)


def _nearest(mine: Sequence[Row], row: Row) -> Row:
    """The one of `mine` that is nearest to `row` in time, of equals the newest."""
    return min(reversed(mine), key=lambda one: gap_seconds(one, row))


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
