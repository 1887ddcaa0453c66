"""Simulated jobs from seeds: `python -m trimtab.core.simulator SEED | FIRST-LAST ...`.

Several processes share the seeds. A seed that breaks a promise prints its schedule, shrunk to the events that it needs,
and how it is replayed; one single seed is told as it happens.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from trimtab.core.simulator.runs import run_schedule, run_seeds, seeds_of, shrunk
from trimtab.core.simulator.schedules import KINDS, plan_schedule


def main(argv: Sequence[str]) -> int:
    """Run the seeds; returns 1 when one of them is wrong."""
    parser = argparse.ArgumentParser(prog="simulate", description="Simulated jobs from seeds.")
    parser.add_argument("seeds", nargs="*", default=["0-1999"], help="numbers, or ranges like 0-1999")
    parser.add_argument("--processes", type=int, default=2, help="that share the seeds (default 2)")
    parser.add_argument("--kind", default="", choices=["", *KINDS], help="each schedule has this kind of event")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--quiet", action="store_true", help="of one seed, say only what came of it")
    options = parser.parse_args(argv)
    seeds = seeds_of(options.seeds)
    if options.part:
        first, step = map(int, options.part.split("/"))
        return _run(seeds[first::step], options.kind)
    if len(seeds) == 1:
        return _replay(seeds[0], options.kind, options.quiet)
    processes = max(1, min(options.processes, len(seeds)))
    words = [*options.seeds, "--kind", options.kind]
    parts = [
        subprocess.Popen([sys.executable, "-m", "trimtab.core.simulator", *words, "--part", f"{number}/{processes}"])
        for number in range(processes)
    ]
    wrong = sum(part.wait() != 0 for part in parts)
    sys.stdout.write(f"{len(seeds)} seeds: {'some are WRONG' if wrong else 'every promise was kept'}\n")
    return 1 if wrong else 0


def _run(seeds: Sequence[int], kind: str) -> int:
    wrong = 0
    for run in run_seeds(seeds, kind):
        if run.wrong:
            wrong += 1
            smaller = shrunk(run.schedule)
            sys.stdout.write(f"{run}\n  needed of that:\n")
            sys.stdout.writelines(f"    {event}\n" for event in smaller.events)
            sys.stdout.write(f"  replay: make simulate SEED={run.schedule.seed}\n")
            sys.stdout.flush()
    return 1 if wrong else 0


def _replay(seed: int, kind: str, quiet: bool) -> int:
    schedule = plan_schedule(seed, kind)
    sys.stdout.write(f"{schedule}\n")
    run = run_schedule(schedule, None if quiet else lambda line: _line(line))
    sys.stdout.write(f"{run}\n")
    return 1 if run.wrong else 0


def _line(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
