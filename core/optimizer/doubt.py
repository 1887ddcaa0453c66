"""What a change brings if the law is another one than the fitted one.

A law that was fitted on one or two plans fits them whatever its form is, and its range knows nothing of forms: a sum
and a maximum of the same two bounds differ by a factor of two where both are alike. So the cautious gain of a change is
also the least that other forms say which this job's own windows do not contradict. Each starts from what the plan in
force was measured with, and says what of its time is the worker's, the parameter servers', and what is neither:

    T = base(A, w S, L) + u       base: the sum A + w S, a p-norm with exponent 3, or the largest; from CPU seconds
    u = measured T - base, >= 0   time that no CPU shows: it stays, or grows with w, or with w / p

Where CPU seconds are not known, A and w S are any parts of the measured time, as a sum or as a maximum. Then only what
keeps the proportions of workers and servers is known not to lose, and it is all that is left until more is seen.

A form that exceeds what was measured, or that misses another plan measured in the same minutes, is contradicted and has
no say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from trimtab.core.perf.demand import STATED_PS, STATED_WORKER, RoleDemand
from trimtab.core.perf.fit import Fit
from trimtab.core.perf.iteration import Array, Setting, Shapes
from trimtab.core.perf.ranges import moved_sd
from trimtab.core.perf.rows import Row, gap_seconds

_PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_DEMAND_SD = 0.08  # log sd of a demand that another plan's windows told
_FORM_MISS = 0.10  # in logs: by so much, and by chance, a form may miss a measured plan


@dataclass(frozen=True)
class _Loads:
    """What plans share out, each over that of the plan in force where no unit is named.

    Attributes:
        workers, ps: replicas. share, load: a worker's time over its cores, the servers' over theirs.
        bounds: seconds: A, w S and L, and where shares do not hold that of the machine; None: CPU is not known.
    """

    workers: Array
    ps: Array
    share: Array
    load: Array
    bounds: tuple[Array, ...] | None


_Form = Callable[[_Loads], Array]  # seconds of a step over those of the plan in force


def least_gain(fit: Fit, shapes: Shapes) -> Array:
    """ln(throughput over that of the plan in force), the least that any form says, for each of `shapes`.

    Without a recent visit to the plan in force nothing is known: minus infinity.
    """
    row = fit.present
    if row is None:
        return np.full(len(shapes.workers), -np.inf)
    loads = _loads(row, shapes, fit.setting)
    longest = np.maximum.reduce([form(loads) for form in _open(fit, row)])
    return np.asarray(np.log(loads.workers / longest))


def _open(fit: Fit, row: Row) -> list[_Form]:
    """The forms that nothing contradicts; where other plans contradict all, those that the plan in force does not."""
    possible = list(_forms(row, fit.setting))
    others = [one for one in fit.rows if one.plan != row.plan]
    if not others:
        return possible
    loads = _loads(row, Shapes.of([one.plan for one in others]), fit.setting)
    measured, chance = _measured(fit, others)
    near = [np.abs(np.log(form(loads)) - measured) <= _FORM_MISS + 2 * chance for form in possible]
    return [form for form, each in zip(possible, near, strict=True) if each.all()] or possible


def _measured(fit: Fit, others: Sequence[Row]) -> tuple[Array, Array]:
    """Logarithm of each plan's seconds over those of the plan in force in the same minutes, with standard errors."""
    pairs = [(one, fit.beside(one)) for one in others]
    chance = [
        math.hypot(beside.standard_error, one.standard_error, _DEMAND_SD, moved_sd(gap_seconds(one, beside)))
        for one, beside in pairs
    ]
    return np.array([math.log(one.seconds / beside.seconds) for one, beside in pairs]), np.array(chance)


def _forms(row: Row, setting: Setting) -> Iterator[_Form]:
    """What the plan in force alone does not contradict; the largest bound is always among them, scaled."""
    here = _loads(row, Shapes.of([row.plan]), setting)
    if here.bounds is None:
        yield from _timed(setting)
        return
    for base in (_sum, _norm, _largest):
        now = float(base(here.bounds)[0])
        if base is not _largest and math.log(now / row.seconds) > _FORM_MISS + 2 * row.standard_error:
            continue
        rest = max(0.0, row.seconds - now)
        for powers in ((0, 0), (1, 0), (1, -1)) if rest else ((0, 0),):
            yield partial(_with_rest, base, now + rest, rest, powers)


def _with_rest(
    base: Callable[[Sequence[Array]], Array], now: float, rest: float, powers: tuple[int, int], loads: _Loads
) -> Array:
    assert loads.bounds is not None, "asked for only where CPU is known"
    return np.asarray((base(loads.bounds) + rest * loads.workers ** powers[0] * loads.ps ** powers[1]) / now)


def _sum(bounds: Sequence[Array]) -> Array:
    return np.asarray(np.maximum(bounds[0] + bounds[1], bounds[3]) if len(bounds) > 3 else bounds[0] + bounds[1])


def _norm(bounds: Sequence[Array]) -> Array:
    return np.asarray(np.cbrt(sum(one * one * one for one in bounds)))


def _largest(bounds: Sequence[Array]) -> Array:
    return np.asarray(np.maximum.reduce(list(bounds)))


def _timed(setting: Setting) -> Iterator[_Form]:
    """Forms on time alone: parts of it that go with the worker's share, with the servers' load, and with neither."""
    for a in _PARTS:
        for s in _PARTS:
            if a + s <= 1:
                yield partial(_parts_in_turn, a, s)
            if max(a, s) == 1:
                yield partial(_parts_at_once, a, s)
    if not setting.enforced:  # the machine itself may be used up
        yield lambda loads: loads.workers


def _parts_in_turn(worker: float, ps: float, loads: _Loads) -> Array:
    return np.asarray(worker * loads.share + ps * loads.load + (1 - worker - ps))


def _parts_at_once(worker: float, ps: float, loads: _Loads) -> Array:
    return np.asarray(np.maximum(worker * loads.share, ps * loads.load))


def _loads(row: Row, shapes: Shapes, setting: Setting) -> _Loads:
    now = Shapes.of([row.plan])
    usable, here = shapes.usable(setting), now.usable(setting)
    load, load_now = (one.workers / (one.ps * one.ps_cpu) for one in (usable, here))
    bounds: tuple[Array, ...] | None = None
    if row.worker_cpu is not None and row.ps_cpu is not None:
        worker = row.worker_cpu * _dearer(STATED_WORKER, row, (shapes.ps, shapes.worker_cpu), setting, now.worker_cpu)
        ps = row.ps_cpu * _dearer(STATED_PS, row, (shapes.ps, shapes.ps_cpu), setting, now.ps_cpu)
        bounds = (worker / usable.worker_cpu, ps * load, worker + ps / usable.ps)
        if not setting.enforced:
            bounds = (*bounds, usable.workers * (worker + ps) / setting.machine_cpu)
    return _Loads(
        usable.workers / here.workers, usable.ps / here.ps, here.worker_cpu / usable.worker_cpu, load / load_now, bounds
    )


def _dearer(stated: RoleDemand, row: Row, there: tuple[Array, Array], setting: Setting, cpu_now: Array) -> Array:
    """By what a step's CPU grows: as stated with more servers, not less with fewer, as stated with the share."""
    ps, cpu = there
    now = np.array([float(row.plan.ps.replicas)])
    more = stated.seconds(row.batch_size, np.maximum(ps, now), cpu, setting)
    return np.asarray(more / stated.seconds(row.batch_size, now, cpu_now, setting))
