"""A parameter server whose host became busy: nothing is done, a restart elsewhere, what the product does by itself.

The paper's experiment on real processes, one of its minutes as 2 seconds: a job that would take 18 minutes trains for
3, then one of its two parameter servers (PSs) becomes so slow that the job does half of what it did. *none*: nothing is
done. *restart*: the job is stopped at that moment with a checkpoint and resumed on a healthy host, as one does by hand;
stopping, starting and loading take the paper's 3, 5 and 3 minutes, or as long as they really take here where that is
more. *trimtab*: the product watches, in mode fixed, so that the optimizer changes nothing and only repairs count. A
busy host is a process that is stopped (SIGSTOP) for most of each 50 ms, as one is whose cores others use: no share that
the product could give helps against it. How much it is stopped is calibrated in the run, to half the speed, and
printed. A new PS is started on a healthy host, so it is not stopped. A time is from the first trained batch to the
last. `jct_cut_vs_none` and `jct_cut_vs_restart` are what *trimtab* takes less, as parts of what the others take;
healthy all the way would be 0.45 and 0.38. Times are means of two rounds. With `--quick` there is one, and a minute is
1 second, in which finding out weighs twice: no figure.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from figures import Figure, options, report
from hot_ps_job import Duty, Job, Trial, calibrate, servers_of

MINUTE, QUICK_MINUTE = 2.0, 1.0  # seconds
HEALTHY, WORK = 3.0, 18.0  # minutes until the host becomes busy, and of healthy training in all
SAVE, START, LOAD = 3.0, 5.0, 3.0  # minutes of a restart
SHAPE = (2, 0.5, 2, 0.2)  # workers, cores of each, PSs, cores of each


@dataclass(frozen=True)
class Arm:
    """What one way took: seconds in all, and its stretches in words with the seconds of each."""

    name: str
    stretches: tuple[tuple[str, float], ...]
    notes: tuple[tuple[float, str], ...] = ()

    @property
    def seconds(self) -> float:
        """From the first batch to the last."""
        return sum(took for _, took in self.stretches)

    def timeline(self, minute: float) -> str:
        """As the paper prints it, in its minutes."""
        at, words = 0.0, []
        for what, took in self.stretches:
            words.append(f"{what} {at / minute:.1f}-{(at + took) / minute:.1f}")
            at += took
        return f"{self.name}: {self.seconds:.1f} s = {self.seconds / minute:.1f} min: " + ", ".join(words)


def none(job: Job, minute: float, duty: float) -> Arm:
    """The host becomes busy, and nothing is done."""
    with Duty(duty) as host:
        trial = job.run(lambda: host.stop(servers_of(job.folder)[0]), HEALTHY * minute, watched=False)
    return Arm("none", (("healthy", HEALTHY * minute), ("degraded", trial.seconds - HEALTHY * minute)))


def restart(job: Job, minute: float, _: float) -> Arm:
    """Stop, start elsewhere, load: by hand, and at once, so the busy host is not met at all."""
    first = job.run(None, HEALTHY * minute, watched=False, stops=True)
    saved, began = time.monotonic() - first.acted_at, time.monotonic()
    second = job.go_on()
    started = second.first_at - began
    save = max(SAVE * minute, saved)
    start = max((START + LOAD) * minute, started)
    print(
        f"restart: the real stop took {saved:.1f} s, start and load {started:.1f} s; {first.batches} batches before, "
        f"{second.batches} after", file=sys.stderr,
    )  # fmt: skip
    return Arm("restart", (
        ("healthy", first.acted_at - first.first_at), ("save", save), ("init and load", start),
        ("healthy", second.seconds),
    ))  # fmt: skip


def trimtab(job: Job, minute: float, duty: float) -> Arm:
    """The same busy host, and whatever the product does."""
    with Duty(duty) as host:
        trial = job.run(lambda: host.stop(servers_of(job.folder)[0]), HEALTHY * minute, watched=True)
    notes = tuple((at, text) for at, kind, text in events(job.folder, trial) if kind == "hot_ps")
    found = next((at for at, text in notes if "is late" in text), None)
    done = max((at for at, text in notes if "a step takes" in text), default=None)
    if found is None:
        return Arm("trimtab", (("healthy", HEALTHY * minute), ("not found", trial.seconds - HEALTHY * minute)), notes)
    moved = done if done is not None else trial.seconds
    return Arm("trimtab", (
        ("healthy", HEALTHY * minute), ("degraded until it is found", found - HEALTHY * minute),
        ("repair while it trains", moved - found), ("healthy", trial.seconds - moved),
    ), notes)  # fmt: skip


ARMS = {"none": none, "restart": restart, "trimtab": trimtab}
ROUNDS = (tuple(ARMS), tuple(reversed(ARMS)))  # what drifts on the machine is spread over all


def spread(arms: list[Arm], minute: float) -> str:
    """What one way took each time, and how the last one went."""
    return f"{', '.join(f'{one.seconds:.1f}' for one in arms)}; {arms[-1].timeline(minute)}"


def events(folder: Path, trial: Trial) -> list[tuple[float, str, str]]:
    """The job's events: seconds since its first batch, kind, text."""
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [(one["seconds"] - trial.began_after, one["kind"], one["text"]) for one in lines]


def main() -> None:
    """Calibrate, measure the three arms, and report."""
    chosen = options(__doc__)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["TRIMTAB_HISTORY"] = "none"
    minute = QUICK_MINUTE if chosen.quick else MINUTE
    with tempfile.TemporaryDirectory(prefix="tt") as place:
        os.environ["TRIMTAB_HOME"] = place
        rate, duty, slowed = calibrate(Path(place), SHAPE, chosen.quick)
        print(
            f"healthy: {rate:.1f} batches a second; the host lets the PS run for {duty:.1%} of the time: {slowed:.2f} "
            f"of that speed", file=sys.stderr,
        )  # fmt: skip
        batches = round(rate * WORK * minute)
        arms: dict[str, list[Arm]] = {}
        for number, names in enumerate(ROUNDS[:1] if chosen.quick else ROUNDS):
            for name in names:
                job = Job(Path(place), f"{name}-{number}", SHAPE, batches)
                arms.setdefault(name, []).append(ARMS[name](job, minute, duty))
    for arm in (one for name in ARMS for one in arms[name]):
        print(arm.timeline(minute))
        for at, text in arm.notes:
            print(f"    {at:6.1f} s  {text}")
    took = {name: statistics.fmean(one.seconds for one in found) for name, found in arms.items()}
    nothing, restarted, ours = (took[name] for name in ARMS)
    note = f"run for {duty:.1%} of the time: {slowed:.2f} of the speed"
    figures = [
        Figure("jct_cut_vs_none", 1 - ours / nothing, "1", 0.36, "higher", f"{nothing:.1f} s to {ours:.1f} s; {note}"),
        Figure("jct_cut_vs_restart", 1 - ours / restarted, "1", 0.28, "higher", f"{restarted:.1f} s to {ours:.1f} s"),
        *(Figure(f"jct_{name}_seconds", took[name], "s", None, "lower", spread(arms[name], minute)) for name in ARMS),
    ]
    if chosen.quick:
        figures = [Figure(one.name, None, one.unit, one.goal, one.better, one.note) for one in figures]
    report("A parameter server whose host became busy", figures, chosen.json)


if __name__ == "__main__":
    main()
