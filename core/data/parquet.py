"""Parquet, by pyarrow, row group by row group so that a damaged place can be named by file and offset."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.core.data.columns import Columns, check_present
from trimtab.core.data.readers import SAMPLE_ROWS, Chunk, Report
from trimtab.core.data.sources import PARQUET, SourceFile
from trimtab.core.errors import DataError

_MAGIC = b"PAR1"
_ROWS = 65_536
_REMEDY = "the Parquet data is damaged; write or copy the file again"


class ParquetReader:
    """Reads files of one schema."""

    format = PARQUET

    def __init__(self, files: list[SourceFile]) -> None:
        self.files = files

    def sample(self) -> Any:
        """The first rows with every column."""
        for file in self.files:  # a writer may leave parts without rows
            opened = _open(file)
            batches: list[Any] = []
            have = 0
            for group in range(opened.num_row_groups):
                for batch in _batches(opened, file, group, None):
                    batches.append(batch)
                    have += batch.num_rows
                    if have >= SAMPLE_ROWS:
                        break
                if have >= SAMPLE_ROWS:
                    break
            if have:
                return pa.Table.from_batches(batches).slice(0, SAMPLE_ROWS)
        raise DataError(self.files[0].name, "0 rows", "there are no rows; give a file with rows")

    def chunks(self, columns: Columns, report: Report) -> Iterator[Chunk]:
        """All rows, with the types they are stored in."""
        total = sum(file.size for file in self.files)
        done = 0
        for file in self.files:
            opened = _open(file)
            check_present(columns.names, opened.schema_arrow.names, file.name)
            row, rows = 0, max(1, opened.metadata.num_rows)
            for group in range(opened.num_row_groups):
                for batch in _batches(opened, file, group, list(columns.names)):
                    yield Chunk(file, row, batch)
                    row += batch.num_rows
                    report((done + file.size * row / rows) / max(1, total))
            done += file.size

    def where(self, file: SourceFile, row: int) -> str:
        """Rows of a Parquet file are counted from 1."""
        return f"row {row + 1}"


def _open(file: SourceFile) -> Any:
    stream = file.open()
    size = stream.seek(0, 2)
    if size < 12:
        raise DataError(f"{file.name}: byte {size}", "truncated Parquet data", _REMEDY)
    stream.seek(size - 8)
    tail = stream.read(8)
    stream.seek(0)
    head = stream.read(4)
    if head != _MAGIC:
        raise DataError(f"{file.name}: byte 0", head, "is no Parquet data; it would start with PAR1")
    if tail[4:] != _MAGIC:
        remedy = "the file ends too early or is not closed yet; write or copy it again"
        raise DataError(f"{file.name}: byte {size}", "truncated Parquet data", remedy)
    footer = size - 8 - struct.unpack("<I", tail[:4])[0]
    stream.seek(0)
    try:
        return pq.ParquetFile(stream, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{file.name}: byte {max(0, footer)}", _first_line(error), _REMEDY) from None


def _batches(opened: Any, file: SourceFile, group: int, names: list[str] | None) -> Iterator[Any]:
    batches = opened.iter_batches(batch_size=_ROWS, row_groups=[group], columns=names)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError, ValueError) as error:
            place = f"{file.name}: row group {group} at byte {_offset(opened, group)}"
            raise DataError(place, _first_line(error), _REMEDY) from None
        if batch is None:
            return
        yield batch


def _offset(opened: Any, group: int) -> int:
    """Where a row group's first page lies."""
    described = opened.metadata.row_group(group)
    chunks = [described.column(at) for at in range(described.num_columns)]
    return min((chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks), default=0)


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0]
