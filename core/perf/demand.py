"""CPU seconds per step that a role needs, as a function of batch size, servers and share.

    D = (k0 + k1 m / 512 + k2 p) (1 + o / (c P))        k >= 0

per step of one worker, m rows, p servers, c cores per pod, P the quota period. A running job knows D at one or two
points, so the three k are pulled towards a shape that was measured for a DLRM, and rows of similar past jobs stand
beside its own with less weight. The pull decides only what the data leave open: one configuration gives the shape its
scale, the second number of servers corrects k2, and so on. What the data do not decide is named as held.

SciPy's NNLS has raised, looped and answered wrongly on badly scaled or collinear columns (case 53): columns are scaled
here, every failure is caught, and the fit without the newest row takes its place, which is the last one that was good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimtab.core.perf.iteration import Array, Setting
from trimtab.core.perf.rows import Row

ROWS_UNIT = 512  # k1 is per so many rows
_RIDGE = 0.01
_PAST_WEIGHT = 0.5  # of the best past row beside a long one of this job
_PAST_MOST = 2.0  # squared weight of all past rows together: many old runs do not outvote this one
_OVERHEADS = np.arange(0.0, 0.81e-3, 0.05e-3)  # seconds of CPU per period
_OVERHEAD_USUAL, _OVERHEAD_SPREAD, _LOG_NOISE = 0.4e-3, 0.3e-3, 0.04
_EXACT = 1e-6  # of the target's size: a slope below that counts as none
_FEWEST_SHARES = 3  # different cores per pod before the overhead is fitted


@dataclass(frozen=True)
class RoleDemand:
    """The demand of one role.

    Attributes:
        fixed, per_rows, per_ps: k0, k1 (per 512 rows) and k2 (per server), CPU seconds.
        overhead_seconds: o, CPU seconds lost per quota period.
    """

    fixed: float
    per_rows: float
    per_ps: float
    overhead_seconds: float

    def seconds(self, batch_size: int, ps: Array, cpu: Array, setting: Setting) -> Array:
        """CPU seconds per step with `batch_size` rows, for each pair of servers and cores per pod."""
        base = self.fixed + self.per_rows * batch_size / ROWS_UNIT + self.per_ps * ps
        if not setting.enforced:
            return np.asarray(base)
        return np.asarray(base * (1 + self.overhead_seconds / (cpu * setting.period_seconds)))

    @property
    def shape(self) -> Array:
        """k0, k1 and k2."""
        return np.array([self.fixed, self.per_rows, self.per_ps])


# Measured for a DLRM on one machine (48 configurations); only the ratios are used.
STATED_WORKER = RoleDemand(3.23e-3, 4.15e-3, 1.05e-3, _OVERHEAD_USUAL)
STATED_PS = RoleDemand(1.11e-3, 1.95e-3, 1.43e-3, _OVERHEAD_USUAL)


@dataclass(frozen=True)
class Points:
    """What the fit of one role sees: per row the rows of a batch, servers, cores per pod, CPU seconds and weight."""

    batch_size: Array
    ps: Array
    cpu: Array
    seconds: Array
    weight: Array

    @staticmethod
    def of(rows: Sequence[Row], role: str) -> Points:
        """The rows of which the CPU of `role` (worker | ps) is known."""
        found = []
        for row in rows:
            seconds = row.worker_cpu if role == "worker" else row.ps_cpu
            share = row.plan.worker.cpu if role == "worker" else row.plan.ps.cpu
            if seconds is not None and math.isfinite(seconds) and seconds > 0:
                weight = min(1.0, row.observed_seconds / 10)
                found.append((row.batch_size, row.plan.ps.replicas, share, seconds, weight))
        return Points(*np.array(found, float).reshape(-1, 5).T)

    def __len__(self) -> int:
        return len(self.seconds)

    def scaled(self, level: float, weight: float) -> Points:
        """The same with `level` times the CPU and `weight` times the weight."""
        return replace(self, seconds=self.seconds * level, weight=self.weight * weight)

    def followed_by(self, other: Points) -> Points:
        """These and then those of `other`."""
        names = ("batch_size", "ps", "cpu", "seconds", "weight")
        return Points(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))

    def first(self, count: int) -> Points:
        """The oldest `count` of them."""
        return Points(*(each[:count] for each in (self.batch_size, self.ps, self.cpu, self.seconds, self.weight)))


@dataclass(frozen=True)
class RoleFit:
    """A fitted demand, the names of what the data left open, and what went wrong ("" if nothing)."""

    demand: RoleDemand
    held: tuple[str, ...]
    note: str = ""


def fit_role(
    points: Points,
    stated: RoleDemand,
    setting: Setting,
    past: Points | None = None,
    overhead: float | None = None,
) -> RoleFit | None:
    """The demand of one role; None without a point.

    Args:
        points: of this job.
        stated: the shape where nothing else is known.
        setting: what holds pods back.
        past: of similar past jobs. They enter as rows of less weight, all brought to this job's level by one factor:
            another day's level says nothing about today's, its shape does.
        overhead: o, where it is decided already; None: fitted if the points can tell.
    """
    before = past if past is not None and len(past) else None
    if before is None:
        return _fit(points, stated, setting, overhead) if len(points) else None
    if not len(points):
        made = _fit(before, stated, setting, overhead)
        return None if made is None else replace(made, held=(*made.held, "CPU per step: from past runs"))
    shape = _fit(before, stated, setting, overhead)
    level = 1.0
    if shape is not None:
        square = points.weight**2
        level = math.exp(float(np.sum(square * np.log(points.seconds / _predict(points, shape.demand, setting))))
                         / float(np.sum(square)))  # fmt: skip
    total = float(np.sum(before.weight**2))
    lighter = min(_PAST_WEIGHT / float(np.max(before.weight)), math.sqrt(_PAST_MOST / total)) if total > 0 else 0.0
    # Past rows stand first: they are the oldest, and the newest are the first to go where NNLS fails.
    prior = shape.demand if shape is not None else stated
    return _fit(before.scaled(level, lighter).followed_by(points), prior, setting, overhead)


def _fit(points: Points, stated: RoleDemand, setting: Setting, overhead: float | None) -> RoleFit | None:
    held = _held(points, setting)
    grid = [overhead if overhead is not None else stated.overhead_seconds]
    if overhead is None and setting.enforced and len(set(np.round(points.cpu, 3).tolist())) >= _FEWEST_SHARES:
        grid = [float(one) for one in _OVERHEADS]
    best: tuple[float, RoleDemand] | None = None
    note = ""
    for one in grid:
        demand, said = _fit_shape(points, stated, one, setting)
        note = note or said
        predicted = _predict(points, demand, setting)
        misses = float(np.sum((points.weight * np.log(points.seconds / predicted)) ** 2)) / _LOG_NOISE**2
        score = misses + ((one - _OVERHEAD_USUAL) / _OVERHEAD_SPREAD) ** 2
        if math.isfinite(score) and (best is None or score < best[0]):
            best = (score, demand)
    if best is None:
        return None
    return RoleFit(best[1], held, note)


def _held(points: Points, setting: Setting) -> tuple[str, ...]:
    """What the points cannot tell: a term whose column does not vary."""
    held = []
    if len(set(points.batch_size.tolist())) < 2:
        held.append("CPU per row")
    if len(set(points.ps.tolist())) < 2:
        held.append("CPU per PS")
    if setting.enforced and len(set(np.round(points.cpu, 3).tolist())) < _FEWEST_SHARES:
        held.append("overhead of small shares")
    return tuple(held)


def _predict(points: Points, demand: RoleDemand, setting: Setting) -> Array:
    base = demand.fixed + demand.per_rows * points.batch_size / ROWS_UNIT + demand.per_ps * points.ps
    factor = 1 + demand.overhead_seconds / (points.cpu * setting.period_seconds) if setting.enforced else 1.0
    return np.asarray(np.maximum(base * factor, 1e-12))


def _fit_shape(points: Points, prior: RoleDemand, overhead: float, setting: Setting) -> tuple[RoleDemand, str]:
    """Coefficients with the overhead given; without the newest rows where NNLS fails, the scaled prior in the end."""
    note = ""
    for count in range(len(points), 0, -1):
        some = points.first(count)
        factor = 1 + overhead / (some.cpu * setting.period_seconds) if setting.enforced else np.ones(count)
        columns = np.stack([factor, factor * some.batch_size / ROWS_UNIT, factor * some.ps], axis=1)
        relative = columns * (some.weight / some.seconds)[:, None]
        shape = prior.shape
        if len(set(some.batch_size.tolist())) < 2:  # one batch size: its term is part of the constant
            shape = np.array([shape[0] + shape[1] * some.batch_size[0] / ROWS_UNIT, 0.0, shape[2]])
            relative[:, 1] = 0.0
        found = solve(relative, some.weight, shape, _RIDGE)
        if found is not None:
            return _demand(found, overhead), note
        note = "NNLS failed: the last good fit is used"
    scale = _scale(relative, some.weight, shape)
    return _demand(shape * scale, overhead), "NNLS failed: the stated demand is used"


def _demand(shape: Array, overhead: float) -> RoleDemand:
    return RoleDemand(float(shape[0]), float(shape[1]), float(shape[2]), overhead)


def solve(relative: Array, target: Array, shape: Array, ridge: float) -> Array | None:
    """Coefficients >= 0 with `relative` @ k near `target`, pulled towards `shape` times the one factor that fits.

    Columns are scaled to a largest value of 1; one that is zero stays out (0). None where no answer can be had:
    nothing finite, NNLS that raises, or an answer that is not one.
    """
    if not (np.all(np.isfinite(relative)) and np.all(np.isfinite(target)) and len(target)):
        return None
    size = np.max(np.abs(relative), axis=0)
    used = size > 1e-300
    if not used.any():
        return None
    scaled = relative[:, used] / size[used]
    wanted = shape[used] * size[used] * _scale(relative, target, shape)
    pull = math.sqrt(ridge) * np.eye(int(used.sum()))
    found = checked_nnls(np.vstack([scaled, pull]), np.concatenate([target, math.sqrt(ridge) * wanted]))
    if found is None or not np.any(found > 0):
        return None
    answer = np.zeros(len(shape))
    answer[used] = found / size[used]
    return answer if np.all(np.isfinite(answer)) else None


def checked_nnls(matrix: Array, target: Array) -> Array | None:
    """The least |matrix x - target| over x >= 0, checked to be it; None where no solver gets there.

    Some releases of SciPy return something else without a word (scipy#25389), so the answer is asked for the
    conditions that the minimum has, and a solver of another kind is tried where it lacks them.
    """
    from scipy.optimize import lsq_linear, nnls

    attempts: tuple[Callable[[], Array], ...] = (
        lambda: np.asarray(nnls(matrix, target)[0]),
        lambda: np.asarray(lsq_linear(matrix, target, (0.0, np.inf), method="bvls").x),
    )
    for attempt in attempts:
        try:
            found = attempt()
        except (RuntimeError, ValueError, FloatingPointError, np.linalg.LinAlgError):
            continue
        if _is_minimum(matrix, target, found):
            return found
    return None


def _is_minimum(matrix: Array, target: Array, found: Array) -> bool:
    """Whether no coefficient could still be moved for the better (Karush, Kuhn and Tucker)."""
    if not np.all(np.isfinite(found)) or np.any(found < 0):
        return False
    downhill = matrix.T @ (target - matrix @ found)
    least = _EXACT * max(1e-300, float(np.linalg.norm(target))) * np.linalg.norm(matrix, axis=0)
    return bool(np.all(downhill <= least) and np.all(np.abs(downhill[found > 0]) <= least[found > 0]))


def _scale(relative: Array, target: Array, shape: Array) -> float:
    """The one factor on `shape` that fits best, above 0."""
    along = relative @ shape
    square = float(along @ along)
    factor = float(along @ target) / square if square > 0 else 1.0
    return factor if math.isfinite(factor) and factor > 0 else 1.0
