"""What a worker that falls to a tenth costs a job: 4 workers of 0.3 core and one PS of 0.5, real processes and quotas.

A job that takes 90 s in all while everybody is well (30 s with `--quick`) is run with and without a straggler, in
turn. At 20 % of its batches one worker is stopped for nine tenths of the time, from outside, until its process ends.
JCT is the whole call, start and end included. `jct_ratio_to_healthy` is the median with the straggler over the median
without. `static_split_jct_ratio_to_healthy` is the same job where each worker has a fixed quarter of the batches, as
without data shards on demand; it is cut at three times the healthy time and then a lower bound. What the product did
about the straggler is printed with its times.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from figures import Figure, options, report
from straggler_job import Job, Told

HEALTHY_SECONDS, QUICK_HEALTHY_SECONDS = 95.0, 32.0  # aimed at, in all
START_SECONDS = 8.0  # of a job, before its first batch and after its last, about
ROUNDS, QUICK_ROUNDS = 2, 1
CUT = 3.0  # times the healthy time
ROWS = 100_000


def epochs_for(sample: str, place: Path, seconds: float) -> int:
    """How many epochs take about `seconds` of training with all workers well, from a short job's speed."""
    told = Job(sample, place / "short", 4).run()
    if told.rate <= 0:
        raise SystemExit(f"the short job told no speed: {told.state}")
    return max(2, round(told.rate * (seconds - START_SECONDS) / ROWS) + 1)


def line(name: str, told: Told) -> str:
    """A run, in words."""
    text = f"{name}: {told.seconds:.1f} s, {told.batches} batches, {told.state}{' (cut)' if told.cut else ''}"
    if told.fell_at is not None:
        before, after = told.speeds
        text += f"; one worker falls at {told.fell_at:.1f} s, from {before:.1f} to {after:.2f} batches/s"
    return text


def main() -> None:
    """Measure and report."""
    chosen = options(__doc__)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["TRIMTAB_HISTORY"] = "none"
    rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    aim = QUICK_HEALTHY_SECONDS if chosen.quick else HEALTHY_SECONDS
    healthy: list[Told] = []
    slow: list[Told] = []
    with tempfile.TemporaryDirectory(prefix="tt") as name:
        place = Path(name)
        os.environ["TRIMTAB_HOME"] = name
        sample = _sample(place)
        epochs = epochs_for(sample, place, aim)
        for number in range(rounds):
            for told, straggler in ((healthy, False), (slow, True)):
                title = f"{'straggler' if straggler else 'healthy'} {number + 1}"
                told.append(Job(sample, place / title.replace(" ", "-"), epochs, straggler).run())
                print(line(title, told[-1]), file=sys.stderr)
                for at, _, text in told[-1].events:
                    print(f"  {at:6.1f} s  {text}", file=sys.stderr)
        usual = median([one.seconds for one in healthy])
        static = None if chosen.quick else Job(sample, place / "static", epochs, True, True, CUT * usual).run()
        if static is not None:
            print(line("static split", static), file=sys.stderr)
    report("A worker that falls to a tenth", figures(healthy, slow, static), chosen.json)


def figures(healthy: list[Told], slow: list[Told], static: Told | None) -> list[Figure]:
    """The ratios, with what they rest on."""
    usual, hit = median([one.seconds for one in healthy]), median([one.seconds for one in slow])
    ended = all(one.state == "finished" for one in (*healthy, *slow))
    pairs = ", ".join(f"{one.seconds:.1f}/{other.seconds:.1f}" for one, other in zip(slow, healthy, strict=True))
    before, after = slow[-1].speeds
    bound = "; cut, so at least" if static is not None and static.cut else ""
    ratio = static.seconds / usual if static is not None else None
    return [
        Figure("jct_ratio_to_healthy", hit / usual if ended else None, "", 1.15, "lower",
               f"{pairs} s; the slow one did {after / before if before else 0:.2f} of its speed"),
        Figure("static_split_jct_ratio_to_healthy", ratio, "", None, "lower",
               f"{static.seconds:.0f} s{bound}" if static is not None else "not measured in a quick run"),
        Figure("healthy_jct_seconds", usual, "s", None, "lower", f"{len(healthy)} times"),
    ]  # fmt: skip


def _sample(place: Path) -> str:
    from trimtab.core.data.sample import write_sample

    path = place / "sample.parquet"
    write_sample(str(path), ROWS, seed=1)
    return str(path)


if __name__ == "__main__":
    main()
