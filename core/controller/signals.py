"""Signals that end a job in order, for the command and for programs that call `train`.

A signal that raises KeyboardInterrupt anywhere may cut the writing of the job's state in two. So while a job is driven
the first one only sets the stop event, which the driver looks at between two actions; before that nothing runs that
would have to be ended in order, and the signal interrupts at once. So does a second one: its sender has lost patience.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULT = (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def stops_in_order(stop: threading.Event, driven: Callable[[], bool], *, always: bool = False) -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP set `stop`, or raise KeyboardInterrupt; afterwards handlers are put back.

    Args:
        stop: of the job.
        driven: whether the job is being driven, so that it will look at `stop`.
        always: also in the place of the program's own handlers. A SIGHUP that is ignored (nohup) stays so.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        again, asked = asked, True
        if driven():
            stop.set()
        if again or not driven():
            raise KeyboardInterrupt

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
