"""One worker: a parameter server that is killed and comes back with older rows changes no bit of the model."""

import json
import re
import signal

import numpy as np
import pytest
from jobs import PS, pods_of

from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.ps.reader import read_rows
from trimtab.core.wire.encode import read_json


def tables_of(sample, job_dir, servers, kills=0):
    """The tables of a job and what its worker sent again; the oldest server is killed, 100 batches apart."""
    killed = []

    def progress(now):
        go_on = killed[-1] if killed else 0
        if len(killed) < kills and now.batches_done > go_on + 100 and now.phase == "training":
            victims = sorted(pods_of(PS), key=lambda one: one.create_time())
            victims[0].send_signal(signal.SIGKILL)
            killed.append(now.batches_done)

    spec = JobSpec(
        str(sample), epochs=3, batch_size=64, embedding_dim=4, workers=1, ps=servers, job_dir=str(job_dir), seed=3
    )
    result = train(spec, progress=progress, checkpoint_seconds=0.5)
    assert result.state is JobState.FINISHED, result.error
    assert result.batches_applied == result.batches_expected and result.batches_duplicated == 0
    assert len(killed) == kills
    events = [json.loads(line) for line in (job_dir / "events.jsonl").read_text().splitlines()]
    assert sum("exit code 137" in json.dumps(event) for event in events) == kills
    assert pods_of("trimtab.core") == []
    logs = "".join(path.read_text() for path in (job_dir / "logs").glob("worker-*.log"))
    again = sum(int(count) for count in re.findall(r"sent (\d+) batches again", logs))
    return read_rows(read_manifest(result.model), read_json(ModelSpec, job_dir / "model.json")), again


@pytest.mark.parametrize("servers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_servers_leave_the_very_same_bits(sample, tmp_path, servers):
    """What the new process lacks lies in the worker's log and is sent again, in the old order, before anything else."""
    still, none = tables_of(sample, tmp_path / "still", servers)
    crashed, some = tables_of(sample, tmp_path / "crashed", servers, kills=2)
    assert none == 0 < some
    assert still.keys() == crashed.keys()
    for name in still:
        assert (still[name][0] == crashed[name][0]).all(), name
        assert (still[name][1] == crashed[name][1]).all(), name
    assert np.isfinite(still["dense"][1]).all()
