"""What a job needs of memory by the runs before it."""

import math
from dataclasses import replace

import pytest

from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import JobRecord, PodSample, Sample
from trimtab.core.optimizer.past_memory import RowBytes, in_words, memory_need

GIB, MIB = 2**30, 2**20
TAGS = {"batch_size": "1000", "rows": "1000000", "embedding_dim": "16"}
ROW = RowBytes(26 * 64.0, 165.0)
PLAN = Plan(RolePlan(1, 0.3, GIB), RolePlan(1, 1.0, GIB))


def run(run_id="20261130-a", exponent=0.7, batches=1000, done=1000, peak=700 * MIB, tags=TAGS):
    """A run whose tables grew by a power law to 1 GiB at a million rows."""
    pods = (PodSample("worker-0", "worker", 1.0, peak),)
    tables = ((at, int(GIB * (at / 1000) ** exponent)) for at in range(10, done + 1, 10))
    samples = tuple(Sample(float(at), 1e4, None, pods, at, held) for at, held in tables)
    figures = {"batches_expected": float(batches), "batches_trained": float(done)}
    return JobRecord(
        run_id, "daily", JobState.FINISHED, dict(tags), (PlanChange(0.0, PLAN, ""),), (), (), figures, samples=samples
    )


def test_the_curve_of_a_past_run_goes_on_to_the_rows_of_today():
    need = memory_need([run()], TAGS | {"rows": "2000000"})
    assert need.table.middle == pytest.approx(GIB * 2**0.7, rel=0.02)
    assert need.table.low < need.table.middle < need.table.high
    assert "by run 20261130-a" in in_words(need)


def test_as_many_rows_and_more_epochs_bring_no_more_keys():
    epochs = run(batches=3000, done=3000)
    full = tuple(replace(one, table_bytes=min(one.table_bytes, GIB)) for one in epochs.samples)
    need = memory_need([replace(epochs, samples=full)], TAGS)
    assert need.table.middle == pytest.approx(GIB, rel=0.03)


def test_a_run_that_stopped_half_way_is_taken_to_its_end():
    need = memory_need([run(batches=1000, done=500)], TAGS)
    assert need.table.middle == pytest.approx(GIB, rel=0.02)


def test_wider_rows_need_more():
    need = memory_need([run()], TAGS | {"embedding_dim": "64"})
    assert need.table.middle == pytest.approx(GIB * (8 * 64 + 37) / (8 * 16 + 37), rel=0.01)


def test_the_largest_of_several_runs_counts():
    small = run("20261130-b")
    small = replace(small, samples=tuple(replace(one, table_bytes=one.table_bytes // 2) for one in small.samples))
    assert memory_need([small, run()], TAGS).source == "run 20261130-a"


def test_figures_are_enough_where_the_timeline_was_not_read():
    whole = run()
    figures = whole.figures | {"table_bytes": float(GIB), "table_exponent": 0.5, "worker_peak_bytes": 700.0 * MIB}
    need = memory_need([replace(whole, samples=(), figures=figures)], TAGS | {"rows": "4000000"}, ROW)
    assert need.table.middle == pytest.approx(2 * GIB) and need.table.high == pytest.approx(4 * GIB)
    assert need.worker.middle == pytest.approx(700 * MIB)
    none = memory_need([replace(whole, samples=(), figures={"batches_expected": 1000.0})], TAGS)
    assert none.table is None and in_words(none) == ""


def test_without_past_runs_the_distinct_keys_in_the_rows_bound_the_tables():
    need = memory_need([], TAGS | {"embedding_rows": "1000000"}, ROW)
    assert need.table.middle == 165e6 and need.table.low == 0
    assert "at most" in in_words(need)
    assert memory_need([], TAGS, ROW).table is None is memory_need([], TAGS | {"embedding_rows": "5"}).table


def test_workers_of_past_runs_count_once_their_log_was_full():
    assert memory_need([run(peak=900 * MIB)], TAGS, ROW).worker.middle == pytest.approx(900 * MIB)
    short = memory_need([run(peak=900 * MIB, done=100)], TAGS, ROW).worker
    assert short == memory_need([], TAGS, ROW).worker


@pytest.mark.parametrize("odd", ["", "nan", "-5", "many", "inf"])
def test_odd_tags_and_figures_say_nothing(odd):
    for name in ("rows", "batch_size"):
        assert memory_need([run(tags=TAGS | {name: odd})], TAGS).table is None
    broken = replace(run(), figures={"batches_expected": math.nan})
    assert memory_need([broken], TAGS).table is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_figure_that_cannot_be_says_nothing(value):
    bare = replace(run(), samples=())
    names = ("worker_peak_bytes", "table_bytes", "table_exponent", "batches_trained", "batches_expected")
    for name in names:
        need = memory_need([replace(bare, figures={**bare.figures, name: value})], TAGS, ROW)
        assert need.worker is None or math.isfinite(need.worker.high)
        assert need.table is None or math.isfinite(need.table.high)
