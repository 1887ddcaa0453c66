"""One contract for every store of the state document."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.core.controller.document import FORMAT, MOST_DECISIONS, Document, decode_document, encode_document
from trimtab.core.controller.store import FileStore, MemoryStore, StateStore, take_term
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Decision
from trimtab.core.errors import BadInput, StaleState, WireError
from trimtab.core.ps.manifest import ManifestRef
from trimtab.core.wire.messages import Routing

PLAN = Plan(RolePlan(1, 0.5, 2**28), RolePlan(2, 1.0, 2**30))
FRESH = Document("job", JobSpec("data.csv", validation="other.csv", learning_rate=0.1), PLAN, ManifestRef("m", "c"))
Open = Callable[[], StateStore]


@pytest.fixture(params=["memory", "file"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same document, as another controller would."""
    if request.param == "memory":
        one = MemoryStore()
        return lambda: one
    return lambda: FileStore(tmp_path / "state.json")


def test_nothing_is_stored_at_first(opened: Open) -> None:
    assert opened().read() is None


def test_what_was_swapped_in_is_read_back_with_the_next_version(opened: Open) -> None:
    routing = Routing(3, ("a", "b"), ("unix:a", "unix:b"), (0, 1) * 256, (3,) * 512)
    document = replace(FRESH, routing=routing, state=JobState.STOPPED, reason="stopped")
    stored = opened().compare_and_swap(document, 0)
    assert stored == replace(document, version=1)
    assert opened().read() == stored


@pytest.mark.parametrize("expected", [0, 1, 3])
def test_a_swap_against_another_version_changes_nothing(opened: Open, expected: int) -> None:
    store = opened()
    second = store.compare_and_swap(replace(FRESH, reason="second"), store.compare_and_swap(FRESH, 0).version)
    with pytest.raises(StaleState, match=f"version 2, not {expected}"):
        opened().compare_and_swap(replace(FRESH, reason="late"), expected)
    assert store.read() == second


def test_trace_11_a_stale_controller_cannot_commit_its_move(opened: Open) -> None:
    old = take_term(opened(), FRESH)
    new = take_term(opened(), FRESH)
    assert (old.term, new.term) == (1, 2)
    moved = replace(old, routing=Routing(7))
    with pytest.raises(StaleState):
        opened().compare_and_swap(moved, moved.version)
    assert opened().read() == new


def test_of_many_at_once_each_swap_counts_once(opened: Open) -> None:
    terms: list[int] = []

    def take() -> None:
        for _ in range(5):
            terms.append(take_term(opened(), FRESH).term)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(terms) == list(range(1, 21))


def test_only_the_last_decisions_stay() -> None:
    document = FRESH
    for number in range(MOST_DECISIONS + 5):
        document = document.decided(Decision(float(number), "hold", PLAN, "why"))
    assert [decision.time_seconds for decision in document.decisions] == list(range(5, MOST_DECISIONS + 5))


def test_a_newer_format_is_refused_by_its_number() -> None:
    data = json.loads(encode_document(FRESH))
    newer = json.dumps({"format": FORMAT + 1, "strange": True}).encode()
    with pytest.raises(BadInput, match="use a newer one"):
        decode_document(newer)
    with pytest.raises(WireError):
        decode_document(json.dumps(data | {"format": 0}).encode())
    with pytest.raises(WireError):
        decode_document(json.dumps(data | {"term": "one"}).encode())
    with pytest.raises(WireError):
        decode_document(b"not json")


def test_a_directory_that_cannot_be_synced_does_not_make_stored_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told that it was not, the controller would swap again, and take its own document for another's."""
    store, sync = FileStore(tmp_path / "state.json"), os.fsync

    def failing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(5, "Input/output error")
        sync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    stored = store.compare_and_swap(FRESH, 0)
    assert store.read() == stored
    assert store.compare_and_swap(replace(stored, reason="next"), stored.version).version == 2


def test_a_document_that_was_not_put_in_place_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "state.json")
    stored = store.compare_and_swap(FRESH, 0)

    def failing(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OSError, match="No space left"):
        store.compare_and_swap(replace(stored, reason="next"), stored.version)
    assert store.read() == stored
