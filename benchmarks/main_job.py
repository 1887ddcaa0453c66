"""The main job as a newcomer runs it: `trimtab train --epochs 3`, as `make train` does it, in an empty home.

The rows are the sample of `make train`. `train_seconds` is from the first batch to the last. Wall-clock figures are
those of one machine; what to compare across machines is CPU per sample, printed beside them. With `--quick` the sample
has 200,000 rows, with as many epochs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure, options, report

ROWS, QUICK_ROWS, EPOCHS = 1_000_000, 200_000, 3


def trimtab(*words: str, home: str) -> subprocess.CompletedProcess[str]:
    """The command line, from this interpreter's environment."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["TRIMTAB_HOME"] = home
    environment.setdefault("TRIMTAB_KERNEL_CACHE", str(Path.home() / ".trimtab" / "cache" / "kernels"))
    return subprocess.run(
        [sys.executable, "-m", "trimtab.core.cli", *words],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip


def main() -> None:
    """Measure and report."""
    chosen = options(__doc__)
    rows = QUICK_ROWS if chosen.quick else ROWS
    helps = []
    with tempfile.TemporaryDirectory(prefix="tt") as home:
        for _ in range(5 if chosen.quick else 11):
            before = time.perf_counter()
            trimtab("--help", home=home)
            helps.append(time.perf_counter() - before)
        sample = str(Path(home) / "sample.parquet")
        before = time.perf_counter()
        trimtab("data", "sample", "--rows", str(rows), "--out", sample, "--seed", "1", home=home)
        sample_seconds = time.perf_counter() - before
        result = json.loads(trimtab("train", "--data", sample, "--epochs", str(EPOCHS), "--json", home=home).stdout)
    if result["state"] != "finished" or result["batches_applied"] != result["batches_expected"]:
        raise SystemExit(f"the job did not end well: {result}")
    training = result["rows_applied"] / result["samples_per_second"]
    cpu = result["cpu_seconds"] / result["rows_applied"] * 1e6
    report(
        f"The main job: {rows:,} rows of the sample, {EPOCHS} epochs, batch 1024, default plan",
        [
            Figure("train_seconds", training, "s", None, "lower", "first batch to last"),
            Figure("samples_per_second", result["samples_per_second"], "1/s", None, "higher", "first batch to last"),
            Figure("cpu_us_per_sample", cpu, "µs", None, "lower", "all processes, start and evaluation included"),
            Figure("wall_seconds", result["wall_seconds"], "s", None, "lower", "with conversion, probe, evaluation"),
            Figure("sample_seconds", sample_seconds, "s", 20.0 if not chosen.quick else None, "lower"),
            Figure("auc", result["auc"], "", None, "higher", f"log loss {result['log_loss']:.4f}"),
            Figure(
                "help_seconds", statistics.median(helps), "s", 0.5, "lower", f"{min(helps):.2f} to {max(helps):.2f}"
            ),
        ],
        chosen.json,
    )


if __name__ == "__main__":
    main()
