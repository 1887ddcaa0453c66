"""Plans for a thousand jobs at once, against the exact answer, and what the weights do to completion times.

Jobs are made by the product's own law: demands spread over a decade, memory by table and model, and up to 50 plans of
each job's exact front as its candidates; two in five jobs run already. The capacity, in cores and bytes, is 15 to 40 %
of what all jobs could use. The exact answer is that of SciPy's MILP solver (gap 1e-4, 30 s at most) on 10 to 60 jobs;
instances that it does not finish are left out and counted. For 1,000 jobs the value is compared with the Lagrangian
bound, which no answer exceeds. The simulation gives 120 jobs of very different length to a cluster of 48 cores, with
known throughputs: they come at random, all running and waiting ones are selected anew at each arrival and end, and
nothing that runs is stopped. Completion times include waiting. First come, first served starts the oldest job with the
plan that brings most per cost, and nobody overtakes it; plain efficiency is the same greedy with equal weights.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from figures import Figure, options, report

from trimtab.core.domain.plan import Limits
from trimtab.core.optimizer.front import Candidate, exact_front, speed_of
from trimtab.core.optimizer.knapsack import Options, bound
from trimtab.core.optimizer.selection import Capacity, JobOffer, Weighing, problem, select
from trimtab.core.optimizer.space import Space
from trimtab.core.perf.demand import STATED_PS, STATED_WORKER
from trimtab.core.perf.iteration import Setting
from trimtab.core.perf.quota import USUAL_SKEW, QuotaLaw

GIB = 2**30
GAP_SECONDS = 80.0  # between arrivals, mean
Chooser = Callable[[Sequence[JobOffer], Capacity], dict[str, Candidate]]


def candidates(generator: np.random.Generator, most: int) -> tuple[Candidate, ...]:
    """Up to `most` plans of the front of a job with demands, table and memory of its own."""
    roles = []
    for one, times in zip((STATED_WORKER, STATED_PS), generator.lognormal(0, 0.8, 2), strict=True):
        roles.append(replace(one, fixed=one.fixed * times, per_rows=one.per_rows * times, per_ps=one.per_ps * times))
    table, worker = generator.lognormal(1, 1) * GIB, (1 + generator.lognormal(0, 0.5)) * GIB
    sizes = [0.25, 0.5, 0.75, 1.0, 2.0]
    space = Space.of(Limits(), 16, 8, sizes, sizes, worker, lambda ps: 0.25 * GIB + 1.2 * table / ps)
    speed = speed_of(QuotaLaw(roles[0], roles[1], USUAL_SKEW, False), 512, Setting())
    found = exact_front(space, speed).candidates()
    places = np.unique(np.linspace(0, len(found) - 1, most).astype(int))
    return tuple(found[place] for place in places)


def jobs(seed: int, count: int, most: int = 50) -> tuple[list[JobOffer], Capacity]:
    """Jobs that run and wait, and a capacity that is too small for all."""
    generator = np.random.default_rng(seed)
    offers, held, wanted = [], np.zeros(2), np.zeros(2)
    for number in range(count):
        plans = candidates(generator, most)
        present = plans[int(generator.integers(0, max(1, len(plans) // 3)))] if generator.random() < 0.4 else None
        offers.append(
            JobOffer(
                f"job-{number}", plans, float(plans[0].throughput * generator.lognormal(8, 1.2)), present,
                0.0 if present else float(generator.exponential(2000)), least_workers=int(generator.integers(1, 3)),
            )
        )  # fmt: skip
        if present:
            held += present.plan.cpu, present.plan.memory_bytes
        wanted += plans[-1].plan.cpu, plans[-1].plan.memory_bytes
    share = generator.uniform(0.15, 0.4, 2)
    return offers, Capacity(*np.maximum(held * 1.05, share * wanted))


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Without what the solver's C++ code prints."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def exact_value(one: Options) -> float | None:
    """The best value there is; None where the solver does not prove it in time."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    row, column = np.nonzero(np.isfinite(one.value) & (one.value > 0))
    if not len(row):
        return 0.0
    count = len(one.value)
    entries = np.concatenate([np.ones(len(row)), *(size[row, column] for size in one.sizes)])
    rows = np.concatenate([row, np.full(len(row), count), np.full(len(row), count + 1)])
    places = (rows, np.tile(np.arange(len(row)), 3))
    with silent():
        found = milp(
            -one.value[row, column],
            constraints=LinearConstraint(csr_matrix((entries, places)), -np.inf, np.r_[np.ones(count), one.capacity]),
            integrality=np.ones(len(row)), bounds=Bounds(0, 1), options={"time_limit": 30, "mip_rel_gap": 1e-4},
        )  # fmt: skip
    return -float(found.fun) if found.status == 0 else None


def compared(seeds: int) -> tuple[list[float], int, float]:
    """Ratios to the exact value, how many instances the solver left open, and its median CPU seconds."""
    ratios, open_, seconds = [], 0, []
    for seed in range(seeds):
        offers, capacity = jobs(seed, (10, 20, 40, 60)[seed % 4])
        before = time.process_time()
        best = exact_value(problem(offers, capacity).options)
        seconds.append(time.process_time() - before)
        if best is None or best <= 0:
            open_ += 1
            continue
        ratios.append(select(offers, capacity).value / best)
    return ratios, open_, statistics.median(seconds)


def by(weighing: Weighing) -> Chooser:
    """The product's selection with these weights."""

    def choose(offers: Sequence[JobOffer], capacity: Capacity) -> dict[str, Candidate]:
        return {one.job: one.plan for one in select(offers, capacity, weighing).jobs if one.plan is not None}

    return choose


def first_come(offers: Sequence[JobOffer], capacity: Capacity) -> dict[str, Candidate]:
    """In order of arrival, each with the plan that brings most per cost; nobody overtakes."""
    plans = {one.job: one.present for one in offers if one.present is not None}
    free = np.array([capacity.cpu, capacity.memory_bytes]) - sum(
        (np.array([one.plan.cpu, one.plan.memory_bytes]) for one in plans.values()), np.zeros(2)
    )
    for offer in sorted((one for one in offers if one.present is None), key=lambda one: -one.waited_seconds):
        best = max(offer.candidates, key=lambda one: one.throughput / one.cost)
        need = np.array([best.plan.cpu, best.plan.memory_bytes])
        if np.any(need > free * (1 + 1e-9)):
            break
        plans[offer.job] = best
        free = free - need
    return plans


def simulated(choose: Chooser, seed: int, count: int, gap: float = GAP_SECONDS) -> tuple[list[float], float]:
    """Completion seconds of all jobs, and the longest wait, with one way of choosing."""
    generator = np.random.default_rng(seed)
    capacity = Capacity(48.0, 160.0 * GIB)
    arrivals = np.cumsum(generator.exponential(gap, count))
    offers = []
    for number in range(count):
        plans = candidates(generator, 20)
        plans = tuple(one for one in plans if one.plan.cpu <= 24 and one.plan.memory_bytes <= 80 * GIB)
        middle = plans[len(plans) // 2].throughput
        offers.append(JobOffer(f"job-{number}", plans, float(middle * generator.lognormal(6.3, 1.1))))
    now, following = 0.0, 0
    active: dict[str, JobOffer] = {}
    ended: dict[str, float] = {}
    waits: dict[str, float] = {}
    while len(ended) < count:
        ends = [now + one.samples_left / one.present.throughput for one in active.values() if one.present]
        if following < count:
            ends.append(float(arrivals[following]))
        step = min(ends) - now
        now += step
        for name, one in list(active.items()):
            done = step * one.present.throughput if one.present else 0.0
            waited = one.waited_seconds if one.present else one.waited_seconds + step
            active[name] = replace(one, samples_left=max(0.0, one.samples_left - done), waited_seconds=waited)
            if one.present and one.samples_left - done <= 1e-6 * one.present.throughput:
                ended[name] = now - arrivals[int(name[4:])]
                del active[name]
        if following < count and now >= arrivals[following]:
            active[offers[following].job] = offers[following]
            following += 1
        plans = choose(list(active.values()), capacity)
        for name, one in list(active.items()):
            if one.present is None and name in plans:
                waits[name] = one.waited_seconds
            active[name] = replace(one, present=plans.get(name, one.present))
    return list(ended.values()), max(waits.values())


def spread(values: Sequence[float]) -> str:
    """The ends of some values."""
    return f"{min(values):.4g} to {max(values):.4g}"


def main() -> None:
    """Measure and report."""
    chosen = options(__doc__)
    repeats, seeds, worlds, count = (2, 12, 1, 60) if chosen.quick else (9, 80, 6, 120)
    offers, capacity = jobs(1, 1000)
    seconds = []
    for _ in range(repeats):
        before = time.process_time()
        found = select(offers, capacity)
        seconds.append(time.process_time() - before)
    outcomes: dict[str, int] = {}
    for one in found.jobs:
        outcomes[one.outcome.value] = outcomes.get(one.outcome.value, 0) + 1
    to_bound = found.value / bound(problem(offers, capacity).options)
    ratios, open_, milp_seconds = compared(seeds)

    ways = {
        "weighted": by(Weighing()),
        "without ageing": by(Weighing(ageing=0.0, patience=np.inf)),
        "plain efficiency": by(Weighing(remaining=0.0, ageing=0.0, patience=np.inf)),
        "first come, first served": first_come,
    }
    means: dict[str, list[float]] = {name: [] for name in ways}
    medians: dict[str, list[float]] = {name: [] for name in ways}
    waits: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(worlds):
        for name, choose in ways.items():
            completion, longest = simulated(choose, seed, count)
            means[name].append(statistics.fmean(completion))
            medians[name].append(statistics.median(completion))
            waits[name].append(longest)
    figures = [
        Figure("seconds_1000_jobs", statistics.median(seconds), "CPU s", 1.0, "lower",
               f"{spread(seconds)}; {', '.join(f'{number} {name}' for name, number in outcomes.items())}"),
        Figure("value_ratio_to_exact", statistics.fmean(ratios), "1", 0.98, "higher",
               f"mean of {len(ratios)}; {spread(ratios)}; the solver left {open_} open"),
        Figure("worst_value_ratio_to_exact", min(ratios), "1", None, "higher"),
        Figure("value_ratio_to_bound_1000_jobs", to_bound, "1", None, "higher", "of the Lagrangian bound"),
        Figure("milp_seconds", milp_seconds, "CPU s", None, "lower", "median, 10 to 60 jobs"),
    ]  # fmt: skip
    for name in ways:
        title = name.replace(", ", "_").replace(" ", "_")
        middle = statistics.fmean
        figures.append(
            Figure(f"mean_jct_{title}", middle(means[name]) / 60, "min", None, "lower",
                   f"median job {middle(medians[name]) / 60:.3g} min, longest wait {middle(waits[name]) / 60:.3g} min; "
                   f"{worlds} x {count} jobs")
        )  # fmt: skip
    report("Plans for many jobs", figures, chosen.json)


if __name__ == "__main__":
    main()
