"""What the driver stores apart is finished at an orderly end, if that does not take long."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from controller_world import empty_manifest

from trimtab.core.clock import ManualClock
from trimtab.core.controller import storing as module
from trimtab.core.controller.actions import RemoveSuperseded
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


def storing_of(copies: str) -> Storing:
    return Storing(MemoryStore(), copies, "", "manifest-0", lambda result: None)


def removing(storing: Storing, alive: tuple[str, ...] = ()) -> None:
    storing.remove(RemoveSuperseded(empty_manifest(), empty_manifest(), alive), "manifest-1")


def test_deletes_that_are_still_queued_are_made_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, deleted = threading.Event(), []

    def slow(old: object, new: object) -> None:
        gate.wait(60.0)
        deleted.append(old)

    monkeypatch.setattr(module, "remove_superseded", slow)
    storing = storing_of(FAR)
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
    removing(storing_of(str(tmp_path)), alive=("a" * 32,))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([dead, f"{living}.0a1b.part"])
