"""The job behind `model_error.py`: one real training job whose plan goes through many configurations, again and again.

The controller runs in the benchmark's own process and asks a script instead of the optimizer. Pods are real processes
under real CPU quotas. Rounds are interleaved: each visits all configurations in an order of its own, so that what
drifts on the machine is spread over all of them; an order goes from a pair of replica numbers to a near one, because
coming and leaving pods cost seconds, PSs more than workers, and cores in place next to nothing.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from model_error import GIB, Window

SETTLE_SECONDS, WINDOW_SECONDS = 1.2, 4.2
QUICK_SETTLE_SECONDS, QUICK_WINDOW_SECONDS = 1.0, 2.5
REPEATS, QUICK_REPEATS = 5, 2
ROWS, QUICK_ROWS, WARM_EPOCHS = 60_000, 60_000, 2
BATCH = 512  # rows: at 1024 the workers would be the tighter side nearly everywhere
LONGEST_WAIT_SECONDS = 300.0  # for one window; then something is wrong
CAP = 2.0  # cores of the job: what starts pods has some of its own, and moves of vshards have more
MOVING_CPU = 0.3  # cores per PS while vshards move: under a tenth of a core a move takes minutes
# workers, cores of each, servers, cores of each: 1.2 cores at most, both roles as the tighter one
CONFIGURATIONS = (
    (1, 0.6, 1, 0.1), (1, 0.6, 1, 0.3), (1, 0.4, 1, 0.2), (1, 0.2, 1, 0.1), (1, 0.6, 2, 0.1), (1, 0.5, 2, 0.3),
    (1, 0.6, 3, 0.1), (2, 0.5, 1, 0.1), (2, 0.4, 1, 0.1), (2, 0.3, 1, 0.3), (2, 0.4, 1, 0.4), (2, 0.4, 2, 0.1),
    (2, 0.25, 2, 0.3), (2, 0.45, 2, 0.15), (2, 0.4, 3, 0.1), (2, 0.25, 3, 0.2), (3, 0.3, 1, 0.1), (3, 0.2, 1, 0.2),
    (3, 0.25, 1, 0.4), (3, 0.3, 2, 0.1), (3, 0.2, 2, 0.25), (4, 0.2, 1, 0.1), (4, 0.15, 1, 0.3), (4, 0.25, 1, 0.15),
    (4, 0.2, 2, 0.1), (4, 0.15, 3, 0.15),
)  # fmt: skip
QUICK_CONFIGURATIONS = ((1, 0.6, 1, 0.1), (1, 0.6, 1, 0.3), (2, 0.4, 1, 0.1), (2, 0.3, 1, 0.3), (2, 0.4, 1, 0.4))

_PS_DEAR = 5  # times what a worker's coming or leaving takes: its vshards move under its quota
Shape = tuple[int, float, int, float]


def order(shapes: tuple[Shape, ...], seed: int) -> list[Shape]:
    """All of `shapes`, those of equal replica numbers together, from each group to a nearest one."""
    rng = random.Random(seed)
    groups: dict[tuple[int, int], list[Shape]] = {}
    for one in rng.sample(shapes, len(shapes)):
        groups.setdefault((one[0], one[2]), []).append(one)
    at = rng.choice(list(groups))
    found: list[Shape] = []
    while True:
        found += groups.pop(at)
        if not groups:
            return found
        here = at
        at = min(groups, key=lambda other: abs(other[0] - here[0]) + _PS_DEAR * abs(other[1] - here[1]))


@dataclass
class Usage:
    """CPU seconds of the machine and of this benchmark's processes, sampled."""

    samples: list[tuple[float, float, dict[int, float]]] = field(default_factory=list)

    def sample(self) -> None:
        """Look now."""
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        own = psutil.Process()
        ours: dict[int, float] = {}
        for one in (own, *own.children(recursive=True)):
            try:
                used = one.cpu_times()
            except psutil.Error:
                continue
            ours[one.pid] = used.user + used.system
        self.samples.append((time.monotonic(), busy, ours))

    def others(self, since: float, until: float) -> float | None:
        """Cores that other processes and other machines on this host used between two times."""
        within = [one for one in self.samples if since - 0.3 <= one[0] <= until + 0.3]
        if len(within) < 2 or within[-1][0] - within[0][0] < (until - since) / 2:
            return None
        (begin, busy, before), (end, busy_after, after) = within[0], within[-1]
        ours = sum(after[pid] - before[pid] for pid in after.keys() & before.keys())
        return max(0.0, (busy_after - busy - ours) / (end - begin))


def sweep(quick: bool) -> list[Window]:
    """Run the job; all windows, oldest first."""
    shapes = QUICK_CONFIGURATIONS if quick else CONFIGURATIONS
    repeats = QUICK_REPEATS if quick else REPEATS
    times = (QUICK_SETTLE_SECONDS, QUICK_WINDOW_SECONDS) if quick else (SETTLE_SECONDS, WINDOW_SECONDS)
    return run(shapes, repeats, *times, QUICK_ROWS if quick else ROWS)


def run(
    shapes: tuple[Shape, ...], repeats: int, settle_seconds: float, window_seconds: float, rows: int
) -> list[Window]:
    """`repeats` rounds over `shapes`.

    Args:
        shapes: the configurations. repeats: how often each is measured.
        settle_seconds, window_seconds: how long a plan is in full force before it is measured, and for how long it is.
        rows: of the sample; the first epochs, in which the table grows, are not measured.
    """
    from trimtab.core.controller import launch
    from trimtab.core.controller import run as running
    from trimtab.core.data.sample import write_sample
    from trimtab.core.domain.job import JobSpec
    from trimtab.core.domain.plan import Limits, Plan, RolePlan
    from trimtab.core.domain.records import Decision
    from trimtab.core.errors import Interrupted

    wanted = [(number, shape) for number in range(repeats) for shape in order(shapes, number)]
    left, windows, usage, stop = list(wanted), list[Window](), Usage(), threading.Event()
    warm = wanted[0][1]
    state: dict[str, Any] = {"begun": False, "last": time.monotonic()}

    def plan_of(shape: Shape) -> Plan:
        workers, worker_cpu, servers, ps_cpu = shape
        return Plan(RolePlan(servers, ps_cpu, GIB), RolePlan(workers, worker_cpu, 3 * GIB // 2))

    def decide(question: Any) -> Decision:
        usage.sample()
        now, plan = question.time_seconds, question.plan
        hold = Decision(now, "hold", plan, "wait", before=plan)
        state["last"] = time.monotonic()
        if not state["begun"]:
            warmed = question.batches_left <= state["expected"] - WARM_EPOCHS * rows // question.batch_size
            if plan == plan_of(warm):
                if not warmed:
                    return hold
                state["begun"] = True
                return hold  # the next window is the first that counts
            return Decision(now, "replace", plan_of(warm), "on purpose", action="To the first", before=plan)
        if left and plan == plan_of(left[0][1]):
            number, _ = left.pop(0)
            seen, offset = question.observations[-1], time.monotonic() - now
            others = usage.others(seen.time_seconds - seen.window_seconds + offset, seen.time_seconds + offset)
            windows.append(Window(number, seen, others))
            if not left or left[0][0] != number:
                print(f"repeat {number + 1} of {repeats} is measured after {now:.0f} s", file=sys.stderr)
        if not left:
            stop.set()
            return hold
        target = plan_of(left[0][1])
        if target == plan:  # one round ends as the next begins: a window of its own
            return hold
        if target.ps.replicas != plan.ps.replicas:  # first move, then go down to the cores that are measured
            target = replace(target, ps=replace(target.ps, cpu=max(target.ps.cpu, MOVING_CPU)))
        return Decision(now, "replace", target, "on purpose", action=f"To {target}", before=plan)

    def progress(now: Any) -> None:
        state["expected"] = now.batches_expected
        if now.phase == "training" and (not usage.samples or time.monotonic() - usage.samples[-1][0] > 0.5):
            usage.sample()
        if now.phase == "training" and time.monotonic() - state["last"] > LONGEST_WAIT_SECONDS:
            stop.set()

    ps_config = launch.Launcher._ps

    def without_snapshots(launcher: Any, pod: Any) -> Any:
        return replace(ps_config(launcher, pod), snapshots="")

    decide_before = running.decide
    with tempfile.TemporaryDirectory(prefix="tt") as place:
        sample = str(Path(place) / "sample.parquet")
        write_sample(sample, rows, seed=1)
        spec = JobSpec(
            sample, epochs=1000, workers=warm[0], ps=warm[2], job_dir=str(Path(place) / "job"), batch_size=BATCH,
            limits=Limits(CAP, 16 * GIB, 4, 3), validation=0.0,
        )  # fmt: skip
        error = ""
        try:
            running.decide, launch.Launcher._ps = decide, without_snapshots  # type: ignore[assignment, method-assign]
            result = running.train(
                spec, progress, stop=stop, checkpoint_seconds=1e9, settle_seconds=settle_seconds,
                window_seconds=window_seconds,
            )  # fmt: skip
            error = str(result.error)
        except Interrupted as ended:
            error = str(ended)
        finally:
            running.decide, launch.Launcher._ps = decide_before, ps_config  # type: ignore[method-assign]
    if left:
        raise SystemExit(f"only {len(windows)} of {len(wanted)} windows were measured: {error}")
    return windows
