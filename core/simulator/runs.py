"""Runs of simulated jobs: one seed, many of them, and the smallest schedule that still breaks a promise."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from trimtab.core.simulator.job_world import Ending, JobWorld
from trimtab.core.simulator.schedules import Schedule, plan_schedule

_GARBAGE = 100_000  # objects that outlive their making, between two looks


@dataclass(frozen=True)
class Run:
    """What came of one schedule; `wrong`: the promise that was broken, or the error that was met; "" for none."""

    schedule: Schedule
    ending: Ending | None = None
    wrong: str = ""

    def __str__(self) -> str:
        if self.ending is not None:
            one = self.ending
            reason = f" ({one.reason})" if one.reason else ""
            return (
                f"seed {self.schedule.seed}: {one.state}{reason} after {one.seconds:.0f} s, {one.lives} lives, "
                f"{one.steps} steps, {len(self.schedule.events)} events"
            )
        return f"seed {self.schedule.seed}: WRONG: {self.wrong}\n{self.schedule}"


def run_schedule(schedule: Schedule, listen: Callable[[str], None] | None = None) -> Run:
    """Run one schedule to its end. Whatever is raised on the way is what came of it: each seed is to be told."""
    try:
        return Run(schedule, JobWorld(schedule, listen).run())
    except Exception as error:  # noqa: BLE001, whatever it is, the seed that found it has to be told
        return Run(schedule, wrong=f"{type(error).__name__}: {error}")


def run_seeds(seeds: Iterable[int], kind: str = "") -> Iterator[Run]:
    """Run one seed after the other.

    Meanwhile Python looks for cycles a hundred times less often: simulated jobs drop millions of small values and
    hardly a cycle, and looking for one would be a fifth of their time.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_GARBAGE, *usual[1:])
    try:
        for seed in seeds:
            yield run_schedule(plan_schedule(seed, kind))
    finally:
        gc.set_threshold(*usual)


def shrunk(schedule: Schedule) -> Schedule:
    """The schedule without events that what is wrong does not need; the schedule itself if nothing is wrong."""
    if not run_schedule(schedule).wrong:
        return schedule
    at = 0
    while at < len(schedule.events):
        smaller = schedule.without(at)
        if run_schedule(smaller).wrong:
            schedule = smaller
        else:
            at += 1
    return schedule


def seeds_of(words: Iterable[str]) -> list[int]:
    """Seeds from numbers and ranges: "7", "0-1999"."""
    found: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
