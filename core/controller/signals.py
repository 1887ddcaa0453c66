"""Signals that end a job in order, for the command and for programs that call `train`.

A signal that raises KeyboardInterrupt anywhere may cut the writing of the job's state in two. So while a job is driven
the first one only sets the stop event, which the driver looks at between two actions: what is begun is finished and a
last checkpoint written. Before that nothing runs that would have to be ended in order, and the signal interrupts at
once. So does a second one, which ends the job without a checkpoint: its sender has lost patience. Nobody loses it
within a moment, though: a terminal that closes and the shell in it both send a SIGHUP, a service's manager SIGTERM and
SIGHUP, and these are one wish.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from trimtab.core.clock import Clock, SystemClock

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONE_WISH_SECONDS = 0.3
_MARK = "stops_a_job_in_order"
_DEFAULT = (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def stops_in_order(
    stop: threading.Event, driven: Callable[[], bool], *, always: bool = False, clock: Clock | None = None
) -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP set `stop`, or raise KeyboardInterrupt; afterwards handlers are put back.

    Args:
        stop: of the job.
        driven: whether the job is being driven, so that it will look at `stop`.
        always: also in the place of the program's own handlers. A SIGHUP that is ignored (nohup) stays so.
        clock: tells a second signal from the same wish said twice.
    """
    time = clock if clock is not None else SystemClock()
    asked_at: float | None = None
    told = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked_at, told
        again = asked_at is not None and time.now() - asked_at > ONE_WISH_SECONDS
        asked_at = time.now() if asked_at is None else asked_at
        if driven() and not told:
            told = True  # first: the next signal may arrive within `set`, which would then wait for itself
            stop.set()
        if again or not driven():
            raise KeyboardInterrupt

    setattr(handle, _MARK, True)

    def ours(number: signal.Signals) -> bool:
        present = signal.getsignal(number)
        return present in _DEFAULT or (always and not (number is signal.SIGHUP and present is signal.SIG_IGN))

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING if ours(number)}
    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def heeds_signals() -> bool:
    """Whether SIGTERM stops a job of this process in order; else it would end the program that runs the job."""
    return getattr(signal.getsignal(signal.SIGTERM), _MARK, False)
