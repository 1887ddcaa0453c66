"""Real jobs: real processes, real sockets, small data."""

import os
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

HERE = Path(__file__).parent
ROWS = 12_000


@pytest.fixture(scope="session")
def sample(tmp_path_factory):
    """A small Criteo-shaped file."""
    from trimtab.core.data.sample import write_sample

    path = tmp_path_factory.mktemp("data") / "sample.parquet"
    write_sample(str(path), ROWS, seed=5)
    return path


@pytest.fixture(autouse=True)
def user_code(monkeypatch):
    """The audit model is importable here and in every process of the job."""
    monkeypatch.chdir(HERE)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


def pods_of(module, parent=None):
    """Live processes of one module below `parent` (this process by default)."""
    found = []
    for child in (parent or psutil.Process()).children(recursive=True):
        try:
            if any(module in word for word in child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


WORKER, PS = "trimtab.core.training.worker", "trimtab.core.ps.main"


def audit(result, epochs):
    """Check the audit table of a finished job against the data, id by id."""
    from trimtab.core.data.dataset import Dataset
    from trimtab.core.domain.job import JobSpec
    from trimtab.core.domain.model_spec import ModelSpec
    from trimtab.core.ps.manifest import read_manifest
    from trimtab.core.ps.reader import read_rows
    from trimtab.core.training.worker import numbering_of
    from trimtab.core.wire.encode import read_json

    job_dir = Path(result.job_dir)
    spec, model = read_json(JobSpec, job_dir / "spec.json"), read_json(ModelSpec, job_dir / "model.json")
    configs = sorted((job_dir / "pods").glob("worker*.json"))
    from trimtab.core.wire.messages import WorkerConfig

    dataset = Dataset.open(Path(read_json(WorkerConfig, configs[0]).dataset))
    numbering = numbering_of(spec, dataset)
    rows = np.concatenate([numbering.rows_of(number) for number in range(numbering.batches)])
    assert len(rows) == epochs * numbering.train_rows
    keys = dataset.read(rows).keys
    found = read_rows(read_manifest(result.model), model)
    checked = 0
    for number, column in enumerate(dataset.columns.single):
        ids, counts = np.unique(keys[:, number], return_counts=True)
        table_keys, values = found[f"count_{column.name}"]
        assert table_keys.tolist() == ids.tolist(), f"{column.name}: other ids than the data has"
        wrong = np.flatnonzero(values[:, 0] != -counts)
        assert not len(wrong), f"{column.name}: {len(wrong)} ids counted wrongly, first {ids[wrong[0]]}: {values[wrong[0], 0]} for {counts[wrong[0]]}"
        checked += len(ids)
    assert checked > 1000
    return numbering


def python(argv):
    """The interpreter with the given arguments."""
    return [sys.executable, *argv]
