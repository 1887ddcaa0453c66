"""`trimtab status`, `stop`, `checkpoint`, `jobs` and `jobs prune`, with controllers that answer what a test says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from job_folders import DAY, Script, answering, die, end, job_folder, stands

from trimtab.core import cli, cli_list, cli_status, cli_stop
from trimtab.core.clock import ManualClock
from trimtab.core.controller import pruning, reaching
from trimtab.core.controller.lost import OWNER, disown, own, release
from trimtab.core.controller.pruning import PRUNED
from trimtab.core.controller.reaching import JobLine, NoAnswer
from trimtab.core.controller.status_files import Left
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import WireError
from trimtab.core.history.outbox import put
from trimtab.core.wire.commands import JobAnswer, JobCommand
from trimtab.core.wire.encode import to_json

RUN = "20261201-120000-0a1b2c"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    return job_folder(tmp_path / "jobs" / RUN)


def trimtab(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([*map(str, arguments)])
    return int(left.value.code or 0)


def shown(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert trimtab(*arguments) == code
    return capsys.readouterr().out


def saved(asked: int, done: int, batches: int = 40, error: str = "") -> dict[str, object]:
    return {"batches": batches, "age_seconds": 1.0, "writing": asked > done, "path": "m", "asked": asked, "done": done,
            "error": error}  # fmt: skip


# ---- status


def test_a_running_jobs_controller_tells_how_it_stands(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[JobCommand] = []

    def answer(request: JobCommand) -> JobAnswer:
        heard.append(request)
        return JobAnswer(
            RUN, status=stands(job, phase_seconds=41.0, eta_seconds=75.0, samples_per_second=640.0, loss=0.5)
        )

    with answering(job, answer):
        text = shown(capsys, "status", RUN)
        by_path = json.loads(shown(capsys, "status", job, "--json"))
    assert heard == [JobCommand(RUN)] * 2
    assert text.startswith(f"{RUN} (nightly): training for 0:41\n")
    assert "55 of 100, about 1:15 left" in text and "640 samples/s, loss 0.5000" in text
    assert "2 × 0.75 + 1 × 0.5" in text and "\x1b" not in text
    assert by_path["controller"] == "answers" and by_path["batches_done"] == 55


def test_pods_and_findings_are_shown(job: Path) -> None:
    pod = dict.fromkeys(
        ("name", "state", "cpu", "cpu_used", "rss_bytes", "memory_bytes", "samples_per_second", "batches", "rows")
    )
    pod |= {"name": "worker-0-t1-g1", "state": "running", "cpu": 0.75, "rss_bytes": 600 << 20}
    finding = {"kind": "straggler", "subject": "worker-0", "text": "is slow", "seconds": 61.0}
    told = stands(job, pods=[pod], findings=[finding])
    text = cli_status.text_of(told, 1001.0)
    (line,) = [line for line in text.splitlines() if line.startswith("worker-0-t1-g1")]
    assert line.split() == ["worker-0-t1-g1", "running", "0.75", "–", "600", "MiB", "–", "–", "–", "–"]
    assert "What is wrong\nworker-0: is slow (for 1:01)" in text
    assert cli_status.summary(told).endswith("1 finding")


def test_what_became_of_a_controller_is_said(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(job)
    try:
        assert "is being prepared, process" in shown(capsys, "status", RUN)
    finally:
        disown(job)
    die(job)
    assert "failed: its controller ended without a word" in shown(capsys, "status", RUN)
    (job / OWNER).write_text(json.dumps({**json.loads((job / OWNER).read_text()), "host": "elsewhere"}))
    assert "runs on another machine or in another container" in shown(capsys, "status", RUN)
    end(job, JobState.STOPPED, "interrupted")
    (job / OWNER).unlink()
    text = shown(capsys, "status", RUN)
    assert text.startswith(f"{RUN} (nightly): stopped ") and ": interrupted\n" in text and "80 of 100" in text


def test_a_controller_that_hangs_is_said_with_what_to_do(job: Path) -> None:
    go_on = threading.Event()

    def hang(request: JobCommand) -> JobAnswer:
        go_on.wait(20)
        return JobAnswer(RUN, status=stands(job))

    with answering(job, hang):
        try:
            with JobLine(job, 0.3) as line, pytest.raises(NoAnswer, match=r"did not answer within 0\.3 s") as error:
                line.ask()
        finally:
            go_on.set()
    assert error.value.word == "silent" and f"kill -9 {os.getpid()}" in str(error.value)


def test_a_controller_that_breaks_off_is_asked_again(job: Path) -> None:
    """It breaks off what it was asked while it ends or starts; nobody hangs then."""
    heard: list[JobCommand] = []

    def answer(request: JobCommand) -> JobAnswer:
        heard.append(request)
        if len(heard) == 1:
            raise RuntimeError("a call of a server that is closing")
        return JobAnswer(RUN, status=stands(job))

    with answering(job, answer), JobLine(job) as line:
        line.ask("stop")
    assert heard == [JobCommand(RUN, "stop")] * 2


def test_a_job_that_ends_while_it_is_asked_has_ended(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def break_off(request: JobCommand) -> JobAnswer:
        end(job, JobState.FINISHED, "")
        disown(job)
        raise RuntimeError("a call of a server that is closing")

    with answering(job, break_off):
        assert "finished" in shown(capsys, "stop", RUN)


def test_another_versions_controller_is_said(job: Path) -> None:
    def other(request: JobCommand) -> JobAnswer:
        raise WireError("JobCommand: cannot be decoded: it has a field that this version does not know")

    with answering(job, other), JobLine(job) as line, pytest.raises(NoAnswer, match="another version of trimtab runs"):
        line.ask()


def test_a_secret_that_others_can_read_is_not_used(job: Path) -> None:
    with answering(job, lambda request: JobAnswer(RUN, status=stands(job))) as private:
        (private / "secret").chmod(0o644)
        with JobLine(job) as line, pytest.raises(NoAnswer, match="its secret cannot be read"):
            line.ask()


def test_another_users_job_is_said_and_shown_by_its_files(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_ours(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(reaching, "read_secret", not_ours)
    with answering(job, lambda request: JobAnswer(RUN, status=stands(job))):
        text = shown(capsys, "status", RUN)
        assert trimtab("stop", RUN) == 1
    assert "belongs to another user" in text and "only they can ask it" in text and "40 batches closed" in text
    assert "belongs to another user" in capsys.readouterr().err


def test_another_jobs_controller_at_that_place_is_not_believed(job: Path) -> None:
    with answering(job, lambda request: JobAnswer(RUN, status=stands(job))) as private:
        (private / "secret").unlink()
        (private / "secret").write_bytes(b"x" * 32)
        (private / "secret").chmod(0o600)
        with JobLine(job) as line, pytest.raises(NoAnswer, match="wrong secret"):
            line.ask()


def test_watching_goes_on_until_the_job_has_ended(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(job)

    def over() -> None:
        end(job)
        disown(job)

    assert cli_status.run(RUN, watch=True, as_json=False, clock=Script(lambda: None, over)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1].split()[0] for line in lines] == ["preparing", "finished"], "each once"


# ---- stop and checkpoint


def test_a_stop_is_asked_for_and_waited_for(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[JobCommand] = []

    def answer(request: JobCommand) -> JobAnswer:
        heard.append(request)
        return JobAnswer(RUN, status=stands(job, phase="stopping"))

    def over() -> None:
        end(job, JobState.STOPPED, "stopped by `trimtab stop`")
        disown(job)

    with answering(job, answer):
        assert cli_stop.stop(RUN, now=False, as_json=False, clock=Script(lambda: None, over)) == 0
    assert heard[0] == JobCommand(RUN, "stop") and {one.command for one in heard[1:]} <= {"status"}
    said = capsys.readouterr()
    assert said.out == (
        f"{RUN}: stopped: stopped by `trimtab stop`; its checkpoint holds 80 of 100 batches, "
        f"and `trimtab resume {RUN}` goes on\n"
    )
    assert "stopping" in said.err


def test_a_second_stop_may_ask_for_haste(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[JobCommand] = []

    def answer(request: JobCommand) -> JobAnswer:
        heard.append(request)
        return JobAnswer(RUN, status=stands(job))

    def ctrl_c() -> None:
        raise KeyboardInterrupt

    with answering(job, answer):
        assert cli_stop.stop(RUN, now=True, as_json=True, clock=Script(ctrl_c)) == 130
    assert heard[0] == JobCommand(RUN, "stop", now=True)
    assert "the job goes on stopping" in capsys.readouterr().err


def test_a_job_that_does_not_run_needs_no_stop(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    die(job)
    assert "it does not run: failed: its controller ended" in shown(capsys, "stop", RUN)
    (job / OWNER).unlink()
    end(job)
    assert shown(capsys, "stop", RUN) == f"{RUN}: it does not run: finished; its checkpoint holds 80 of 100 batches\n"
    assert json.loads(shown(capsys, "stop", RUN, "--json"))["state"] == "finished"


def test_a_job_of_another_machine_is_not_stopped(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(job)
    told = json.loads((job / OWNER).read_text())
    release(job)
    (job / OWNER).write_text(json.dumps({**told, "host": "elsewhere"}))
    assert trimtab("stop", RUN) == 1
    assert "its controller runs on elsewhere" in capsys.readouterr().err


@pytest.mark.parametrize("heeds", [True, False])
def test_a_job_that_is_being_prepared_gets_a_signal_where_that_ends_only_the_job(
    job: Path, heeds: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    own(job)
    told = json.loads((job / OWNER).read_text())
    release(job)
    told |= {"pid": process.pid, "began": psutil.Process(process.pid).create_time(), "heeds_signals": heeds}
    (job / OWNER).write_text(json.dumps(told))
    try:
        assert trimtab("stop", RUN) == (0 if heeds else 1)
        assert heeds or (process.poll() is None and "stop it there" in capsys.readouterr().err)
        if not heeds:
            return
        assert process.wait(10) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert "failed: its controller ended" in capsys.readouterr().out


def test_a_checkpoint_is_waited_for(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [saved(1, 0), saved(1, 0), saved(1, 1, batches=60)]
    heard: list[JobCommand] = []

    def answer(request: JobCommand) -> JobAnswer:
        heard.append(request)
        return JobAnswer(RUN, status=stands(job, checkpoint=answers.pop(0)))

    with answering(job, answer):
        assert cli_stop.checkpoint(RUN, as_json=False, clock=Script()) == 0
    assert [one.command for one in heard] == ["checkpoint", "status", "status"]
    assert capsys.readouterr().out == f"{RUN}: its checkpoint holds 60 of 100 batches\n"


def failing(told: dict[str, object], refused: str = "") -> Callable[[JobCommand], JobAnswer]:
    return lambda request: JobAnswer(RUN, refused, told)


def test_a_checkpoint_that_fails_or_comes_too_late_says_why(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(job, failing(stands(job, checkpoint=saved(1, 1, error="no room")))):
        assert trimtab("checkpoint", RUN) == 1
    assert "the checkpoint could not be written: no room" in capsys.readouterr().err
    with answering(job, failing(stands(job), "it is being stopped, and writes its last checkpoint")):
        assert trimtab("checkpoint", RUN) == 1
    assert "it is being stopped" in capsys.readouterr().err
    die(job)
    assert trimtab("checkpoint", RUN) == 1
    assert f"its controller has died; `trimtab resume {RUN}` goes on with it" in capsys.readouterr().err


# ---- the list


def test_jobs_are_listed_with_what_became_of_their_controllers(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead = job_folder(job.parent / "20261201-110000-dddddd")
    die(dead)
    end(job_folder(job.parent / "20261201-100000-eeeeee"), JobState.FAILED, "no memory")
    prepared = job.parent / "20261201-130000-bbbbbb"
    prepared.mkdir()
    (prepared / "spec.json").write_bytes(to_json(JobSpec("data.csv", job_name="new")))
    (job.parent / f"{PRUNED}half").mkdir()
    own(prepared)
    try:
        with answering(job, lambda request: JobAnswer(RUN, status=stands(job))):
            lines = shown(capsys, "jobs").splitlines()
            told = json.loads(shown(capsys, "jobs", "--json"))
    finally:
        disown(prepared)
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[1:]]
    assert [row[0][9:15] for row in rows] == ["130000", "120000", "110000", "100000"]
    assert [row[2] for row in rows] == ["preparing", "training", "controller died", "failed"]
    assert "55 of 100 (55%)" in rows[1] and "2 × 0.75 + 1 × 0.5" in rows[1] and "40 of 100 (40%)" in rows[2]
    assert [one["controller"] for one in told["jobs"]] == ["silent", "answers", "died", "ended"]


def test_no_jobs_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    assert "no jobs in" in shown(capsys, "jobs")
    assert json.loads(shown(capsys, "jobs", "--json"))["jobs"] == []
    assert "0 jobs gone" in shown(capsys, "jobs", "prune", "--older-than", "1d")


# ---- prune


def pruned(capsys: pytest.CaptureFixture[str], older: str = "30d", *, dry_run: bool = False, days: float = 40) -> str:
    clock = ManualClock(wall=2000.0 + days * DAY)
    assert cli_list.prune(older, dry_run=dry_run, as_json=False, clock=clock) == 0
    return capsys.readouterr().out


def test_an_old_job_goes_and_a_dry_run_only_says_so(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(job)
    (job / "outside").symlink_to(job.parent.parent / "precious")
    (job.parent.parent / "precious").mkdir()
    young = end(job_folder(job.parent / "20261220-120000-cccccc"), ended_at=2000.0 + 20 * DAY)
    assert f"would remove {RUN} (finished 40 days ago" in pruned(capsys, dry_run=True) and job.exists()
    text = pruned(capsys)
    assert text.splitlines()[0].startswith(f"removed {RUN}") and text.splitlines()[1].startswith("1 job gone")
    assert sorted(path.name for path in job.parent.iterdir()) == [young.name]
    assert (job.parent.parent / "precious").exists()


def test_what_runs_may_run_or_is_needed_stays(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = job.parent
    end(job)  # its checkpoint is read by the next one, which runs
    reader = job_folder(jobs / "20261201-120001-111111")
    source = end(job_folder(jobs / "20261201-120002-222222"))
    asks = jobs / "20261201-120003-333333"
    asks.mkdir()
    (asks / "spec.json").write_bytes(to_json(JobSpec("data.csv", init_from=source.name)))
    waits = end(job_folder(jobs / "20261201-120004-444444"))
    put(jobs.parent / "outbox", JobRecord(waits.name, "x", JobState.FINISHED, {}, (), (), (), {}, ended_at=2000.0,
                                         job_dir=str(waits)), {}).close()  # fmt: skip
    far = job_folder(jobs / "20261201-120005-555555")
    die(far)
    (far / OWNER).write_text(json.dumps({**json.loads((far / OWNER).read_text()), "host": "elsewhere"}))
    (jobs / "notes").mkdir()
    (jobs / "link").symlink_to(jobs / RUN)
    for path in (jobs / "notes", reader, asks, far):
        for entry in (path, *path.iterdir()):
            os.utime(entry, (2000.0, 2000.0))
    document = json.loads((reader / "state.json").read_text())
    (name,) = (job / "checkpoints").iterdir()
    document["manifest"]["path"] = str(name)
    (reader / "state.json").write_text(json.dumps(document))
    own(reader)
    own(asks)
    try:
        text = pruned(capsys, older="1d", days=100_000)
    finally:
        disown(reader)
        disown(asks)
    for run, why in (
        (RUN, f"job {reader.name} needs its checkpoint"), (reader.name, "it runs"), (asks.name, "it runs"),
        (source.name, f"job {asks.name} needs its checkpoint"), (waits.name, "its record waits for the store"),
        (far.name, "it may run on another machine"), ("notes", "nothing in it says"),
    ):  # fmt: skip
        assert f"kept {run}: {why}" in text, text
    assert "0 jobs gone" in text and (jobs / "link").is_symlink()


def test_a_job_that_could_still_be_resumed_goes_when_it_is_old(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(job, JobState.STOPPED, "x")
    assert f"removed {RUN} (stopped" in pruned(capsys)


def test_what_is_left_of_an_earlier_prune_goes(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(job)
    half = job.parent / f"{PRUNED}20261101-000000-aaaaaa"
    half.mkdir()
    (half / "x").write_text("x")
    pruned(capsys)
    assert not half.exists()


def test_a_time_that_is_none_is_refused_before_anything(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(job)
    assert trimtab("jobs", "prune", "--older-than", "soon") == 2
    assert trimtab("jobs", "prune") == 2
    assert job.exists() and "--older-than" in capsys.readouterr().err


def test_checkpoints_elsewhere_stay(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = tmp_path / "bucket"
    folder = job_folder(job.parent / "20261201-120009-999999", JobSpec("data.csv", checkpoint_dir=str(elsewhere)))
    document = json.loads((folder / "state.json").read_text())
    elsewhere.mkdir()
    document["manifest"]["path"] = str(elsewhere / folder.name / "manifest.json")
    (folder / "state.json").write_text(json.dumps(document))
    end(folder)
    assert f"its checkpoints in {elsewhere / folder.name} stay" in pruned(capsys)


def test_a_name_that_no_file_could_have_is_one_line(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trimtab("status", "a" * 300, "--json") == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["state"] == "failed" and said.err.startswith("trimtab: JOB: 'aaa")


def test_a_path_with_a_space_is_told_as_a_shell_wants_it(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = job.parent.parent / "my job"
    job.rename(place)
    assert trimtab("checkpoint", place) == 1
    assert f"`trimtab resume '{place}'` goes on" in capsys.readouterr().err


def test_json_before_prune_counts_too(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trimtab("jobs", "--json", "prune", "--older-than", "9000d") == 0
    assert json.loads(capsys.readouterr().out)["removed"] == []


def test_a_folder_of_jobs_that_is_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    (tmp_path / "jobs").write_text("no folder")
    assert trimtab("jobs") == trimtab("jobs", "prune", "--older-than", "30d") == 2


def test_a_job_that_somebody_else_prunes_meanwhile_hides_no_other(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    end(job)
    job_folder(job.parent / "gone")
    real = pruning._old

    def old(left: Left, *more: object) -> pruning.Old:
        if left.run_id == "gone":
            raise FileNotFoundError
        return real(left, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(pruning, "_old", old)
    assert RUN in pruned(capsys, dry_run=True)


def test_ctrl_c_ends_the_waiting_and_the_one_object_is_told(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ctrl_c() -> None:
        raise KeyboardInterrupt

    with answering(job, lambda request: JobAnswer(RUN, status=stands(job, checkpoint=saved(1, 0)))):
        for call in (lambda: cli_stop.stop(RUN, now=False, as_json=True, clock=Script(ctrl_c)),
                     lambda: cli_stop.checkpoint(RUN, as_json=True, clock=Script(ctrl_c))):  # fmt: skip
            assert call() == 130
            said = capsys.readouterr()
            assert json.loads(said.out)["run_id"] == RUN and "not waiting any more" in said.err


def test_a_job_whose_state_cannot_be_read_stays(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(job)
    (job / "state.json").write_text("{]")
    assert f"kept {RUN}: its state.json cannot be read" in pruned(capsys)
    assert job.is_dir()
