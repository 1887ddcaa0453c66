"""What a job would be given and what that would bring, told before anything is started.

Past runs of the same job give the law its shape and its level: what they measured. Nothing of *this* job has been
measured, so no prediction here has a range. Without a past run there is no level at all: then only ratios are told, by
the stated shape of a step's CPU, and no second or money of the whole job is made up.

The plans are those that the job may grow to within its caps: memory per pod and a worker's threads stay as they are in
the first plan, for a process cannot be given more of them while it runs. Fewer PSs than in the first plan are possible
too, for a job that is started so; each has the memory then that the forecast of its tables asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimtab.core.domain.plan import Plan, RolePlan, within
from trimtab.core.domain.quantities import format_memory
from trimtab.core.domain.records import Considered, Decision, Range
from trimtab.core.optimizer import words
from trimtab.core.optimizer.feasible import in_time, keeps_limits, limits_said
from trimtab.core.optimizer.front import Candidate, exact_front, front_of
from trimtab.core.optimizer.lattice import Lattice, lattice, ps_memory, space, table_to_hold
from trimtab.core.optimizer.objective import scores
from trimtab.core.optimizer.outlook import Outlook, Preview, WhatIf
from trimtab.core.optimizer.question import Question
from trimtab.core.perf.demand import STATED_PS, STATED_WORKER
from trimtab.core.perf.fit import fit
from trimtab.core.perf.iteration import Array, Setting, Shapes, step_seconds

NO_RANGE = "no range: nothing of this job has been measured"
COLD = "throughput: no similar past run has been measured, so it is told as a multiple of the first plan's"
STATED_LEVEL = "throughput of the first plan: what past runs measured as a whole; they were too short for more"
OTHER_BATCH = "CPU per row: no past run had another batch size; the stated share of it is used"
MOST_CONSIDERED = 5
_FROM_PAST = "from past runs"  # how the fit says that a demand is theirs, which here all are
_MOST_CLOUD = 1500  # plans of a picture's background


@dataclass(frozen=True)
class _Speed:
    """How fast plans are; `at`: samples per second, or multiples of the first plan's where `relative`."""

    at: Callable[[Shapes], Array]
    relative: bool
    stated: bool
    law: str
    rests_on: tuple[str, ...]
    held: tuple[str, ...]
    notes: tuple[str, ...]


def preview(
    question: Question, decision: Decision, rows: int, runs: Sequence[str] = (), what_ifs: Sequence[WhatIf] = ()
) -> Preview:
    """What the job would bring with its first plan and with the others that it may grow to. Pure.

    Args:
        question: as at the job's start: `plan` is the first plan, `prior` the windows of similar past runs, and there
            are no observations.
        decision: for the first plan.
        rows: that the job trains on, all epochs together.
        runs: ids of the runs that `prior` comes from.
        what_ifs: plans to predict beside it.
    """
    setting = Setting(question.cpu_enforced, question.limits.cpu or math.inf, question.period_seconds)
    speed = _speed(question, decision, setting, runs)
    plans = _reachable(question)
    throughput = speed.at(plans.shapes) if len(plans) else np.zeros(0)
    first = _outlook(question, speed, rows, question.plan)
    front = tuple(
        _made(question, speed, rows, one.plan, one.cost, one.throughput)
        for one in _front(question, speed, plans, throughput)
    )
    usable = np.flatnonzero(np.isfinite(throughput) & np.isfinite(plans.cost))
    some = usable[:: max(1, math.ceil(len(usable) / _MOST_CLOUD))]
    found = Preview(
        question, decision, rows, speed.relative, speed.stated, first, first, front,
        space(question).count_within() if question.cpu_enforced else len(plans),
        tuple((float(plans.cost[index]), float(throughput[index])) for index in some),
        speed.law, (*speed.rests_on, *_memory_said(question)), speed.held, speed.notes,
        tuple(_wished(question, speed, rows, plans, wish, setting) for wish in what_ifs),
    )  # fmt: skip
    best = _best(found)
    found = replace(found, best=best)
    return replace(found, notes=(*speed.notes, *limits_said(found)))


def start_considered(found: Preview, free: bool = True) -> tuple[Considered, ...]:
    """Candidates of the first decision: the first plan, the objective's, the fastest and the cheapest.

    Empty where no past run gives a level: a multiple is no throughput.

    Args:
        found: the preview. free: whether the job may change its plan; only said.
    """
    if found.relative:
        return ()
    kept: list[Considered] = []
    for one in (found.first, found.best, found.fastest, found.cheapest, *found.front[:1]):
        if any(one.plan == other.plan for other in kept) or len(kept) == MOST_CONSIDERED:
            continue
        chosen = one.plan == found.first.plan
        kept.append(
            Considered(
                one.plan, one.throughput, one.cost_per_hour, chosen, "" if chosen else _against(found, one, free)
            )
        )
    return tuple(kept)


def front_considered(found: Preview, most: int = 40) -> tuple[Considered, ...]:
    """The front as candidates, at most `most` of them, both ends among them; empty without a level."""
    if found.relative:
        return ()
    return tuple(
        Considered(one.plan, one.throughput, one.cost_per_hour, one.plan == found.first.plan)
        for one in thinned(found.front, most)
    )


def thinned(front: Sequence[Outlook], most: int, keep: Sequence[Outlook] = ()) -> tuple[Outlook, ...]:
    """At most about `most` of `front`, evenly over the logarithm of cost, with both ends and all of `keep`."""
    if len(front) <= most:
        return tuple(front)
    logs = np.log([max(one.cost_per_hour, 1e-300) for one in front])
    wanted = np.linspace(logs[0], logs[-1], most)
    places = {int(np.argmin(np.abs(logs - one))) for one in wanted} | {0, len(front) - 1}
    kept = {one.plan for one in keep}
    places |= {place for place, one in enumerate(front) if one.plan in kept}
    return tuple(front[place] for place in sorted(places))


def _speed(question: Question, decision: Decision, setting: Setting, runs: Sequence[str]) -> _Speed:
    """The law of past runs at the level that they measured, or the stated shape without a level."""
    fitted = fit((), question.prior, question.plan, question.batch_size, 0.0, (), setting) if question.prior else None
    if fitted is None:
        return _stated_speed(question, decision, setting, runs)
    level, windows = _level(question, decision, fitted.throughput)
    law = fitted.law_text.split(",")[0]
    of = f"{words.count(windows, 'window')} of {words.count(max(1, len(runs)), 'past run')}"
    names_of_runs = f" ({', '.join(runs)})" if runs else ""
    rests = (
        f"throughput: {law}, fitted on {of}{names_of_runs}, at the level that they measured",
        NO_RANGE,
    )
    return _Speed(
        lambda shapes: np.asarray(fitted.throughput(shapes) * level), False, False, f"{law}, fitted on {of}", rests,
        tuple(one for one in fitted.held if not one.endswith(_FROM_PAST)), fitted.notes,
    )  # fmt: skip


def _stated_speed(question: Question, decision: Decision, setting: Setting, runs: Sequence[str]) -> _Speed:
    """The stated shape: at the level that past runs measured for the first plan as a whole, or without any."""
    base = float(_stated(Shapes.of([question.plan]), question.batch_size, setting)[0])
    known = decision.predicted.middle if decision.predicted is not None else None
    level = known if known is not None and math.isfinite(known) and known > 0 else None
    named = f" ({', '.join(runs)})" if runs else ""
    first = COLD if level is None else STATED_LEVEL + named
    rests = (first, "ratios are those of the quota law with CPU per step as it was measured for a DLRM")
    names = ("CPU per batch", "CPU per row", "CPU per PS")
    scale = (1.0 if level is None else level) / base
    return _Speed(
        lambda shapes: _stated(shapes, question.batch_size, setting) * scale, level is None, True,
        "quota law, stated shape", rests if level is None else (*rests, NO_RANGE), names, (),
    )  # fmt: skip


def _level(question: Question, decision: Decision, law: Callable[[Shapes], Array]) -> tuple[float, int]:
    """What past runs measured over what the law says, and in how many windows.

    Where runs measured the first plan itself, that counts; else the median over all their windows.
    """
    windows = [one for one in question.prior if math.isfinite(one.throughput) and one.throughput > 0]
    known = decision.predicted.middle if decision.predicted is not None else None
    if known is not None and math.isfinite(known) and known > 0:
        return known / float(law(Shapes.of([question.plan]))[0]), len(windows)
    measured = np.array([one.throughput for one in windows])
    ratio = float(np.median(measured / law(Shapes.of([one.plan for one in windows])))) if windows else 1.0
    return (ratio if math.isfinite(ratio) and ratio > 0 else 1.0), len(windows)


def _stated(shapes: Shapes, batch_size: int, setting: Setting) -> Array:
    """Samples per second by the stated demands; only its ratios mean something."""
    worker = STATED_WORKER.seconds(batch_size, shapes.ps, shapes.worker_cpu, setting)
    ps = STATED_PS.seconds(batch_size, shapes.ps, shapes.ps_cpu, setting)
    return np.asarray(shapes.workers * batch_size / step_seconds(worker, ps, shapes, setting))


def _reachable(question: Question) -> Lattice:
    """Plans within the caps with the first plan's threads; a selection where there are very many."""
    return lattice(question, everything=True)


def _front(question: Question, speed: _Speed, plans: Lattice, throughput: Array) -> tuple[Candidate, ...]:
    """The front of all plans within the caps, also where these allow more than fit in memory at once."""
    if question.cpu_enforced:
        # Nothing of this job is measured, so the prediction is the law times a level: never slower with more of a pod.
        return exact_front(space(question), speed.at, speed.at).candidates()
    some = front_of(plans.cost, throughput)
    return tuple(Candidate(plans.plan(one), float(plans.cost[one]), float(throughput[one])) for one in some)


def _memory_said(question: Question) -> tuple[str, ...]:
    """What the memory of plans with fewer PSs than the first one rests on, where it is more than the first one's."""
    first = question.plan.ps
    if ps_memory(question, np.ones(1))[0] <= first.memory_bytes or first.replicas == 1:
        return ()
    table = format_memory(math.ceil(table_to_hold(question) / 2**20) << 20)
    return (f"memory: the tables may reach {table}, so fewer PSs than {first.replicas} get as much more as that needs",)


def _outlook(question: Question, speed: _Speed, rows: int, plan: Plan) -> Outlook:
    throughput = float(speed.at(Shapes.of([plan]))[0])
    return _made(question, speed, rows, plan, question.prices.per_hour(plan), throughput)


def _made(question: Question, speed: _Speed, rows: int, plan: Plan, cost: float, throughput: float) -> Outlook:
    seconds = None if speed.relative else rows / throughput
    whole = None if seconds is None else cost * seconds / 3600
    return Outlook(plan, question.batch_size, cost, Range(throughput), seconds, whole, within(plan, question.limits))


def _wished(
    question: Question, speed: _Speed, rows: int, plans: Lattice, wish: WhatIf, setting: Setting
) -> Outlook:  # fmt: skip
    """A plan that was asked about; what it leaves open is as in the first plan."""
    base, shapes = question.plan, plans.shapes
    w = base.worker.replicas if wish.workers is None else wish.workers
    p = base.ps.replicas if wish.ps is None else wish.ps
    cores = [base.worker.cpu, base.ps.cpu]
    if not question.cpu_enforced:  # cores follow from the numbers of pods
        same = np.flatnonzero((shapes.workers == w) & (shapes.ps == p))
        cores = [float(shapes.worker_cpu[same[0]]), float(shapes.ps_cpu[same[0]])] if len(same) else cores
    cores[0] = cores[0] if wish.worker_cpu is None else wish.worker_cpu
    cores[1] = cores[1] if wish.ps_cpu is None else wish.ps_cpu
    memory = int(ps_memory(question, np.array([float(p)]))[0])
    plan = Plan(RolePlan(p, cores[1], memory), RolePlan(w, cores[0], base.worker.memory_bytes))
    found = _outlook(question, speed, rows, plan)
    batch = wish.batch_size or question.batch_size
    if batch == question.batch_size:
        return found
    one = Shapes.of([plan])
    ratio = float(_stated(one, batch, setting)[0] / _stated(one, question.batch_size, setting)[0])
    seconds = None if found.seconds is None else found.seconds / ratio
    cost = None if found.cost is None else found.cost / ratio
    return replace(
        found, batch_size=batch, throughput=Range(found.throughput.middle * ratio), seconds=seconds, cost=cost,
        held=(OTHER_BATCH,),
    )  # fmt: skip


def _best(found: Preview) -> Outlook:
    """The front's plan with the highest score among those within budget and deadline, as far as these are known."""
    question, front = found.question, found.front
    if not front:
        return found.first
    kept = [one for one in front if keeps_limits(question, one)]
    if not kept:  # none keeps both: as near as can be
        late = question.deadline_seconds is not None and not in_time(question, found.fastest)
        return found.fastest if late else found.cheapest
    values = scores(
        np.array([one.throughput.middle for one in kept]), np.array([one.cost_per_hour for one in kept]),
        question.objective,
    )  # fmt: skip
    return kept[int(np.argmax(values))]


def _against(found: Preview, one: Outlook, free: bool) -> str:
    """How a plan compares with the first one, and why the job does not start with it."""
    faster = words.more_or_less(one.throughput.middle / found.first.throughput.middle, "faster", "slower")
    dearer = words.more_or_less(one.cost_per_hour / max(1e-300, found.first.cost_per_hour))
    if not free:
        then = "the mode keeps the first plan"
    elif one.plan == found.best.plan:
        then = "the job changes to it once measurements say so"
    else:
        then = f"not what objective {found.question.objective} asks for"
    return f"{faster} for {dearer} cost per hour; {then}"
