"""The exact front of four million plans, and what NSGA-II finds of it.

64 numbers of workers, 32 of parameter servers, 45 sizes of either in tenths of a core make 4.15 million plans; memory
per PS follows from a table of 8 GiB, and all cores and bytes have a price. The law is the product's own, with the
demands measured for a DLRM at 512 rows per step and the calibrated exponent. CPU seconds are those of this process,
median of the repeats; the worst of other demands (each role's a fourth to four times, so that workers or PSs bind), of
cores in steps of 0.02 and 0.2 and of a cap of 96 cores stands beside it. Each of those fronts is compared with the one
of all plans evaluated one by one (not in a quick run). NSGA-II (pymoo) searches the same space with the same law; its
figures are the median over seeds of the hypervolume over that of the exact front, from the front's dearest and slowest
plan.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from dataclasses import replace

import numpy as np
from figures import Figure, options, report

from trimtab.core.domain.plan import Limits
from trimtab.core.optimizer.front import Front, Speed, exact_front, hypervolume, speed_of
from trimtab.core.optimizer.nsga2 import nsga2_front
from trimtab.core.optimizer.space import Space
from trimtab.core.perf.demand import STATED_PS, STATED_WORKER, RoleDemand
from trimtab.core.perf.iteration import Array, Setting, Shapes
from trimtab.core.perf.quota import USUAL_SKEW, QuotaLaw

BATCH, WORKERS, PS, SIZES = 512, 64, 32, 45
WORKER_BYTES, TABLE_BYTES, PS_BASE = 1.5 * 2**30, 8 * 2**30, 256 * 2**20


def space(step: float = 0.1, cores: float | None = None) -> Space:
    """4.15 million plans, with cores per pod in steps of `step`."""
    sizes = step * np.arange(1, SIZES + 1)
    return Space.of(
        Limits(cpu=cores), WORKERS, PS, sizes, sizes, WORKER_BYTES, lambda ps: PS_BASE + 1.2 * TABLE_BYTES / ps
    )


def scaled(one: RoleDemand, factor: float) -> RoleDemand:
    """The same shape at another level."""
    return replace(one, fixed=one.fixed * factor, per_rows=one.per_rows * factor, per_ps=one.per_ps * factor)


def law(worker: float = 1.0, ps: float = 1.0) -> Speed:
    """The product's law with measured demands times these factors."""
    return speed_of(QuotaLaw(scaled(STATED_WORKER, worker), scaled(STATED_PS, ps), USUAL_SKEW, False), BATCH, Setting())


def timed(plans: Space, speed: Speed) -> tuple[float, Front]:
    """CPU seconds of one exact front, and the front."""
    before = time.process_time()
    found = exact_front(plans, speed, speed)
    return time.process_time() - before, found


def searched(plans: Space, exact: Front, population: int, generations: int, seeds: int) -> tuple[list[float], float]:
    """Hypervolume ratios of NSGA-II, one per seed, and the median CPU seconds of a search."""
    worst = (float(exact.cost.max()), float(exact.throughput.min()))
    whole = hypervolume(exact.cost, exact.throughput, worst)
    ratios, seconds = [], []
    for seed in range(1, seeds + 1):
        before = time.process_time()
        found = nsga2_front(plans, law(), population, generations, seed)
        seconds.append(time.process_time() - before)
        ratios.append(hypervolume(found.cost, found.throughput, worst) / whole)
    return ratios, statistics.median(seconds)


def spread(values: list[float]) -> str:
    """The ends of some values."""
    return f"{min(values):.4g} to {max(values):.4g}"


def main() -> None:
    """Measure and report."""
    chosen = options(__doc__)
    repeats, seeds = (3, 3) if chosen.quick else (15, 11)
    plans, speed = space(), law()
    asked = 0

    def counting(shapes: Shapes) -> Array:
        nonlocal asked
        asked += len(shapes.workers)
        return speed(shapes)

    exact = timed(plans, counting)[1]
    seconds = [timed(plans, speed)[0] for _ in range(repeats)]
    tracemalloc.start()
    timed(plans, speed)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()

    others = [(space(), law(w, p)) for w in (0.25, 1.0, 4.0) for p in (0.25, 1.0, 4.0)]
    others += [(space(0.02), speed), (space(0.2), speed), (space(0.1, 96.0), speed)]
    worst, all_seconds = 0.0, []
    for one, its_speed in others:
        took, found = min((timed(one, its_speed) for _ in range(2)), key=lambda pair: pair[0])
        worst = max(worst, took)
        if chosen.quick and len(all_seconds):
            continue
        before = time.process_time()
        everything = exact_front(one, its_speed)
        all_seconds.append(time.process_time() - before)
        same = np.array_equal(found.index, everything.index)
        if not (same and np.array_equal(found.throughput, everything.throughput)):
            raise SystemExit("the exact front is not that of all plans")
    small, small_seconds = searched(plans, exact, 40, 50, seeds)
    large, large_seconds = searched(plans, exact, 100, 100, seeds)
    middle = statistics.median
    report(
        f"The front of {len(plans):,} plans",
        [
            Figure("exact_4m_seconds", middle(seconds), "CPU s", 0.3, "lower",
                   f"{spread(seconds)} over {repeats}; {len(exact)} plans are on it"),
            Figure("exact_4m_worst_seconds", worst, "CPU s", None, "lower",
                   f"of {len(others)} spaces and demands, the better of 2 each"),
            Figure("evaluated_share", asked / len(plans), "1", None, "lower",
                   f"of the plans: {exact.evaluated:,}, and {asked - exact.evaluated:,} for their sides"),
            Figure("all_evaluated_seconds", middle(all_seconds), "CPU s", None, "lower",
                   f"every plan by the law: the same front, {len(all_seconds)} times"),
            Figure("exact_4m_peak_mib", peak, "MiB", None, "lower", "of arrays, at once"),
            Figure("nsga2_40x50_hypervolume_ratio", middle(small), "1", None, "higher",
                   f"{spread(small)}, {seeds} seeds"),
            Figure("nsga2_40x50_seconds", small_seconds, "CPU s", None, "lower"),
            Figure("nsga2_100x100_hypervolume_ratio", middle(large), "1", None, "higher",
                   f"{spread(large)}, {seeds} seeds"),
            Figure("nsga2_100x100_seconds", large_seconds, "CPU s", None, "lower"),
        ],
        chosen.json,
    )  # fmt: skip


if __name__ == "__main__":
    main()
