"""Signals to a program that calls `train`: at once before the job is driven, in order while it is."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from trimtab.core.clock import ManualClock
from trimtab.core.controller.signals import ENDING, ONE_WISH_SECONDS, heeds_signals, stops_in_order


@pytest.mark.parametrize("number", ENDING)
def test_before_the_job_is_driven_a_signal_interrupts_at_once(number: signal.Signals) -> None:
    before, stop = signal.getsignal(number), threading.Event()
    with pytest.raises(KeyboardInterrupt), stops_in_order(stop, lambda: False):
        os.kill(os.getpid(), number)
    assert not stop.is_set()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", ENDING)
def test_while_the_job_is_driven_the_first_signal_stops_and_the_second_interrupts(number: signal.Signals) -> None:
    before, stop, reached, clock = signal.getsignal(number), threading.Event(), False, ManualClock()
    with pytest.raises(KeyboardInterrupt), stops_in_order(stop, lambda: True, clock=clock):
        os.kill(os.getpid(), number)
        reached = stop.is_set()
        clock.advance(ONE_WISH_SECONDS + 0.1)
        os.kill(os.getpid(), number)
    assert reached
    assert signal.getsignal(number) is before


def test_the_same_wish_said_twice_is_one_wish() -> None:
    """A terminal that closes sends SIGHUP, and so does the shell in it; a manager of services SIGTERM and SIGHUP."""
    stop, clock = threading.Event(), ManualClock()
    with stops_in_order(stop, lambda: True, clock=clock):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        clock.advance(ONE_WISH_SECONDS - 0.1)
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.is_set()


@pytest.mark.parametrize("always", [False, True])
def test_a_hangup_that_is_ignored_stays_ignored(always: bool) -> None:
    before, stop = signal.signal(signal.SIGHUP, signal.SIG_IGN), threading.Event()
    try:
        with stops_in_order(stop, lambda: True, always=always):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not stop.is_set()


def test_a_programs_own_handler_is_left_alone() -> None:
    before, stop, heard = signal.getsignal(signal.SIGTERM), threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: heard.set())
    try:
        with stops_in_order(stop, lambda: True):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard.is_set()
    assert not stop.is_set()


def test_another_thread_sets_no_handlers() -> None:
    before, entered = signal.getsignal(signal.SIGTERM), threading.Event()

    def body() -> None:
        with stops_in_order(threading.Event(), lambda: True):
            assert signal.getsignal(signal.SIGTERM) is before
            entered.set()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert entered.is_set()


def test_a_signal_that_arrives_while_another_is_told_of_does_not_wait_for_it() -> None:
    """A time limit signals the process and its group at once; the lock of an event does not let its owner in twice."""

    class Event(threading.Event):
        told = 0

        def set(self) -> None:
            self.told += 1
            if self.told == 1:
                os.kill(os.getpid(), signal.SIGTERM)  # in the middle of it
            super().set()

    stop = Event()
    with stops_in_order(stop, lambda: True, clock=ManualClock()):
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.is_set() and stop.told == 1


def test_who_controls_a_job_tells_whether_a_signal_stops_only_the_job() -> None:
    assert not heeds_signals()
    with stops_in_order(threading.Event(), lambda: True):
        assert heeds_signals()
        with stops_in_order(threading.Event(), lambda: True):  # the command's, and then the job's own
            assert heeds_signals()
    assert not heeds_signals()
