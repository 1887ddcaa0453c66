"""One controller per job; and a job whose controller was killed is closed by whoever comes next, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from trimtab.core.controller.lost import LOCK, OWNER, REASON, clear_private, close_lost, disown, own, release
from trimtab.core.controller.places import PRIVATE_MARK
from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import JobEvent, JobRecord
from trimtab.core.errors import BadInput
from trimtab.core.history.outbox import waiting
from trimtab.core.history.record_file import FILE, read_record, write_record


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs" / "run-1"
    folder.mkdir(parents=True)
    events = (JobEvent(12.5, "served", "every vshard is served"),)
    record = JobRecord(
        "run-1", "train", JobState.RUNNING, {}, (), (), (), {}, events=events, started_at=100.0, job_dir=str(folder)
    )
    write_record(folder / FILE, record)
    own(folder)
    return folder


def as_if_by(job: Path, **changes: object) -> None:
    release(job)  # as its end would
    told = json.loads((job / OWNER).read_text())
    (job / OWNER).write_text(json.dumps(told | changes))


def a_dead_process() -> dict[str, object]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = {"pid": child.pid, "began": psutil.Process(child.pid).create_time()}
    child.communicate(b"\n")
    return told


def test_a_living_controllers_job_is_left_alone(job: Path, tmp_path: Path) -> None:
    assert close_lost(tmp_path / "jobs", tmp_path / "outbox") == ()
    assert read_record(job / FILE).state is JobState.RUNNING


def test_a_dead_controllers_job_is_closed_once_and_waits_for_the_history(job: Path, tmp_path: Path) -> None:
    as_if_by(job, **a_dead_process())
    assert close_lost(tmp_path / "jobs", tmp_path / "outbox") == ("run-1",)
    record = read_record(job / FILE)
    assert (record.state, record.reason, record.ended_at) == (JobState.FAILED, REASON, 112.5)
    assert [path.name for path in waiting(tmp_path / "outbox")] == ["run-1.json"]
    assert close_lost(tmp_path / "jobs", tmp_path / "outbox") == ()
    assert sorted(path.name for path in job.iterdir()) == [LOCK, FILE]


def test_after_a_restart_of_the_machine_no_process_id_counts(job: Path, tmp_path: Path) -> None:
    as_if_by(job, boot="another start")
    assert close_lost(tmp_path / "jobs", tmp_path / "outbox") == ("run-1",)


@pytest.mark.parametrize("place", [{"host": "another"}, {"namespace": "1"}])
def test_of_another_machine_nobody_here_can_tell(job: Path, tmp_path: Path, place: dict[str, object]) -> None:
    as_if_by(job, **a_dead_process(), **place)
    assert close_lost(tmp_path / "jobs", tmp_path / "outbox") == ()


def test_a_job_that_ended_in_order_is_nobodys(job: Path, tmp_path: Path) -> None:
    disown(job)
    disown(job)
    assert close_lost(tmp_path / "jobs", tmp_path / "outbox") == ()


def test_what_cannot_be_read_is_passed_over(job: Path, tmp_path: Path) -> None:
    (job / OWNER).write_text("nonsense")
    assert close_lost(tmp_path / "jobs", tmp_path / "outbox") == ()
    assert close_lost(tmp_path / "nowhere", tmp_path / "outbox") == ()


OWNS = """
import sys
from pathlib import Path
from trimtab.core.controller.lost import own
from trimtab.core.errors import BadInput
try:
    own(Path(sys.argv[1]))
except BadInput as error:
    print(error, flush=True)
else:
    print("mine", flush=True)
    input()
"""


def controller(folder: Path) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", OWNS, str(folder)], text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def test_a_second_controller_is_refused_by_the_first_ones_process_id(tmp_path: Path) -> None:
    first, second = controller(tmp_path), None
    try:
        assert first.stdout is not None and first.stdout.readline() == "mine\n"
        second = controller(tmp_path)
        said = second.communicate()[0]
        assert f"process {first.pid}" in said and "JOB" in said
        with pytest.raises(BadInput, match=f"process {first.pid}"):
            own(tmp_path)
        os.kill(first.pid, signal.SIGSTOP)  # one that only sleeps is one all the same
        with pytest.raises(BadInput, match=f"process {first.pid}"):
            own(tmp_path)
        first.kill()
        first.wait()
        own(tmp_path)  # the kernel has taken the lock back
        assert json.loads((tmp_path / OWNER).read_text())["pid"] == os.getpid()
    finally:
        disown(tmp_path)
        first.kill()
        for one in (first, second):
            if one is not None:
                one.communicate()


def test_a_second_thread_of_the_same_program_is_refused_too(tmp_path: Path) -> None:
    own(tmp_path)
    try:
        with pytest.raises(BadInput, match=f"process {os.getpid()}"):
            own(tmp_path)
    finally:
        disown(tmp_path)
    own(tmp_path)
    disown(tmp_path)


def test_of_many_that_come_at_once_one_controls(tmp_path: Path) -> None:
    several = [controller(tmp_path) for _ in range(4)]
    try:
        said = [one.stdout.readline() for one in several if one.stdout is not None]
        assert said.count("mine\n") == 1
        assert sum("its controller lives" in line for line in said) == 3
    finally:
        for one in several:
            one.communicate("\n")


FORKS = """
import os, sys
from pathlib import Path
from trimtab.core.controller.lost import own
own(Path(sys.argv[1]))
if os.fork() == 0:
    print("forked", flush=True)
    input()
else:
    os._exit(1)
"""


def test_a_fork_of_a_controller_is_none(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    first = subprocess.Popen([sys.executable, "-c", FORKS, str(tmp_path)], text=True, **pipes)  # type: ignore[call-overload]
    assert first.stdout is not None and first.stdout.readline() == "forked\n"
    assert first.wait() == 1  # the controller has died, and its child lives on
    try:
        own(tmp_path)
    finally:
        disown(tmp_path)
        first.communicate("\n")


def test_nobody_closes_a_job_that_another_is_going_on_with(job: Path, tmp_path: Path) -> None:
    told = json.loads((job / OWNER).read_text())
    (job / OWNER).write_text(json.dumps(told | a_dead_process()))  # the lock is held: somebody is just taking it over
    assert close_lost(tmp_path / "jobs", tmp_path / "outbox") == ()
    assert read_record(job / FILE).state is JobState.RUNNING
    disown(job)


def test_sockets_and_secret_of_a_dead_controller_are_cleared_away(job: Path, tmp_path: Path) -> None:
    private = tmp_path / f"{PRIVATE_MARK}x"
    private.mkdir()
    (private / "secret").write_bytes(b"x" * 32)
    as_if_by(job, private=str(private), **a_dead_process())
    close_lost(tmp_path / "jobs", tmp_path / "outbox")
    assert not private.exists()


def test_only_a_private_directory_is_cleared_away(tmp_path: Path) -> None:
    mine, linked = tmp_path / "mine", tmp_path / f"{PRIVATE_MARK}link"
    mine.mkdir()
    (mine / "kept").write_text("x")
    linked.symlink_to(mine)
    for path in (mine, linked, tmp_path / f"{PRIVATE_MARK}none"):
        clear_private(path)
    assert (mine / "kept").exists()
