"""Warm start: how near its plans are to where runs end, what that saves, and how long it searches.

Six families of recurring jobs run once a day for a month: data and cores grow by 2 % a day, the final total of each
role's cores scatters by a log-normal factor of sd 5 %, and on day 17 all take 1.6 times the cores from then on, which
no tag shows. `warm_start` predicts each run from the records before; accuracy is 1 - |predicted - final| / final of
the total cores of a role, the mean over families, days (the first has no past) and seeds. `first_day_accuracy`: of
both roles on day 17 itself; `second_day_accuracy`: on day 18. `smoothing_worker_accuracy`, `smoothing_ps_accuracy`: of
plain exponential smoothing over the same runs. `jct_ratio_to_cold`: completion time of three families of a simple job
(16 cores, its own law, led by the product's decisions) from warm plans over that from cold starts, over days after the
first; history is what its own runs left. `search_ms`: CPU time of what a starting job asks of SQLite with 5,000 past
runs, of which a quarter has its tags: fifty outlines, the newest first (median of 30). The runs are written into
MLflow's tables as copies of a recorded one, each with its own tags and outline.
"""

from __future__ import annotations

import math
import random
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

from figures import Figure, options, report
from warm_start_month import DAY_SECONDS, JOBS, NOW, REGIME_DAY, month, run_job, tags_of

from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import JobRecord, WarmStart
from trimtab.core.optimizer.series import SMOOTHING

RUNS, SEARCHES, LIMIT = 5000, 30, 50
SEEDS, QUICK_SEEDS = range(1, 21), range(1, 4)
JCT_DAYS, QUICK_JCT_DAYS = 10, 3
MODELS = ("dlrm", "deepfm", "dcn", "mine:model")


def accuracy(predicted: float, final: float) -> float:
    """1 - |predicted - final| / final."""
    return 1 - abs(predicted - final) / final


def cores(plan: Plan) -> tuple[float, float]:
    """Cores of all workers, and of all servers."""
    return plan.worker.replicas * plan.worker.cpu, plan.ps.replicas * plan.ps.cpu


def smoothed(before: list[Plan]) -> tuple[float, float]:
    """Plain exponential smoothing, oldest first."""
    values = cores(before[0])
    for plan in before[1:]:
        values = tuple(SMOOTHING * new + (1 - SMOOTHING) * old for new, old in zip(cores(plan), values, strict=True))
    return values


class Month:
    """Accuracies of one month."""

    def __init__(self, seed: int) -> None:
        self.worker, self.ps, self.plain, self.first, self.second = [], [], [], [], []
        month(seed, self._visit)

    def _visit(self, family: str, day: int, found: WarmStart | None, final: Plan, before: list[Plan]) -> None:
        if found is None:
            return
        got = [accuracy(*pair) for pair in zip(cores(found.plan), cores(final), strict=True)]
        self.worker.append(got[0])
        self.ps.append(got[1])
        self.plain.append([accuracy(*pair) for pair in zip(smoothed(before), cores(final), strict=True)])
        if day == REGIME_DAY:
            self.first += got
        if day == REGIME_DAY + 1:
            self.second += got


def spread(values: list[float]) -> str:
    """Least and largest, in words."""
    return f"{min(values):.3f} to {max(values):.3f} over {len(values)} seeds"


def accuracies(seeds: range) -> list[Figure]:
    """Figures of the month."""
    months = [Month(seed) for seed in seeds]
    mean = statistics.mean
    worker, ps = [mean(one.worker) for one in months], [mean(one.ps) for one in months]
    first, second = [mean(one.first) for one in months], [mean(one.second) for one in months]
    plain = [[mean(got[at] for got in one.plain) for one in months] for at in (0, 1)]
    return [
        Figure("worker_accuracy", mean(worker), "1", 0.92, "higher", spread(worker)),
        Figure("ps_accuracy", mean(ps), "1", 0.90, "higher", spread(ps)),
        Figure("first_day_accuracy", mean(first), "1", None, "higher",
               f"{spread(first)}; 1/1.6 = 0.625 is what nobody who cannot foresee the change exceeds by much"),
        Figure("second_day_accuracy", mean(second), "1", None, "higher", spread(second)),
        Figure("smoothing_worker_accuracy", mean(plain[0]), "1", None, "higher", spread(plain[0])),
        Figure("smoothing_ps_accuracy", mean(plain[1]), "1", None, "higher", spread(plain[1])),
    ]  # fmt: skip


def completion(days: int, seeds: range) -> Figure:
    """Completion times of warm over cold runs of the same days."""
    ratios, shown = [], []
    for seed in seeds:
        for family in JOBS:
            records: list[JobRecord] = []
            warm = cold = 0.0
            for day in range(days):
                now = NOW + day * DAY_SECONDS
                mine = run_job(family, day, seed, records, now)
                if day:
                    other = run_job(family, day, seed, [], now)
                    warm, cold = warm + mine.figures["wall_seconds"], cold + other.figures["wall_seconds"]
                records.append(mine)
            ratios.append(warm / cold)
            shown.append(f"{family.name} {cold / (days - 1):.0f} s → {warm / (days - 1):.0f} s")
    note = f"{min(ratios):.3f} to {max(ratios):.3f}; means of a run: {', '.join(shown[: len(JOBS)])}"
    return Figure("jct_ratio_to_cold", statistics.mean(ratios), "1", None, "lower", note)


def past_record(plain: JobRecord, number: int, chance: random.Random) -> JobRecord:
    """`plain` with windows, tags and figures of another run."""
    scatter = [replace(one, throughput=one.throughput * math.exp(chance.gauss(0, 0.1))) for one in plain.observations]
    model, batch = MODELS[number % len(MODELS)], "1024"
    tags = {**tags_of("wide", number, 0), "model": model, "batch_size": batch, "max_workers": "12", "mode": "auto"}
    figures = {f"figure_{at}": chance.lognormvariate(3, 1) for at in range(20)}
    return replace(
        plain, run_id=f"run-{number:05d}", tags=tags, observations=tuple(scatter), figures=plain.figures | figures,
        started_at=NOW + 600.0 * number, ended_at=NOW + 600.0 * number + 300,
    )  # fmt: skip


def fill(database: Path, runs: int, written: JobRecord) -> None:
    """Copies of the one recorded run in MLflow's tables, each with tags, outline and times of its own."""
    from trimtab.core.history.mlflow import rows

    chance = random.Random(5)
    shapes = [past_record(written, number, chance) for number in range(40)]
    with sqlite3.connect(database) as store:
        store.row_factory = sqlite3.Row
        run = dict(store.execute("SELECT * FROM runs").fetchone())
        kept = {table: [dict(one) for one in store.execute(f"SELECT * FROM {table}")]
                for table in ("tags", "metrics", "latest_metrics")}  # fmt: skip
        rows_of: dict[str, list[dict]] = {"runs": [], **{table: [] for table in kept}}
        for number in range(1, runs):
            shape = shapes[number % len(shapes)]
            record = replace(
                shape, run_id=f"run-{number:05d}", started_at=written.started_at + 600.0 * number,
                ended_at=written.started_at + 600.0 * number + 300,
                tags={**shape.tags, "rows": str(10**6 + number), "model": MODELS[number % len(MODELS)]},
            )  # fmt: skip
            own = rows.tags(record, ()) | {rows.WRITTEN: f"{number:020d}"}
            run_uuid = uuid.uuid4().hex
            start = rows.milliseconds(record.started_at)
            rows_of["runs"].append(run | {"run_uuid": run_uuid, "name": record.run_id, "start_time": start})
            for table, entries in kept.items():
                for entry in entries:
                    changed = {"value": own.get(entry["key"], entry["value"])} if table == "tags" else {}
                    rows_of[table].append(entry | changed | {"run_uuid": run_uuid})
        for table, entries in rows_of.items():
            marks = ",".join("?" * len(entries[0]))
            words = f"INSERT INTO {table} ({','.join(entries[0])}) VALUES ({marks})"
            store.executemany(words, [tuple(entry.values()) for entry in entries])
    store.close()


def search(runs: int, full: bool) -> Figure:
    """What a starting job asks, over a store with `runs` runs."""
    from trimtab.core.history.mlflow.store import MlflowHistory
    from trimtab.core.optimizer.warm_start import HARD_TAGS, warm_start

    with tempfile.TemporaryDirectory(prefix="trimtab-warm-start-") as folder:
        history = MlflowHistory(f"sqlite:///{Path(folder) / 'mlflow.db'}", Path(folder))
        written = past_record(run_job(JOBS[0], 0, 0, [], NOW), 0, random.Random(4))
        history.record(written)
        fill(Path(folder) / "mlflow.db", runs, written)
        hard = {name: written.tags[name] for name in HARD_TAGS}
        found = history.outlines(hard, LIMIT)  # the first question opens the store
        if len(found.records) != min(LIMIT, runs // len(MODELS)) or found.unread:
            raise RuntimeError(f"{len(found.records)} outlines were found, {found.unread} could not be read")
        ours, walls = [], []
        for _ in range(SEARCHES):
            before, began = time.process_time(), time.perf_counter()
            records = history.outlines(hard, LIMIT).records
            ours.append(1e3 * (time.process_time() - before))
            walls.append(1e3 * (time.perf_counter() - began))
        before = time.process_time()
        warm = warm_start(records, written.tags, NOW + 600.0 * runs)
        ranked = 1e3 * (time.process_time() - before)
    note = (
        f"{runs} runs: {statistics.median(ours):.0f} ms of CPU (worst {max(ours):.0f}), {statistics.median(walls):.0f} "
        f"ms of wall time; ranking and smoothing {len(warm.runs)} of them: {ranked:.0f} ms"
    )
    return Figure("search_ms", statistics.median(ours) if full else None, "ms", 100, "lower", note)


def main() -> int:
    chosen = options(__doc__ or "")
    seeds = QUICK_SEEDS if chosen.quick else SEEDS
    figures = accuracies(seeds)
    figures.append(completion(QUICK_JCT_DAYS if chosen.quick else JCT_DAYS, range(1, 2 if chosen.quick else 4)))
    figures.append(search(200 if chosen.quick else RUNS, not chosen.quick))
    report("Warm start", figures, chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
