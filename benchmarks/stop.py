"""How long a stop takes that keeps what was trained: `trimtab train`, a table of 500 MB, one Ctrl-C.

The command trains on the sample from a checkpoint with 500 MB of rows and slots (1 worker and 1 parameter server,
1.8 cores, the mode is fixed). Some seconds after its first batches it gets a SIGINT, finishes the batch in work, writes
a last checkpoint and ends. `interrupt_500mb_seconds` is from the signal until its process has ended, with page, record
and all; `last_checkpoint_seconds` until that checkpoint was committed; medians of the repeats. `lost_batches` counts
what was trained before the signal and is in no checkpoint. With `--quick` there is one repeat with 30 MB, and no figure
for 500.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from figures import Figure, options, report
from resize import ROW_BYTES, spread
from resize_job import inflate, sample_rows, seedling

REPEATS = 5
SETTLED_SECONDS = 4.0  # of training before the signal
START_SECONDS, STOP_SECONDS = 180.0, 300.0


@dataclass(frozen=True)
class Stopped:
    """One stop: seconds until the checkpoint was committed and until the process had ended; batches that were lost."""

    committed: float
    ended: float
    lost: int


def stop(sample: str, source: str, job_dir: Path) -> Stopped:
    """Train, interrupt, and see what came of it."""
    from trimtab.core.controller.reaching import JobLine, NoAnswer

    command = [
        sys.executable, "-m", "trimtab.core.cli", "train", "--data", sample, "--init-from", source, "--epochs", "1000",
        "--workers", "1", "--ps", "1", "--mode", "fixed", "--max-cpu", "1.8", "--max-memory", "12Gi",
        "--job-dir", str(job_dir),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            limit = time.monotonic() + START_SECONDS
            with JobLine(job_dir) as line:
                while time.monotonic() < limit and process.poll() is None:
                    time.sleep(0.5)
                    try:
                        if line.ask().status["batches_done"]:
                            break
                    except NoAnswer:
                        continue
                time.sleep(SETTLED_SECONDS)
                done = line.ask().status["batches_done"]
            began, asked = time.monotonic(), time.time()
            process.send_signal(signal.SIGINT)
            process.wait(STOP_SECONDS)
            ended = time.monotonic() - began
        finally:
            process.kill()
    events = [json.loads(text) for text in (job_dir / "events.jsonl").read_text().splitlines()]
    told = [one for one in events if one["kind"] == "checkpoint"]
    if not told:
        raise SystemExit(f"no checkpoint was committed: {events[-1]['text']}")
    committed = datetime.fromisoformat(told[-1]["time"]).timestamp() - asked
    return Stopped(committed, ended, max(0, done - int(told[-1]["closed"])))


def main() -> None:
    """Measure and report."""
    chosen = options(__doc__)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["TRIMTAB_HISTORY"] = "none"
    with tempfile.TemporaryDirectory(prefix="tt") as place:
        os.environ["TRIMTAB_HOME"] = place
        os.environ.setdefault("TRIMTAB_KERNEL_CACHE", str(Path.home() / ".trimtab" / "cache" / "kernels"))
        folder = Path(place)
        sample, size = sample_rows(folder, 200_000), 30e6 if chosen.quick else 500e6
        source = inflate(seedling(sample, folder), folder / "source", int(size / ROW_BYTES))
        stops = [stop(sample, source, folder / f"job-{number}") for number in range(1 if chosen.quick else REPEATS)]
    ends, commits = [one.ended for one in stops], [one.committed for one in stops]
    whole = None if chosen.quick else median(ends)
    figures = [
        Figure("interrupt_500mb_seconds", whole, "s", 10.0, "lower", spread(ends)),
        Figure("last_checkpoint_seconds", median(commits), "s", None, "lower", spread(commits)),
        Figure("lost_batches", float(sum(one.lost for one in stops)), "1", 0.0, "lower", f"{len(stops)} stops"),
    ]
    report("A stop that keeps what was trained", figures, chosen.json)


if __name__ == "__main__":
    main()
