"""What happens to one job of the chaos suite, worked out from a seed before the job starts.

A schedule is plain data and knows nothing of processes. Faults are placed by batches applied, by messages and by
pushes, never by time, so the same seed means the same schedule on a fast and on a slow machine. Two kinds half the list
apart are always in it, by the seed: half as many consecutive seeds as there are kinds meet each one.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BATCH_SIZE = 64
SHARE_OF_TWO_RESUMES = 0.2  # most jobs are resumed once at most: it costs as much as a start
MOST_WORKERS = MOST_PS = 3

# What can happen. Those that end the controller's life come last: the job is resumed after them.
KINDS = (
    "kill_worker", "kill_worker_mid_push", "kill_ps", "kill_all_ps", "kill_zygote", "kill_source", "kill_destination",
    "pause", "hang_child", "kill_child", "child_full", "disk_full", "commit_fails", "ps_messages", "worker_messages",
    "cut_worker", "cut_move", "change", "cores", "slow_worker", "slow_ps", "checkpoint_now", "oom", "caps",
    "kill_controller_in_move", "kill_controller_at_commit", "kill_controller", "kill_everything", "interrupt",
    "stop_and_resume",
)  # fmt: skip
ENDS_A_LIFE = KINDS[-6:]
OF_A_MOVE = ("kill_source", "kill_destination", "kill_controller_in_move")  # each brings a change of the plan with it
CHANGES_PLAN = ("change", "cores", "cut_move", *OF_A_MOVE)
MOVE_STEPS = ("prepare", "take_over", "drop")
FATES = ("lost_request", "lost_answer", "doubled", "late", "stale_answer", "older_term")
CUTS = ("before", "half", "reply", "reply")  # what was applied and not answered is what comes twice


@dataclass(frozen=True)
class Event:
    """One thing that happens once `at` batches are applied and everything before it has happened.

    Attributes:
        number: its place in the schedule, also its name in the job's folder.
        kind: one of KINDS. words: what else is to be known of it, by kind.
    """

    number: int
    at: int
    kind: str
    words: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.number}. from batch {self.at}: {self.kind} {json.dumps(self.words)}"


@dataclass(frozen=True)
class Schedule:
    """One job and what happens to it. Seconds are patience within the job; the schedule itself has no times."""

    seed: int
    workers: int
    ps: int
    epochs: int
    model: str
    checkpoint_seconds: float
    snapshot_seconds: float
    silence_seconds: float
    disk: bool
    events: tuple[Event, ...]

    def __str__(self) -> str:
        job = f"seed {self.seed}: {self.workers} workers, {self.ps} PSs, {self.epochs} epochs of {self.model}, "
        job += f"checkpoints every {self.checkpoint_seconds:g} s, snapshots every {self.snapshot_seconds:g} s"
        return "\n".join([job + (", on a small disk" if self.disk else ""), *(f"  {event}" for event in self.events)])

    def write(self, path: Path) -> None:
        """Keep it where the job's processes find it."""
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def read(path: Path) -> Schedule:
    """The schedule that `write` kept."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return Schedule(**{**found, "events": tuple(Event(**event) for event in found["events"])})


def plan_chaos(seed: int, batches_per_epoch: int, epochs: int = 6, model: str = "audit_model:build") -> Schedule:
    """The schedule of `seed` for a job of `epochs` times `batches_per_epoch` batches."""
    rng = random.Random(seed)
    batches = batches_per_epoch * epochs
    workers, ps = rng.randint(1, MOST_WORKERS), rng.randint(1, MOST_PS)
    kinds = _kinds(rng, [KINDS[(seed + shift) % len(KINDS)] for shift in (0, len(KINDS) // 2)])
    shares = sorted(rng.uniform(0.05, 0.85) for _ in kinds)
    events = []
    shape = workers, ps
    for number, (kind, share) in enumerate(zip(kinds, shares, strict=True)):
        words, shape = _words(rng, kind, shape)
        events.append(Event(number, int(share * batches), kind, words))
    return Schedule(
        seed, workers, ps, epochs, model, checkpoint_seconds=rng.choice((0.5, 1.0, 3.0)),
        snapshot_seconds=rng.choice((0.3, 1.0, 5.0)), silence_seconds=rng.choice((2.0, 60.0)),
        disk="disk_full" in kinds, events=tuple(events),
    )  # fmt: skip


def _kinds(rng: random.Random, first: list[str]) -> list[str]:
    """Four to six kinds, `first` and a change of the plan among them, in any order."""
    kinds = [*first, "change"]
    wanted, resumes = rng.randint(4, 6), 1 + (rng.random() < SHARE_OF_TWO_RESUMES)
    while len(kinds) < wanted:
        kind = rng.choice(KINDS)
        if kind not in ENDS_A_LIFE or sum(one in ENDS_A_LIFE for one in kinds) < resumes:
            kinds.append(kind)
    rng.shuffle(kinds)
    for _ in kinds:  # a change needs a part of the job to come about, so it is not the last where that can be
        if kinds[-1] in CHANGES_PLAN:
            kinds.insert(0, kinds.pop())
    return kinds


def _words(rng: random.Random, kind: str, shape: tuple[int, int]) -> tuple[dict[str, Any], tuple[int, int]]:
    """The event's words, and the plan's numbers of workers and PSs after it."""
    which = {"which": rng.randrange(6)}
    if kind in OF_A_MOVE:
        shape = _other(rng, shape, ps_changes=True)
        step = {"step": rng.choice(MOVE_STEPS), "before": rng.random() < 0.5, "skip": rng.randrange(2)}
        return {"workers": shape[0], "ps": shape[1], **step}, shape
    if kind == "change":
        shape = _other(rng, shape, ps_changes=rng.random() < 0.7)
        return {"workers": shape[0], "ps": shape[1]}, shape
    if kind == "cores":
        return {"worker": rng.choice((0.3, 0.5, 0.8)), "ps": rng.choice((0.2, 0.4))}, shape
    if kind == "pause":
        return {"role": rng.choice(("ps", "worker")), "turns": rng.choice((5, 10, 30)), **which}, shape
    if kind in ("slow_worker", "slow_ps"):  # stopped for so much of the time, while so many batches are applied
        return {"stopped": rng.choice((0.5, 0.8, 0.9)), "batches": rng.choice((100, 300)), **which}, shape
    if kind == "oom":
        return {"role": rng.choice(("ps", "worker")), **which}, shape
    if kind == "caps":
        return {"share": rng.choice((0.4, 0.6, 0.8)), "batches": rng.choice((50, 200))}, shape
    if kind == "kill_zygote":
        return {"role": rng.choice(("ps", "worker"))}, shape
    if kind in ("ps_messages", "worker_messages"):
        return {"fates": [rng.choice((*FATES, "")) for _ in range(rng.randint(5, 20))]}, shape
    if kind == "cut_worker":
        return {"how": rng.choice(CUTS), "skip": rng.randrange(8), "times": rng.randint(1, 3)}, shape
    if kind == "cut_move":
        shape = _other(rng, shape, ps_changes=True)
        how = {"how": rng.choice(("before", "reply")), "skip": rng.randrange(4), "times": rng.randint(1, 2)}
        return {"workers": shape[0], "ps": shape[1], **how}, shape
    if kind == "kill_worker_mid_push":  # with some servers having the batch, where there are some
        return {"skip": rng.randrange(8), "hook": "more_of_a_push" if shape[1] > 1 else "push"}, shape
    if kind == "disk_full":
        return {"turns": rng.choice((5, 15))}, shape
    if kind == "commit_fails":
        return {"times": rng.randint(1, 3)}, shape
    if kind == "kill_controller_at_commit":
        return {"before": rng.random() < 0.5, "skip": rng.randrange(3)}, shape
    if kind == "kill_controller":
        return {"orphans_leave": rng.random() < 0.4}, shape
    return which if kind in ("kill_worker", "kill_ps") else {}, shape


def _other(rng: random.Random, shape: tuple[int, int], ps_changes: bool) -> tuple[int, int]:
    workers, ps = shape
    if ps_changes:
        return workers, rng.choice([n for n in range(1, MOST_PS + 1) if n != ps])
    return rng.choice([n for n in range(1, MOST_WORKERS + 1) if n != workers]), ps
