"""Ctrl-C in mid-run, with real processes: exit code 130, one JSON object, nothing left running.

SIGTERM takes the same way from the handler on; test_train shows that for both.
"""

import json
import signal
import subprocess
import sys

import psutil
import pytest

from trimtab.core.data.sample import write_sample


def running_in(folder):
    """Processes whose command line names the folder (each process of a job is started with a file in it)."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or []):
            found.append(process)
    return found


@pytest.mark.slow
def test_ctrl_c_in_mid_run_ends_everything(tmp_path):
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
        job_process.send_signal(signal.SIGINT)
        out, _ = job_process.communicate()
    finally:
        job_process.kill()
    assert job_process.returncode == 130
    assert json.loads(out)["state"] == "stopped"
    assert running_in(job) == []
    assert json.loads((job / "result.json").read_text())["state"] == "stopped", "the record says so too"
