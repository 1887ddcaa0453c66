"""What happens to one simulated job, worked out from its seed before it starts: plain data that can be printed.

A schedule has a job (its plan, caps, speeds and patience) and events at seconds of the simulated clock. Kind `seed %
kinds` is always among them, so as many seeds in a row as there are kinds meet each one. Two paces exist: brisk jobs are
short and full of messages, for what goes wrong between two of them; steady ones last minutes, with long steps, for
whatever watches speeds, memory and caps over time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from trimtab.core.domain.job import Mode
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.values import replace

# What can happen. Those that end the controller's life come last: the job is resumed after them.
KINDS = (
    "weather", "kill", "kill_all_ps", "zombie", "hang", "spawn_fails", "spawn_slow", "stale_view", "commit_fails",
    "commit_hangs", "copy_fails", "copy_hangs", "slow_worker", "slow_ps", "hot_ps", "oom", "growth", "clock_step",
    "change", "cores", "caps", "checkpoint", "stop", "stop_now", "controller_dies",
)  # fmt: skip
ENDS_A_LIFE = KINDS[-3:]
OF_LONG_JOBS = ("slow_worker", "slow_ps", "hot_ps", "growth", "caps")  # what needs time to be seen
MOST_WORKERS, MOST_PS = 4, 3
PS_BYTES, WORKER_BYTES = 256 << 20, 1 << 30
BRISK, STEADY = "brisk", "steady"


@dataclass(frozen=True)
class Event:
    """One thing that happens at `at` seconds of the job; `words`: what else is to be known of it, by kind."""

    at: float
    kind: str
    words: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = ", ".join(f"{name}={value}" for name, value in self.words.items())
        return f"at {self.at:7.2f} s: {self.kind}" + (f" ({words})" if words else "")


@dataclass(frozen=True)
class Schedule:
    """One job and what happens to it.

    Attributes:
        seed: it comes from, and decides whatever else is left to chance.
        pace: brisk | steady. batches, evaluation: of the job. metrics: whether it has compiled ones.
        plan: the first. cpu, memory_bytes: the caps. mode: of the job.
        tick_seconds, call_seconds: between two looks of the controller, and two calls of a worker.
        step_cpu, push_cpu: core seconds of a batch at its worker, and at all parameter servers together.
        checkpoint_seconds: between periodic ones. boot_seconds: of a process.
        patient: places may fail as often as they like; else a place is given up after a few failures in a row.
        key_bytes: of table per trained batch, all parameter servers together.
        events: in order of their times.
    """

    seed: int
    pace: str
    batches: int
    evaluation: int
    metrics: bool
    plan: Plan
    cpu: float
    memory_bytes: int
    mode: Mode
    tick_seconds: float
    call_seconds: float
    step_cpu: float
    push_cpu: float
    checkpoint_seconds: float
    boot_seconds: float
    patient: bool
    key_bytes: float
    events: tuple[Event, ...]

    @property
    def seconds(self) -> float:
        """What the job would take, about, if nothing happened to it."""
        speed = self.plan.worker.replicas * self.plan.worker.cpu / self.step_cpu
        return 2 * self.boot_seconds + self.batches / speed + 2.0

    def may_fail(self, reason: str) -> bool:
        """Whether the job may end with this reason instead of a model."""
        if not self.patient or any(event.kind in ("growth", "oom") for event in self.events):
            return True
        # A job that can't store its very first state has not begun; it says so and ends.
        return "can't be stored" in reason and any(event.kind == "commit_fails" for event in self.events)

    def without(self, at: int) -> Schedule:
        """The same without one event."""
        return replace(self, events=self.events[:at] + self.events[at + 1 :])

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: a {self.pace} job of {self.batches} batches in mode {self.mode}, plan {self.plan}, "
            f"caps {self.cpu:g} cores and {self.memory_bytes >> 20} MiB, checkpoints every "
            f"{self.checkpoint_seconds:g} s, ticks every {self.tick_seconds:g} s, "
            f"{'patient' if self.patient else 'impatient'}"
        ]
        return "\n".join([*lines, *(f"  {event}" for event in self.events)])


def plan_schedule(seed: int, kind: str = "") -> Schedule:
    """The schedule of a seed; `kind` in the place of the one that the seed has to have."""
    chance = random.Random(seed)
    first = kind or KINDS[seed % len(KINDS)]
    steady = first in OF_LONG_JOBS or chance.random() < 0.05
    job = _job(chance, seed, steady)
    kinds = [first]
    for _ in range(chance.randint(1, 5)):
        other = chance.choice(KINDS)
        if (steady or other not in OF_LONG_JOBS) and sum(one in ENDS_A_LIFE for one in kinds) < 2:
            kinds.append(other)
    times = sorted(chance.uniform(0, job.seconds) for _ in kinds)
    chance.shuffle(kinds)
    events = tuple(Event(round(at, 3), one, _words(chance, one, job)) for at, one in zip(times, kinds, strict=True))
    if "growth" in kinds:
        job = replace(job, key_bytes=chance.uniform(0.5, 2.0) * job.plan.ps.replicas * PS_BYTES / job.batches)
    return replace(job, events=events)


def _job(chance: random.Random, seed: int, steady: bool) -> Schedule:
    workers, ps = chance.randint(2 if steady else 1, MOST_WORKERS), chance.randint(1, MOST_PS)
    plan = Plan(RolePlan(ps, 0.25, PS_BYTES), RolePlan(workers, 0.5, WORKER_BYTES))
    spare = chance.choice((0.0, 0.0, 0.5, 1.5))
    memory = int(plan.memory_bytes + chance.choice((0, 0, 1, 2)) * (WORKER_BYTES + PS_BYTES))
    return Schedule(
        seed, STEADY if steady else BRISK,
        batches=chance.randint(90, 150) if steady else chance.randint(20, 70),
        evaluation=chance.choice((0, 0, 3)), metrics=chance.random() < 0.3,
        plan=plan, cpu=plan.cpu + spare, memory_bytes=memory,
        mode=chance.choice((Mode.AUTO, Mode.AUTO, Mode.AUTO, Mode.FIXED, Mode.ADVISE)),
        tick_seconds=1.0 if steady else chance.choice((0.3, 0.5, 1.0)),
        call_seconds=1.0 if steady else chance.choice((0.4, 0.6, 1.2)),
        step_cpu=0.4 if steady else chance.choice((0.05, 0.1, 0.2)), push_cpu=chance.choice((0.01, 0.03)),
        checkpoint_seconds=chance.choice((20.0, 60.0)) if steady else chance.choice((2.0, 5.0, 60.0)),
        boot_seconds=chance.choice((0.2, 1.0, 2.0)), patient=chance.random() < 0.85, key_bytes=0.0, events=(),
    )  # fmt: skip


def _words(chance: random.Random, kind: str, job: Schedule) -> dict[str, Any]:
    """What an event of a kind needs to know."""
    who = {"role": chance.choice(("ps", "worker")), "which": chance.randrange(6)}
    seconds = round(chance.choice((0.5, 2.0, 8.0, 15.0)) * chance.uniform(0.5, 1.5), 2)
    if kind == "weather":
        planes = chance.sample(("requests", "reports", "calls", "answers", "pushes"), chance.randint(1, 5))
        shares = {name: round(chance.choice((0.0, 0.1, 0.4)), 2) for name in ("lost", "doubled", "late")}
        return {"planes": planes, "seconds": seconds, **shares, "late_seconds": chance.choice((0.5, 3.0, 10.0))}
    if kind in ("kill", "zombie"):
        return who
    if kind == "hang":
        return {**who, "seconds": seconds}
    if kind == "spawn_fails":
        return {"times": chance.randint(1, 4), "role": who["role"]}
    if kind in ("spawn_slow", "stale_view", "commit_hangs", "copy_hangs", "clock_step"):
        return {"seconds": seconds}
    if kind in ("commit_fails", "copy_fails"):
        return {"times": chance.randint(1, 3)}
    if kind in ("slow_worker", "slow_ps"):
        lasts = chance.choice((10.0, 30.0, 1e6))
        return {"which": who["which"], "times": chance.choice((1.5, 3.0, 10.0)), "seconds": lasts}
    if kind == "hot_ps":
        return {"which": who["which"], "times": chance.choice((3.0, 10.0)), "vshards": chance.choice((1, 20, 100))}
    if kind == "oom":
        return {**who, "times": chance.choice((1, 1, 2, 9))}
    if kind == "change":
        whole = chance.random() < 0.5  # all that the caps allow
        copies = chance.random() < 0.5  # are being written meanwhile
        return {
            "ps": chance.randint(1, MOST_PS), "workers": chance.randint(1, MOST_WORKERS), "whole": whole,
            "copies": copies,
        }  # fmt: skip
    if kind == "cores":
        return {"ps": chance.choice((0.15, 0.25, 0.4)), "worker": chance.choice((0.3, 0.5, 0.7))}
    if kind == "caps":
        return {"share": round(chance.uniform(0.4, 0.9), 2), "seconds": chance.choice((20.0, 1e6))}
    if kind in ENDS_A_LIFE:
        return {"pause": round(chance.uniform(0.5, 5.0), 2), "orphans": round(chance.choice((0.0, 3.0, 12.0)), 1)}
    return {}
