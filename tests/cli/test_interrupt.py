"""Ctrl-C or SIGTERM in mid-run, with real processes: exit code 130, one JSON object, nothing left running or lying."""

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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_in_mid_run_ends_everything(tmp_path, number):
    rows, job = tmp_path / "rows.tsv", tmp_path / "job"
    write_sample(str(rows), 5000, 1)
    command = [
        sys.executable, "-m", "trimtab.core.cli", "train", "--data", str(rows), "--job-dir", str(job), "--json",
        "--batch-size", "64", "--epochs", "100000", "--workers", "1", "--ps", "1",
    ]  # fmt: skip
    job_process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in job_process.stderr:
            if line.startswith("training ") and " samples/s" in line:
                break
        assert len(running_in(job)) >= 3, "the command, a parameter server and a worker"
        private = Path(read_json(WorkerConfig, next((job / "pods").glob("worker*"))).secret_file).parent
        assert (private / "secret").exists()
        job_process.send_signal(number)
        out, _ = job_process.communicate()
    finally:
        job_process.kill()
    assert job_process.returncode == 130
    result = json.loads(out)
    assert result["state"] == "stopped"
    assert result["run_id"] and result["error"]
    assert running_in(job) == []
    assert not private.exists()
    assert json.loads((job / "result.json").read_text()) == result, "the record says the same"
