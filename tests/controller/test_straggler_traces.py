"""Real mini-batch times of four jobs, replayed: what is done about slow workers helps where there are some.

The traces hold, per worker, a batch time every now and then. A simulated worker takes them as its speed, one after
the other; the job's usual speed is scaled to ten batches a second. A pod that comes in a slow one's place gets the
speeds of a worker drawn from the same job: it may be as bad. Only the fourth job has stragglers (half of its ten
workers need two to five times as long as the others); in the first three nothing should be done or lost.
"""

from __future__ import annotations

import csv
import gzip
import random
from pathlib import Path
from statistics import median

import pytest
from controller_world import plan_of
from straggler_world import CAPS, HEALTHY, StragglerWorld, off, settings_of

from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import Limits

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
BATCHES, ROUND_SECONDS = 4000, 0.5
LONG = 10_000  # batches of the job with stragglers: new workers need time to pay
STEP_SECONDS = 0.5  # of the replay, per time of the trace


def speeds_of(job: int) -> list[list[float]]:
    """Of each worker of a traced job: batches per second, one after the other."""
    times: dict[int, list[float]] = {}
    with gzip.open(TRACES / f"pai_batch_time_job_{job}.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            times.setdefault(int(row["worker"]), []).append(float(row["batch_time_norm"]))
    usual = median(median(one) for one in times.values())
    return [[HEALTHY * usual / one for one in times[worker]] for worker in sorted(times)]


def world_of(
    speeds: list[list[float]], seed: int, mitigated: bool, batches: int = BATCHES, draw: tuple[int, ...] = ()
) -> StragglerWorld:
    """A job like the traced one; `draw`: workers whose speeds a new pod may get, (): any."""
    count = len(speeds)
    chosen = settings_of(batches=batches, limits=Limits(CAPS.cpu, CAPS.memory_bytes, 2 * count, 9))
    world = StragglerWorld(chosen if mitigated else off(chosen), plan_of(1, count), round_seconds=ROUND_SECONDS)

    def speed(pod: str, seconds: float) -> float:
        place, _, generation = pod.split("-", 1)[1].partition("-t1-g")
        first = int(place) < count and generation == "1"
        own = speeds[int(place) if first else random.Random(f"{pod} {seed}").choice(draw or range(count))]
        return own[int(seconds / STEP_SECONDS) % len(own)]

    world.speed = speed
    return world


def static_seconds(speeds: list[list[float]], batches: int) -> float:
    """How long the job takes where each worker has an equal part from the beginning: as long as the slowest."""
    longest = 0.0
    for own in speeds:
        left, at = batches / len(speeds), 0
        while left > 0:
            left -= own[at % len(own)] * STEP_SECONDS
            at += 1
        longest = max(longest, at * STEP_SECONDS)
    return longest


def ended(world: StragglerWorld) -> float:
    took = world.jct()
    assert world.ended is not None and world.ended.state is JobState.FINISHED
    assert world.state.manifest.applied() == IntervalSet.span(0, world.state.settings.batches)
    return took


@pytest.fixture
def traced(require):
    def speeds(job: int) -> list[list[float]]:
        path = TRACES / f"pai_batch_time_job_{job}.csv.gz"
        require("shared", path.exists(), f"{path.name} is not here")
        return speeds_of(job)

    return speeds


@pytest.mark.parametrize("job", [1, 2, 3])
def test_a_job_without_stragglers_takes_no_longer_with_what_is_done_about_them(traced, job: int):
    speeds = traced(job)
    world = world_of(speeds, 0, True)
    assert ended(world) <= 1.02 * ended(world_of(speeds, 0, False))
    assert not world.said("straggler") and not world.said("slow_worker")


def test_a_job_with_stragglers_ends_clearly_sooner(traced):
    speeds = traced(4)
    without = ended(world_of(speeds, 0, False, LONG))
    usual = median(median(one) for one in speeds)
    fast = tuple(worker for worker, own in enumerate(speeds) if median(own) >= usual)
    good = world_of(speeds, 0, True, LONG, fast)
    assert ended(good) <= 0.9 * without, "new pods come to machines of which most are well"
    lots = [world_of(speeds, seed, True, LONG) for seed in range(2)]
    took = [ended(world) for world in lots]
    assert max(took) <= 1.02 * without, "half of the new pods are as slow as what they came for"
    assert max(took) <= 0.5 * static_seconds(speeds, LONG)
    assert all(world.said("straggler_replaced") for world in (good, *lots))
