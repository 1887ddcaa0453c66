"""Made-up jobs for `guard.py`: what is true of them, what they show of it, and what their plans add up to.

The product only sees windows with noise, as it does of a real job. What is true is a law that is not the fitted one, on
a machine whose speed drifts; so that a plan can be judged by what it really brings, from the second it came into force.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from trimtab.core.controller.changing import DEFAULT_SWITCH_SECONDS
from trimtab.core.domain.job import JobSpec, Objective
from trimtab.core.domain.plan import Limits, Plan, Prices, RolePlan
from trimtab.core.domain.records import Decision, Observation
from trimtab.core.optimizer.lattice import Lattice, lattice
from trimtab.core.optimizer.objective import COST_WEIGHT
from trimtab.core.optimizer.question import Question
from trimtab.core.optimizer.start import first_plan
from trimtab.core.perf.iteration import Array, Shapes

LAWS, UNSEEN = ("bottleneck", "p-norm", "additive", "MVA"), "shared link"
GIB = 2**30
BATCH = 1024
SETTLE_SECONDS, WINDOW_SECONDS, FOLLOW_SECONDS = 2.0, 3.0, 1.5
PERIOD_SECONDS = 0.02
_LONGEST_SECONDS = 40_000  # of a path of speeds


@dataclass(frozen=True)
class Truth:
    """What is true of a job: its law with constants, and how it is seen.

    Attributes:
        law: one of LAWS, or UNSEEN. exponent: of the p-norm.
        worker, ps: CPU seconds per step: fixed, and per PS. overhead: CPU seconds lost per quota period.
        fixed, link: seconds per step that no CPU shows: always, and per worker.
        noise: log sd of a window. idle: how much more CPU a step needs of a role that is not busy.
        knows_cpu: whether windows hold CPU seconds. enforced: whether shares hold.
        pauses: seconds of lost training per kind of change.
        speed: of the machine, one factor per second.
    """

    law: str
    exponent: float
    worker: tuple[float, float]
    ps: tuple[float, float]
    overhead: float
    fixed: float
    link: float
    noise: float
    idle: float
    knows_cpu: bool
    enforced: bool
    machine_cpu: float
    pauses: dict[str, float]
    speed: Array

    def demands(self, shapes: Shapes) -> tuple[Array, Array]:
        """CPU seconds per step of a worker and of all PSs."""
        worker = self.worker[0] + self.worker[1] * shapes.ps
        ps = self.ps[0] + self.ps[1] * shapes.ps
        if self.enforced:
            worker = worker * (1 + self.overhead / (shapes.worker_cpu * PERIOD_SECONDS))
            ps = ps * (1 + self.overhead / (shapes.ps_cpu * PERIOD_SECONDS))
        return worker, ps

    def seconds(self, shapes: Shapes) -> Array:
        """Of one step of one worker, at the machine's usual speed."""
        worker, ps = self.demands(shapes)
        worker_cores = shapes.worker_cpu if self.enforced else np.ceil(shapes.worker_cpu)
        ps_cores = shapes.ps_cpu if self.enforced else np.ones_like(shapes.ps_cpu)
        a, s, w = worker / worker_cores, ps / (shapes.ps * ps_cores), shapes.workers
        serial = worker + ps / shapes.ps
        if self.law == "additive":
            time = a + w * s + self.link * w / shapes.ps + self.fixed
        elif self.law == "MVA":
            time = _mva(a, s, w) + self.fixed
        elif self.law == "p-norm":
            largest = np.maximum.reduce([a, w * s, serial])
            time = largest * sum((one / largest) ** self.exponent for one in (a, w * s, serial)) ** (1 / self.exponent)
        else:
            time = np.maximum.reduce([a, w * s, serial])
        if self.law == UNSEEN:
            time = np.maximum(time, w * self.link)
        if not self.enforced:
            time = np.maximum(time, w * (worker + ps) / self.machine_cpu)
        return np.asarray(time)

    def rates(self, shapes: Shapes) -> Array:
        """Samples per second at the machine's usual speed."""
        return shapes.workers * BATCH / self.seconds(shapes)


def _mva(think: Array, service: Array, customers: Array) -> Array:
    """Seconds of a round of a closed queueing network of one queue and a delay, by exact mean value analysis."""
    queue, round_trip = np.zeros_like(think), think + service
    for n in range(1, int(customers.max()) + 1):
        here = customers >= n
        wait = service * (1 + queue)
        round_trip = np.where(here, think + wait, round_trip)
        queue = np.where(here, n * wait / (think + wait), queue)
    return np.asarray(round_trip)


@dataclass(frozen=True)
class Accepted:
    """A change that was made: gain is what it truly brings over the work that is left, in logs of the job's measure."""

    decision: Decision
    gain: float


@dataclass
class Job:
    """One job: asked after every settled window, as the controller asks."""

    truth: Truth
    limits: Limits
    objective: Objective
    plan: Plan
    batches: float
    seed: int
    prices: Prices = field(default_factory=Prices)
    accepted: list[Accepted] = field(default_factory=list)

    @property
    def weight(self) -> float:
        """Of cost in the measure; as fast as possible is time alone."""
        return 0.0 if self.objective is Objective.FASTEST else COST_WEIGHT[self.objective]

    def loss(self, seconds: float, plan: Plan) -> float:
        """What so much time under `plan` counts: seconds, money, or what lies between."""
        return seconds * self.prices.per_hour(plan) ** self.weight

    def run(self, decide: Callable[[Question], Decision]) -> float:
        """The job's loss, led by `decide`."""
        chance = random.Random(self.seed)
        plan, left, time, total = self.plan, self.batches, 0.0, 0.0
        seen: list[Observation] = []
        decisions: list[Decision] = []
        paid: dict[str, list[float]] = {}
        fresh = True
        rate = self._rate(plan)
        while left > 0:
            span = SETTLE_SECONDS + WINDOW_SECONDS if fresh else WINDOW_SECONDS
            span = min(span, left / (rate * self._speed(time)))
            done = rate * self._speed(time) * span
            left, time, total = left - done, time + span, total + self.loss(span, plan)
            if left <= 1e-6:
                break
            fresh = False
            seen = [*seen[-399:], self._window(plan, time, chance)]
            if decisions and decisions[-1].changes_plan and decisions[-1].measured is None:
                decisions[-1] = replace(decisions[-1], measured=seen[-1].throughput)
            asked = self._question(plan, left, time, seen, decisions, paid)
            made = replace(decide(asked), number=len(decisions) + 1)
            if made.plan == plan:
                if made.kind != "hold" or not decisions or decisions[-1].kind != "hold":
                    decisions.append(made)
                continue
            pause = self.pause(plan, made.plan) * math.exp(chance.gauss(0, 0.2))
            self.accepted.append(Accepted(made, self.gain(plan, made.plan, left, self._speed(time), pause)))
            kind = _kinds(plan, made.plan)[-1]
            paid.setdefault(kind, []).append(pause)
            left -= rate * self._speed(time) * FOLLOW_SECONDS
            total += self.loss(FOLLOW_SECONDS, plan) + self.loss(pause, made.plan)
            decisions.append(replace(made, switch_seconds=FOLLOW_SECONDS + pause, paused_seconds=pause))
            time += FOLLOW_SECONDS + pause
            plan, fresh = made.plan, True
            rate = self._rate(plan)
        return total

    def gain(self, before: Plan, after: Plan, left: float, speed: float, pause: float) -> float:
        """ln(loss of staying / loss of changing) over `left` batches, the pause paid."""
        stay = self.loss(left / (self._rate(before) * speed), before)
        return math.log(stay / self.loss(pause + left / (self._rate(after) * speed), after))

    def pause(self, before: Plan, after: Plan) -> float:
        """Seconds of lost training of a change."""
        return sum(self.truth.pauses[kind] for kind in _kinds(before, after))

    def bounds(self) -> tuple[float, float]:
        """The loss of never changing, and of an oracle that goes to the best plan at once and pays for it."""
        stay = self._straight(self.plan, 0.0)
        everything = self.everything()
        shapes = everything.shapes
        rates = self.truth.rates(shapes) / BATCH
        kinds = np.stack([shapes.workers != self.plan.worker.replicas, shapes.ps != self.plan.ps.replicas])
        pauses = kinds[0] * self.truth.pauses["worker"] + kinds[1] * self.truth.pauses["ps"]
        pauses += ~kinds.any(axis=0) * self.truth.pauses["cpu"]
        losses = (pauses + self.batches / rates) * everything.cost**self.weight
        best = everything.plan(int(np.argmin(losses)))
        return stay, min(stay, self._straight(best, self.pause(self.plan, best)))

    def everything(self) -> Lattice:
        """All plans within the caps."""
        large = Plan(
            replace(self.plan.ps, replicas=self.limits.ps or 1),
            replace(self.plan.worker, replicas=self.limits.workers or 1),
        )
        return lattice(self._question(large, self.batches, 0.0, [], [], {}))

    def _straight(self, plan: Plan, pause: float) -> float:
        """The loss under one plan from the start, over the same path of speeds."""
        done = self._rate(plan) * np.cumsum(self.truth.speed[int(pause) :])
        whole = int(np.searchsorted(done, self.batches))
        before = float(done[whole - 1]) if whole else 0.0
        speed = self._rate(plan) * self._speed(int(pause) + whole)
        return self.loss(pause + whole + (self.batches - before) / speed, plan)

    def _rate(self, plan: Plan) -> float:
        """Batches per second at the usual speed."""
        return float(self.truth.rates(Shapes.of([plan]))[0]) / BATCH

    def _speed(self, time: float) -> float:
        return float(self.truth.speed[min(int(time), _LONGEST_SECONDS - 1)])

    def _window(self, plan: Plan, end: float, chance: random.Random) -> Observation:
        truth, shapes, speed = self.truth, Shapes.of([plan]), self._speed(end)
        seconds = float(truth.seconds(shapes)[0])
        cpu: list[float | None] = [None, None]
        if truth.knows_cpu:
            used = [float(one[0]) for one in truth.demands(shapes)]
            cores = [plan.worker.cpu, plan.ps.cpu * plan.ps.replicas / plan.worker.replicas]
            for index in (0, 1):
                busy = min(1.0, used[index] / cores[index] / seconds)
                extra = (1 + truth.idle * (1 - busy)) * math.exp(chance.gauss(0, 0.03))
                cpu[index] = used[index] * extra / speed
        rate = plan.worker.replicas * BATCH / seconds * speed * math.exp(chance.gauss(0, truth.noise))
        done = int(rate * WINDOW_SECONDS / BATCH)
        return Observation(plan, rate, *cpu, BATCH, end, WINDOW_SECONDS, done)

    def _question(
        self, plan: Plan, left: float, time: float, seen: list[Observation], decisions: list[Decision],
        paid: dict[str, list[float]],
    ) -> Question:  # fmt: skip
        costs = DEFAULT_SWITCH_SECONDS | {kind: sorted(each)[len(each) // 2] for kind, each in paid.items()}
        return Question(
            time, plan, BATCH, math.ceil(left), tuple(seen), (), self.limits, self.objective, self.prices,
            tuple(decisions), costs, cpu_enforced=self.truth.enforced, period_seconds=PERIOD_SECONDS,
        )  # fmt: skip


def _kinds(before: Plan, after: Plan) -> list[str]:
    kinds = ["worker"] if before.worker.replicas != after.worker.replicas else []
    kinds += ["ps"] if before.ps.replicas != after.ps.replicas else []
    return kinds or ["cpu"]


def make_job(seed: int, law: str = "") -> Job:
    """The job of a seed, its law in turn unless given."""
    chance = random.Random(seed)
    law = law or LAWS[seed % len(LAWS)]
    cpu = round(2 * 32 ** chance.random(), 1)
    workers = max(1, int(cpu * chance.choice((0.5, 1, 2))))
    ps = max(1, min(16, int(cpu * chance.choice((0.25, 0.5)))))
    limits = Limits(cpu, 4 * GIB * (workers + ps), workers, ps)
    scale, ratio = 0.004 * 10 ** chance.random(), 0.1 * 10 ** chance.random()
    pauses = {
        "worker": 0.2 * 10 ** chance.random(), "ps": 0.3 * 30 ** chance.random(), "cpu": 0.05 * 4 ** chance.random()
    }  # fmt: skip
    enforced = chance.random() < 0.9
    truth = Truth(
        law, 3 * 8 ** chance.random(), (scale, scale * chance.uniform(0, 0.15)),
        (scale * ratio, scale * ratio * chance.uniform(0, 0.4)), chance.uniform(0, 0.8e-3),
        scale * chance.uniform(0, 0.5) if law in ("additive", "MVA") else 0.0,
        scale * (chance.uniform(0.05, 0.6) if law == UNSEEN else chance.uniform(0, 0.1)),
        chance.uniform(0.04, 0.10), chance.uniform(0, 0.2), chance.random() < 0.85, enforced, cpu, pauses,
        _speeds(random.Random(seed + 10**6)),
    )  # fmt: skip
    objective = chance.choice((Objective.BALANCED, Objective.BALANCED, Objective.FASTEST, Objective.CHEAPEST))
    plan = first_plan(JobSpec("rows", objective=objective), limits, None, enforced).plan
    job = Job(truth, limits, objective, plan, 1.0, seed)
    if chance.random() < 0.4:  # a user's plan, or one of another day
        everything = job.everything()
        plan = everything.plan(chance.randrange(len(everything)))
        job = replace(job, plan=Plan(RolePlan(plan.ps.replicas, plan.ps.cpu, job.plan.ps.memory_bytes), plan.worker))
    seconds = 20 * 90 ** chance.random()
    return replace(job, batches=seconds * float(truth.rates(Shapes.of([job.plan]))[0]) / BATCH)


def _speeds(chance: random.Random) -> Array:
    """The machine's speed at each second: it wanders by 10 % within half an hour, and in some jobs jumps once."""
    steps = np.random.default_rng(chance.randrange(2**32)).normal(size=_LONGEST_SECONDS)
    keep = math.exp(-1 / 1800)
    level, path = 0.0, np.empty(_LONGEST_SECONDS)
    for index, one in enumerate(steps * 0.10 * math.sqrt(1 - keep**2)):
        level = level * keep + one
        path[index] = level
    if chance.random() < 0.1:
        path[int(20 * 60 ** chance.random()) :] += chance.choice((-0.25, 0.25))
    return np.exp(path)
