"""The main job through the command line: its answer, real rows, and that nothing outlives it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from trimtab.core.wire.encode import read_json
from trimtab.core.wire.messages import WorkerConfig

PROMISED = {
    "run_id", "state", "batches_expected", "batches_applied", "batches_duplicated", "batches_skipped", "rows_expected",
    "rows_applied", "rows_skipped", "auc", "log_loss", "samples_per_second", "plans", "warm_start",
    "max_worker_gap_seconds", "wall_seconds", "cpu_seconds", "objective", "decisions", "mlflow", "report",
}  # fmt: skip


def trimtab(*words):
    return subprocess.run(
        [sys.executable, "-m", "trimtab.core.cli", *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_real_rows_are_trained_once_each(shared_data, tmp_path):
    """1,999 real rows of the Criteo challenge, with their header, empty fields and negative numbers."""
    done = trimtab(
        "train", "--data", str(shared_data / "criteo_sample" / "train.tiny.csv"), "--validation", "0.3", "--batch-size",
        "128", "--epochs", "3", "--workers", "2", "--mode", "fixed", "--job-dir", str(tmp_path / "job"), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result.keys() >= PROMISED
    assert result["state"] == "finished"
    rows = result["rows_expected"] // 3
    assert 1300 < rows < 1500  # seven tenths of 1,999
    assert result["batches_expected"] == result["batches_applied"] == 3 * -(-rows // 128)
    assert result["batches_duplicated"] == result["batches_skipped"] == result["rows_skipped"] == 0
    assert result["rows_applied"] == result["rows_expected"] == 3 * rows
    assert result["warm_start"]["runs"] == []
    assert [set(plan) for plan in result["plans"]] == [{"time", "plan", "reason"}]
    assert result["plans"][0]["plan"]["worker"]["replicas"] == 2
    assert 0.6 < result["auc"] < 0.9  # a constant score has 0.5; two thousand rows carry a model to about 0.68
    assert 0 < result["log_loss"] < 0.7
    assert result["metrics"]["auc"] == pytest.approx(result["auc"], abs=0.01)  # the compiled metric agrees with ours
    assert json.loads((tmp_path / "job" / "result.json").read_text()) == result


ORPHANS = """
    import trimtab

    if __name__ == "__main__":
        spec = trimtab.JobSpec({data!r}, model="audit_model:build", batch_size=64, epochs=50, workers=2, ps=2,
                               mode="fixed", job_dir={job!r}, orphan_grace_seconds=1.0)
        trimtab.train(spec, progress=lambda now: print(now.phase, now.batches_done, flush=True))
"""


def test_pods_do_not_outlive_a_killed_controller(sample, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(ORPHANS).format(data=str(sample), job=str(tmp_path / "job")))
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        for line in parent.stdout:
            phase, done = line.split()
            if phase == "training" and int(done) > 10:
                break
        pods = psutil.Process(parent.pid).children(recursive=True)
        assert len(pods) == 6  # two of each role, and the two processes that they are forked from
        private = Path(read_json(WorkerConfig, next((tmp_path / "job" / "pods").glob("worker*"))).secret_file).parent
        assert (private / "secret").exists()
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    gone, alive = psutil.wait_procs(pods, timeout=60)
    for pod in alive:
        pod.kill()
    assert not alive, "these pods outlived their controller"
    assert len(gone) == 6
    assert not private.exists(), "sockets and the secret stay behind"
    logs = sorted((tmp_path / "job" / "logs").iterdir())
    pods_said = [log.read_text() for log in logs if log.name.startswith(("ps-", "worker-"))]
    assert len(pods_said) == 4
    assert all("leaving" in text for text in pods_said)
