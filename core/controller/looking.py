"""Everything that is looked at before a job starts: the rows, the model, past runs. Nothing is started here.

A job that begins and a dry run (`trimtab plan`) take the same way up to the first plan, so that what a dry run tells is
what a job would do. Cheap things come first, so that bad input is told soon.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.controller.growing import row_bytes
from trimtab.core.controller.places import home
from trimtab.core.controller.preparing import JobRows, prepare_rows, teller
from trimtab.core.controller.progress import Progress
from trimtab.core.controller.resources import Beginning, Memory, Resources
from trimtab.core.controller.source import Source, check_source, find_source
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.history.identity import identity
from trimtab.core.training.probe_client import probe
from trimtab.core.wire.encode import to_json

Show = Callable[[Progress], None]


@dataclass(frozen=True)
class Looked:
    """A job whose rows and model are known.

    Attributes:
        spec: as asked for, with its source's roles of columns where it names none. source: whose rows it begins with.
        rows, model: of the job.
    """

    spec: JobSpec
    source: Source | None
    rows: JobRows
    model: ModelSpec


def source_of(spec: JobSpec) -> Source | None:
    """The checkpoint that the job begins with; None without one. To be asked before anything is made for the job.

    Raises:
        BadInput: there is none of that name, or it cannot be read.
    """
    return find_source(spec.init_from, home()) if spec.init_from is not None else None


def look(spec: JobSpec, source: Source | None, place: Path, show: Show, stop: threading.Event) -> Looked:
    """Look at the job's rows and model.

    Args:
        spec: of the job. source: that it begins with.
        place: a directory that takes what the model's probe writes.
        show: hears what is done. stop: ends it.

    Raises:
        BadInput: something given cannot be used. Interrupted: `stop` was set.
    """
    tell = teller(show, stop)
    spec = _columns_of(source, spec, place)
    rows = prepare_rows(spec, home() / "cache" / "data", show, tell)
    tell(f"looking at model {spec.model}")
    model = probe(spec, rows.dataset, place)
    if source is not None:
        check_source(source, model, rows.data.columns)
    return Looked(spec, source, rows, model)


def begin(looked: Looked, resources: Resources, memory: Memory) -> tuple[dict[str, str], Beginning]:
    """The job's identity, and its first plan from the past runs that share it.

    Raises:
        BadInput: the caps are below the smallest plan.
    """
    spec, rows = looked.spec, looked.rows
    tags = identity(
        spec, fingerprint=rows.data.fingerprint, columns=to_json(rows.data.columns).decode(), rows=rows.data.rows,
        model_fingerprint=looked.model.fingerprint, limits=resources.asked,
        embedding_rows=sum(rows.data.metadata.distinct.values()),
    )  # fmt: skip
    return tags, memory.begin(spec, resources, tags, row=row_bytes(looked.model, rows.data.columns))


def _columns_of(source: Source | None, spec: JobSpec, place: Path) -> JobSpec:
    """The job with its source's roles of columns, where it names none: today's rows are read as yesterday's were."""
    if source is None or spec.columns is not None or source.columns is None:
        return spec
    path = place / "columns.json"
    path.write_text(json.dumps(source.columns.as_dict(), indent=1) + "\n", encoding="utf-8")
    return replace(spec, columns=str(path))
