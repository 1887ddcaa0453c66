"""What a job will need of memory, before it has started: by similar past runs, else by its rows alone.

Memory per pod is fixed for a job's life, so it is worth a forecast. A past run has a curve of its table over its rows;
that curve, taken on to as many rows as the new job has, says how large the table becomes. Without past runs the number
of distinct keys in the converted rows is known, and no table can hold more keys of a column than it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.core.domain.quantities import format_memory
from trimtab.core.domain.records import JobRecord, Sample
from trimtab.core.perf.memory import INDEX_BYTES, USUAL_EXPONENT, Expected, Growth, KeyGrowth, grown, worker_bytes

# Figures of a record that a warm start reads without its timeline.
TABLE_FIGURE, EXPONENT_FIGURE, WORKER_FIGURE = "table_bytes", "table_exponent", "worker_peak_bytes"
MEMORY_FIGURES = {"ps": "ps_memory_bytes", "worker": "worker_memory_bytes"}  # of the pod with most
_ROW_FLOATS = 2.0  # of an embedding row over its values: Adagrad's slots lie beside them
_FULL_LOG_BATCHES = 300  # of one worker, until its log of gradients is full and its memory says something
_DISTINCT_ERROR = 0.1  # of keys counted by a sketch, and of rows that are held out


@dataclass(frozen=True)
class RowBytes:
    """What a row of the data means in memory.

    Attributes:
        values: bytes of the embedding values that one row looks up.
        key: bytes in the tables of one distinct key of the columns, index included.
    """

    values: float
    key: float


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of all PSs' tables together at the job's end, and of one worker; None: unknown. `source`: in words."""

    table: Expected | None = None
    worker: Expected | None = None
    source: str = ""


def memory_need(past: Sequence[JobRecord], tags: Mapping[str, str], row: RowBytes | None = None) -> MemoryNeed:
    """What the new job with `tags` needs.

    Args:
        past: records of runs that are similar enough to start from; any others only mislead.
        tags: the new job's identity. row: of its data, None: unknown.
    """
    tables = [(one.run_id, found) for one in past if (found := _table(one, tags)) is not None]
    batch_size, distinct = _number(tags, "batch_size"), _number(tags, "embedding_rows")
    workers = [seen for one in sorted(past, key=lambda one: one.ended_at or 0.0) if (seen := _worker(one)) is not None]
    worker = None
    if batch_size and (workers or row is not None):
        worker = worker_bytes(int(batch_size), row.values if row is not None else 0.0, workers)
    if tables:
        run_id, table = max(tables, key=lambda one: one[1].middle)  # too much memory costs little, too little kills
        return MemoryNeed(table, worker, f"run {run_id}")
    if not distinct or row is None:
        return MemoryNeed(None, worker)
    most = distinct * row.key
    return MemoryNeed(Expected(most, 0.0, most * (1 + _DISTINCT_ERROR)), worker, "the distinct keys in the rows")


def _table(job: JobRecord, tags: Mapping[str, str]) -> Expected | None:
    """The new job's tables by one past run's growth; None where that run does not tell."""
    batch, rows, dim = (_number(job.tags, name) for name in ("batch_size", "rows", "embedding_dim"))
    wanted, new_dim = _number(tags, "rows"), _number(tags, "embedding_dim")
    expected = job.figures.get("batches_expected", 0.0)
    if not (batch and rows and wanted) or not math.isfinite(expected) or expected <= 0:
        return None
    end = min(expected * batch, rows) * wanted / rows
    wider = 1.0
    if dim and new_dim:
        wider = (4 * _ROW_FLOATS * new_dim + INDEX_BYTES) / (4 * _ROW_FLOATS * dim + INDEX_BYTES)
    samples: tuple[Growth, ...] = ()
    for one in job.samples:
        samples = grown(samples, Growth(min(one.batches_done * batch, rows), float(one.table_bytes)))
    if samples:
        return KeyGrowth(samples).at(end).scaled(wider)
    trained = min(job.figures.get("batches_trained", 0.0) * batch, rows)
    return _by_figures(job, end / trained, wider) if trained > 0 else None


def _by_figures(job: JobRecord, times: float, wider: float) -> Expected | None:
    """The same for a run whose timeline was not read: by the table it ended with and how that was growing."""
    last = job.figures.get(TABLE_FIGURE, 0.0)
    if not (math.isfinite(last) and last > 0 and times > 0):
        return None
    exponent = job.figures.get(EXPONENT_FIGURE, USUAL_EXPONENT)
    bounds = sorted((1.0, times))
    return Expected(last * times ** min(1.0, max(0.0, exponent)), last * bounds[0], last * bounds[1]).scaled(wider)


def _worker(job: JobRecord) -> tuple[int, int] | None:
    """Batch size and peak resident bytes of a run's workers; None where they are not known or it was too short."""
    batch = _number(job.tags, "batch_size")
    most = max((change.plan.worker.replicas for change in job.plans), default=1)
    done = job.figures.get("batches_trained", 0.0)
    known = job.figures.get(WORKER_FIGURE, 0.0)
    peak = peak_worker(job.samples) or (int(known) if math.isfinite(known) else 0)
    return (int(batch), peak) if batch and peak > 0 and done >= most * _FULL_LOG_BATCHES else None


def peak_worker(samples: Sequence[Sample]) -> int:
    """The most resident bytes that a worker had; 0 where none was seen."""
    return max((pod.rss_bytes for one in samples for pod in one.pods if pod.role == "worker"), default=0)


def _number(tags: Mapping[str, str], name: str) -> float | None:
    """A tag that is a positive number; None for any other."""
    try:
        number = float(tags.get(name, ""))
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def in_words(need: MemoryNeed) -> str:
    """What the table is expected to become, as part of a sentence; "" where that is not known."""
    if need.table is None:
        return ""
    nbytes = max(1, math.ceil(need.table.middle / 2**20)) << 20
    most = "at most " if need.table.low == 0 else ""
    return f"the tables should reach {most}{format_memory(nbytes)} by {need.source}"
