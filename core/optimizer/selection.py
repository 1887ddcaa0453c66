"""Many jobs, one capacity: who gets which plan.

As the paper has it: plans that give resources back come first, then a weighted greedy by weight times resource
efficiency (throughput gained per resource). What the paper leaves open is fixed here, once, in the formulas:

    t_j      = samples left / throughput of job j's cheapest plan           seconds
    t_ref    = median of t_j over all jobs
    weight_j = 1 / (0.1 + t_j / t_ref) + 0.3 waited_j / t_ref
    value    = weight_j (throughput of the plan - of what it has now) / throughput of its cheapest plan

Throughputs of different models cannot be compared, so each counts in multiples of its own cheapest plan. A job with
little left weighs more, up to 10; one that waits weighs more with every second, without end. For jobs that take long
the first term times the relative throughput is the rate at which jobs are completed, which is what keeps the mean
completion time low.

All or nothing: a job that waits gets a plan with its PSs and its least number of workers, or nothing, so that two
half-started jobs never wait for each other (case 22). What runs keeps what it has: nothing is taken away from a job for
another, but what the job itself can give back for next to no throughput. A job that has waited 20 times t_ref
goes before all others; while it does not fit, nobody starts and nobody grows, so that what becomes free is left to it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core.errors import BadInput
from trimtab.core.optimizer.front import Candidate
from trimtab.core.optimizer.knapsack import NOTHING, Options, choose_options
from trimtab.core.perf.iteration import Array

MOST_LOSS = 0.02  # of its throughput, that a job may lose by giving back
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Weighing:
    """The constants of the weights: 1 / (rho + remaining t_j / t_ref) + ageing waited_j / t_ref.

    Attributes:
        rho: a job with nothing left weighs 1 / rho.
        remaining: 0 makes all jobs that do not wait equal.
        ageing: weight for each t_ref that a job has waited.
        patience: t_refs of waiting after which a job goes before all others.
    """

    rho: float = 0.1
    remaining: float = 1.0
    ageing: float = 0.3
    patience: float = 20.0

    def weights(self, seconds: Array, waited: Array, t_ref: float) -> Array:
        """Of jobs with so many seconds left on their cheapest plan, which waited so long."""
        return np.asarray(1 / (self.rho + self.remaining * seconds / t_ref) + self.ageing * waited / t_ref)


USUAL = Weighing()


@dataclass(frozen=True)
class Capacity:
    """What all jobs together may have: cores and bytes."""

    cpu: float
    memory_bytes: float


@dataclass(frozen=True)
class JobOffer:
    """One job and the plans that it could use.

    Attributes:
        job: its name.
        candidates: plans with cost and predicted throughput, in any order; usually its front.
        samples_left: not yet trained.
        present: what it runs on; None: it waits.
        waited_seconds: since it asked for a start, for a job that waits.
        least_workers, least_ps: with fewer it cannot run at all.
    """

    job: str
    candidates: tuple[Candidate, ...]
    samples_left: float
    present: Candidate | None = None
    waited_seconds: float = 0.0
    least_workers: int = 1
    least_ps: int = 1


class Outcome(enum.StrEnum):
    """What a selection means for a job."""

    STARTED = "started"
    GROWN = "grown"
    GAVE_BACK = "gave back"
    KEPT = "kept"
    QUEUED = "queued"
    TOO_LARGE = "too large"  # no plan of it would fit if it were alone


@dataclass(frozen=True)
class Selected:
    """A job's part of a selection: its plan from now on (None: it waits), what that is, and what the job weighed."""

    job: str
    plan: Candidate | None
    outcome: Outcome
    weight: float


@dataclass(frozen=True)
class Selection:
    """Plans of all jobs, in the order of the offers.

    Attributes:
        jobs: one for each offer.
        value: what the changes are worth together, by the formula above; what is given back counts nothing.
        waited_for: the job that everything free is left to; None usually.
    """

    jobs: tuple[Selected, ...]
    value: float
    waited_for: str | None = None


@dataclass(frozen=True)
class Problem:
    """A selection as options, after what is given back.

    Attributes:
        options: per job and candidate: value and what it takes beyond `base`. bases: what each job has then.
        weights: of the jobs. t_ref: seconds.
    """

    options: Options
    bases: tuple[Candidate | None, ...]
    weights: Array
    t_ref: float


def select(offers: Sequence[JobOffer], capacity: Capacity, weighing: Weighing = USUAL) -> Selection:
    """The plans that all jobs should have now.

    Args:
        offers: of all jobs that run or wait; what is chosen is a candidate of the job, or what it has.
        capacity: of all of them together. Where what runs takes more than that, nothing starts or grows.
        weighing: constants of the weights.

    Raises:
        BadInput: a capacity is not above 0, two jobs have one name, samples left or seconds waited are negative.
    """
    made = problem(offers, capacity, weighing)
    first = _waits_longest(offers, made, weighing.patience)
    chosen = np.full(len(offers), NOTHING)
    waited_for = None
    if first is None:
        chosen = choose_options(made.options)
    else:
        alone = made.options.value[first : first + 1]
        sizes = (made.options.sizes[0][first : first + 1], made.options.sizes[1][first : first + 1])
        chosen[first] = choose_options(Options(alone, sizes, made.options.capacity))[0]
        if chosen[first] == NOTHING:
            waited_for = offers[first].job
        else:
            value = made.options.value.copy()
            value[first] = -np.inf
            others = choose_options(Options(value, made.options.sizes, made.options.left(chosen)))
            chosen = np.where(others == NOTHING, chosen, others)
    jobs = tuple(
        _selected(offer, base, int(column), float(weight), bool(np.isfinite(values).any()))
        for offer, base, column, weight, values in zip(
            offers, made.bases, chosen, made.weights, made.options.value, strict=True
        )
    )
    return Selection(jobs, made.options.total(chosen), waited_for)


def problem(offers: Sequence[JobOffer], capacity: Capacity, weighing: Weighing = USUAL) -> Problem:
    """What `select` solves, for those who solve it another way. Raises as `select`."""
    _check(offers, capacity)
    width = max((len(one.candidates) for one in offers), default=0)
    table = np.full((4, len(offers), width), np.nan)  # throughput, cores, bytes, cost
    allowed = np.zeros((len(offers), width), bool)
    for row, offer in enumerate(offers):
        for column, one in enumerate(offer.candidates):
            plan = one.plan
            table[:, row, column] = one.throughput, plan.cpu, plan.memory_bytes, one.cost
            allowed[row, column] = (
                plan.worker.replicas >= offer.least_workers and plan.ps.replicas >= offer.least_ps
            )  # fmt: skip
    throughput, cpu, memory, cost = table
    # What does not fit even alone is no option; a job without any is named too large.
    allowed &= np.isfinite(throughput) & (throughput > 0) & np.isfinite(cost)
    allowed &= (cpu <= capacity.cpu * (1 + _ROUNDING)) & (memory <= capacity.memory_bytes * (1 + _ROUNDING))

    bases = tuple(_base(one, allowed[row]) for row, one in enumerate(offers))
    has = [one.present.throughput if one.present is not None else 0.0 for one in offers]
    taken = [(one.plan.cpu, float(one.plan.memory_bytes)) if one is not None else (0.0, 0.0) for one in bases]
    after = np.array([one.throughput if one is not None else 0.0 for one in bases], float)
    used = np.array(taken, float).reshape(-1, 2)
    allowed &= throughput > np.array(has, float)[:, None]

    cheapest = _cheapest_throughput(offers)
    left = np.array([one.samples_left for one in offers], float)
    seconds = left / cheapest
    known = seconds[np.isfinite(seconds) & (seconds > 0)]
    t_ref = float(np.median(known)) if len(known) else 1.0
    waited = np.array([one.waited_seconds if one.present is None else 0.0 for one in offers], float)
    weights = np.nan_to_num(weighing.weights(seconds, waited, t_ref))  # 0 where no plan can be used
    gain = np.where(allowed, throughput, 0.0) - after[:, None]
    value = np.where(allowed, weights[:, None] * gain / cheapest[:, None], -np.inf)
    free = capacity.cpu - float(used[:, 0].sum()), capacity.memory_bytes - float(used[:, 1].sum())
    # What is no option takes nothing: sizes have to be numbers.
    sizes = (
        np.where(allowed, cpu - used[:, :1], 0.0), np.where(allowed, memory - used[:, 1:], 0.0)
    )  # fmt: skip
    return Problem(Options(value, sizes, free), bases, weights, t_ref)


def _check(offers: Sequence[JobOffer], capacity: Capacity) -> None:
    for name, amount in (("capacity.cpu", capacity.cpu), ("capacity.memory_bytes", capacity.memory_bytes)):
        if not (math.isfinite(amount) and amount > 0):
            raise BadInput(name, amount, "give a finite number above 0")
    seen: set[str] = set()
    for offer in offers:
        if offer.job in seen:
            raise BadInput("offer.job", offer.job, "offer each job once")
        seen.add(offer.job)
        for name in ("samples_left", "waited_seconds"):
            number = getattr(offer, name)
            if not (math.isfinite(number) and number >= 0):
                raise BadInput(f"offer.{name}", number, f"give job {offer.job} a finite number of at least 0")


def _base(offer: JobOffer, allowed: np.ndarray) -> Candidate | None:
    """What a job has before anything is shared out: its plan, or the cheapest that gives back for next to no loss.

    Gives back means: cheaper, and not more of either resource.
    """
    here = offer.present
    if here is None:
        return None
    gives = [
        one for column, one in enumerate(offer.candidates)
        if allowed[column] and one.cost < here.cost and one.throughput >= (1 - MOST_LOSS) * here.throughput
        and one.plan.cpu <= here.plan.cpu + _ROUNDING and one.plan.memory_bytes <= here.plan.memory_bytes
    ]  # fmt: skip
    return min(gives, key=lambda one: (one.cost, -one.throughput), default=here)


def _cheapest_throughput(offers: Sequence[JobOffer]) -> Array:
    """The throughput of each job's cheapest usable plan; not a number where it has none."""
    found = np.full(len(offers), np.nan)
    for row, offer in enumerate(offers):
        plans = [*offer.candidates, *([offer.present] if offer.present is not None else [])]
        usable = [
            one for one in plans
            if math.isfinite(one.cost) and 0 < one.throughput < math.inf
            and one.plan.worker.replicas >= offer.least_workers and one.plan.ps.replicas >= offer.least_ps
        ]  # fmt: skip
        if usable:
            found[row] = min(usable, key=lambda one: (one.cost, -one.throughput)).throughput
    return found


def _waits_longest(offers: Sequence[JobOffer], made: Problem, patience: float) -> int | None:
    """The row of the job that has waited longest of those beyond patience, and has a plan that would fit alone."""
    late = [
        (offer.waited_seconds, -row) for row, offer in enumerate(offers)
        if offer.present is None and offer.waited_seconds >= patience * made.t_ref
        and np.isfinite(made.options.value[row]).any()
    ]  # fmt: skip
    return -max(late)[1] if late else None


def _selected(offer: JobOffer, base: Candidate | None, column: int, weight: float, fits: bool) -> Selected:
    if column != NOTHING:
        outcome = Outcome.STARTED if offer.present is None else Outcome.GROWN
        return Selected(offer.job, offer.candidates[column], outcome, weight)
    if base is None:
        return Selected(offer.job, None, Outcome.QUEUED if fits else Outcome.TOO_LARGE, weight)
    return Selected(offer.job, base, Outcome.KEPT if base is offer.present else Outcome.GAVE_BACK, weight)
