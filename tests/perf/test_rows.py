"""Windows into rows: visits, weights, and how sure one is."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Observation
from trimtab.core.perf.rows import LAST_WINDOWS, MOST_ROWS, rows_of, rows_of_runs


def plan(workers):
    return Plan(RolePlan(1, 0.5, 2**30), RolePlan(workers, 1.0, 2**30))


def window(workers, at, throughput=1000.0, length=3.0, cpu=0.02, batch=100):
    return Observation(plan(workers), throughput, cpu, cpu / 4, batch, at, length, 30)


def test_a_visit_is_one_row_with_the_mean_of_its_windows():
    (row,) = rows_of([window(2, 3.0, 1000.0), window(2, 6.0, 1210.0)])
    assert row.seconds == pytest.approx(2 * 100 / 1100.0), "the mean of logs"
    assert row.throughput == pytest.approx(1100.0)
    assert (row.start, row.end, row.observed_seconds, row.windows) == (0.0, 6.0, 6.0, 2)


def test_another_plan_batch_size_or_change_begins_a_new_row():
    windows = [window(1, 3.0), window(2, 6.0), window(1, 9.0), window(1, 12.0), window(1, 15.0, batch=200)]
    assert [row.plan.worker.replicas for row in rows_of(windows)] == [1, 2, 1, 1]
    assert len(rows_of([window(1, 3.0), window(1, 9.0)], [(4.0, 5.0)])) == 2


@given(begin=st.floats(0, 20), delay=st.floats(0, 6))
def test_no_window_that_overlaps_a_change_counts(begin, delay):
    windows = [window(1, 3.0 * (i + 1)) for i in range(8)]
    kept = sum(row.windows for row in rows_of(windows, [(begin, begin + delay)]))
    clear = [one for one in windows if one.time_seconds <= begin + 1e-6 or one.time_seconds - 3 >= begin + delay - 1e-6]
    assert kept == len(clear)


def test_old_windows_and_old_visits_are_let_go():
    long = [window(1, 3.0 * i, throughput=1e6 if i < 50 else 1000.0) for i in range(1, 60)]
    first, last = rows_of(long)
    assert last.windows == LAST_WINDOWS and last.throughput == pytest.approx(1000.0)
    assert first.windows == LAST_WINDOWS and (first.start, first.throughput) == (0.0, pytest.approx(1e6))
    first, last = rows_of(long[: LAST_WINDOWS + 2])
    assert first.windows == last.windows == LAST_WINDOWS and first.start < last.start
    many = [window(1 + i % 2, 3.0 * (i + 1)) for i in range(50)]
    assert len(rows_of(many)) == MOST_ROWS and rows_of(many)[-1].end == 150.0


def test_windows_of_several_runs_are_rows_of_each():
    first, second = [window(1, 3.0), window(2, 6.0), window(2, 9.0)], [window(2, 3.0), window(3, 6.0)]
    found = rows_of_runs([*first, *second, replace(second[0], time_seconds=math.nan), window(3, 6.0)])
    assert [(row.plan.worker.replicas, row.windows) for row in found] == [(1, 1), (2, 2), (2, 1), (3, 1), (3, 1)]
    assert len(rows_of([*first, *second])) == 2, "in one job a clock that went back"
    assert rows_of_runs([]) == () and len(rows_of_runs(first * 20)) == MOST_ROWS


def test_a_row_that_is_brought_to_another_hour_still_says_what_was_measured():
    (row,) = rows_of([window(2, 3.0, 1000.0)])
    moved = row.slower(1.25).slower(1.2)
    assert moved.throughput == pytest.approx(1000.0 / 1.5) and moved.measured_throughput == pytest.approx(1000.0)


def test_cpu_is_the_mean_of_the_windows_that_know_it():
    windows = [window(1, 3.0, cpu=0.02), replace(window(1, 6.0), worker_cpu_seconds=None), window(1, 9.0, cpu=0.04)]
    (row,) = rows_of(windows)
    assert row.worker_cpu == pytest.approx(0.03)
    assert rows_of([replace(window(1, 3.0), worker_cpu_seconds=0.0)])[0].worker_cpu is None


def test_certainty_grows_with_time_and_shrinks_with_scatter():
    one, two, four = (rows_of([window(1, 3.0 * (i + 1)) for i in range(count)])[0] for count in (1, 2, 4))
    assert one.standard_error == pytest.approx(2 * four.standard_error)
    assert one.standard_error > two.standard_error > four.standard_error > 0
    wild = rows_of([window(1, 3.0 * (i + 1), throughput=1000.0 * (1 + i % 2)) for i in range(4)])[0]
    assert wild.standard_error > 2 * four.standard_error
    unknown = rows_of([window(1, 3.0, length=0.0)])[0]
    assert math.isfinite(unknown.standard_error)
