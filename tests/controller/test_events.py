"""The events file under a full disk, log rotation and a clock that is set: whole lines, in order, never an error."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.core.clock import ManualClock
from trimtab.core.controller import events as module
from trimtab.core.controller.aside import Aside
from trimtab.core.controller.events import EventLog


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def texts(path: Path) -> list[str]:
    return [line["text"] for line in lines(path)]


class Disk:
    """`os.write` of a disk with so many bytes left; None: as many as it likes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._write: Callable[[int, bytes], int] = os.write
        monkeypatch.setattr(module.os, "write", self.write)

    def write(self, handle: int, data: bytes) -> int:
        if self.room is None:
            return self._write(handle, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[: self.room]
        self.room -= len(data)
        return self._write(handle, data)


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events.jsonl", ManualClock(), 0.0)


def test_on_a_full_disk_lines_wait_and_are_written_in_order_when_there_is_room(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = Disk(monkeypatch), tmp_path / "events.jsonl"
    log.append("a", "one")
    disk.room = 0
    log.append("a", "two")
    log.append("a", "three")
    assert "No space left" in log.trouble()
    assert texts(path) == ["one"]
    disk.room = None
    log.append("a", "four")
    assert log.trouble() == ""
    assert texts(path) == ["one", "two", "three", "four"]
    log.close()


@pytest.mark.parametrize("cut", [True, False])
def test_a_line_that_the_disk_takes_half_of_is_whole_in_the_end(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    disk, path = Disk(monkeypatch), tmp_path / "events.jsonl"
    if not cut:

        def broken(handle: int, size: int) -> None:
            raise OSError(errno.EIO, "cannot be cut")

        monkeypatch.setattr(module.os, "ftruncate", broken)
    log.append("a", "one")
    disk.room = 10
    log.append("a", "two")
    disk.room = None
    log.append("a", "three")
    whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["text"] for line in whole] == ["one", "two", "three"]
    assert len(path.read_text().splitlines()) == (3 if cut else 4)


def test_no_more_lines_wait_than_memory_should_hold_and_what_is_lost_is_said(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.room = 0
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    for number in range(5):
        log.append("a", str(number))
    disk.room = None
    log.append("a", "5")
    told = texts(tmp_path / "events.jsonl")
    assert told[0].startswith("3 events could not be kept")
    assert told[1:] == ["3", "4", "5"]


def test_a_file_that_was_moved_away_is_followed_by_a_new_one(tmp_path: Path, log: EventLog) -> None:
    path, old = tmp_path / "events.jsonl", tmp_path / "events.jsonl.1"
    log.append("a", "one")
    path.rename(old)
    log.append("a", "two")
    path.rename(tmp_path / "events.jsonl.0")
    path.touch()  # as `create` of logrotate does
    log.append("a", "three")
    assert (texts(old), texts(tmp_path / "events.jsonl.0"), texts(path)) == (["one"], ["two"], ["three"])


def test_a_file_that_was_cut_goes_on_at_its_beginning(tmp_path: Path, log: EventLog) -> None:
    path = tmp_path / "events.jsonl"
    log.append("a", "one")
    os.truncate(path, 0)
    log.append("a", "two")
    assert texts(path) == ["two"]


def test_a_directory_that_is_gone_costs_nothing_and_may_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    log = EventLog(folder / "events.jsonl", ManualClock(), 0.0)
    log.append("a", "one")
    folder.rename(tmp_path / "away")
    log.append("a", "two")
    assert log.trouble()
    (tmp_path / "away").rename(folder)
    log.append("a", "three")
    assert texts(folder / "events.jsonl") == ["one", "two", "three"]


def test_times_do_not_run_back_when_the_clock_is_set(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "events.jsonl"
    log = EventLog(path, clock, clock.now(), started_at=clock.wall())
    for jump in (0.0, -7200.0, 36_000.0, -36_000.0):
        clock._wall += jump
        clock.advance(1.0)
        log.append("a", "tick")
    log.close()
    again = EventLog(path, clock, 0.0, started_at=1_700_000_000.0)  # a resume: times count on from the first start
    clock.advance(1.0)
    again.append("a", "tick")
    told = lines(path)
    assert [one["seconds"] for one in told] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [one["time"] for one in told] == sorted(one["time"] for one in told)


def test_beside_the_loop_nothing_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of `Aside` hangs in the first write; appending goes on."""
    gate, begun, clock = threading.Event(), threading.Event(), ManualClock()
    aside = Aside(clock)
    log = EventLog(tmp_path / "events.jsonl", clock, 0.0, aside=aside)
    aside.do("other", lambda: (begun.set(), gate.wait(60)))
    assert begun.wait(60)
    for number in range(100):
        log.append("a", str(number))
    clock.advance(6.0)
    assert "more than 5 s" in aside.trouble()
    assert (tmp_path / "events.jsonl").read_text() == ""
    gate.set()
    monkeypatch.setattr(clock, "wait", lambda event, seconds: event.wait(60))
    assert aside.close(5.0)
    assert texts(tmp_path / "events.jsonl") == [str(number) for number in range(100)]
    assert aside.trouble() == ""
    log.append("a", "after")
    log.close()
    assert texts(tmp_path / "events.jsonl")[-1] == "after"
