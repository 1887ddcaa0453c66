"""The driven loop: time, order and chance are the loop's alone, so a run can be repeated."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.errors import BadInput
from trimtab.core.simulator.loop import DrivenLoop


def story(seed, seconds):
    """A little world whose events make more events by chance; what happened, when."""
    loop, told = DrivenLoop(seed), []

    def event(name):
        told.append((loop.clock.now(), name))
        if len(told) < 200:
            for _ in range(loop.random.randrange(3)):
                loop.after(loop.random.expovariate(1.0), lambda: event(name + 1))

    loop.after(0.0, lambda: event(0))
    loop.after(0.5, lambda: event(100))
    loop.run(seconds)
    return told


@given(st.integers(0, 2**32), st.floats(0, 50))
def test_the_same_seed_tells_the_same_story(seed, seconds):
    assert story(seed, seconds) == story(seed, seconds)


def test_other_seeds_tell_other_stories():
    assert len({tuple(story(seed, 20.0)) for seed in range(20)}) > 10


@given(st.lists(st.floats(0, 10), max_size=20))
def test_events_run_in_time_and_equal_ones_in_the_order_asked_for(delays):
    loop, ran = DrivenLoop(0), []
    for at, delay in enumerate(delays):
        loop.after(delay, lambda at=at, delay=delay: ran.append((delay, at)))
    assert loop.run(10.0) == len(delays)
    assert ran == sorted(ran)
    assert loop.clock.now() == pytest.approx(10.0)


def test_what_is_due_later_waits():
    loop, ran = DrivenLoop(0), []
    loop.after(5.0, lambda: ran.append(loop.clock.now()))
    assert loop.run(4.0) == 0
    assert (len(loop), ran, loop.clock.now()) == (1, [], 4.0)
    assert loop.run(1.0) == 1
    assert (len(loop), ran) == (0, [5.0])


def test_events_without_end_are_stopped_with_the_time_at_which_they_stand():
    loop = DrivenLoop(0)

    def again():
        loop.after(0.0, again)

    loop.after(2.0, again)
    with pytest.raises(BadInput, match="time stands at 2 s"):
        loop.run(10.0, most_events=100)


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_the_past_is_no_time(seconds):
    with pytest.raises(BadInput, match="seconds"):
        DrivenLoop(0).after(seconds, lambda: None)
