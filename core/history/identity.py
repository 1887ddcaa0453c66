"""What makes two jobs alike: the tags that warm start matches on.

A plan of the past is worth something only if the same rows went through the same model, so the tags say what was
trained on what within which caps, in short words that every store can filter. Long values (a dataset's fingerprint, the
roles of forty columns) are given as short hashes: equality is all that is asked of them.
"""

from __future__ import annotations

import hashlib
from importlib import metadata

from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Limits

_HASH_LETTERS = 16


def identity(
    spec: JobSpec, *, fingerprint: str, columns: str, rows: int, model_fingerprint: str, limits: Limits,
    embedding_rows: int | None = None,
) -> dict[str, str]:  # fmt: skip
    """The tags of a job.

    Args:
        spec: the job as asked for.
        fingerprint: of the dataset.
        columns: the roles of its columns in a text that is the same for the same roles.
        rows: rows of the dataset.
        model_fingerprint: of the built model (its tables and dense blocks).
        limits: the caps as they hold, with every number known; an unknown one is "".
        embedding_rows: distinct keys of all columns, which is how many rows the tables end with; None: not known.
    """
    return {
        "model": spec.model,
        "model_fingerprint": model_fingerprint,
        "data": fingerprint,
        "rows": str(rows),
        "embedding_rows": _text(embedding_rows),
        "columns": short_hash(columns),
        "batch_size": str(spec.batch_size),
        "embedding_dim": str(spec.embedding_dim),
        "job_name": spec.job_name,
        "max_cpu": "" if limits.cpu is None else f"{limits.cpu:g}",
        "max_memory_bytes": _text(limits.memory_bytes),
        "max_workers": _text(limits.workers),
        "max_ps": _text(limits.ps),
        "objective": str(spec.objective),
        "mode": str(spec.mode),
        "trimtab_version": _version(),
    }


def short_hash(text: str) -> str:
    """Sixteen letters that stand for `text`; no secret, only equality."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LETTERS]


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _version() -> str:
    """The installed version; "" in a checkout that is not installed."""
    try:
        return metadata.version("trimtab")
    except metadata.PackageNotFoundError:
        return ""
