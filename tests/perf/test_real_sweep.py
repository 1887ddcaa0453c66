"""The fit on real configurations under CPU quotas, by the benchmark's own code; sweeps are recorded, nothing runs here.

`data/sweep.csv` is a sweep of this product's own job on a machine of its own, written by `python
benchmarks/model_error.py --rows tests/perf/data/sweep.csv`; `data/busy_sweep.csv` is one (2 repeats) while others used
1.25 of the machine's 2 cores, so that no quota could be promised. `data/sweep_10s.csv` has windows of 10 s; others
disturbed its last repeat. The study's sweep, of an older prototype, lies beside
the checkout.
"""

import json
import math
import random
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Observation
from trimtab.core.perf.iteration import Setting, Shapes, step_seconds

GIB = 2**30
LOCAL = Setting(period_seconds=0.02)
DATA = Path(__file__).parent / "data"


@pytest.fixture
def benchmark(repository, monkeypatch):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    import model_error

    return model_error


@pytest.fixture
def job(benchmark):
    import model_error_job

    return model_error_job


def plan(workers, worker_cpu, ps, ps_cpu):
    return Plan(RolePlan(ps, ps_cpu, GIB), RolePlan(workers, worker_cpu, GIB))


def demands(of, batch):
    """A truth with the terms that the product's law has."""
    rows = batch / 512
    worker = (0.003 + 0.004 * rows + 0.001 * of.ps.replicas) * (1 + 0.0004 / (0.02 * of.worker.cpu))
    ps = (0.001 + 0.002 * rows + 0.0015 * of.ps.replicas) * (1 + 0.0004 / (0.02 * of.ps.cpu))
    return worker, ps


def made_up(benchmark, shapes, repeats=3, noise=0.0, slower=(1.0, 1.0, 1.0), batch=512):
    """A sweep over `shapes` of which the truth is known; `slower`: by how much each repeat takes longer."""
    rng = np.random.default_rng(5)
    windows, at = [], 0.0
    for repeat in range(repeats):
        for shape in shapes:
            of, at = plan(*shape), at + 8.0
            worker, ps = demands(of, batch)
            law = step_seconds(np.array([worker]), np.array([ps]), Shapes.of([of]), LOCAL)
            seconds = float(law[0]) * slower[repeat] * math.exp(noise * rng.standard_normal())
            seen = Observation(of, of.worker.replicas * batch / seconds, worker, ps, batch, at, 5.5, 100)
            windows.append(benchmark.Window(repeat, seen, 0.1))
    return windows


def studied(shared_data):
    """The study's 48 configurations, and which of them it fitted on."""
    found = json.loads((shared_data.parent / "prototypes" / "performance_model" / "sweep2.json").read_text())
    rows = {row["idx"]: row for row in found["rows"] if row["role"] in ("fit", "held")}  # of two tries the second
    begin = min(row["when"] for row in rows.values())
    seen = {}
    for index, row in rows.items():
        of = plan(row["w"], row["cw"], row["p"], row["cp"])
        seen[index] = Observation(
            of, row["w"] * row["m"] / (row["T"] / 1e3), row["Dw"] / 1e3, row["Dp"] / 1e3, row["m"],
            row["when"] - begin + 10.5, 10.5, row["n"],
        )  # fmt: skip
    return seen, found["fit_ids"], found["held_ids"]


def in_time(seen):
    return sorted(seen, key=lambda one: one.time_seconds)


def test_eight_of_the_studys_plans_predict_its_thirty_four_others(benchmark, shared_data):
    """The study's figures for n = 8: 0.124 for the maximum, 0.126 for the calibrated p-norm; the paper's law 0.43."""
    seen, fit_ids, held_ids = studied(shared_data)
    held = [seen[index] for index in held_ids]
    assert len(held) == 34
    rng = random.Random(8)
    known = [in_time(seen[index] for index in rng.sample(fit_ids, 8)) for _ in range(10)]
    free = [benchmark.predict(some, None, held, LOCAL) for some in known]
    assert statistics.fmean(one.rmsle for one in free) < 0.135
    assert statistics.fmean(one.median for one in free) < 0.085
    anchored = [benchmark.predict(some[:-1], some[-1], held, LOCAL) for some in known]
    assert statistics.fmean(one.rmsle for one in anchored) < 0.14
    assert 0.65 < statistics.fmean(one.inside for one in anchored) < 0.92
    reference = [benchmark.paper(some, None, held) for some in known]
    assert statistics.fmean(one.rmsle for one in reference) > 0.3


def test_any_eight_of_the_study_predict_the_other_forty(benchmark, shared_data):
    """Sixty random splits there: 0.132 to 0.135."""
    everything = in_time(studied(shared_data)[0].values())
    assert len(everything) == 48
    found = []
    for seed in range(10):
        known = in_time(random.Random(seed).sample(everything, 8))
        asked = [one for one in everything if one not in known]
        found.append(benchmark.predict(known[:-1], known[-1], asked, LOCAL))
    assert statistics.fmean(one.rmsle for one in found) < 0.135
    assert 0.68 < statistics.fmean(one.inside for one in found) < 0.92


@pytest.mark.parametrize("name", ["sweep.csv", "sweep_10s.csv", "busy_sweep.csv"])
def test_the_recorded_sweep_is_one(benchmark, name):
    windows = benchmark.read_rows(DATA / name)
    assert len({one.key for one in windows}) >= 24
    for one in windows:
        assert one.seen.plan.cpu <= 1.2 + 1e-9
        assert one.seen.worker_cpu_seconds > 0 and one.seen.ps_cpu_seconds > 0
        assert one.others is None or one.others >= 0.0

    def use(one):
        seen, steps = one.seen, one.seen.throughput / one.seen.batch_size
        worker = seen.worker_cpu_seconds * steps / (seen.plan.worker.replicas * seen.plan.worker.cpu)
        return worker, seen.ps_cpu_seconds * steps / (seen.plan.ps.replicas * seen.plan.ps.cpu)

    tighter = [worker > ps for worker, ps in map(use, windows)]
    assert 0.25 < statistics.fmean(tighter) < 0.85, "both roles are the tighter one"
    assert max(max(use(one)) for one in windows) < 1.15, "quotas held"


@pytest.mark.parametrize("name", ["sweep.csv", "sweep_10s.csv"])
def test_the_law_holds_on_the_products_own_plans_where_their_cpu_is_known(benchmark, name):
    """What it misses by is demand, not form: with each window's own CPU seconds nearly nothing is left."""
    misses = []
    for one in benchmark.read_rows(DATA / name):
        seen, shapes = one.seen, Shapes.of([one.seen.plan])
        cpu = np.array([seen.worker_cpu_seconds]), np.array([seen.ps_cpu_seconds])
        said = float(step_seconds(*cpu, shapes, LOCAL, seen.ps_skew or 1.0)[0])
        misses.append(math.log(seen.plan.worker.replicas * seen.batch_size / seen.throughput / said))
    assert math.sqrt(statistics.fmean(one**2 for one in misses)) < 0.04


@pytest.mark.parametrize("name", ["sweep.csv", "sweep_10s.csv"])
def test_eight_of_the_products_own_plans_predict_the_others(benchmark, name):
    """How good it is today; the goals are the next test's."""
    windows = benchmark.read_rows(DATA / name)
    assert len({one.repeat for one in windows}) >= 5
    found = benchmark.analyse(windows, LOCAL, splits=12)
    error = statistics.median(one.median for one in found.anchored)
    rmsle = statistics.median(one.rmsle for one in found.anchored)
    assert error < 0.7 * statistics.median(one.median for one in found.paper)
    assert rmsle < 0.7 * statistics.median(one.rmsle for one in found.paper)
    assert error < 0.14 and rmsle < 0.18


@pytest.mark.xfail(strict=True, reason="goals not reached yet (docs/optimizer.md says why); must pass once they are")
def test_the_goals_for_the_products_own_plans(benchmark):
    windows = benchmark.read_rows(DATA / "sweep.csv")
    found = benchmark.analyse(windows, LOCAL, splits=12).anchored
    deviation = benchmark.repeat_deviation(windows)
    assert statistics.median(one.median for one in found) <= max(0.08, 1.5 * deviation)
    assert statistics.median(one.rmsle for one in found) <= 0.13
    assert 0.7 <= statistics.fmean(one.inside for one in found) <= 0.9


def test_on_a_busy_machine_the_recent_window_helps_and_the_papers_law_is_still_worse(benchmark):
    found = benchmark.analyse(benchmark.read_rows(DATA / "busy_sweep.csv"), LOCAL, splits=12)
    anchored, unanchored, paper = (
        statistics.median(one.rmsle for one in scores) for scores in (found.anchored, found.unanchored, found.paper)
    )
    assert anchored < unanchored
    assert anchored < 0.9 * paper


def test_a_truth_of_the_laws_own_form_is_found(benchmark, job):
    found = benchmark.analyse(made_up(benchmark, job.CONFIGURATIONS), LOCAL, splits=3)
    assert len(found.anchored) == 6, "each split with each later repeat"
    assert statistics.median(one.rmsle for one in found.anchored) < 0.05
    assert statistics.median(one.rmsle for one in found.paper) > 0.1, "another form, by time alone"


def test_one_recent_window_moves_all_predictions_with_the_machine(benchmark, job):
    drifting = made_up(benchmark, job.CONFIGURATIONS, slower=(1.0, 1.25, 0.85), noise=0.02)
    found = benchmark.analyse(drifting, LOCAL, splits=3)
    assert statistics.median(one.median for one in found.unanchored) > 0.12
    assert statistics.median(one.median for one in found.anchored) < 0.08


def test_nothing_that_is_asked_was_shown(benchmark, job, monkeypatch):
    """Of a later repeat the fit sees the anchor alone, and of the configurations asked for none at any time."""
    windows = made_up(benchmark, job.CONFIGURATIONS)
    calls = []
    real = benchmark.predict

    def watched(known, present, asked, setting):
        calls.append((known, present, asked))
        return real(known, present, asked, setting)

    monkeypatch.setattr(benchmark, "predict", watched)
    assert benchmark.analyse(windows, LOCAL, splits=1) is not None
    first = {id(one.seen) for one in windows if one.repeat == 0}
    for known, present, asked in calls:
        assert len(known) == 8 and {id(one) for one in known} <= first
        shown = {one.plan for one in known} | ({present.plan} if present is not None else set())
        assert not shown & {one.plan for one in asked}
        assert len(asked) >= len(job.CONFIGURATIONS) - 9


def test_too_few_rows_give_no_figures(benchmark, job):
    windows = made_up(benchmark, job.QUICK_CONFIGURATIONS, repeats=2)
    figures = {one.name: one for one in benchmark.figures(windows, LOCAL)}
    assert figures["median_error"].value is figures["rmsle"].value is figures["coverage_80"].value is None
    assert figures["repeat_deviation"].value == pytest.approx(0.0)


def test_the_goal_follows_the_repeats(benchmark, job):
    windows = made_up(benchmark, job.QUICK_CONFIGURATIONS[:1], repeats=3, slower=(1.0, 1 / 1.2, 1 / 0.9))
    assert benchmark.repeat_deviation(windows) == pytest.approx(0.1)
    goals = {one.name: one.goal for one in benchmark.figures(windows, LOCAL)}
    assert goals["median_error"] == pytest.approx(0.15) and goals["rmsle"] == 0.13


def test_the_papers_law_finds_its_own_form(benchmark, job):
    rows = []
    for workers, worker_cpu, ps, ps_cpu in job.CONFIGURATIONS:
        seconds = 0.002 / worker_cpu + 0.001 * workers / (ps * ps_cpu) + 0.003 * workers / ps + 0.002 / ps + 0.004
        rows.append(Observation(plan(workers, worker_cpu, ps, ps_cpu), workers * 512 / seconds, None, None, 512, 8.0))
    found = benchmark.paper(rows[::2], None, rows[1::2])
    assert found.rmsle < 1e-6
    slower = replace(rows[0], throughput=rows[0].throughput / 1.3)
    assert benchmark.paper(rows[::2], slower, rows[1::2]).rmsle > 0.1


def test_rows_are_read_as_they_were_written(benchmark, job, tmp_path):
    windows = made_up(benchmark, job.CONFIGURATIONS[:3])
    blank = replace(windows[0], seen=replace(windows[0].seen, worker_cpu_seconds=None), others=None)
    benchmark.write_rows([blank, *windows[1:]], tmp_path / "rows.csv")
    again = benchmark.read_rows(tmp_path / "rows.csv")
    assert again[0].seen.worker_cpu_seconds is None and again[0].others is None
    assert [(one.repeat, one.seen.plan) for one in again] == [(one.repeat, one.seen.plan) for one in windows]
    assert [one.seen.throughput for one in again] == pytest.approx([one.seen.throughput for one in windows], rel=1e-5)


def test_each_round_visits_all_and_changes_replicas_seldom(job):
    shapes = job.CONFIGURATIONS
    orders = [job.order(shapes, seed) for seed in range(job.REPEATS)]
    assert len({tuple(one) for one in orders}) == job.REPEATS
    for visited in orders:
        assert sorted(visited) == sorted(shapes)
        pairs = [(one[0], one[2]) for one in visited]
        assert sum(a != b for a, b in pairwise(pairs)) == len(set(pairs)) - 1
    assert job.order(shapes, 1) == job.order(shapes, 1)


def test_only_what_others_used_counts_as_theirs(job):
    usage = job.Usage([
        (0.0, 10.0, {1: 1.0, 2: 5.0}),
        (2.0, 13.0, {1: 2.0, 2: 6.0, 3: 0.4}),
        (9.0, 99.0, {1: 2.0, 2: 6.0}),
    ])  # fmt: skip
    assert usage.others(0.1, 2.1) == pytest.approx(0.5), "3 s busy, 2 of them ours, in 2 s"
    assert usage.others(3.0, 8.0) is None
