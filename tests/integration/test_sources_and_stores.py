"""Yesterday's model with today's rows, and checkpoints in a store at a distance: real jobs, audited row by row."""

import sys
from pathlib import Path

import numpy as np
import pytest
from jobs import pods_of

from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.errors import BadInput
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.ps.reader import read_rows
from trimtab.core.wire.encode import read_json

sys.path.append(str(Path(__file__).parent.parent / "ps"))
from odd_stores import odd_store

AUDIT = "audit_model:build"


def job(sample, job_dir, **more):
    given = {"model": AUDIT, "batch_size": 256, "workers": 1, "ps": 2, "seed": 3, **more}
    return JobSpec(str(sample), job_dir=str(job_dir), **given)


def counts_of(result):
    """Each column's ids and how often they were applied, over all that went into the rows."""
    model = read_json(ModelSpec, Path(result.job_dir) / "model.json")
    rows = read_rows(read_manifest(result.model), model)
    return {name: (keys, -values[:, 0]) for name, (keys, values) in rows.items()}


def added(*parts):
    """Counts by id, summed."""
    ids = np.unique(np.concatenate([keys for keys, _ in parts]))
    total = np.zeros(len(ids))
    for keys, counts in parts:
        total[np.searchsorted(ids, keys)] += counts
    return ids, total


def check(result, batches):
    assert result.state is JobState.FINISHED, result.error
    assert (result.batches_applied, result.batches_duplicated) == (batches, 0)
    assert result.rows_applied == result.rows_expected
    assert pods_of("trimtab.core") == []


@pytest.mark.slow
def test_a_job_goes_on_from_another_ones_rows_and_counts_its_own(sample, tmp_path, monkeypatch):
    """The second job's rows are the first one's counts and its own; its figures are of its own batches only."""
    store = odd_store(tmp_path, monkeypatch)
    first = train(job(sample, tmp_path / "first", epochs=2))
    plain = train(job(sample, tmp_path / "plain", seed=4, ps=1))
    check(first, first.batches_expected)
    here = f"{store.url}/checkpoints"
    log, told = tmp_path / "second" / "events.jsonl", []

    def troubled(progress):
        """From the tenth batch on the store cuts uploads, until that was noticed."""
        if log.exists() and "bytes have arrived" in log.read_text():
            told.append(progress.batches_done)
            store.faults()
        elif progress.batches_done >= 10:
            store.faults(cut_at=3000)

    second = train(
        job(sample, tmp_path / "second", seed=4, ps=1, init_from=first.job_dir, checkpoint_dir=here),
        checkpoint_seconds=0.3, progress=troubled,
    )  # fmt: skip
    check(second, plain.batches_expected)
    assert told, "a checkpoint that was cut is told, and the job goes on"
    assert second.model.startswith(f"{here}/{second.run_id}/manifest-")
    before, own, after = counts_of(first), counts_of(plain), counts_of(second)
    assert len(before) > 20
    events = log.read_text()
    assert f"starts with the rows of run {first.run_id}, which hold {first.batches_expected} batches" in events
    for name, found in after.items():
        ids, total = added(before[name], own[name])
        assert found[0].tolist() == ids.tolist()
        assert found[1].tolist() == total.tolist()
    left = sorted(each.name for each in (store.folder / "checkpoints" / second.run_id).iterdir())
    named = {Path(entry.file).name for entry in read_manifest(second.model).entries}
    manifests = [name for name in left if name.startswith("manifest-")]
    assert len(manifests) <= 2
    assert {*left} == {*named, *manifests, "model.json", "metadata.json"}, "what was superseded is deleted"

    third = train(job(sample, tmp_path / "third", seed=4, init_from=f"{here}/{second.run_id}"))
    check(third, plain.batches_expected)
    for name, found in counts_of(third).items():
        assert found[1].tolist() == added(after[name], own[name])[1].tolist()
    with pytest.raises(BadInput, match="--init-from"):
        train(job(sample, tmp_path / "other", model="dlrm", init_from=first.job_dir))
    assert not (tmp_path / "other").exists()
