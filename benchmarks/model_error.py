"""How far predictions are off on this product's own configurations, under CPU quotas.

One real job trains on the sample (batch 512) while its plan goes through 26 configurations (1 to 4 workers, 1 to 3
parameter servers, 0.1 to 0.6 cores per pod, 1.2 cores in all), in 5 interleaved repeats, each in an order of its own; a
window of 4.2 s is measured after 1.2 s in full force. Then the product's own `perf.fit` is asked as a job in a later
repeat would ask it: it has 8 configurations of the first repeat and one recent window, of the plan in force (one of the
8), and predicts the configurations that it has not seen, as they are in that later repeat. `median_error` and `rmsle`
(of the logarithms of throughput) are medians over 40 seeded choices of the 8, each with every later repeat;
`coverage_80` is the share of all these truths within the product's own 80 % ranges (0.7 to 0.9 is honest);
`repeat_deviation` is the median relative deviation of a configuration's windows from their median: what no prediction
can beat. The goal of `median_error` is the larger of 0.08 and 1.5 times that. Beside them: the same with a plan in
force that is not among the 8, without any recent window, and the paper's additive law on the same splits, by
non-negative least squares on the relative error. `--rows FILE` writes what was measured, or reads it where the file is
there, so that all but the measuring can be repeated in a minute. It needs a machine that does nothing else: cores that
others used are measured and printed. With `--quick` there are 5 configurations and 2 repeats, too few for a fit: only
`repeat_deviation` is given.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from figures import Figure, options, report

KNOWN = 8  # configurations that a fit has seen
SPLITS = 40
GIB = 2**30
MUCH_BY_OTHERS = 0.5  # cores: with more, pods no longer get their shares on a machine of two cores
UNANCHORED_SECONDS = 1e6  # so long after the last window nothing is recent any more


@dataclass(frozen=True)
class Window:
    """One measured window: the round it belongs to (0, 1, ...), what was observed, and cores that others used."""

    repeat: int
    seen: Any  # an Observation
    others: float | None = None

    @property
    def key(self) -> tuple[Any, int]:
        """Its configuration."""
        return self.seen.plan, self.seen.batch_size


@dataclass(frozen=True)
class Scores:
    """Of one split: errors are log(predicted / measured); `inside`: share of truths within the 80 % range."""

    errors: tuple[float, ...]
    inside: float | None = None
    half_width: float | None = None

    @property
    def median(self) -> float:
        """Median relative error."""
        return statistics.median(abs(math.expm1(one)) for one in self.errors)

    @property
    def rmsle(self) -> float:
        """Root mean square of the logarithms' errors."""
        return math.sqrt(statistics.fmean(one**2 for one in self.errors))


COLUMNS = (
    "repeat", "workers", "ps", "worker_cpu", "ps_cpu", "batch_size", "throughput", "worker_cpu_seconds",
    "ps_cpu_seconds", "ps_skew", "slowest_worker", "time_seconds", "window_seconds", "batches", "others_cpu",
)  # fmt: skip


def write_rows(windows: Sequence[Window], path: Path) -> None:
    """A table that `trimtab fit` reads, too."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for one in windows:
            seen, plan = one.seen, one.seen.plan
            values = (
                one.repeat, plan.worker.replicas, plan.ps.replicas, plan.worker.cpu, plan.ps.cpu, seen.batch_size,
                seen.throughput, seen.worker_cpu_seconds, seen.ps_cpu_seconds, seen.ps_skew, seen.slowest_worker,
                seen.time_seconds, seen.window_seconds, seen.batches, one.others,
            )  # fmt: skip
            writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in values)


def read_rows(path: Path) -> list[Window]:
    """What `write_rows` wrote."""
    from trimtab.core.domain.plan import Plan, RolePlan
    from trimtab.core.domain.records import Observation

    def number(text: str) -> float | None:
        return float(text) if text else None

    found = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            plan = Plan(
                RolePlan(int(row["ps"]), float(row["ps_cpu"]), GIB),
                RolePlan(int(row["workers"]), float(row["worker_cpu"]), GIB),
            )
            seen = Observation(
                plan, float(row["throughput"]), number(row["worker_cpu_seconds"]), number(row["ps_cpu_seconds"]),
                int(row["batch_size"]), float(row["time_seconds"]), float(row["window_seconds"]), int(row["batches"]),
                ps_skew=number(row["ps_skew"]), slowest_worker=number(row["slowest_worker"]),
            )  # fmt: skip
            found.append(Window(int(row["repeat"]), seen, number(row["others_cpu"])))
    return found


def predict(known: Sequence[Any], present: Any | None, asked: Sequence[Any], setting: Any) -> Scores:
    """What the product's fit says of `asked`.

    Args:
        known: observations of earlier, oldest first.
        present: the recent one, of the plan in force; None: nothing is recent, so that nothing is anchored.
        asked: observations that the fit does not see.
        setting: what holds pods back.
    """
    from trimtab.core.perf.fit import fit

    if present is None:
        last = known[-1]
        fitted = fit(known, (), last.plan, last.batch_size, last.time_seconds + UNANCHORED_SECONDS, (), setting)
    else:
        began = present.time_seconds - present.window_seconds
        fitted = fit(
            [*known, present], (), present.plan, present.batch_size, present.time_seconds, ((began, began),), setting
        )
    if fitted is None:
        raise SystemExit("no law could be fitted")
    errors, inside, widths = [], [], []
    for one in asked:
        said = dataclasses.replace(fitted, batch_size=one.batch_size).range(one.plan)
        errors.append(math.log(said.middle / one.throughput))
        if said.low is not None and said.high is not None:
            inside.append(said.low <= one.throughput <= said.high)
            widths.append(math.log(said.high / said.low) / 2)
    if not inside:
        return Scores(tuple(errors))
    return Scores(tuple(errors), sum(inside) / len(inside), statistics.fmean(widths))


def paper(known: Sequence[Any], present: Any | None, asked: Sequence[Any]) -> Scores:
    """The paper's law, T = a m/c_w + b w/(p c_p) + c w/p + d m/p + e, by NNLS on the relative error, on time alone.

    With `present` it is anchored as the product anchors: by what one window measures against what is said of it.
    """
    from scipy.optimize import nnls

    def columns(rows: Sequence[Any]) -> np.ndarray:
        found = []
        for one in rows:
            w, p, m = one.plan.worker.replicas, one.plan.ps.replicas, one.batch_size / 512
            found.append([m / one.plan.worker.cpu, w / (p * one.plan.ps.cpu), w / p, m / p, 1.0])
        return np.array(found)

    def log_seconds(rows: Sequence[Any]) -> np.ndarray:
        return np.log([one.plan.worker.replicas * one.batch_size / one.throughput for one in rows])

    rows = [*known, present] if present is not None else list(known)
    relative = columns(rows) / np.exp(log_seconds(rows))[:, None]
    scale = relative.max(axis=0)
    found = nnls(relative / scale, np.ones(len(rows)))[0] / scale
    errors = log_seconds(asked) - np.log(columns(asked) @ found)
    if present is not None:
        errors = errors - (log_seconds([present]) - np.log(columns([present]) @ found))[0] / 1.3
    return Scores(tuple(errors.tolist()))


def repeat_deviation(windows: Sequence[Window]) -> float | None:
    """Median over all windows of how far they are from their configuration's median, relative."""
    groups: dict[Any, list[float]] = {}
    for one in windows:
        groups.setdefault(one.key, []).append(one.seen.throughput)
    found = [
        abs(value / statistics.median(values) - 1) for values in groups.values() if len(values) > 1 for value in values
    ]
    return statistics.median(found) if found else None


@dataclass(frozen=True)
class Analysis:
    """Scores of every split by the way of predicting."""

    anchored: list[Scores]
    unanchored: list[Scores]
    elsewhere: list[Scores]
    paper: list[Scores]
    paper_unanchored: list[Scores]


def analyse(windows: Sequence[Window], setting: Any, splits: int = SPLITS) -> Analysis | None:
    """Fit on `KNOWN` configurations of the first repeat, predict the others in every later one; None: too few rows."""
    repeats: dict[int, dict[Any, Any]] = {}
    for one in sorted(windows, key=lambda each: each.seen.time_seconds):
        repeats.setdefault(one.repeat, {})[one.key] = one.seen
    if len(repeats) < 2:
        return None
    first, *later = (repeats[number] for number in sorted(repeats))
    if len(first) < 2 * KNOWN:
        return None
    found = Analysis([], [], [], [], [])
    for seed in range(splits):
        rng = random.Random(seed)
        chosen = set(rng.sample(sorted(first, key=str), KNOWN))
        known = [first[key] for key in first if key in chosen]
        for repeat in later:
            inside = sorted((key for key in repeat if key in chosen), key=str)
            outside = sorted((key for key in repeat if key not in chosen), key=str)
            if not inside or len(outside) < 2:
                continue
            asked = [repeat[key] for key in outside]
            present = repeat[rng.choice(inside)]
            found.anchored.append(predict(known, present, asked, setting))
            found.unanchored.append(predict(known, None, asked, setting))
            found.paper.append(paper(known, present, asked))
            found.paper_unanchored.append(paper(known, None, asked))
            other = rng.choice(outside)
            rest = [repeat[key] for key in outside if key != other]
            found.elsewhere.append(predict(known, repeat[other], rest, setting))
    return found


def spread(values: Sequence[float]) -> str:
    """The middle four fifths, in words."""
    low, high = np.quantile(values, [0.1, 0.9])
    return f"{low:.3f} to {high:.3f}"


def figures(windows: Sequence[Window], setting: Any) -> list[Figure]:
    """All figures of a sweep."""
    deviation = repeat_deviation(windows)
    found = analyse(windows, setting)
    others = [one.others for one in windows if one.others is not None]
    configurations = len({one.key for one in windows})
    repeats = len({one.repeat for one in windows})
    swept = f"{len(windows)} windows, {configurations} configurations, {repeats} repeats"
    busy = "not known"
    if others:
        disturbed = sum(one > MUCH_BY_OTHERS for one in others)
        busy = f"{statistics.median(others):.2f} in the median, over {MUCH_BY_OTHERS} in {disturbed} windows"
    goal = max(0.08, 1.5 * (deviation or 0.0))
    if found is None:
        few = "too few rows for a fit"
        return [
            Figure("median_error", None, "", goal, "lower", few), Figure("rmsle", None, "", 0.13, "lower", few),
            Figure("coverage_80", None, "", 0.7, "higher", few),
            Figure("repeat_deviation", deviation, "", None, "lower", f"{swept}; cores of others: {busy}"),
        ]  # fmt: skip

    def line(name: str, scores: list[Scores], error: bool, note: str, goal: float | None = None) -> Figure:
        values = [one.median if error else one.rmsle for one in scores]
        return Figure(name, statistics.median(values), "", goal, "lower", f"{spread(values)}{note}")

    inside = [one.inside for one in found.anchored if one.inside is not None]
    widths = [one.half_width for one in found.anchored if one.half_width is not None]
    return [
        line("median_error", found.anchored, True, f" (10 to 90 % of {len(found.anchored)} fits)", goal),
        line("rmsle", found.anchored, False, "", 0.13),
        Figure("coverage_80", statistics.fmean(inside) if inside else None, "", 0.7, "higher",
               f"honest: 0.7 to 0.9; half-width {statistics.median(widths):.3f} in logs" if widths else "no ranges"),
        Figure("repeat_deviation", deviation, "", None, "lower", f"{swept}; cores of others: {busy}"),
        line("other_anchor_median_error", found.elsewhere, True, ", plan in force not among the 8"),
        line("other_anchor_rmsle", found.elsewhere, False, ""),
        line("unanchored_median_error", found.unanchored, True, ", no recent window"),
        line("unanchored_rmsle", found.unanchored, False, ""),
        line("paper_median_error", found.paper, True, ", the paper's law, anchored alike"),
        line("paper_rmsle", found.paper, False, ""),
        line("paper_unanchored_rmsle", found.paper_unanchored, False, ", the paper's law as it is"),
    ]  # fmt: skip


def main() -> None:
    """Measure, or read what was measured, and report."""
    chosen = options(__doc__, ("--rows", "measured rows (CSV): read if there, else written"))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["TRIMTAB_HISTORY"] = "none"
    from trimtab.core.optimizer.question import LOCAL_PERIOD_SECONDS
    from trimtab.core.perf.iteration import Setting

    if chosen.rows is not None and chosen.rows.exists():
        windows = read_rows(chosen.rows)
    else:
        from model_error_job import sweep

        windows = sweep(quick=chosen.quick)
        if chosen.rows is not None:
            write_rows(windows, chosen.rows)
    found = figures(windows, Setting(period_seconds=LOCAL_PERIOD_SECONDS))
    report("Predictions beside what was measured", found, chosen.json)


if __name__ == "__main__":
    main()
