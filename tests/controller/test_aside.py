"""Works beside the loop: the latest of each name, in order, and no waiting but at the end."""

from __future__ import annotations

import threading

from trimtab.core.clock import ManualClock
from trimtab.core.controller.aside import Aside


class Patient(ManualClock):
    """Waits for real, so that a thread can come to its end."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(60.0)


def test_only_the_latest_work_of_a_name_waits() -> None:
    gate, begun, done = threading.Event(), threading.Event(), []
    aside = Aside(Patient())
    aside.do("first", lambda: (begun.set(), gate.wait(60.0)))
    assert begun.wait(60.0)
    for number in range(1000):
        aside.do("a", lambda number=number: done.append(("a", number)))
        aside.do("b", lambda number=number: done.append(("b", number)))
    gate.set()
    assert aside.close(1.0)
    assert done == [("a", 999), ("b", 999)]


def test_a_work_that_fails_costs_only_itself() -> None:
    done: list[str] = []
    aside = Aside(Patient())
    aside.do("a", lambda: 1 / 0)
    aside.do("b", lambda: done.append("b"))
    assert aside.close(1.0)
    assert done == ["b"]


def test_what_hangs_is_not_waited_for_for_ever_and_its_thread_ends_with_it() -> None:
    gate, begun, done, others = threading.Event(), threading.Event(), [], set(threading.enumerate())
    clock = ManualClock()
    aside = Aside(clock)
    aside.do("a", lambda: (begun.set(), gate.wait(60.0)))
    assert begun.wait(60.0)
    aside.do("b", lambda: done.append("b"))
    assert not aside.close(5.0)
    assert clock.now() == 5.0
    gate.set()
    threads = set(threading.enumerate()) - others
    for one in threads:
        one.join(60.0)
    assert not any(one.is_alive() for one in threads)
    assert done == [], "dropped"


def test_after_the_end_works_are_done_at_once() -> None:
    done: list[str] = []
    aside = Aside(ManualClock())
    assert aside.close(1.0), "nothing was ever begun"
    aside.do("a", lambda: done.append("a"))
    assert done == ["a"]
