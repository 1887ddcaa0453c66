"""What a job may use and what is known before it starts: resolved caps, past runs, the first plan.

Caps that a caller leaves open are the machine's. Past runs are looked up while rows and model are looked at, so that
nobody waits for the store; a store that does not answer in time means a cold start that says so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.cluster.cgroups import why_not_enforced
from trimtab.core.controller.leases import Room
from trimtab.core.controller.lost import close_lost
from trimtab.core.controller.machine import usable_cpu, usable_memory_bytes
from trimtab.core.domain.job import JobSpec, Mode
from trimtab.core.domain.plan import Limits
from trimtab.core.domain.records import Decision, JobRecord, Observation, WarmStart
from trimtab.core.history.base import History
from trimtab.core.history.open import open_history
from trimtab.core.history.outbox import FOLDER
from trimtab.core.history.past import PastRuns
from trimtab.core.history.recorder import Recorder
from trimtab.core.optimizer.past_memory import MemoryNeed, RowBytes, memory_need
from trimtab.core.optimizer.start import NOT_ENFORCED, caps_for_pods, first_plan
from trimtab.core.optimizer.warm_start import HARD_TAGS, prior_observations, prior_runs, warm_start

MOST_PAST_RUNS = 50  # looked at for a warm start
HISTORY_SETTING = "TRIMTAB_HISTORY"  # none: no store is read or written; the record stays in the job's directory


@dataclass(frozen=True)
class Resources:
    """What a job may use.

    Attributes:
        caps: resolved, every field given; pods and zygotes together stay within.
        for_pods: what is left of them beside the zygotes. zygotes: whether there is room for these.
        not_enforced: why CPU shares do not hold here, "" where they do.
        alone: the caps that it would have if it shared the machine with nobody; None: `caps` are.
    """

    caps: Limits
    for_pods: Limits
    zygotes: bool
    not_enforced: str
    alone: Limits | None = None

    @property
    def asked(self) -> Limits:
        """The caps as asked for, which say what kind of job it is, whoever else is there."""
        return self.alone if self.alone is not None else self.caps


@dataclass(frozen=True)
class Beginning:
    """How a job begins: its first plan as a decision, what that rests on, and observations of past runs.

    `prior_runs` are those that the observations come from: of all runs in `warm` the heaviest, and also where the mode
    follows no run's plan. `need`: of memory, as far as it is known.
    """

    decision: Decision
    warm: WarmStart
    prior: tuple[Observation, ...]
    prior_runs: tuple[str, ...] = ()
    need: MemoryNeed = field(default_factory=MemoryNeed)


def resources_of(spec: JobSpec, machine: Room | None = None) -> Resources:
    """The caps as they hold on this machine for a job that has it for itself.

    Args:
        spec: of the job.
        machine: its size, where that has been asked already; None: it is asked now.
    """
    asked = spec.limits
    cpu, memory = asked.cpu, asked.memory_bytes
    if cpu is None:
        cpu = machine.cpu if machine is not None else usable_cpu()
    if memory is None:
        memory = machine.memory_bytes if machine is not None else usable_memory_bytes()
    workers = asked.workers if asked.workers is not None else max(2, 2 * math.ceil(cpu), spec.workers or 0)
    ps = asked.ps if asked.ps is not None else max(2, math.ceil(cpu), spec.ps or 0)
    caps = Limits(cpu, memory, workers, ps)
    for_pods, zygotes = caps_for_pods(spec, caps)
    return Resources(caps, for_pods, zygotes, why_not_enforced())


def part_of(spec: JobSpec, whole: Resources, machine: Room, held: Room) -> Resources:
    """The caps of a job that holds a part of the machine; the whole machine means what was asked for, be it more.

    Args:
        spec: of the job. whole: as it would have alone. machine: its size. held: the job's part.
    """
    caps = limits_in(spec, whole.caps, machine, held)
    for_pods, zygotes = caps_for_pods(spec, caps)
    return replace(whole, caps=caps, for_pods=for_pods, zygotes=zygotes, alone=whole.caps)


def limits_in(spec: JobSpec, whole: Limits, machine: Room, held: Room) -> Limits:
    """The caps of a job that holds a part of the machine; see `part_of`."""
    asked = spec.limits
    all_cpu = asked.cpu is not None and held.cpu >= min(asked.cpu, machine.cpu) - 1e-6
    all_memory = asked.memory_bytes is not None and held.memory_bytes >= min(asked.memory_bytes, machine.memory_bytes)
    return replace(
        whole,
        cpu=asked.cpu if all_cpu else held.cpu,
        memory_bytes=asked.memory_bytes if all_memory else held.memory_bytes,
    )


class Memory:
    """A job's way to past runs and into the history; without a store it remembers nothing and says so.

    Args:
        home: TRIMTAB_HOME.
        clock: measures how long a store may take.
        only_look: past runs are read and nothing is written: no store is made, no record is closed or delivered.
    """

    def __init__(self, home: Path, clock: Clock, only_look: bool = False) -> None:
        self._clock, self._outbox = clock, home / FOLDER
        self._open: Callable[[], History] | None = None
        self._past: PastRuns | None = None
        if not only_look:
            close_lost(home / "jobs", self._outbox)
        if os.environ.get(HISTORY_SETTING) != "none":
            self._open = lambda: open_history(home)
            self._past = PastRuns(self._open, self._outbox, clock, only_look)

    def close(self) -> None:
        """Nobody will ask for past runs."""
        if self._past is not None:
            self._past.close()

    def recorder(self) -> Recorder | None:
        """A line for the job's record."""
        return Recorder(self._open, self._outbox, self._clock) if self._open is not None else None

    def begin(
        self, spec: JobSpec, resources: Resources, tags: dict[str, str], but: str = "", row: RowBytes | None = None
    ) -> Beginning:
        """The first plan, from past runs where there are any.

        Args:
            spec, resources, tags: of the job. but: the id of a run that does not count, as a resumed job's own.
            row: of the data, in memory, None: unknown.

        Raises:
            BadInput: the caps are below the smallest plan.
        """
        warm = WarmStart(note="No past run was looked for")
        prior: tuple[Observation, ...] = ()
        prior_of: tuple[str, ...] = ()
        alike: tuple[JobRecord, ...] = ()
        if self._past is not None:
            past = self._past.fetch({name: tags[name] for name in HARD_TAGS}, MOST_PAST_RUNS)
            records = tuple(record for record in past.records if record.run_id != but)
            warm = warm_start(records, tags, self._clock.wall(), past.unread)
            if past.problem:
                note = f"{warm.note.rstrip('. ')}; {past.problem}" if warm.runs else f"Cold start: {past.problem}"
                warm = replace(warm, note=note)
            named = [run.run_id for run in warm.runs]
            prior, prior_of = prior_observations(records, named), prior_runs(records, named)
            alike = tuple(one for one in records if one.run_id in {run.run_id for run in warm.runs})
            if spec.mode is not Mode.AUTO:  # the plan is the caller's: past runs only say what memory is needed
                warm = replace(warm, runs=(), predicted=None, note=f"Mode {spec.mode}: past plans are not followed")
        need = memory_need(alike, tags, row)
        decision = first_plan(spec, resources.caps, warm, not resources.not_enforced, need)
        if resources.not_enforced:  # with its cause, instead of the bare fact
            cause = resources.not_enforced.rstrip(". ")
            decision = replace(decision, reason=decision.reason.replace(NOT_ENFORCED, cause))
        if not warm.runs:
            warm = replace(warm, plan=None)  # floors of memory, which the first plan has taken in
        return Beginning(replace(decision, number=1), warm, prior, prior_of, need)
