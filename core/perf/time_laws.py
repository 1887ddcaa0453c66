"""Laws fitted on time alone, for tables and jobs of which nobody can say how much CPU a step took.

Which form holds is an empirical question: on whole cores a step is nearly a sum of its parts, below one core nearly
the largest of them, and between them something sharper than a sum. So there is a family, and the caller takes the
member that predicts configurations best that it was not fitted on. Every member is

    T = outer terms + (|B_1|^n + |B_2|^n + ...)^(1/n),      each term a coefficient >= 0 times a column

with columns of the paper (m/c_w, w/(p c_p), w/p, m/p, 1), of Optimus (w and p as well) and, for the bounds B, what a
worker's and a server's CPU take per step, per row and per server (without the last the measured real configurations
were predicted half as well). All are homogeneous: T = sum of k_j dT/dk_j. So a fit is a few rounds of
NNLS on relative errors with the columns dT/dk_j; for a sum it is a single one, which is the paper's own fit.

Bounds are told from a sum where two things vary (with twelve plans and 7 % noise the best member then erred by 8 %
where the sum erred by 25 %). Along one variable only the curvature tells them, and a few points of noise decide that:
on the paper's curves every other choice than the sum predicted worse. So there the sum stands alone. What the rows
cannot tell apart is split as stated, and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from trimtab.core.perf.demand import solve
from trimtab.core.perf.iteration import Array, Setting, Shapes
from trimtab.core.perf.law import Law
from trimtab.core.perf.rows import Row

PAPER_LAW = "additive law"
FEWEST_FOR_FORMS = 5  # different configurations before another form than the paper's sum is offered
_VARYING = 2  # independent things (replicas, cores, batch size) that must vary for it
_RIDGE = 0.03  # of .003 to .3: the least error on 8 of the measured configurations, and no loss with more
_ROUNDS = 12
_PARTS = (1.0, 0.5, 0.25, 0.1)  # of the way to a round's answer: full steps swing between bounds
_ENOUGH = 1e-3  # relative gain of a round below which rounds end
_SHARPENED = (1.0, 3.0, 8.0)  # exponents on the way to a high one
_SAME = 1e-3  # of the largest singular value: below it a combination of columns counts as not seen
_USUAL_SECONDS = 10.0  # a row that was observed so long has full weight
_LEAST_SECONDS = 1e-100

WORKER_ROW, WORKER_STEP = "worker CPU seconds per row", "worker CPU seconds per step"
PS_ROW, PS_STEP = "PS CPU seconds per row", "PS CPU seconds per step"
WORKER_PS, PS_PS = "worker CPU seconds per PS", "PS CPU seconds per step per PS"
PER_WORKER_PER_PS, PER_ROW_PER_PS = "seconds per worker per PS", "seconds per row per PS"
FIXED, PER_WORKER, PER_PS = "seconds per step", "seconds per worker", "seconds per PS"

_Column = Callable[[Shapes, Array], Array]
_COLUMNS: Mapping[str, _Column] = {
    WORKER_ROW: lambda at, rows: rows / at.worker_cpu,
    WORKER_STEP: lambda at, rows: 1 / at.worker_cpu,
    PS_ROW: lambda at, rows: at.workers * rows / (at.ps * at.ps_cpu),
    PS_STEP: lambda at, rows: at.workers / (at.ps * at.ps_cpu),
    WORKER_PS: lambda at, rows: at.ps / at.worker_cpu,
    PS_PS: lambda at, rows: at.workers / at.ps_cpu,
    PER_WORKER_PER_PS: lambda at, rows: at.workers / at.ps,
    PER_ROW_PER_PS: lambda at, rows: rows / at.ps,
    FIXED: lambda at, rows: np.ones_like(rows),
    PER_WORKER: lambda at, rows: at.workers,
    PER_PS: lambda at, rows: at.ps,
}
# Share of a step under the first plan seen, where rows cannot tell: CPU as measured for a DLRM, the rest a guess.
_STATED = {
    WORKER_ROW: 0.27, WORKER_STEP: 0.21, WORKER_PS: 0.07, PS_ROW: 0.11, PS_STEP: 0.06, PS_PS: 0.08,
    PER_WORKER_PER_PS: 0.05, PER_ROW_PER_PS: 0.05, FIXED: 0.10, PER_WORKER: 0.02, PER_PS: 0.02,
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """One member of the family.

    Attributes:
        name: as people are told it.
        outer: names of the terms that are summed.
        bounds: names of the terms of each bound; a bound is their sum.
        exponent: n.
    """

    name: str
    outer: tuple[str, ...]
    bounds: tuple[tuple[str, ...], ...] = ()
    exponent: float = 1.0

    @property
    def terms(self) -> tuple[str, ...]:
        """All names, in the order of coefficients."""
        return (*self.outer, *(name for bound in self.bounds for name in bound))

    @cached_property
    def members(self) -> Array:
        """1 where a term of the bounds (row) belongs to a bound (column)."""
        return np.repeat(np.eye(len(self.bounds)), [len(bound) for bound in self.bounds], axis=0)


_BOUNDS = ((WORKER_STEP, WORKER_ROW, WORKER_PS), (PS_STEP, PS_ROW, PS_PS), (PER_WORKER_PER_PS,))
_PATH = (FIXED, PER_ROW_PER_PS)
PAPER = Form(PAPER_LAW, (WORKER_ROW, PS_STEP, PER_WORKER_PER_PS, PER_ROW_PER_PS, FIXED))
# In order of preference, for among equals the first is taken: the sum is safest; after it the sharpest, which on real
# configurations below one core predicted far plans best when near ones could not tell (RMSLE .23, .30, .40 by n).
FORMS = (
    PAPER,
    Form("maximum law", (), (*_BOUNDS, _PATH), 16.0),
    Form("p-norm law, n = 4", (), (*_BOUNDS, _PATH), 4.0),
    Form("p-norm law, n = 2", (), (*_BOUNDS, _PATH), 2.0),
    Form("fixed time and p-norm, n = 4", (FIXED,), (*_BOUNDS, (PER_ROW_PER_PS,)), 4.0),
    Form("Optimus law", (*PAPER.outer, PER_WORKER, PER_PS)),
)


@dataclass(frozen=True)
class TimeLaw:
    """A fitted form. Made by `fit_time_laws`; a `Law`."""

    form: Form
    values: tuple[float, ...]
    held: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its form."""
        return self.form.name

    @property
    def coefficients(self) -> Mapping[str, float]:
        """By term, with units in the names."""
        return dict(zip(self.form.terms, self.values, strict=True))

    def seconds(self, shapes: Shapes, batch_size: int, setting: Setting) -> Array:
        """Seconds of one step of one worker for each shape; where shares do not hold, the machine bounds it."""
        rows = np.full(len(shapes.workers), float(batch_size))
        columns = _columns(self.form, shapes, rows, setting)
        time = _time(self.form, columns, np.array(self.values))
        if not setting.enforced:
            known = self.coefficients
            per_step = known.get(WORKER_STEP, 0.0) + known.get(PS_STEP, 0.0)
            per_row = known.get(WORKER_ROW, 0.0) + known.get(PS_ROW, 0.0)
            per_ps = known.get(WORKER_PS, 0.0) + known.get(PS_PS, 0.0)
            cpu = per_step + per_row * batch_size + per_ps * shapes.ps
            time = np.maximum(time, shapes.workers * cpu / setting.machine_cpu)
        return np.asarray(np.maximum(time, _LEAST_SECONDS))


def fit_time_laws(rows: Sequence[Row], setting: Setting) -> tuple[Law, ...]:
    """Every form that `rows` are enough for, fitted; the paper's additive law first. Empty without usable rows.

    Args:
        rows: visits; only their plan, batch size, seconds and observed seconds are looked at. Rows whose seconds
            are not finite or not above 0 are left out.
        setting: what holds pods back.
    """
    usable = [row for row in rows if np.isfinite(row.seconds) and row.seconds > 0]
    if not usable:
        return ()
    forms = FORMS if _tell_forms_apart(usable) else (PAPER,)
    return tuple(fit_form(form, usable, setting) for form in forms)


def fit_form(form: Form, rows: Sequence[Row], setting: Setting) -> TimeLaw:
    """`form` fitted on `rows`, of which there is at least one, by relative least squares with coefficients >= 0."""
    shapes = Shapes.of([row.plan for row in rows])
    batch = np.array([float(row.batch_size) for row in rows])
    seconds = np.array([row.seconds for row in rows])
    weight = np.array([min(1.0, row.observed_seconds / _USUAL_SECONDS) for row in rows])
    columns = _columns(form, shapes, batch, setting)
    stated = np.array([_STATED[name] for name in form.terms]) / columns[0] * seconds[0]
    stated *= seconds[0] / _time(form, columns[:1], stated)[0]
    held = _held(form, columns)
    for count in range(len(rows), 0, -1):
        found = _fit(form, columns[:count], seconds[:count], weight[:count], stated)
        if found is not None:
            notes = () if count == len(rows) else (f"NNLS failed: the {form.name} of {count} older rows is used",)
            return TimeLaw(form, tuple(float(one) for one in found), held, notes)
    return TimeLaw(form, tuple(float(one) for one in stated), held, ("NNLS failed: the stated split is used",))


def _tell_forms_apart(rows: Sequence[Row]) -> bool:
    """Whether there are configurations enough, and more than one thing varies among them."""
    points = {
        (row.plan.worker.replicas, row.plan.worker.cpu, row.plan.ps.replicas, row.plan.ps.cpu, row.batch_size)
        for row in rows
    }
    if len(points) < FEWEST_FOR_FORMS:
        return False
    logs = np.log(np.array(sorted(points), float))
    sizes = np.linalg.svd(logs - logs.mean(axis=0), compute_uv=False)
    return int(np.sum(sizes > _SAME * max(1.0, sizes[0]))) >= _VARYING


def _fit(form: Form, columns: Array, seconds: Array, weight: Array, stated: Array) -> Array | None:
    """Coefficients; None where NNLS fails at once. Sharper forms begin where blunter ones ended."""
    relative = columns * (weight / seconds)[:, None]
    as_stated = _time(form, columns, stated) * weight / seconds
    wanted = stated * float(as_stated @ weight) / float(as_stated @ as_stated)
    # Pulled by what a term is worth in the whole step, not by its slope: a bound that does not bind here would be
    # free to vanish, and what has vanished has no slope to come back by.
    pull = np.diag(math.sqrt(_RIDGE) * np.abs(relative).max(axis=0))
    target = np.concatenate([weight, pull @ wanted])

    def solved(slopes: Array) -> Array | None:
        return solve(np.vstack([slopes * (weight / seconds)[:, None], pull]), target, wanted, 0.0)

    def misses(form: Form, values: Array) -> float:
        time = np.maximum(_time(form, columns, values), _LEAST_SECONDS)
        return float(np.sum((weight * np.log(time / seconds)) ** 2) + np.sum((pull @ (values - wanted)) ** 2))

    if not form.bounds:
        return solved(columns)
    values = wanted
    for exponent in [*(one for one in _SHARPENED if one < form.exponent), form.exponent]:
        sharper = replace(form, exponent=exponent)
        for _ in range(_ROUNDS):
            found = solved(_slopes(sharper, columns, values))
            if found is None:
                return None
            least = misses(sharper, values)
            steps = (values + part * (found - values) for part in _PARTS)
            better = next((one for one in steps if misses(sharper, one) < least * (1 - _ENOUGH)), None)
            if better is None:
                break
            values = better
    return values


def _columns(form: Form, shapes: Shapes, batch: Array, setting: Setting) -> Array:
    usable = shapes.usable(setting)
    return np.stack([_COLUMNS[name](usable, batch) for name in form.terms], axis=1)


def _bounds_of(form: Form, columns: Array, values: Array) -> tuple[Array, Array]:
    """Each bound over the largest, and the largest."""
    first = len(form.outer)
    bounds = (columns[:, first:] * values[first:]) @ form.members
    largest = np.maximum(bounds.max(axis=1), _LEAST_SECONDS)
    return bounds / largest[:, None], largest


def _time(form: Form, columns: Array, values: Array) -> Array:
    first = len(form.outer)
    time = columns[:, :first] @ values[:first]
    if not form.bounds:
        return np.asarray(time)
    bounds, largest = _bounds_of(form, columns, values)
    return np.asarray(time + largest * (bounds**form.exponent).sum(axis=1) ** (1 / form.exponent))


def _slopes(form: Form, columns: Array, values: Array) -> Array:
    """dT/dk of each term at `values`: the columns whose sum, times k, is T."""
    first = len(form.outer)
    bounds, _ = _bounds_of(form, columns, values)
    norm = (bounds**form.exponent).sum(axis=1, keepdims=True) ** (1 / form.exponent)
    share = (bounds / norm) ** (form.exponent - 1)
    return np.concatenate([columns[:, :first], columns[:, first:] * (share @ form.members.T)], axis=1)


def _held(form: Form, columns: Array) -> tuple[str, ...]:
    """Terms of which the rows say only something together: those that some unseen combination of columns involves."""
    scaled = columns / np.maximum(np.abs(columns).max(axis=0), 1e-300)
    _, sizes, directions = np.linalg.svd(scaled, full_matrices=True)
    seen = int(np.sum(sizes > _SAME * sizes[0]))
    involved = np.abs(directions[seen:]).max(axis=0, initial=0.0) > 1e-6
    return tuple(name for name, unseen in zip(form.terms, involved, strict=True) if unseen)
