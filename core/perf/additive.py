"""The law for when nobody can say how much CPU a step took: time alone.

Demands are not identifiable from time alone (the same law with fitted demands missed twice as much), so here the
paper's additive form stands in, which is also the better one on whole cores:

    T = a m / (512 c_w) + b w m / (512 p c_p) + d / p + e

by NNLS on the relative error, pulled towards a stated split of one step's time. Its ranges are wider, and its
coefficients count as held until several plans were seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core.perf.demand import ROWS_UNIT, solve
from trimtab.core.perf.iteration import Array, Setting, Shapes
from trimtab.core.perf.rows import Row

# Shares of a step's time under the first plan seen: worker's CPU, servers' CPU, exchange per server, the rest.
STATED_SPLIT = (0.55, 0.25, 0.05, 0.15)
_RIDGE = 0.05
_NAMES = ("time per worker core", "time per PS core", "time per PS", "fixed time")
_FEWEST_PLANS = 4  # as many as coefficients


@dataclass(frozen=True)
class Additive:
    """a, b, d and e in seconds, with the names of what is held."""

    coefficients: tuple[float, ...]
    held: tuple[str, ...]
    note: str = ""

    def seconds(self, shapes: Shapes, batch_size: int, setting: Setting) -> Array:
        """Seconds of one step of one worker for each shape; where shares do not hold, the machine bounds it."""
        time = _columns(shapes, np.full(len(shapes.workers), float(batch_size)), setting) @ np.array(self.coefficients)
        if not setting.enforced:
            worker, ps = self.coefficients[0], self.coefficients[1]
            cpu = (worker + ps) * batch_size / ROWS_UNIT
            time = np.maximum(time, shapes.workers * cpu / setting.machine_cpu)
        return np.asarray(np.maximum(time, 1e-12))


def fit_additive(rows: Sequence[Row], setting: Setting) -> Additive | None:
    """The law fitted on time alone; None without rows."""
    if not rows:
        return None
    shapes = Shapes.of([row.plan for row in rows])
    batch = np.array([float(row.batch_size) for row in rows])
    seconds = np.array([row.seconds for row in rows])
    columns = _columns(shapes, batch, setting)
    weight = np.array([min(1.0, row.observed_seconds / 10) for row in rows])
    shape = np.array(STATED_SPLIT) * seconds[0] / columns[0]
    distinct = len({str(row.plan) for row in rows})
    held = _NAMES[: max(0, len(_NAMES) - distinct + 1)] if distinct < _FEWEST_PLANS else ()
    for count in range(len(rows), 0, -1):
        relative = columns[:count] * (weight[:count] / seconds[:count])[:, None]
        found = solve(relative, weight[:count], shape, _RIDGE)
        if found is not None:
            note = "" if count == len(rows) else "NNLS failed: the last good fit is used"
            return Additive(tuple(float(one) for one in found), held, note)
    return Additive(tuple(float(one) for one in shape), held, "NNLS failed: the stated split is used")


def _columns(shapes: Shapes, batch: Array, setting: Setting) -> Array:
    usable = shapes.usable(setting)
    rows = batch / ROWS_UNIT
    at_ps = usable.workers / (usable.ps * usable.ps_cpu)
    return np.stack([rows / usable.worker_cpu, rows * at_ps, 1 / usable.ps, np.ones_like(rows)], axis=1)
