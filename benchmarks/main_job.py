"""The main job as a newcomer runs it, twice: `trimtab train --epochs 3`, as `make train` does it, in an empty home.

The rows are the sample of `make train`. The first run starts cold, the second warm from what the first one logged.
`train_seconds` is from the first batch to the last. Wall-clock figures are those of one machine; what to compare across
machines is CPU per sample, printed beside them. `*_to_final_plan_seconds` is from the job's start until its last plan
is in full force. `max_worker_gap_seconds` is the longest wait between two steps of any worker in a third job, whose
plan is changed on purpose four times (workers 1→2→1, PSs 1→2→1) under a table of at least 200 MB of rows and slots.
With `--quick` the sample has 200,000 rows and the third job's table is smaller, so that its figure is not given.
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
from typing import Any

from figures import Figure, options, report

ROWS, QUICK_ROWS, EPOCHS = 1_000_000, 200_000, 3
TABLE_BYTES, WIDE = 200e6, 32
STEPS = ((2, 1), (2, 2), (1, 2), (1, 1))
PS_CORES = 0.35


def environment(home: str) -> dict[str, str]:
    """An empty home, and kernels that are compiled already."""
    found = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    found["TRIMTAB_HOME"] = home
    found.setdefault("TRIMTAB_KERNEL_CACHE", str(Path.home() / ".trimtab" / "cache" / "kernels"))
    return found


def trimtab(*words: str, home: str) -> subprocess.CompletedProcess[str]:
    """The command line, from this interpreter's environment."""
    return subprocess.run(
        [sys.executable, "-m", "trimtab.core.cli", *words],
        env=environment(home), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip


def train(sample: str, home: str) -> dict[str, Any]:
    """One run of the main job; its JSON."""
    found = json.loads(trimtab("train", "--data", sample, "--epochs", str(EPOCHS), "--json", home=home).stdout)
    if found["state"] != "finished" or found["batches_applied"] != found["batches_expected"]:
        raise SystemExit(f"the job did not end well: {found}")
    return found


def changes(result: dict[str, Any]) -> int:
    """Plan changes of a run."""
    return len(result["plans"]) - 1


def to_final_plan(result: dict[str, Any]) -> float | None:
    """Seconds from the job's start until its last plan is in full force; None if that was not seen before the end."""
    made = [one for one in result["decisions"] if one["kind"] not in ("hold", "stop") and not one["advised"]]
    last = made[-1]
    return None if last["switch_seconds"] is None else last["time"] + last["switch_seconds"]


def resized(sample: str, home: str) -> tuple[float, float, list[float | None]]:
    """A job whose plan is changed on purpose: longest gap of a worker, bytes of its table, wait in each change."""
    os.environ.update(environment(home))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["TRIMTAB_HISTORY"] = "none"
    from trimtab.core.controller import run
    from trimtab.core.domain.job import JobSpec
    from trimtab.core.domain.plan import Plan, RolePlan
    from trimtab.core.domain.records import Decision

    left = list(STEPS)

    def decide(question: Any) -> Decision:
        plan = question.plan
        grown = question.batches_left < 0.6 * batches[0]  # the table has most of its rows by then
        if left and grown:
            workers, ps = left.pop(0)
            cores = question.limits.cpu
            each = int(100 * (cores - ps * PS_CORES) / workers) / 100  # all of the cap, and no more
            worker = RolePlan(workers, min(1.0, each), plan.worker.memory_bytes)
            new = Plan(RolePlan(ps, PS_CORES, plan.ps.memory_bytes), worker)
            return Decision(question.time_seconds, "replace", new, "on purpose", action=f"To {new}", before=plan)
        return Decision(question.time_seconds, "hold", plan, "wait", before=plan)

    batches = [0]

    def progress(now: Any) -> None:
        batches[0] = max(batches[0], now.batches_expected)

    run.decide = decide
    spec = JobSpec(sample, epochs=EPOCHS, embedding_dim=WIDE, workers=1, ps=1, job_dir=str(Path(home) / "resized"))
    result = run.train(spec, progress, settle_seconds=0.5, window_seconds=1.0)
    if left or result.batches_applied != result.batches_expected:
        raise SystemExit(f"the job to be resized ended too early or not well: {result.error}, left {left}")
    record = json.loads((Path(home) / "resized" / "record.json").read_text())["record"]
    table = max(one["table_bytes"] for one in record["samples"])
    paused = [one["paused_seconds"] for one in result.decisions if one["kind"] == "replace"]
    return result.max_worker_gap_seconds, table, paused  # type: ignore[return-value]


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
        cold = train(sample, home)
        warm = train(sample, home)
        gap, gap_note = None, "not measured in a quick run"
        if not chosen.quick:
            longest, table, paused = resized(sample, home)
            waits = ", ".join("–" if one is None else f"{one:.2f}" for one in paused)
            gap_note = f"table {table / 1e6:.0f} MB; longest wait in each of the four changes: {waits} s"
            gap = longest if table >= TABLE_BYTES else None
    training = cold["rows_applied"] / cold["samples_per_second"]
    cpu = cold["cpu_seconds"] / cold["rows_applied"] * 1e6
    plans = f"{_plan(cold['plans'][0])} to {_plan(cold['plans'][-1])}"
    report(
        f"The main job: {rows:,} rows of the sample, {EPOCHS} epochs, batch 1024, cold and warm",
        [
            Figure("train_seconds", training, "s", None, "lower", "first batch to last, cold"),
            Figure("samples_per_second", cold["samples_per_second"], "1/s", None, "higher",
                   f"first batch to last, cold; warm {warm['samples_per_second']:,.0f}"),
            Figure("cpu_us_per_sample", cpu, "µs", None, "lower", "all processes, start and evaluation included"),
            Figure("wall_seconds", cold["wall_seconds"], "s", None, "lower",
                   f"with conversion, probe, evaluation, record; warm {warm['wall_seconds']:.0f} s"),
            Figure("cold_changes", changes(cold), "", None, "lower", plans),
            Figure("warm_changes", changes(warm), "", None, "lower", f"from {_plan(warm['plans'][0])}"),
            Figure("cold_to_final_plan_seconds", to_final_plan(cold), "s", None, "lower", "from the job's start"),
            Figure("warm_to_final_plan_seconds", to_final_plan(warm), "s", None, "lower", "from the job's start"),
            Figure("max_worker_gap_seconds", gap, "s", 0.5, "lower", gap_note),
            Figure("sample_seconds", sample_seconds, "s", 20.0 if not chosen.quick else None, "lower"),
            Figure("auc", cold["auc"], "", None, "higher", f"log loss {cold['log_loss']:.4f}; warm {warm['auc']:.4f}"),
            Figure("help_seconds", statistics.median(helps), "s", 0.5, "lower",
                   f"{min(helps):.2f} to {max(helps):.2f}"),
        ],
        chosen.json,
    )  # fmt: skip


def _plan(change: dict[str, Any]) -> str:
    roles = change["plan"]
    words = [f"{roles[role]['replicas']} × {roles[role]['cpu']}" for role in ("worker", "ps")]
    return " + ".join(words)


if __name__ == "__main__":
    main()
