"""Ctrl-C, SIGTERM or SIGHUP in mid-run, with real processes: a last checkpoint, exit code 130, one JSON object, nothing
left running or lying; and the job goes on where it was stopped."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from trimtab.core.data.sample import write_sample
from trimtab.core.wire.encode import read_json
from trimtab.core.wire.messages import WorkerConfig


def running_in(folder):
    """Processes whose command line names the folder (each process of a job is started with a file in it)."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or []):
            found.append(process)
    return found


@pytest.fixture
def begun(tmp_path):
    """A job in mid-training, ended whatever the test does: the process and the lines that it says from then on."""
    rows, job = tmp_path / "rows.tsv", tmp_path / "job"
    write_sample(str(rows), 5000, 1)
    processes = []

    def begin(*options):
        command = [
            sys.executable, "-m", "trimtab.core.cli", "train", "--data", str(rows), "--job-dir", str(job), "--json",
            "--batch-size", "64", "--workers", "1", "--ps", "1", "--mode", "fixed", *options,
        ]  # fmt: skip
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        for line in processes[-1].stderr:
            if line.startswith("training ") and " samples/s" in line:
                break
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def private_of(job):
    return Path(read_json(WorkerConfig, next((job / "pods").glob("worker*"))).secret_file).parent


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_in_mid_run_writes_a_checkpoint_and_ends_everything(begun, tmp_path, number):
    job_process, job = begun("--epochs", "100000"), tmp_path / "job"
    assert len(running_in(job)) >= 3, "the command, a parameter server and a worker"
    private = private_of(job)
    assert (private / "secret").exists()
    job_process.send_signal(number)
    out, err = job_process.communicate()
    assert job_process.returncode == 130
    result = json.loads(out)
    assert result["state"] == "stopped"
    held = result["batches_applied"]
    assert held > 0
    assert result["error"] == f"interrupted; its checkpoint holds {held} of {result['batches_expected']} batches"
    assert "stopping  " in err, "how far it was"
    assert running_in(job) == []
    assert not private.exists()
    assert json.loads((job / "result.json").read_text()) == result, "the record says the same"


@pytest.mark.slow
def test_a_resume_after_a_stop_trains_only_what_is_left(begun, tmp_path):
    job_process, job = begun("--epochs", "40"), tmp_path / "job"
    job_process.send_signal(signal.SIGINT)
    out, _ = job_process.communicate()
    stopped = json.loads(out)
    assert 0 < stopped["batches_applied"] < stopped["batches_expected"]
    command = [sys.executable, "-m", "trimtab.core.cli", "resume", str(job), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["batches_applied"] == result["batches_expected"]
    assert (result["batches_duplicated"], result["resends_dropped"]) == (0, stopped["resends_dropped"])
    (server,) = json.loads((job / "ps.json").read_text())["servers"]
    assert server["pushes"] == result["batches_expected"] - stopped["batches_applied"], "one per batch that was left"
