"""The promise about data, on real processes: each batch of each epoch applied exactly once, whatever was killed."""

import signal
from pathlib import Path

import numpy as np
import pytest
from jobs import PS, WORKER, audit, pods_of

from trimtab.core.controller.launch import Launcher
from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.ps.reader import read_rows
from trimtab.core.wire.encode import read_json

AUDIT = "audit_model:build"


def check_counts(result, numbering):
    assert result.state is JobState.FINISHED, result.error
    assert result.batches_expected == result.batches_applied == numbering.batches
    assert result.batches_duplicated == result.batches_skipped == result.rows_skipped == 0
    assert result.rows_expected == result.rows_applied
    assert pods_of("trimtab.core") == []


def test_every_id_is_counted_as_often_as_the_data_has_it(sample, tmp_path):
    spec = JobSpec(
        str(sample), model=AUDIT, epochs=2, batch_size=256, workers=2, ps=2, job_dir=str(tmp_path / "job"), seed=3
    )
    result = train(spec)
    check_counts(result, audit(result, epochs=2))


def test_a_worker_killed_in_mid_push_loses_and_doubles_nothing(sample, tmp_path, monkeypatch):
    half_push = str(Path(__file__).parent / "half_push_worker.py")
    plain, sabotaged = Launcher.pod_spec, []

    def pod_spec(self, pod):
        made = plain(self, pod)
        if pod.role == "worker" and not sabotaged:
            sabotaged.append(made.name)
            argv = (made.argv[0], half_push, made.argv[-1])
            made = type(made)(made.name, made.role, argv, made.log_path, made.cpu, made.memory_bytes)
        return made

    monkeypatch.setattr(Launcher, "pod_spec", pod_spec)
    spec = JobSpec(
        str(sample), model=AUDIT, epochs=2, batch_size=256, workers=1, ps=2, job_dir=str(tmp_path / "job"), seed=3
    )
    result = train(spec)
    check_counts(result, audit(result, epochs=2))
    events = (tmp_path / "job" / "events.jsonl").read_text()
    assert f"{sabotaged[0]} ended with exit code 137" in events
    assert result.resends_dropped > 0  # the servers that had the batch already dropped its second coming


@pytest.mark.parametrize("module", [WORKER, PS])
def test_kill_9_in_the_middle_of_the_job(sample, tmp_path, module):
    killed = []  # (process id, batches done by then)

    def progress(now):
        go_on = killed[-1][1] if killed else 0  # the second comes only after the job has gone on from the first
        if len(killed) < 2 and now.batches_done > go_on + 40 and now.phase == "training":
            for victim in pods_of(module)[:1]:
                victim.send_signal(signal.SIGKILL)
                killed.append((victim.pid, now.batches_done))

    spec = JobSpec(
        str(sample), model=AUDIT, epochs=6, batch_size=128, workers=1, ps=2, job_dir=str(tmp_path / "job"),
        seed=3,
    )  # fmt: skip
    result = train(spec, progress=progress, checkpoint_seconds=1.0)
    assert len(killed) == 2
    check_counts(result, audit(result, epochs=6))
    events = (tmp_path / "job" / "events.jsonl").read_text().splitlines()
    assert sum("ended with exit code 137" in event for event in events) == 2


def test_one_worker_gives_the_same_bits_with_any_number_of_servers(sample, tmp_path):
    tables = []
    for servers in (1, 3):
        job_dir = tmp_path / f"job-{servers}"
        spec = JobSpec(str(sample), batch_size=512, workers=1, ps=servers, job_dir=str(job_dir), seed=3)
        result = train(spec)
        assert result.state is JobState.FINISHED, result.error
        model = read_json(ModelSpec, job_dir / "model.json")
        tables.append(read_rows(read_manifest(result.model), model))
    one, three = tables
    assert one.keys() == three.keys()
    for name in one:
        assert (one[name][0] == three[name][0]).all()
        assert (one[name][1] == three[name][1]).all(), name
    assert np.isfinite(one["dense"][1]).all()


def test_a_batch_that_is_not_finite_is_skipped_everywhere_and_counted(tmp_path):
    """One row of 2,000 makes the loss NaN: its batch of each epoch changes nothing, and the model stays finite."""
    rows = np.random.default_rng(1)
    lines = [f"{int(rows.random() < 0.5)},{1 + rows.random():.3f},{rows.integers(40)}" for _ in range(2000)]
    lines[777] = "1,-1.0,3"
    data, columns = tmp_path / "rows.csv", tmp_path / "columns.yaml"
    data.write_text("\n".join(["y,x,c", *lines]) + "\n")
    columns.write_text("label: y\ndense: [{name: x, transform: none}]\ncategorical: [c]\n")
    spec = JobSpec(
        str(data), columns=str(columns), model="skipping_model:build", epochs=3, batch_size=100, workers=1, ps=2,
        validation=0.0, job_dir=str(tmp_path / "job"),
    )  # fmt: skip
    result = train(spec)
    assert result.state is JobState.FINISHED, result.error
    assert (result.batches_expected, result.batches_applied, result.batches_skipped) == (60, 57, 3)
    assert (result.rows_expected, result.rows_applied, result.rows_skipped) == (6000, 5700, 300)
    assert result.auc is None and result.log_loss is None  # nothing was held out
    tables = read_rows(read_manifest(result.model), read_json(ModelSpec, tmp_path / "job" / "model.json"))
    assert {"rows", "dense", "state"} <= tables.keys()
    for name, (_, values) in tables.items():
        assert np.isfinite(values).all(), name
    averages = tables["state"][1].reshape(-1)[:16]
    assert np.abs(averages[:8]).max() > 0 and not np.allclose(averages[8:], 1.0)  # BatchNormalization did move
