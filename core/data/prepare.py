"""Turns any input into the cached Arrow form, once.

The cache is keyed by a fingerprint of contents, columns and format version, so a changed file is never taken for the
old one, and parsing is never in a training step. A dataset appears in the cache by one rename of a finished
directory: whatever interrupts a conversion leaves nothing that could be mistaken for a whole one, and two processes
that want the same data wait for each other or, where locks do not work, waste some time but never meet.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

from trimtab.core.data.columns import Columns, check_present, read_columns
from trimtab.core.data.convert import Converter, RowFault
from trimtab.core.data.detect import Detection, detect, resolve
from trimtab.core.data.readers import Reader, open_reader
from trimtab.core.data.sources import SourceFile, identity, list_files
from trimtab.core.data.store import ROWS_FILE, VERSION, BlockWriter, Metadata, whole
from trimtab.core.errors import BadInput, DataError

Progress = Callable[[str, float], None]


def prepare(
    source: str,
    columns_file: str | None,
    cache_dir: Path,
    progress: Progress | None = None,
    *,
    columns: Columns | None = None,
    field: str = "--data",
) -> Path:
    """The directory of the converted dataset in `cache_dir`, converting it first if it is not there.

    Args:
        source: path, glob, directory or URL.
        columns_file: YAML or JSON file of roles; None: detected.
        cache_dir: made if absent.
        progress: told what is going on and the share done (0 to 1).
        columns: roles as another dataset has them (validation rows are read as the training rows were); goes before
            `columns_file`.
        field: the option that errors name.

    Raises:
        BadInput, DataError: the input cannot be used; names file and place.
    """
    tell = progress or (lambda message, share: None)
    files = list_files(source, field)
    reader = open_reader(files)
    detection = _roles(reader, columns_file, columns)
    seen = identity(files)
    fingerprint = _fingerprint(seen, detection.columns, reader.format)
    target = cache_dir / fingerprint
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(cache_dir, fingerprint) as alone:
            if whole(target):
                return target
            if alone:  # whoever left these is dead
                for stale in (target, *cache_dir.glob(f".{fingerprint}.*.part")):
                    shutil.rmtree(stale, ignore_errors=True)
            part = cache_dir / f".{fingerprint}.{os.getpid()}.{secrets.token_hex(4)}.part"
            try:
                _convert(reader, detection, part, fingerprint, source, tell)
                if identity(files) != seen:
                    raise DataError(field, source, "changed while it was read; try again once it is written")
                _publish(part, target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = f"cannot be written ({reason}); free space or set TRIMTAB_HOME to another place"
        raise BadInput("data cache", str(cache_dir), remedy) from None
    return target


def _roles(reader: Reader, columns_file: str | None, columns: Columns | None) -> Detection:
    given = columns if columns is not None else None if columns_file is None else read_columns(columns_file)
    sample = reader.sample()
    if given is None:
        return detect(sample)
    check_present(given.names, sample.schema.names, reader.files[0].name)
    return Detection(resolve(given, sample))


def _fingerprint(seen: list[dict[str, object]], columns: Columns, form: str) -> str:
    tree = {"version": VERSION, "format": form, "columns": columns.as_dict(), "files": seen}
    return blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=16).hexdigest()


@contextlib.contextmanager
def _locked(cache_dir: Path, fingerprint: str) -> Iterator[bool]:
    """Holds the fingerprint's lock; yields whether the lock really excludes others (not every file system can)."""
    locks = cache_dir / "locks"
    locks.mkdir(exist_ok=True)
    with (locks / fingerprint).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone


def _convert(
    reader: Reader, detection: Detection, part: Path, fingerprint: str, source: str, tell: Progress
) -> None:
    """Writes the whole dataset into the new directory `part`."""
    part.mkdir()
    columns = detection.columns
    converter = Converter(columns)
    writer = BlockWriter(part / ROWS_FILE, columns)
    message = f"reading {_count(reader.files)}"
    tell(message, 0.0)
    try:
        for chunk in reader.chunks(columns, lambda share: tell(message, min(share, 1.0))):
            try:
                writer.add(converter.convert(chunk.table))
            except RowFault as fault:
                place = f"{chunk.file.name}: {reader.where(chunk.file, chunk.first_row + fault.row)}"
                raise DataError(place, fault.value, fault.remedy) from None
        counts = converter.counts
        _check(counts.rows, counts.label_sum, columns, reader.files)
        writer.close()
    finally:
        writer.abandon()
    Metadata(
        fingerprint=fingerprint,
        columns=columns,
        rows=counts.rows,
        bytes=(part / ROWS_FILE).stat().st_size,
        label_sum=counts.label_sum,
        source=source,
        format=reader.format,
        files=tuple(file.name for file in reader.files),
        ignored=detection.ignored,
        missing=counts.missing,
        cut=counts.cut,
        distinct={name: sketch.estimate() for name, sketch in counts.distinct.items()},
        standard={name: (m.shift, m.mean, m.deviation) for name, m in counts.moments.items()},
    ).write(part)
    tell(message, 1.0)


def _check(rows: int, label_sum: float, columns: Columns, files: list[SourceFile]) -> None:
    name = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    if rows == 0:
        raise DataError(name, "0 rows", "there are no rows; give data with rows")
    if label_sum in (0, rows):
        remedy = f"column {columns.label} must have both 0 and 1, or nothing can be learnt"
        raise DataError(name, f"label {int(label_sum > 0)} in all {rows} rows", remedy)


def _publish(part: Path, target: Path) -> None:
    """Gives the finished directory its name; if another process was first, its dataset is as good."""
    try:
        part.rename(target)
    except OSError:
        if not whole(target):
            raise
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _count(files: list[SourceFile]) -> str:
    return files[0].name if len(files) == 1 else f"{len(files)} files"
