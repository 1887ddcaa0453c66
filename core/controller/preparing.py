"""A job's rows: converted once, looked at, and numbered.

A new job and a resumed one do the same here. What a resumed one gets must be what the first one got, because batch
numbers mean rows only together with them; `same_rows` holds that up against what stands in the job's directory.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.controller.progress import Progress
from trimtab.core.controller.result import RowCounts
from trimtab.core.data.batches import BatchReader
from trimtab.core.data.columns import Columns, columns_from_dict
from trimtab.core.data.dataset import Dataset
from trimtab.core.data.describe import columns_line
from trimtab.core.data.numbering import numbering_of
from trimtab.core.data.prepare import prepare
from trimtab.core.data.store import METADATA_FILE
from trimtab.core.domain.job import JobSpec
from trimtab.core.errors import BadInput, Interrupted

ROWS = "rows.json"  # in the job's directory: where its rows came from
_ADDRESS = "://"

Show = Callable[[Progress], None]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class JobRows:
    """The rows of one job.

    Attributes:
        data: what is trained on. dataset: its directory. validation: directory of other rows to evaluate on.
        counts: batch number to rows. batches, evaluation_batches: how many there are.
    """

    data: Dataset
    dataset: Path
    validation: Path | None
    counts: RowCounts
    batches: int
    evaluation_batches: int

    @property
    def expected(self) -> int:
        """Rows that the whole job trains on, each epoch's counted."""
        return self.counts.train_rows * self.counts.epochs


def teller(show: Show, stop: threading.Event) -> Tell:
    """Says what is being prepared; raises Interrupted once the job is to stop."""

    def tell(message: str, share: float = 0.0) -> None:
        if stop.is_set():
            raise Interrupted("stopped before anything was started")
        show(Progress(0, 0, 0.0, None, None, "preparing", f"{message}: {share:.0%}" if share else message))

    return tell


def prepare_rows(
    spec: JobSpec, cache: Path, show: Show, tell: Callable[..., None], columns: Columns | None = None
) -> JobRows:
    """Convert the job's rows where that is still to do, and count them.

    Args:
        spec: of the job. cache: of converted datasets.
        show: hears of the columns. tell: hears what is done, with the share.
        columns: roles that are known already; None: as the job's file names them, or detected.

    Raises:
        BadInput: the rows cannot be used.
    """
    dataset_path = prepare(spec.data, spec.columns, cache, tell, columns=columns)
    dataset = Dataset.open(dataset_path)
    show(Progress(0, 0, 0.0, None, None, "columns", columns_line(dataset.metadata)))
    if dataset.labels_distinct < 2:
        raise BadInput("--data", spec.data, f"column {dataset.columns.label} has one value only; give both 0 and 1")
    numbering = numbering_of(spec, dataset.rows)
    other_path, other = None, None
    if isinstance(spec.validation, str):
        other_path = prepare(spec.validation, None, cache, tell, columns=dataset.columns, field="--validation")
        other = Dataset.open(other_path)
    evaluation_batches = BatchReader(dataset, numbering, other).evaluation_batches
    counts = RowCounts(spec.batch_size, numbering.batches_per_epoch, spec.epochs, numbering.train_rows)
    return JobRows(dataset, dataset_path, other_path, counts, numbering.batches, evaluation_batches)


def remember_rows(job_dir: Path, rows: JobRows) -> None:
    """Write down where the rows came from, for a controller that goes on with the job."""
    known = {
        "directory": str(Path.cwd()),
        "data": rows.data.fingerprint,
        "validation": rows.validation.name if rows.validation is not None else None,
    }
    (job_dir / ROWS).write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def directory_of(job_dir: Path) -> Path | None:
    """The directory in which the job was started, against which its relative paths are meant; None when unknown."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return Path(json.loads((job_dir / ROWS).read_text(encoding="utf-8"))["directory"])
    return None


def located(spec: JobSpec, directory: Path | None) -> JobSpec:
    """The job with paths of its rows that hold in any working directory."""
    if directory is None:
        return spec

    def absolute(path: str) -> str:
        return path if _ADDRESS in path else str(directory / path)

    validation = absolute(spec.validation) if isinstance(spec.validation, str) else spec.validation
    columns = absolute(spec.columns) if spec.columns is not None else None
    return replace(spec, data=absolute(spec.data), columns=columns, validation=validation)


def columns_of(job_dir: Path) -> Columns | None:
    """The columns' roles as the job began with them; None when they cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError, BadInput):
        return columns_from_dict(json.loads((job_dir / METADATA_FILE).read_text(encoding="utf-8"))["columns"])
    return None


def same_rows(spec: JobSpec, rows: JobRows, job_dir: Path) -> None:
    """See that the rows are those that the job began with.

    Raises:
        BadInput: they have changed, and with them what a batch number means.
    """
    try:
        known = json.loads((job_dir / METADATA_FILE).read_text(encoding="utf-8"))["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = f"{METADATA_FILE} cannot be read ({error}); its rows cannot be known again"
        raise BadInput("JOB", str(job_dir), remedy) from error
    if rows.data.fingerprint != known:
        remedy = "its rows or columns are not those that the job began with; put them back, or start a new job"
        raise BadInput("--data", spec.data, f"{remedy} with --init-from")
    before = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        before = json.loads((job_dir / ROWS).read_text(encoding="utf-8"))["validation"]
    if before is not None and rows.validation is not None and rows.validation.name != before:
        raise BadInput("--validation", str(spec.validation), "its rows are not those that the job began with")
