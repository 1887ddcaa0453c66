"""Time that tests drive, and the machine's."""

import threading

from trimtab.core.clock import ManualClock, SystemClock


def test_a_manual_clock_moves_only_when_told():
    clock = ManualClock(now=5.0, wall=100.0)
    assert (clock.now(), clock.wall()) == (5.0, 100.0)
    clock.advance(2.5)
    assert (clock.now(), clock.wall()) == (7.5, 102.5)


def test_waiting_on_a_manual_clock_passes_the_time_at_once():
    clock, event = ManualClock(), threading.Event()
    assert clock.wait(event, 3600.0) is False
    assert clock.now() == 3600.0
    event.set()
    assert clock.wait(event, 1.0) is True
    assert clock.wait(event, -5.0) is True
    assert clock.now() == 3601.0, "a deadline in the past takes no time back"


def test_the_machines_clock_goes_forward_and_knows_the_date():
    clock, event = SystemClock(), threading.Event()
    first = clock.now()
    assert clock.now() >= first
    assert clock.wall() > 1_700_000_000
    assert clock.wait(event, -1.0) is False
    event.set()
    assert clock.wait(event, 3600.0) is True
