"""What a job waits when it is resized, saved or hit: tables of 200 MB and 2 GB of rows and slots, real processes.

A job trains on the sample while its plan is changed on a script: a worker comes and goes, parameter servers (PSs) go
1→2→3→1, cores change in place; in a second job snapshots are written and then the PS is killed (kill -9) each time
within a second of one; in a third one worker of two is killed. Per event: the
median over its repeats of the longest time between two steps of any worker that runs before and after it, from the
decision until a second after it is in full force; beside it the same over undisturbed seconds just before.
`planned_gap_*` is the worst planned event's median less the undisturbed one. `freeze_seconds` is the median over all
moves of the time that moved vshards were served by nobody. `ps_crash_to_training_seconds` is the longest gap of a
worker around the kill of the only PS at 200 MB, which includes the step that was under way. The plan has 1.2 to 1.8
cores. With `--quick` there is one table, of 30 MB, and one round; figures that need more are not given.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from figures import Figure, options, report
from resize_job import AFTER_SECONDS, BEFORE_SECONDS, Job, Log, frozen, inflate, sample_rows, seedling

ROW_BYTES = 128  # 16 floats and their slots; keys and index come on top
BASE = (1, 0.6, 1, 0.6)
ROUND = [
    ("worker added", (2, 0.6, 1, 0.6)), ("worker removed", BASE), ("PS 1→2", (1, 0.6, 2, 0.6)),
    ("PS 2→3", (1, 0.6, 3, 0.4)), ("PS 3→1", BASE), ("cores in place", (1, 0.5, 1, 0.5)), ("cores back", BASE),
]  # fmt: skip
PAIR = (2, 0.6, 1, 0.6)
ALONE = (1, 0.8, 1, 1.0)  # snapshots and crashes of the PS
LONGEST_RESTORE_SECONDS = 20.0
GIB = 2**30

Gaps = dict[str, list[tuple[float, float | None]]]  # event → longest gap near it, and in undisturbed seconds before


def planned(
    sample: str, folder: Path, source: str | None, memory: int, rounds: int
) -> tuple[Gaps, list[float], list[float]]:
    """The plan's changes: gaps by event, freezes, and how long added workers took to their first step."""
    steps = [BASE, *(step for _ in range(rounds) for _, step in ROUND)]
    job = Job(sample, folder / "planned", source, list(steps), memory)
    outcome = job.run()
    log = job.log
    made = [one for one in outcome["decisions"] if one["kind"] == "replace"]
    names = [name for _ in range(rounds) for name, _ in ROUND]
    times = [at for at, what in log.decided if what != "as it began"][-len(made) :]
    if len(made) < len(names):
        raise SystemExit(f"only {len(made)} of {len(names)} changes were made: {outcome['error']}")
    made, times = made[-len(names) :], times[-len(names) :]
    gaps: Gaps = {}
    first_steps = []
    for name, decision, began in zip(names, made, times, strict=True):
        took = decision["switch_seconds"] or 0.0
        before = log.pods(began - BEFORE_SECONDS, began)
        after = log.pods(began, began + took + AFTER_SECONDS)
        gap = log.longest(began, began + took + AFTER_SECONDS, before & after or before)
        calm = log.longest(began - BEFORE_SECONDS, began, before)
        gaps.setdefault(name, []).append((gap or 0.0, calm))
        if name == "worker added":
            reports = [one.at for one in log.heard if one.pod not in before and one.at > began and one.batches]
            first_steps.append(min(reports) - began)
    return gaps, frozen(folder / "planned"), first_steps


def cold_worker(sample: str, folder: Path, memory: int, rounds: int) -> list[float]:
    """Seconds to an added worker's first step where it imports TensorFlow itself."""
    steps = [BASE, *(step for _ in range(rounds) for _, step in ROUND[:2])]
    job = Job(sample, folder / "cold", None, list(steps), memory, zygotes=False)
    job.run()
    found = []
    for began, what in job.log.decided:
        before = job.log.pods(began - BEFORE_SECONDS, began)
        reports = [one.at for one in job.log.heard if one.pod not in before and one.at > began and one.batches]
        if what != "as it began" and reports and " to 2 " in what:
            found.append(min(reports) - began)
    return found


class Faults:
    """Waits for so many snapshots, then kills a pod so many times; a script of its own for a `Job`."""

    def __init__(self, job_dir: Path, kind: str, snapshots: int, kills: int) -> None:
        """`kind` of pod: ps | worker."""
        self.killed: list[float] = []
        self._mark = f"{job_dir}/pods/{kind}-"
        self._kind, self._snapshots, self._kills = kind, snapshots, kills
        self._quiet_since = time.monotonic()
        self._seen = 0

    def __call__(self, log: Log, now: Any) -> bool:
        """See whether it is time for the next one; true when all is done."""
        at = time.monotonic()
        taken = [one for times in log.snapshots.values() for one in times]
        if len(taken) < self._snapshots or at - self._quiet_since < BEFORE_SECONDS + AFTER_SECONDS:
            return False
        if len(self.killed) >= self._kills:
            return len(log.pods(at - 1.0, at)) > 0  # the last gap is told of, too
        fresh = self._kind == "worker" or (len(taken) > self._seen and at - max(seen for seen, _ in taken) < 1.0)
        trains = len(log.pods(at - 1.0, at)) == (1 if self._kind == "ps" else 2)
        if fresh and trains and (pids := self._pids()):
            self._quiet_since, self._seen = at, len(taken)
            self.killed.append(time.monotonic())
            os.kill(pids[-1], 9)
        return False

    def _pids(self) -> list[int]:
        found = []
        for one in psutil.Process().children():  # a child that writes a snapshot is not ours
            with suppress(psutil.Error):
                if any(word.startswith(self._mark) for word in one.cmdline()):
                    found.append((one.create_time(), one.pid))
        return [pid for _, pid in sorted(found)]


def crashes(sample: str, folder: Path, source: str, memory: int, rounds: int, kills: int, every: float) -> Gaps:
    """Gaps around snapshots, and around kills of the PS right after one."""
    act = Faults(folder / "crashes", "ps", rounds, kills)
    job = Job(sample, folder / "crashes", source, [ALONE], memory, snapshot_seconds=every, act=act)
    outcome = job.run()
    log = job.log
    if len(act.killed) < kills:
        raise SystemExit(f"only {len(act.killed)} kills were made: {outcome['error']}")
    gaps: Gaps = {}
    first_kill = act.killed[0] if act.killed else float("inf")
    for seen, took in sorted(one for times in log.snapshots.values() for one in times):
        began = seen - took - 0.3
        calm = log.longest(began - BEFORE_SECONDS, began)
        if seen + 0.5 < first_kill and calm is not None:
            gaps.setdefault("snapshot", []).append((log.longest(began, seen + 0.5) or 0.0, calm))
    for at, following in zip(act.killed, [*act.killed[1:], float("inf")], strict=True):
        calm = log.longest(at - BEFORE_SECONDS, at)
        until = min(at + LONGEST_RESTORE_SECONDS, following)
        gaps.setdefault("kill -9 of the PS", []).append((log.longest(at, until) or 0.0, calm))
    return gaps


def losses(sample: str, folder: Path, source: str, memory: int, kills: int) -> Gaps:
    """Gaps of the worker that stays when the other one is killed."""
    act = Faults(folder / "losses", "worker", 0, kills)
    job = Job(sample, folder / "losses", source, [PAIR], memory, act=act)
    outcome = job.run()
    if len(act.killed) < kills:
        raise SystemExit(f"only {len(act.killed)} kills were made: {outcome['error']}")
    gaps: Gaps = {}
    for at in act.killed:
        before = job.log.pods(at - BEFORE_SECONDS, at)
        stay = before & job.log.pods(at + 0.6, at + AFTER_SECONDS)
        calm = job.log.longest(at - BEFORE_SECONDS, at, stay)
        gaps.setdefault("kill -9 of a worker", []).append((job.log.longest(at, at + AFTER_SECONDS, stay) or 0.0, calm))
    return gaps


def median(values: list[float]) -> float:
    """The median; 0 for nothing."""
    return statistics.median(values) if values else 0.0


def row(title: str, name: str, pairs: list[tuple[float, float | None]]) -> Figure:
    """An event's line: a figure of its own, without a goal."""
    gaps = [gap for gap, _ in pairs]
    calm = [one for _, one in pairs if one is not None]
    note = f"undisturbed {median(calm):.3f}; {min(gaps):.3f} to {max(gaps):.3f}, {len(gaps)} times"
    return Figure(f"gap {title}: {name}", median(gaps), "s", None, "lower", note)


def over_undisturbed(gaps: Gaps) -> tuple[float, str]:
    """The worst planned event's median, less the undisturbed median, and which it is."""
    events = {name: pairs for name, pairs in gaps.items() if not name.startswith("kill")}
    worst = max(events, key=lambda name: median([gap for gap, _ in events[name]]))
    calm = median([one for pairs in events.values() for _, one in pairs if one is not None])
    return median([gap for gap, _ in events[worst]]) - calm, f"worst: {worst}; undisturbed {calm:.3f}"


def main() -> None:
    """Measure and report."""
    chosen = options(__doc__)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["TRIMTAB_HISTORY"] = "none"
    quick = chosen.quick
    rounds = 1 if quick else 7
    sizes = [("30mb", 30e6, 3.0)] if quick else [("200mb", 200e6, 6.0), ("2gb", 2e9, 12.0)]
    found: dict[str, Gaps] = {}
    frozen_all: list[float] = []
    first_steps: list[float] = []
    lines: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tt") as place:
        os.environ["TRIMTAB_HOME"] = place
        sample = sample_rows(Path(place), 200_000 if quick else 400_000)
        grown = seedling(sample, Path(place))
        for title, size, every in sizes:
            folder = Path(place) / title
            source = inflate(grown, folder / "source", int(size / ROW_BYTES))
            memory = int(16 * GIB if size < 1e9 else 36 * GIB)  # a plan's, of which the processes use a part
            gaps, freezes, steps = planned(sample, folder, source, memory, rounds)
            gaps |= crashes(sample, folder, source, memory, rounds, rounds if size < 1e9 else min(rounds, 3), every)
            gaps |= losses(sample, folder, source, memory, rounds)
            found[title], frozen_all, first_steps = gaps, frozen_all + freezes, first_steps + steps
            lines += [row(title, name, pairs) for name, pairs in gaps.items()]
            _remove(folder)
        cold = cold_worker(sample, Path(place), 16 * GIB, 1 if quick else 3)
    report("Resizing under load", _figures(found, frozen_all, first_steps, cold) + lines, chosen.json)


def _figures(found: dict[str, Gaps], freezes: list[float], first_steps: list[float], cold: list[float]) -> list[Figure]:
    figures = []
    for title, goal in (("200mb", 0.1), ("2gb", 0.2)):
        value, note = over_undisturbed(found[title]) if title in found else (None, "not measured in a quick run")
        figures.append(Figure(f"planned_gap_{title}_seconds", value, "s", goal, "lower", note))
    crash = [gap for gap, _ in found.get("200mb", {}).get("kill -9 of the PS", [])]
    figures += [
        Figure("freeze_seconds", median(freezes), "s", 0.02, "lower", spread(freezes)),
        Figure("added_worker_first_step_seconds", median(first_steps), "s", 1.5, "lower",
               f"{spread(first_steps)}; cold {median(cold):.1f} s"),
        Figure("ps_crash_to_training_seconds", median(crash) if crash else None, "s", 1.0, "lower", spread(crash)),
    ]  # fmt: skip
    return figures


def spread(values: list[float]) -> str:
    """From the least to the most, in words."""
    return f"{min(values):.3f} to {max(values):.3f}, {len(values)} times" if values else ""


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
