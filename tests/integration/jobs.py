"""What tests of real jobs share: finding their processes, and the audit of their rows."""

from pathlib import Path

import numpy as np
import psutil

from trimtab.core.data.dataset import Dataset
from trimtab.core.data.numbering import numbering_of
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.ps.reader import read_rows
from trimtab.core.wire.encode import read_json
from trimtab.core.wire.messages import WorkerConfig

WORKER, PS = "trimtab.core.training.worker", "trimtab.core.ps.main"


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


def audit(result, epochs, numbers=None):
    """Check a job's audit table against its data, id by id; returns the job's batch numbers.

    `numbers` are the batches that its model holds: all of them if it has finished, the manifest's if it was stopped.
    """
    job_dir = Path(result.job_dir)
    spec, model = read_json(JobSpec, job_dir / "spec.json"), read_json(ModelSpec, job_dir / "model.json")
    config = read_json(WorkerConfig, sorted((job_dir / "pods").glob("worker*.json"))[0])
    dataset = Dataset.open(Path(config.dataset))
    numbering = numbering_of(spec, dataset.rows)
    held = range(numbering.batches) if numbers is None else numbers
    rows = np.concatenate([numbering.rows_of(number) for number in held])
    assert numbers is not None or len(rows) == epochs * numbering.train_rows
    keys = dataset.read(rows).keys
    found = read_rows(read_manifest(result.model), model)
    checked = 0
    for number, column in enumerate(dataset.columns.single):
        ids, counts = np.unique(keys[:, number], return_counts=True)
        table_keys, values = found[f"count_{column.name}"]
        assert table_keys.tolist() == ids.tolist(), f"{column.name}: other ids than the data has"
        wrong = np.flatnonzero(values[:, 0] != -counts)
        examples = [(int(ids[at]), -float(values[at, 0]), int(counts[at])) for at in wrong[:3]]
        assert not examples, f"{column.name}: {len(wrong)} ids counted wrongly: (id, applied, in the data) {examples}"
        checked += len(ids)
    assert checked > 1000
    return numbering
