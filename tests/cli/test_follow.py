"""A file that others write, rotate and cut is read once and whole (case 36)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from trimtab.core import cli_follow
from trimtab.core.cli_follow import Tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker-0-t1-g1.log"


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def open_in(folder: Path) -> int:
    found = 0
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += str(handle.readlink()).startswith(str(folder))
    return found


def test_lines_come_once_and_whole(log: Path) -> None:
    tail = Tail(log)
    assert tail.read() == [], "it need not be there yet"
    append(log, "one\ntwo\nthr")
    assert tail.read() == ["one", "two"]
    assert tail.read() == []
    append(log, "ee\n")
    assert tail.read() == ["three"]
    append(log, "without an end")
    assert tail.read() == [] and tail.rest() == ["without an end"] and tail.rest() == []


def test_a_file_that_is_moved_away_is_read_on_beside_the_new_one(log: Path) -> None:
    tail = Tail(log)
    writer = log.open("a", encoding="utf-8")
    writer.write("before\ncut in ")
    writer.flush()
    assert tail.read() == ["before"]
    log.rename(log.with_suffix(".log.1"))
    writer.write("two\nstill to the old one\n")
    writer.flush()
    assert tail.read() == ["cut in two", "still to the old one"], "nothing lies there for now"
    append(log, "new\n")
    writer.write("late\n")
    writer.close()
    assert sorted(tail.read()) == ["late", "new"]
    append(log, "newer\n")
    assert tail.read() == ["newer"]


def test_a_file_that_is_copied_away_and_cut_repeats_nothing(log: Path) -> None:
    append(log, "a\nb\n")
    tail = Tail(log)
    assert tail.read() == ["a", "b"]
    os.truncate(log, 0)
    assert tail.read() == []
    append(log, "c\n")
    assert tail.read() == ["c"]
    os.truncate(log, 0)
    append(log, "longer than all that stood there before\n")
    assert tail.read() == ["longer than all that stood there before"], "it has grown beyond the old place meanwhile"
    os.truncate(log, 0)
    append(log, "once more\n")
    assert tail.read() == ["once more"]


def test_a_line_that_is_cut_in_two_by_a_cut_is_put_together(log: Path) -> None:
    append(log, "first\nbegun and ")
    tail = Tail(log)
    assert tail.read() == ["first"]
    os.truncate(log, 0)
    append(log, "ended\n")
    assert tail.read() == ["begun and ended"]


def test_many_rotations_lose_nothing_and_keep_few_files_open(log: Path) -> None:
    tail, found = Tail(log), []
    for number in range(20):
        append(log, f"{number}\n")
        found += tail.read()
        log.rename(log.with_suffix(f".{number}"))
        append(log.with_suffix(f".{number}"), f"{number} late\n")
    found += tail.read()
    assert sorted(found) == sorted([*map(str, range(20)), *(f"{number} late" for number in range(20))])
    assert open_in(log.parent) <= 4
    tail.close()
    assert open_in(log.parent) == 0


def test_what_a_writer_without_append_leaves_is_left_out(log: Path) -> None:
    writer = log.open("w", encoding="utf-8")
    writer.write("one\n")
    writer.flush()
    tail = Tail(log)
    assert tail.read() == ["one"]
    os.truncate(log, 0)
    assert tail.read() == []
    writer.write("two\n")  # at its own old place: zeros before it
    writer.close()
    assert tail.read() == ["two"]


@pytest.mark.parametrize("text", ["", "one", "one\n", "a\n\nb\nlast", "a\nb\n", "".join(f"{n}\n" for n in range(40))])
@pytest.mark.parametrize("last", [1, 2, 3, 100])
def test_only_the_end_of_a_large_file_is_read(log: Path, text: str, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_follow, "_CHUNK", 7)
    append(log, text)
    tail = Tail(log, last)
    *whole, part = text.split("\n")
    assert tail.read() == whole[-last:]
    append(log, "!\nmore\n")
    assert tail.read() == [f"{part}!", "more"]
    tail.close()
