"""What is stored apart: the loop never waits for it, and at an orderly end it gets a little more time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from controller_world import empty_manifest, new_state, settings

from trimtab.core.clock import ManualClock
from trimtab.core.controller import storing as module
from trimtab.core.controller.actions import CommitDocument, RemoveSuperseded
from trimtab.core.controller.document import Document
from trimtab.core.controller.inputs import CommitResult
from trimtab.core.controller.store import MemoryStore
from trimtab.core.controller.storing import Storing

FAR = "memory://copies"


class Opening(ManualClock):
    """Whoever waits for something lets it happen first."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self._gate = gate

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self._gate.set()
        return event.wait(60.0)


def storing_of(copies: str, done: Callable[[CommitResult], None] = lambda result: None) -> Storing:
    return Storing(MemoryStore(), copies, "", "manifest-0", done)


class Patient(ManualClock):
    """Waits for real."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(60.0)


def removing(storing: Storing, alive: tuple[str, ...] = ()) -> None:
    storing.remove(RemoveSuperseded(empty_manifest(), empty_manifest(), alive), "manifest-1")


@pytest.mark.parametrize("far", [True, False])
def test_deletes_that_are_still_queued_are_made_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: bool
) -> None:
    gate, deleted = threading.Event(), []

    def slow(old: object, new: object) -> None:
        gate.wait(60.0)
        deleted.append(old)

    monkeypatch.setattr(module, "remove_superseded", slow)
    storing = storing_of(FAR if far else str(tmp_path))
    removing(storing)
    removing(storing)
    assert deleted == []
    storing.close(Opening(gate))
    assert len(deleted) == 2


def test_a_store_that_hangs_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, clock = threading.Event(), ManualClock()
    monkeypatch.setattr(module, "remove_superseded", lambda old, new: gate.wait(60.0))
    storing = storing_of(FAR)
    removing(storing)
    storing.close(clock)
    assert clock.now() == module.CLOSE_SECONDS
    gate.set()


def test_halves_that_dead_servers_left_are_deleted(tmp_path: Path) -> None:
    dead, living = f"copies-{'d' * 12}-3.ttc", f"copies-{'a' * 12}-3.ttc"
    for name in (dead, f"{dead}.0a1b.part", f"{living}.0a1b.part"):
        (tmp_path / name).touch()
    storing = storing_of(str(tmp_path))
    removing(storing, alive=("a" * 32,))
    storing.close(Patient())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([dead, f"{living}.0a1b.part"])


def test_a_swap_is_not_waited_for_and_its_thread_ends_with_the_job(tmp_path: Path) -> None:
    gate, results, store, others = threading.Event(), [], MemoryStore(), set(threading.enumerate())
    document = new_state(settings(), store).document
    plain = store.compare_and_swap

    def slow(document: Document, expected: int) -> Document:
        assert gate.wait(60.0)
        return plain(document, expected)

    store.compare_and_swap = slow  # type: ignore[method-assign]
    storing = Storing(store, str(tmp_path), "", "manifest-0", results.append)
    storing.commit(CommitDocument(document))
    storing.commit(CommitDocument(document, empty_manifest()))
    assert results == []
    gate.set()
    storing.close(Patient())
    assert [one.stale for one in results] == [False, True], "one after the other, in order"
    for thread in set(threading.enumerate()) - others:
        thread.join(60.0)
        assert not thread.is_alive()


def test_a_swap_that_breaks_has_a_result_all_the_same(tmp_path: Path) -> None:
    """Whoever waits for a swap would wait for ever."""
    results: list[CommitResult] = []
    store = MemoryStore()
    document = new_state(settings(), store).document

    def broken(document: Document, expected: int) -> Document:
        raise ValueError("a bug")

    store.compare_and_swap = broken  # type: ignore[method-assign]
    storing = Storing(store, str(tmp_path), "", "manifest-0", results.append)
    storing.commit(CommitDocument(document))
    storing.close(Patient())
    assert [(one.document, one.error) for one in results] == [(None, "ValueError: a bug")]
