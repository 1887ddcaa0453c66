"""Directories, machine limits, and what a pod is started with."""

from __future__ import annotations

import json
import re
import stat
import tempfile
from pathlib import Path

import pytest

from trimtab.core.clock import ManualClock
from trimtab.core.controller.actions import PodName
from trimtab.core.controller.events import EventLog
from trimtab.core.controller.launch import Launcher
from trimtab.core.controller.machine import usable_cpu, usable_memory_bytes
from trimtab.core.controller.places import claim_job_dir, home, new_run_id, private_dir
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.errors import BadInput
from trimtab.core.wire.encode import read_json
from trimtab.core.wire.messages import PsConfig, WorkerConfig


def test_run_ids_sort_by_time_and_are_unique() -> None:
    clock = ManualClock(wall=1_796_069_878.0)
    first = new_run_id(clock)
    assert re.fullmatch(r"20261130-201758-[0-9a-f]{6}", first)
    assert len({new_run_id(clock) for _ in range(50)}) == 50
    clock.advance(1)
    assert new_run_id(clock) > first


def test_the_default_job_directory_lies_under_trimtab_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    assert home() == tmp_path / "home"
    claimed = claim_job_dir(JobSpec("x"), "run-1")
    assert claimed.path == tmp_path / "home" / "jobs" / "run-1"
    claimed.abandon()
    assert not claimed.path.exists()


def test_a_job_directory_is_claimed_once(tmp_path: Path) -> None:
    spec = JobSpec("x", job_dir=str(tmp_path / "job"))
    claim_job_dir(spec, "r").make_folders()
    with pytest.raises(BadInput, match=r"--job-dir: .*already used"):
        claim_job_dir(spec, "r")


def test_a_directory_that_was_there_stays_when_the_claim_is_undone(tmp_path: Path) -> None:
    claimed = claim_job_dir(JobSpec("x", job_dir=str(tmp_path)), "r")
    claimed.make_folders()
    claimed.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_job_directory_that_cannot_be_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "below", Path("/proc/nothing/here")):
        with pytest.raises(BadInput, match="--job-dir"):
            claim_job_dir(JobSpec("x", job_dir=str(path)), "r")
    assert file.read_text() == "mine"


def test_the_private_directory_is_private_and_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("ü" * 25)  # few characters, many bytes
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    made = private_dir()
    try:
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert len(str(made / "worker-1000-t999-g999.data")) < 108
    finally:
        made.rmdir()


@pytest.mark.parametrize("mark", list("%#?"))
def test_the_private_directory_has_no_marks_of_an_address_in_its_path(
    monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        for place, inside in ((Path(short) / f"a{mark}", False), (Path(short) / "a", True)):
            place.mkdir()
            monkeypatch.setattr("tempfile.tempdir", str(place))
            made = private_dir()
            made.rmdir()
            assert (made.parent == place) is inside


def test_home_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIMTAB_HOME", "here")
    assert home() == tmp_path / "here"


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", None), ("150000 100000", 1.5), ("50000 100000", 0.5), ("strange", None), (None, None)],
)
def test_a_cgroups_quota_counts(tmp_path: Path, quota: str | None, cores: float | None) -> None:
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    unlimited = usable_cpu(tmp_path / "none")
    assert unlimited >= 1
    assert usable_cpu(tmp_path) == (unlimited if cores is None else min(cores, unlimited))


def test_a_cgroups_memory_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("400000000\n")
    (tmp_path / "memory.current").write_text("300000000\n")
    assert usable_memory_bytes(tmp_path) == 75_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert usable_memory_bytes(tmp_path) > 75_000_000


def test_limits_of_the_older_cgroups_count_too(tmp_path: Path) -> None:
    told = {
        "cpu/cpu.cfs_quota_us": 50_000, "cpu/cpu.cfs_period_us": 100_000,
        "memory/memory.limit_in_bytes": 400_000_000, "memory/memory.usage_in_bytes": 300_000_000,
    }  # fmt: skip
    for name, value in told.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    assert usable_cpu(tmp_path) == 0.5
    assert usable_memory_bytes(tmp_path) == 75_000_000
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cpu(tmp_path) >= 1


def test_pods_get_their_configuration_from_a_file_and_no_secret_on_the_way(tmp_path: Path) -> None:
    job_dir = claim_job_dir(JobSpec("x", job_dir=str(tmp_path / "job")), "r")
    job_dir.make_folders()
    private = tmp_path / "private"
    plan = Plan(RolePlan(1, 0.5, 2**30), RolePlan(1, 2.5, 2**31))
    spec = JobSpec("x", seed=7, orphan_grace_seconds=3.0)
    launcher = Launcher("job", 4, spec, plan, 99, job_dir, private, tmp_path / "data", None)
    ps = launcher.pod_spec(PodName("ps-0-t4-g1", "ps", 0, 0.5, 2**30))
    worker = launcher.pod_spec(PodName("worker-0-t4-g1", "worker", 0, 2.5, 2**31))
    assert ps.argv[1:3] == ("-m", "trimtab.core.ps.main")
    assert worker.argv[1:3] == ("-m", "trimtab.core.training.worker")
    assert (ps.cpu, ps.memory_bytes, worker.cpu) == (0.5, 2**30, 2.5)
    config = read_json(PsConfig, ps.argv[3])
    assert (config.job_id, config.term, config.batches, config.seed) == ("job", 4, 99, 7)
    assert config.orphan_grace_seconds == 3.0
    assert config.control_address == launcher.control_address("ps-0-t4-g1")
    assert config.memory_bytes < 2**30
    told = read_json(WorkerConfig, worker.argv[3])
    assert (told.threads, told.validation_dataset, told.controller_address) == (3, "", launcher.controller_address)
    assert Path(told.secret_file) == launcher.secret_file


def test_events_are_lines_of_json_whatever_the_values(tmp_path: Path) -> None:
    clock = ManualClock(now=5.0)
    events = EventLog(tmp_path / "events.jsonl", clock, 4.0)
    events.append("phase", "training", number=1, bad=float("nan"), odd={1}, none=None)
    events.append("end", 'it "ended"\n')
    events.close()
    first, second = (json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines())
    assert first == {
        "time": "2023-11-14T22:13:20.000+00:00", "seconds": 1.0, "kind": "phase", "text": "training", "number": 1,
        "bad": None, "odd": "{1}", "none": None,
    }  # fmt: skip
    assert second["text"] == 'it "ended"\n'
