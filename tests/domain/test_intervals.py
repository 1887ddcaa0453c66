"""Interval sets behave as Python's sets do, and stay in their one normal form."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.intervals import EMPTY, IntervalSet

NUMBERS = st.sets(st.integers(0, 60))
PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


def made_of(numbers):
    return IntervalSet((number, number + 1) for number in numbers)


def in_normal_form(intervals):
    flat = [edge for interval in intervals.intervals for edge in interval]
    return flat == sorted(set(flat))  # strictly rising: disjoint, not touching, none empty


@given(PAIRS)
def test_any_intervals_become_the_normal_form_of_their_members(pairs):
    found = IntervalSet(pairs)
    members = {number for lo, hi in pairs for number in range(lo, hi)}
    assert set(found) == members
    assert in_normal_form(found)
    assert len(found) == len(members)
    assert bool(found) == bool(members)


@given(NUMBERS, NUMBERS)
def test_union_difference_and_intersection_are_those_of_sets(one, other):
    left, right = made_of(one), made_of(other)
    for found, expected in ((left | right, one | other), (left - right, one - other), (left & right, one & other)):
        assert set(found) == expected
        assert in_normal_form(found)
    assert left.issuperset(right) == one.issuperset(other)
    assert (left == right) == (one == other)
    assert left != right or hash(left) == hash(right)


@given(NUMBERS, st.integers(0, 62))
def test_adding_a_number_is_union_with_it(numbers, number):
    before = made_of(numbers)
    after = before.add(number)
    assert set(after) == numbers | {number}
    assert in_normal_form(after)
    assert set(before) == numbers, "a set is a value: it never changes"


@given(st.permutations(range(12)))
def test_numbers_added_in_any_order_melt_into_one_interval(order):
    found = EMPTY
    for number in order:
        found = found.add(number)
    assert found.intervals == ((0, 12),)


@given(NUMBERS, st.integers(-1, 62))
def test_membership(numbers, number):
    assert (number in made_of(numbers)) == (number in numbers)


@given(NUMBERS, st.integers(-2, 70))
def test_first_takes_the_smallest(numbers, count):
    found = made_of(numbers).first(count)
    assert list(found) == sorted(numbers)[: max(0, count)]
    assert in_normal_form(found)


def test_span_empty_and_their_words():
    assert list(IntervalSet.span(3, 6)) == [3, 4, 5]
    assert IntervalSet.span(3, 3) == EMPTY
    assert IntervalSet.span(5, 3) == EMPTY
    assert repr(IntervalSet([(0, 3), (5, 6)])) == "IntervalSet(0-2, 5-5)"
    assert IntervalSet.span(0, 2) != ((0, 2),)


def test_a_huge_job_is_one_small_interval():
    done = IntervalSet.span(0, 10**9)
    assert len(done) == 10**9
    assert 10**9 - 1 in done and 10**9 not in done
    assert len(pickle.dumps(done.intervals)) < 100
