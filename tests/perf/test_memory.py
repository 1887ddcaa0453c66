"""Forecasts of tables and workers: streams whose truth is known, a real table, and honest ranges."""

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.domain.model_spec import InitializerSpec, OptimizerSpec, TableSpec
from trimtab.core.perf.memory import GROWTH_STEP, LOG_BYTES, Growth, KeyGrowth, grown, skew, worker_bytes
from trimtab.core.ps.table import RowTable

MIB = 2**20
MOST = 600_000  # rows of a stream


def births(keys):
    """In which row each key is first seen, in order."""
    _, first = np.unique(keys, return_index=True)
    return np.sort(first)


def counted(name, rows):
    """Growth of a stream, as it is sampled on the way, up to `rows`; and its keys at any number of rows."""
    samples, at = (), 2000.0
    while at <= rows:
        samples = grown(samples, Growth(at, float(np.searchsorted(BIRTHS[name], at))))
        at *= GROWTH_STEP
    return samples, lambda seen: int(np.searchsorted(BIRTHS[name], seen))


def zipf(exponent, vocabulary, count):
    shares = np.cumsum(np.arange(1, vocabulary + 1, dtype=float) ** -exponent)
    return np.searchsorted(shares, np.random.default_rng(7).random(count) * shares[-1])


def both(count):
    """Half of the rows from a heavy tail, half from a small vocabulary."""
    tail, small = zipf(1.1, 2_000_000, count), -1 - np.random.default_rng(2).integers(0, 30_000, count)
    return np.where(np.random.default_rng(1).random(count) < 0.5, tail, small)


STREAMS = {
    "heavy tail": zipf(1.05, 2_000_000, MOST),
    "heavier tail": zipf(0.8, 2_000_000, MOST),
    "bounded": np.random.default_rng(3).integers(0, 40_000, MOST),
    "bounded, hardly seen": np.random.default_rng(3).integers(0, 800_000, MOST),
    "both": both(MOST),
}
BIRTHS = {name: births(keys) for name, keys in STREAMS.items()}


@pytest.mark.parametrize("name", STREAMS)
def test_keys_at_twice_the_rows(name):
    samples, truth = counted(name, MOST // 2)
    fit = KeyGrowth(samples)
    seen = 2 * fit.last.seen
    assert fit.fitted and fit.at(seen).middle == pytest.approx(truth(seen), rel=0.03)


def test_ranges_hold_about_as_often_as_they_say_and_widen_with_the_distance():
    held = []
    for name in STREAMS:
        for rows in (100_000, 200_000, 300_000):
            samples, truth = counted(name, rows)
            fit = KeyGrowth(samples)
            near, far = fit.at(1.3 * rows), fit.at(2 * fit.last.seen)
            held.append(far.low <= truth(2 * fit.last.seen) <= far.high)
            assert near.low <= near.middle <= near.high and near.high / near.low <= far.high / far.low
    assert np.mean(held) >= 0.7


def test_a_real_table_grows_to_what_was_forecast_in_bytes():
    rule = OptimizerSpec("adagrad")
    table = RowTable((TableSpec("t", 16, "embedding", 0, InitializerSpec(), rule),), 1, 1 << 30)
    keys = STREAMS["heavy tail"]
    samples, seen, at_half = (), 0, 0
    for part in np.array_split(keys, 150):
        distinct = np.unique(part)
        table.bear(table.find(distinct, np.array([len(distinct)], np.uint32)))
        seen += len(part)
        if seen <= 300_000:
            samples, at_half = grown(samples, Growth(float(seen), float(table.row_count))), table.bytes_held
    fit = KeyGrowth(samples)
    said = fit.at(600_000.0).scaled(at_half / fit.last.keys)
    assert at_half < 0.75 * table.bytes_held, "it did grow"
    assert said.middle == pytest.approx(table.bytes_held, rel=0.03)
    assert said.low <= table.bytes_held <= said.high


def test_a_wrong_answer_of_nnls_is_noticed(monkeypatch):
    """scipy#25389: a point that is not the minimum, without a word."""
    samples, truth = counted("both", MOST // 2)
    monkeypatch.setattr(scipy.optimize, "nnls", lambda matrix, target: (np.ones(matrix.shape[1]), 0.0))
    fit = KeyGrowth(samples)
    assert fit.at(2 * fit.last.seen).middle == pytest.approx(truth(2 * fit.last.seen), rel=0.03)


def test_a_power_law_stays_one():
    samples = tuple(Growth(x, 50 * x**0.7) for x in np.geomspace(1e4, 1e6, 60))
    fit = KeyGrowth(samples)
    assert fit.exponent == pytest.approx(0.7, abs=1e-6)
    assert fit.at(4e6).middle == pytest.approx(50 * 4e6**0.7, rel=0.02)


def test_tables_that_are_full_stay_as_they_are():
    samples = tuple(Growth(x, 1000.0) for x in np.geomspace(1e4, 1e6, 60))
    said = KeyGrowth(samples).at(1e7)
    assert said.middle == pytest.approx(1000.0, rel=0.01) and said.high < 1100


def test_few_samples_give_the_usual_law_and_all_that_is_possible_as_range():
    fit = KeyGrowth((Growth(1000.0, 500.0), Growth(1100.0, 540.0)))
    said = fit.at(2200.0)
    assert not fit.fitted and "as usual" in fit.law
    assert (said.low, said.high) == (540.0, 1080.0) and said.middle == pytest.approx(540 * 2**0.73)


def test_known_vocabularies_bound_the_forecast_and_rows_already_seen_bring_nothing():
    samples, _ = counted("heavier tail", 200_000)
    fit = KeyGrowth(samples)
    bounded = fit.at(2e6, most=fit.last.keys * 1.1)
    assert bounded.middle == bounded.high == pytest.approx(fit.last.keys * 1.1)
    assert fit.at(1000.0).high == fit.last.keys, "a second epoch"
    assert fit.at(2e6, most=1.0).middle == fit.last.keys, "more keys were counted than there were to be"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(1, 1e9), st.floats(1, 1e9)), min_size=1, max_size=60), st.floats(1, 1e3))
def test_no_curve_makes_a_forecast_that_is_not_finite_or_out_of_order(points, times):
    rows, keys = np.cumsum([one for one, _ in points]), np.cumsum([one for _, one in points])
    samples = ()
    for seen, known in zip(rows, keys, strict=True):
        samples = grown(samples, Growth(float(seen), float(known)))
    said = KeyGrowth(samples).at(samples[-1].seen * times)
    assert math.isfinite(said.high) and samples[-1].keys <= said.low <= said.middle * (1 + 1e-9)
    assert said.middle <= said.high <= samples[-1].keys * max(1.0, times) * (1 + 1e-9)


def test_samples_are_bounded_spaced_and_start_anew_where_keys_were_lost():
    samples = ()
    for seen in range(1, 200_000, 7):
        samples = grown(samples, Growth(float(seen), float(seen)))
    assert len(samples) < 150 and samples[0].seen > 0.015 * samples[-1].seen
    assert all(b.seen >= a.seen * GROWTH_STEP for a, b in pairwise(samples))
    back = grown(samples, Growth(210_000.0, 50_000.0))
    assert back[-1].keys == 50_000 and all(one.keys <= 50_000 for one in back)
    for bad in (Growth(0.0, 5.0), Growth(1e9, 0.0), Growth(1e9, math.nan)):
        assert grown(samples, bad) is samples


def test_the_fullest_server_counts():
    assert skew([100.0, 100.0, 400.0]) == 2.0 and skew([5.0]) == 1.0 and skew([]) == 0.0 == skew([0.0, 0.0])


# Peak resident MiB of real workers of the built-in dlrm (26 ids a row), by batch size and dimension.
MEASURED = [
    (256, 16, 590), (1024, 16, 613), (4096, 16, 690), (16384, 16, 975),
    (256, 64, 599), (1024, 64, 644), (4096, 64, 782),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "dim", "mebibytes"), MEASURED)
def test_workers_as_they_were_measured(batch, dim, mebibytes):
    said = worker_bytes(batch, 26 * dim * 4.0)
    assert said.middle == pytest.approx(mebibytes * MIB, rel=0.05) and said.low <= mebibytes * MIB <= said.high
    assert said.low > LOG_BYTES


def test_past_workers_give_level_and_where_batches_differ_the_slope():
    one = worker_bytes(2048, 1664.0, [(1024, 2000 * MIB)])
    assert one.middle == pytest.approx(2000 * MIB + 1024 * (16_000 + 5 * 1664))
    seen = [(1024, 2000 * MIB), (1024, 1990 * MIB), (4096, 2600 * MIB)]
    assert worker_bytes(8192, 1664.0, seen).middle == pytest.approx(3400 * MIB, rel=0.01)
    assert worker_bytes(1024, 1664.0, seen).middle >= 2000 * MIB, "never below what was seen"
