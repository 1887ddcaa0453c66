"""`resume` goes on after anything, on real processes: every batch once, one run, nothing left running or lying."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from jobs import audit

from trimtab.core.cluster.leftovers import pods_in
from trimtab.core.controller.resume import resume
from trimtab.core.domain.job import JobState
from trimtab.core.errors import BadInput
from trimtab.core.history.record_file import read_record

HERE = Path(__file__).parent
EPOCHS = 6
LONG_GRACE = 60  # pods of a dead controller stay, for somebody to find them


@pytest.fixture
def begun(sample, tmp_path):
    """Starts a job in a process of its own, and gives that process once enough batches are applied."""
    started = []

    def begin(least=300, grace=LONG_GRACE, ps=2):
        command = [sys.executable, str(HERE / "resume_runner.py"), str(sample), str(tmp_path / "job"), str(EPOCHS)]
        process = subprocess.Popen(
            [*command, str(grace), str(ps)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        for line in process.stdout:
            phase, done = line.split()
            if phase == "training" and int(done) >= least:
                return process
        raise AssertionError("it ended before it was to be killed")

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    for pod in pods_in(tmp_path / "job"):
        pod.kill()


def private_of(job):
    return Path(json.loads((job / "controller.json").read_text())["private"])


def check(result, job, private):
    assert result.state is JobState.FINISHED, result.error
    numbering = audit(result, EPOCHS)
    assert result.batches_expected == result.batches_applied == numbering.batches
    assert result.batches_duplicated == result.batches_skipped == 0
    assert result.rows_expected == result.rows_applied
    assert pods_in(job) == [], "no process is left"
    assert not private.exists(), "no socket and no secret is left"
    assert not (job / "controller.json").exists()
    record = read_record(job / "record.json")
    events = [event.kind for event in record.events]
    assert record.run_id == result.run_id and record.state is JobState.FINISHED
    assert events.count("resumed") == 1 and events.count("plan") == 1, "one story, from its first start"
    times = [sample.time_seconds for sample in record.samples]
    assert times == sorted(times)
    lines = [json.loads(line) for line in (job / "events.jsonl").read_text().splitlines()]
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)
    return record


def test_after_the_controller_was_killed(begun, tmp_path):
    process, job = begun(), tmp_path / "job"
    private = private_of(job)
    with pytest.raises(BadInput, match=f"process {process.pid}"):
        resume(str(job))
    before = read_record(job / "record.json")
    process.kill()
    process.wait()
    assert pods_in(job), "its pods wait for it"
    result = resume(str(job), checkpoint_seconds=1.0)
    record = check(result, job, private)
    assert before.samples == record.samples[: len(before.samples)]
    with pytest.raises(BadInput, match="has finished"):
        resume(str(job))


@pytest.mark.slow
def test_after_everything_was_killed_at_once(begun, tmp_path):
    process, job = begun(), tmp_path / "job"
    private = private_of(job)
    everything = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in everything:
        one.send_signal(signal.SIGSTOP)  # so that none sees another's end
    for one in everything:
        one.kill()
    process.wait()
    psutil.wait_procs(everything)
    assert private.exists()
    check(resume(str(job), checkpoint_seconds=1.0), job, private)


@pytest.mark.slow
def test_after_it_was_stopped_in_order(begun, tmp_path):
    process, job = begun(), tmp_path / "job"
    private = private_of(job)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert json.loads((job / "result.json").read_text())["state"] == "stopped"
    assert pods_in(job) == []
    record = check(resume(str(job), checkpoint_seconds=1.0), job, private)
    assert record.figures["cpu_seconds"] > 0


@pytest.mark.slow
def test_killed_again_and_again_by_the_command(begun, sample, tmp_path):
    """`trimtab resume` itself is killed in mid-run, from another directory, and is resumed once more."""
    process, job = begun(least=100), tmp_path / "job"
    process.kill()
    process.wait()
    command = [sys.executable, "-m", "trimtab.core.cli", "resume", str(job), "--json"]
    again = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
                             start_new_session=True)  # fmt: skip
    for line in again.stderr:
        if line.startswith("training ") and " samples/s" in line:
            break
    again.kill()
    again.communicate()
    last = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert last.returncode == 0, last.stderr
    told = json.loads(last.stdout)
    assert told["state"] == "finished" and told["batches_applied"] == told["batches_expected"]
    assert told["batches_duplicated"] == 0
    assert pods_in(job) == []
    kinds = [json.loads(line)["kind"] for line in (job / "events.jsonl").read_text().splitlines()]
    assert kinds.count("resumed") == 2
    assert Path(told["job_dir"]).samefile(job)
