"""Which windows are evidence: each reason to leave one out, counted; and what must not be taken for one."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perf_rows import plan, window

from trimtab.core.perf.cleaning import CLOCK_BACK, FAR_OFF, IN_A_CHANGE, NOT_A_SPEED, STRAGGLING, clean

ONE, TWO = plan(1, 1.0, 1, 0.3), plan(2, 1.0, 1, 0.3)


def stay(count, seconds=0.1, one=ONE, first=5.0, **more):
    return [window(one, seconds, first + 5.0 * at, **more) for at in range(count)]


def kept(cleaned):
    return sum(len(visit) for visit in cleaned.visits)


@pytest.mark.parametrize("speed", [0.0, -5.0, math.nan, math.inf])
def test_what_is_no_speed_is_left_out_and_counted(speed):
    windows = stay(3)
    cleaned = clean([*windows, replace(windows[-1], throughput=speed, time_seconds=20.0)])
    assert kept(cleaned) == 3 and cleaned.dropped == {NOT_A_SPEED: 1}
    assert cleaned.words() == "1 window left out: 1 without a speed"


def test_nothing_left_out_says_nothing():
    assert clean(stay(3)).words() == "" and clean([]).visits == ()


def test_windows_in_a_change_belong_to_no_plan():
    windows = [*stay(3), *stay(3, one=TWO, first=20.0)]
    cleaned = clean(windows, [(14.0, 22.0)])
    assert cleaned.dropped == {IN_A_CHANGE: 3} and [len(visit) for visit in cleaned.visits] == [2, 1]


@given(st.lists(st.tuples(st.floats(0, 70), st.floats(0, 20)), max_size=6))
def test_changes_are_looked_up_as_if_each_window_were_held_against_each(given_):
    windows, spans = stay(12), [(begin, begin + lasts) for begin, lasts in given_]
    clear = [
        one for one in windows
        if not any(one.time_seconds - 5 < end - 1e-6 and one.time_seconds > begin + 1e-6 for begin, end in spans)
    ]  # fmt: skip
    parted = sum(
        any(before.time_seconds <= begin + 1e-6 <= one.time_seconds for begin, _ in spans)
        for before, one in pairwise(clear)
    )
    cleaned = clean(windows, spans)
    assert [one for visit in cleaned.visits for one in visit] == clear
    assert len(cleaned.visits) == (parted + 1 if clear else 0)


def test_a_long_job_does_not_hold_each_window_against_each_change():
    class Changes(list):
        looks = 0

        def __iter__(self):
            Changes.looks += 1
            return super().__iter__()

    changes = Changes((5.0 * at, 5.0 * at + 1) for at in range(0, 300, 30))
    assert kept(clean(stay(300), changes)) > 200
    assert Changes.looks < 5


def test_a_clock_that_went_back_makes_no_evidence():
    windows = [*stay(3), window(ONE, 0.1, 2.0), window(ONE, 0.1, math.nan), window(ONE, 0.1, 30.0)]
    cleaned = clean(windows)
    assert cleaned.dropped == {CLOCK_BACK: 2} and [one.time_seconds for one in cleaned.visits[0]] == [5, 10, 15, 30]


def test_a_straggling_worker_is_not_how_the_plan_does():
    even, slow = stay(3, one=TWO, slowest_worker=0.9), stay(2, 0.3, TWO, first=20.0, slowest_worker=0.2)
    cleaned = clean([*even, *slow])
    assert cleaned.dropped == {STRAGGLING: 2} and kept(cleaned) == 3


def test_where_every_window_straggles_they_are_how_it_does():
    cleaned = clean(stay(3, 0.3, TWO, slowest_worker=0.2))
    assert kept(cleaned) == 3 and cleaned.dropped == {}


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize("factor", [0.3, 5.0])
def test_one_window_far_from_its_neighbours_is_left_out(at, factor):
    windows = stay(8)
    windows[at] = replace(windows[at], throughput=windows[at].throughput * factor)
    cleaned = clean(windows)
    assert cleaned.dropped == {FAR_OFF: 1} and windows[at] not in cleaned.visits[0]


def test_a_level_that_lasts_is_no_outlier():
    windows = [*stay(20), *stay(3, 0.3, first=105.0)]
    assert clean(windows).dropped == {} and kept(clean(windows)) == 23


def test_usual_noise_is_no_outlier():
    chance = random.Random(3)
    windows = [window(ONE, 0.1 * math.exp(chance.gauss(0, 0.08)), 5.0 * at) for at in range(1, 400)]
    assert kept(clean(windows)) >= 397


def test_missing_cpu_is_no_reason_to_leave_a_window_out():
    """Case 30: the speed was measured all the same."""
    assert kept(clean(stay(3, worker=None, ps=None))) == 3
