"""A job whose controller was killed is closed by whoever comes next, once, and by nobody while it lives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from trimtab.core.controller.lost import OWNER, REASON, close_lost, disown, own
from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import JobEvent, JobRecord
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
    assert [path.name for path in job.iterdir()] == [FILE]


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
