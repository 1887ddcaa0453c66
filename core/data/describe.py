"""What a data set looks like to trimtab: the answer to "has it understood my columns?".

It converts the data as training would (and so leaves the cache warm), and shows roles, gaps and example keys, and
what is left out and why.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.data.dataset import Dataset
from trimtab.core.data.keys import MISSING_KEY
from trimtab.core.data.prepare import Progress, prepare
from trimtab.core.data.store import Metadata

_NAMED = 4  # columns of one role that a line names one by one

_LOOKED_AT = 1000  # rows from which example keys are taken
_EXAMPLES = 3


@dataclass(frozen=True)
class ColumnDescription:
    """One column.

    Attributes:
        role: label, weight, dense, categorical, multi_hot or ignored.
        detail: transform, kind of values, buckets, length; or why it is ignored.
        missing: share of rows without a value; None where it does not apply.
        distinct: estimated number of distinct keys; None where it does not apply.
        examples: some of its keys, as the model sees them.
    """

    name: str
    role: str
    detail: str = ""
    missing: float | None = None
    distinct: int | None = None
    examples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Description:
    """A whole data set.

    Attributes:
        rows, files, format, label_mean: of the source. cached: directory of the converted form.
        columns: in the order of the model's inputs, ignored ones last.
    """

    source: str
    format: str
    files: tuple[str, ...]
    rows: int
    label_mean: float
    fingerprint: str
    cached: str
    columns: tuple[ColumnDescription, ...]

    def as_dict(self) -> dict[str, Any]:
        """The form of `trimtab data describe --json`."""
        return asdict(self)

    def as_text(self) -> str:
        """The form that a person reads."""
        count = self.files[0] if len(self.files) == 1 else f"{len(self.files)} files, {self.files[0]} first"
        lines = [
            f"{self.source}: {self.format}, {count}",
            f"{self.rows:,} rows, {self.label_mean:.4f} of them with label 1",
            "",
        ]
        table = [("column", "role", "missing", "distinct", "read as")]
        for column in self.columns:
            missing = "" if column.missing is None else f"{column.missing:.1%}"
            distinct = "" if column.distinct is None else f"{column.distinct:,}"
            examples = f" ({', '.join(map(str, column.examples))})" if column.examples else ""
            table.append((column.name, column.role, missing, distinct, column.detail + examples))
        widths = [max(len(row[at]) for row in table) for at in range(4)]
        for name, role, missing, distinct, detail in table:
            left = f"{name:<{widths[0]}}  {role:<{widths[1]}}  {missing:>{widths[2]}}"
            line = f"{left}  {distinct:>{widths[3]}}  {detail}"
            lines.append(line.rstrip())
        return "\n".join(lines) + "\n"


def columns_line(metadata: Metadata) -> str:
    """The columns' roles in one line, for a person who starts a job: what was detected, or named, and what was not."""
    columns = metadata.columns
    parts = [f"label {columns.label}"]
    if columns.weight:
        parts.append(f"weight {columns.weight}")
    for names, what in (
        ([one.name for one in columns.dense], "dense"),
        ([one.name for one in columns.single], "categorical"),
        ([one.name for one in columns.multi], "multi-hot"),
    ):
        if names:
            shown = names if len(names) <= _NAMED else [names[0], "…", names[-1]]
            parts.append(f"{len(names)} {what} ({', '.join(shown)})")
    if metadata.ignored:
        parts.append("left out " + ", ".join(f"{name} ({reason})" for name, reason in metadata.ignored))
    return "; ".join(parts)


def describe(
    source: str, columns_file: str | None, cache_dir: Path, progress: Progress | None = None
) -> Description:
    """Describes the data at `source`, converting it into `cache_dir` if that has not been done.

    Raises:
        BadInput, DataError: as `prepare`.
    """
    path = prepare(source, columns_file, cache_dir, progress, field="PATH")
    dataset = Dataset.open(path)
    meta, columns = dataset.metadata, dataset.columns
    first = dataset.read(np.arange(min(_LOOKED_AT, dataset.rows), dtype=np.int64))
    found = [ColumnDescription(columns.label, "label", "0 or 1", 0.0)]
    if columns.weight is not None:
        found.append(ColumnDescription(columns.weight, "weight", "number", 0.0))
    for dense in columns.dense:
        detail = dense.transform
        if dense.name in meta.standard:
            _, mean, deviation = meta.standard[dense.name]
            detail = f"standard (mean {mean:.6g}, deviation {deviation:.6g})"
        found.append(ColumnDescription(dense.name, "dense", detail, meta.missing.get(dense.name, 0) / meta.rows))
    for column in (*columns.single, *columns.multi):
        many = column.length > 1
        ids = first.multi[column.name].ravel() if many else first.keys[:, columns.single.index(column)]
        keys = list(dict.fromkeys(int(key) for key in ids if key != MISSING_KEY))[:_EXAMPLES]
        detail = {"hex": "hexadecimal", "integer": "whole number", "text": "hashed text"}[column.values]
        detail += "" if column.buckets is None else f", {column.buckets} buckets"
        if many:
            detail += f", {column.length} ids a row"
            if cut := meta.cut.get(column.name, 0):
                detail += f", {cut:,} rows with more were cut"
        missing = meta.missing.get(column.name, 0) / meta.rows
        role = "multi_hot" if many else "categorical"
        distinct = meta.distinct.get(column.name, 0)
        found.append(ColumnDescription(column.name, role, detail, missing, distinct, tuple(keys)))
    found += [ColumnDescription(name, "ignored", reason) for name, reason in meta.ignored]
    return Description(
        source=source,
        format=meta.format,
        files=meta.files,
        rows=meta.rows,
        label_mean=dataset.label_mean,
        fingerprint=meta.fingerprint,
        cached=str(path),
        columns=tuple(found),
    )
