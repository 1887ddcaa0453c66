"""`trimtab logs` and `trimtab events`: what stands there, what comes, and an end with the job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from job_folders import Script, end, job_folder

from trimtab.core import cli, cli_logs
from trimtab.core.controller.lost import disown, own
from trimtab.core.domain.job import JobState

RUN = "20261201-120000-0a1b2c"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    folder = job_folder(tmp_path / "jobs" / RUN)
    for name, text in (
        ("worker-10-t1-g1", "ten\n"), ("worker-9-t1-g1", "nine\nnine again\n"), ("ps-0-t1-g1", "ps\n"),
        ("controller", "process 7 controls\n"), ("ps-zygote-1", "ready"),
    ):  # fmt: skip
        (folder / "logs" / f"{name}.log").write_text(text)
    lines = [
        {"seconds": 1.5, "kind": "phase", "text": "training\n100 batches"},
        {"seconds": 3661, "kind": "end", "text": "x"},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"seconds": 3700, "ki')
    return folder


def trimtab(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([*map(str, arguments)])
    return int(left.value.code or 0)


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert trimtab(*arguments) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_all_logs_are_shown_with_their_names(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "logs", RUN).splitlines() == [
        "controller | process 7 controls", "ps-0-t1-g1 | ps", "ps-zygote-1 | ready", "worker-9-t1-g1 | nine",
        "worker-9-t1-g1 | nine again", "worker-10-t1-g1 | ten",
    ]  # fmt: skip


def test_one_pod_is_shown_bare_and_a_place_with_names(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "logs", RUN, "worker-9-t1-g1") == "nine\nnine again\n"
    assert shown(capsys, "logs", RUN, "worker-10") == "worker-10-t1-g1 | ten\n"
    assert shown(capsys, "logs", RUN, "worker-9", "-n", "1") == "worker-9-t1-g1 | nine again\n"
    told = json.loads(shown(capsys, "logs", RUN, "worker-9", "--json"))
    assert told == {"run": RUN, "logs": [{"pod": "worker-9-t1-g1", "lines": ["nine", "nine again"]}]}


def test_a_place_does_not_name_another_one_that_begins_like_it(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trimtab("logs", RUN, "worker-1") == 2
    assert "worker-10-t1-g1" in capsys.readouterr().err


def test_an_unknown_pod_is_one_line_with_near_names(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trimtab("logs", RUN, "worker-9-t1-g2") == 2
    said = capsys.readouterr()
    assert said.out == "" and "POD: 'worker-9-t1-g2': no such pod; choose among worker-9-t1-g1" in said.err
    (job / "logs" / "controller.log").unlink()
    assert trimtab("logs", RUN, "controller") == 2
    assert "only where its job was submitted" in capsys.readouterr().err


def test_a_job_that_has_said_nothing_says_so(tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = job_folder(tmp_path / "jobs" / "20261201-130000-000000")
    assert shown(capsys, "logs", quiet) == ""
    assert trimtab("logs", quiet, "ps-0") == 2
    assert "has said anything yet" in capsys.readouterr().err


def test_following_shows_each_line_once_through_rotation_and_ends_with_the_job(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, late = job / "logs" / "worker-9-t1-g1.log", job / "logs" / "worker-9-t1-g2.log"
    own(job)

    def over() -> None:
        append(log, "last words\nwithout an end")
        end(job, JobState.STOPPED, "x")
        disown(job)

    clock = Script(
        lambda: append(log, "more\nhalf"), lambda: log.rename(job / "logs" / "worker-9-t1-g1.log.1"),
        lambda: append(job / "logs" / "worker-9-t1-g1.log.1", " a line\n"), lambda: append(log, "new file\n"),
        lambda: late.write_text("another pod\n"), lambda: os.truncate(log, 0),
        lambda: append(log, "after a cut\n"), over,
    )  # fmt: skip
    assert cli_logs.logs(RUN, "worker-9", follow=True, last=1, as_json=False, clock=clock) == 0
    lines = [line.partition(" | ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "nine again", "more", "half a line", "new file", "another pod", "after a cut", "last words", "without an end",
    ]  # fmt: skip
    assert clock.steps == [], "it did not end before"


def test_following_a_job_that_has_ended_ends_at_once(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(job)
    assert shown(capsys, "logs", RUN, "ps-0", "-f") == "ps-0-t1-g1 | ps\n"
    assert json.loads(shown(capsys, "logs", RUN, "ps-0", "-f", "--json")) == {"pod": "ps-0-t1-g1", "line": "ps"}


def test_ctrl_c_ends_the_looking_only(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ctrl_c() -> None:
        raise KeyboardInterrupt

    own(job)
    try:
        assert cli_logs.events(RUN, follow=True, last=None, as_json=True, clock=Script(ctrl_c)) == 130
    finally:
        disown(job)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_events_are_told_in_words_and_as_json(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = shown(capsys, "events", RUN).splitlines()
    assert first.split(maxsplit=2) == ["0:02", "phase", "training 100 batches"]
    assert second.split() == ["1:01:01", "end", "x"]
    told = json.loads(shown(capsys, "events", RUN, "--json"))
    assert [one["kind"] for one in told["events"]] == ["phase", "end"], "a line that a crash cut is left out"
    assert shown(capsys, "events", RUN, "-n", "1").split()[1] == "end"


def test_events_are_followed_one_object_a_line(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(job)

    def over() -> None:
        append(job / "events.jsonl", json.dumps({"seconds": 9, "kind": "new", "text": ""}) + "\n")
        end(job)
        disown(job)

    clock = Script(lambda: append(job / "events.jsonl", "\n"), over)
    assert cli_logs.events(RUN, follow=True, last=1, as_json=True, clock=clock) == 0
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[0])["kind"] == "end" and json.loads(lines[-1])["kind"] == "new"


def test_a_mistyped_job_is_one_line(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("logs", "events", "status", "stop", "checkpoint"):
        assert trimtab(command, "20261201-120000-0a1b2d") == 2
        said = capsys.readouterr()
        assert said.out == "" and f"no such run or job directory; choose among {RUN}" in said.err
        assert len(said.err.splitlines()) == 1


def test_ctrl_c_owes_the_one_object_all_the_same(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_logs, "_last_of", ctrl_c)
    assert trimtab("logs", RUN, "--json") == 130
    assert json.loads(capsys.readouterr().out)["error"] == "interrupted"


def test_the_last_lines_are_those_of_each(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "logs", RUN, "worker", "-n", "1").splitlines() == [
        "worker-9-t1-g1 | nine again", "worker-10-t1-g1 | ten",
    ]  # fmt: skip


@pytest.mark.parametrize("line", ['{"seconds": NaN, "kind": "x"}', '{"seconds": 1e999, "kind": "x"}', "[" * 100_000])
def test_a_line_that_is_no_event_is_shown_as_it_is(job: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    (job / "events.jsonl").write_text(line + "\n")
    assert shown(capsys, "events", RUN) == line + "\n"
