"""Identity: equal for the same job, another for what makes a past plan worthless."""

from dataclasses import replace

from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Limits
from trimtab.core.history.identity import identity, short_hash

SPEC = JobSpec(data="rows.parquet", job_name="daily")
KNOWN = {
    "fingerprint": "f" * 64, "columns": "label y; dense a b", "rows": 1000, "model_fingerprint": "m",
    "limits": Limits(2.0, 2**32, 4, 2),
}  # fmt: skip


def test_the_tags_of_a_job():
    tags = identity(SPEC, **KNOWN, embedding_rows=900)
    version = tags.pop("trimtab_version")
    assert version.count(".") == 2
    assert tags == {
        "model": "dlrm", "model_fingerprint": "m", "data": "f" * 64, "rows": "1000",
        "embedding_rows": "900",
        "columns": short_hash("label y; dense a b"), "batch_size": "1024", "embedding_dim": "16", "job_name": "daily",
        "max_cpu": "2", "max_memory_bytes": "4294967296", "max_workers": "4", "max_ps": "2", "objective": "balanced",
        "mode": "auto",
    }  # fmt: skip


def test_what_matters_changes_a_tag():
    mine = identity(SPEC, **KNOWN)
    others = [
        identity(replace(SPEC, batch_size=512), **KNOWN),
        identity(replace(SPEC, model="dcn"), **KNOWN),
        identity(SPEC, **{**KNOWN, "columns": "label y; dense a"}),
        identity(SPEC, **{**KNOWN, "limits": Limits(1.5, 2**32, 4, 2)}),
    ]
    for other in others:
        assert len([key for key in mine if mine[key] != other[key]]) == 1


def test_seed_and_directory_do_not_matter():
    assert identity(replace(SPEC, seed=7, job_dir="x"), **KNOWN) == identity(SPEC, **KNOWN)


def test_a_cap_that_is_not_known_is_empty():
    tags = identity(SPEC, **{**KNOWN, "limits": Limits()})
    assert [tags[key] for key in ("max_cpu", "max_memory_bytes", "max_workers", "max_ps")] == [""] * 4
    assert tags["embedding_rows"] == ""
    assert all(isinstance(value, str) for value in tags.values())
