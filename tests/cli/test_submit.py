"""Jobs that outlive the shell, with real processes: handed over whole, or nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from job_folders import end, job_folder

import trimtab
from trimtab.core import cli
from trimtab.core.clock import SystemClock
from trimtab.core.controller import detached, detached_main
from trimtab.core.controller.lost import controller_of
from trimtab.core.controller.reaching import JobLine, look_at
from trimtab.core.data.sample import write_sample
from trimtab.core.domain.job import JobState

COMMAND = (sys.executable, "-m", "trimtab.core.cli")
SMALL = (
    "--batch-size",
    "64",
    "--workers",
    "1",
    "--ps",
    "1",
    "--mode",
    "fixed",
    "--max-cpu",
    "1",
    "--max-memory",
    "3Gi",
)
PATIENCE_SECONDS = 120.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with rows, and a home of its own; what a failed test leaves running is ended."""
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_sample(str(tmp_path / "rows.tsv"), 6000, 1)
    yield tmp_path
    left = detached_in(tmp_path)
    for process in left:
        process.terminate()
    for process in psutil.wait_procs(left, 60)[1]:
        process.kill()


def run(*arguments: object, code: int = 0) -> str:
    found = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True)
    assert found.returncode == code, found.stderr
    return found.stdout


def waited(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def detached_in(folder: Path) -> list[psutil.Process]:
    """Controllers without a shell that were started in the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if "trimtab.core.controller.detached_main" in process.cmdline() and process.cwd() == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def processes_of(job: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(job) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def trained(job: Path) -> int:
    with JobLine(job) as line:
        return int(look_at(line, job, SystemClock())["batches_done"] or 0)


@pytest.mark.slow
def test_a_job_outlives_the_session_that_submitted_it_and_is_stopped_and_resumed(place: Path) -> None:
    job, said = place / "nightly", place / "said"
    words = (*COMMAND, "submit", "--data", "rows.tsv", *SMALL, "--epochs", "15", "--job-dir", str(job))
    quoted = " ".join(f"'{word}'" for word in words)
    shell = subprocess.Popen(["bash", "-c", f"{quoted} > {said} 2> {said}.err; sleep 1000"], start_new_session=True)
    try:
        waited(lambda: (said.exists() and said.read_text().endswith("\n")) or shell.poll() is not None)
        session = [process.pid for process in psutil.process_iter() if _session(process.pid) == shell.pid]
        controller = controller_of(job)
        assert controller is not None and controller.alive and controller.pid not in session
    finally:
        for process in psutil.process_iter():
            if _session(process.pid) == shell.pid:
                process.send_signal(signal.SIGKILL)
        shell.wait()
    run_id = said.read_text().strip()
    assert len(run_id.splitlines()) == 1 and "the job has begun" in said.with_suffix(".err").read_text()

    waited(lambda: trained(job) > 50)
    assert os.getsid(controller.pid) not in (os.getsid(0), shell.pid), "a session of its own"
    told = json.loads(run("checkpoint", job, "--json"))
    closed = told["checkpoint"]["batches"]
    assert told["run_id"] == run_id and told["controller"] == "answers" and closed > 50
    assert (job / "control.sock").is_symlink()
    ended = run("stop", job)
    assert ended.startswith(f"{run_id}: stopped") and "its checkpoint holds" in ended
    assert processes_of(job) == [] and detached_in(place) == [] and not (job / "control.sock").is_symlink()

    stopped = json.loads(run("status", job, "--json"))
    assert (stopped["state"], stopped["controller"], stopped["phase"]) == ("stopped", "ended", "over")
    assert stopped["batches_done"] >= closed
    again = json.loads(run("resume", job, "--detach", "--json"))
    assert again["run_id"] == run_id and again["pid"] != controller.pid
    events = [json.loads(line) for line in run("events", job, "-f", "--json").splitlines()]
    assert events[-1]["kind"] == "end" and events[-1]["state"] == "finished"
    waited(lambda: detached_in(place) == [])
    result = json.loads((job / "result.json").read_text())
    assert result["state"] == "finished" and result["batches_applied"] == result["batches_expected"]
    assert result["batches_duplicated"] == 0
    lines = run("logs", job, "controller").splitlines()
    assert any(line.endswith(f"controls job {run_id}") for line in lines) and lines[-1].endswith("every batch is in")
    assert "worker-0-t2-g1 | " in run("logs", job, "worker-0")


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


@pytest.mark.slow
def test_two_jobs_run_beside_each_other_and_are_told_apart(place: Path) -> None:
    words = [*COMMAND, "submit", "--data", "rows.tsv", *SMALL, "--epochs", "2000", "--json"]
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    limits = trimtab.Limits(cpu=1.0, memory_bytes=3 << 30)
    spec = trimtab.JobSpec(
        "rows.tsv", batch_size=64, workers=1, ps=1, mode=trimtab.Mode.FIXED, limits=limits, epochs=2000
    )
    second = trimtab.submit(spec)
    told = json.loads(first.communicate()[0])
    jobs = {one["run_id"]: one for one in json.loads(run("jobs", "--json"))["jobs"]}
    assert set(jobs) == {told["run_id"], second} and told["run_id"] != second
    assert all(one["controller"] in ("answers", "silent") for one in jobs.values())
    assert json.loads(run("stop", told["run_id"], "--now", "--json"))["state"] == "stopped"
    assert controller_of(place / "home" / "jobs" / second).alive  # type: ignore[union-attr]
    assert "stopped" in run("stop", second, "--now")
    assert detached_in(place) == []


def test_bad_input_is_told_as_train_tells_it_and_leaves_nothing(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for options in (("--data", "nowhere.tsv"), ("--data", "rows.tsv", "--batch-size", "0")):
        told = []
        for command in ("submit", "train"):
            with pytest.raises(SystemExit) as left:
                cli.main([command, *options])
            assert left.value.code == 2
            told.append([line for line in capfd.readouterr().err.splitlines() if line.startswith("trimtab: ")])
        assert told[0] == told[1] and len(told[0]) == 1
        with pytest.raises(SystemExit):
            cli.main(["submit", *options, "--json"])
        assert json.loads(capfd.readouterr().out)["bad_input"]["field"].startswith("--")
    jobs = place / "home" / "jobs"
    assert not jobs.exists() or list(jobs.iterdir()) == []
    assert detached_in(place) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_a_submit_that_is_ended_before_the_job_has_begun_leaves_nothing(place: Path, number: signal.Signals) -> None:
    job = place / "job"
    words = [*COMMAND, "submit", "--data", "rows.tsv", *SMALL, "--job-dir", str(job)]
    submit = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert submit.stderr is not None
        for line in submit.stderr:
            if "looking at model" in line:
                break
        assert job.exists() and detached_in(place)
        submit.send_signal(number)
        out, said = submit.communicate()
    finally:
        submit.kill()
    assert out == ""
    if number is signal.SIGINT:
        assert submit.returncode == 130 and said == "trimtab: interrupted before the job began; nothing is left of it\n"
        assert not job.exists()
    waited(lambda: detached_in(place) == [] and not job.exists())


def test_a_controller_that_is_killed_before_the_job_has_begun_is_told(place: Path) -> None:
    words = [*COMMAND, "submit", "--data", "rows.tsv", *SMALL, "--job-dir", "job"]
    submit = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert submit.stderr is not None
        for line in submit.stderr:
            if "looking at model" in line:
                break
        controller = controller_of(place / "job")
        assert controller is not None and controller.signal(signal.SIGKILL)
        out, said = submit.communicate()
    finally:
        submit.kill()
    assert (submit.returncode, out) == (1, "")
    assert said == "trimtab: the job's controller ended before the job began, as if it was killed\n"
    assert "controller died" not in run("jobs"), "it lies elsewhere"
    assert "never began" in run("status", "job")


def test_a_job_that_can_not_go_on_is_refused_as_resume_refuses_it(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "job").mkdir()
    for more in ((), ("--detach",)):
        with pytest.raises(SystemExit) as left:
            cli.main(["resume", "job", *more])
        assert left.value.code == 2
        assert "has no job that has begun" in capfd.readouterr().err
    assert list((place / "job").iterdir()) == []


@pytest.fixture
def waiting(place: Path, monkeypatch: pytest.MonkeyPatch) -> detached.Submitted:
    """A job that was handed over while it stands in line."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(detached, "_MODULE", "waiting_controller")
    return detached.hand_over(detached.Request(trimtab.JobSpec("rows.tsv", job_dir=str(place / "job"))))


def test_a_job_that_stands_in_line_is_handed_over_and_begins_by_itself(
    place: Path, waiting: detached.Submitted
) -> None:
    assert (waiting.run_id, waiting.phase, waiting.message) == ("run-1", "waiting", "another job holds 2 cores")
    assert psutil.pid_exists(waiting.pid) and os.getsid(waiting.pid) != os.getsid(0)
    (place / "go").touch()
    waited(lambda: not psutil.pid_exists(waiting.pid))
    lines = [line.split(" ", 1)[1] for line in (place / "job" / "logs" / "controller.log").read_text().splitlines()]
    assert lines[0] == f"process {waiting.pid} controls job run-1" and lines[1] == "waiting  another job holds 2 cores"
    assert lines[2:] == ["training  5 of 10 batches", "finished: every batch is in"]


def test_a_job_that_stood_in_line_and_can_not_begin_leaves_word(place: Path, waiting: detached.Submitted) -> None:
    (place / "refuse").touch()
    waited(lambda: not psutil.pid_exists(waiting.pid))
    told = json.loads(run("status", "job", "--json"))
    assert (told["state"], told["error"]) == ("failed", "--budget: 1: past runs make it impossible")
    assert run("logs", "job").endswith("--budget: 1: past runs make it impossible\n")


def test_a_job_that_could_not_go_on_keeps_the_result_of_before(tmp_path: Path) -> None:
    job = end(job_folder(tmp_path / "job"), JobState.STOPPED, "ctrl-c")
    before = (job / "result.json").read_text()
    detached_main._leave_word(job, "its rows have changed")
    assert (job / "result.json").read_text() == before


LOG = """
import sys, os
from pathlib import Path
from trimtab.core.clock import ManualClock
from trimtab.core.controller.detached_main import LogFile
path = Path(sys.argv[1])
log = LogFile(path, ManualClock())
log.write("one")
os.write(2, b"a library says\\n")
path.rename(path.with_suffix(".log.1"))
log.write("two")
os.truncate(path, 0)
log.write("three")
path.unlink()
path.parent.rename(path.parent.with_name("gone"))
log.write("nobody can read it")
path.parent.with_name("gone").rename(path.parent)
log.write("four")
"""


def test_a_controllers_log_follows_rotation_and_ends_nothing(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "controller.log"
    subprocess.run([sys.executable, "-c", LOG, str(log)], check=True, timeout=60)
    first = log.with_suffix(".log.1").read_text().splitlines()
    assert first[0].endswith(" one") and first[1] == "a library says"
    assert [line.split(" ", 1)[1] for line in log.read_text().splitlines()] == ["four"]
