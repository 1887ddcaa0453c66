"""What every file format offers to the conversion: a sample to look at, and chunks of rows in order.

Readers yield Arrow tables of *raw* columns (text, numbers, lists as they were stored) and know nothing of keys or
transforms; the conversion knows nothing of files. A fault that the conversion finds is named by asking the reader
where a row lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab.core.data.columns import Columns
from trimtab.core.data.sources import PARQUET, TFRECORD, SourceFile

SAMPLE_ROWS = 10_000
Report = Callable[[float], None]


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of one file.

    Attributes:
        file: where they lie. first_row: number of the first in it, from 0.
        table: an Arrow record batch with at least the columns that were asked for.
    """

    file: SourceFile
    first_row: int
    table: Any


class Reader(Protocol):
    """One format."""

    format: str
    files: list[SourceFile]

    def sample(self) -> Any:
        """An Arrow table of the first rows (at most `SAMPLE_ROWS`) with every column.

        Raises:
            DataError: the first file cannot be read or has no rows.
        """
        ...

    def chunks(self, columns: Columns, report: Report) -> Iterator[Chunk]:
        """All rows in order; `report` is told the share (0 to 1) of bytes that were read.

        Raises:
            DataError: a file is damaged, names the place.
            BadInput: a column is missing in one of the files.
        """
        ...

    def where(self, file: SourceFile, row: int) -> str:
        """How a person finds row number `row` (from 0) of a file: "row 17"."""
        ...


def open_reader(files: list[SourceFile]) -> Reader:
    """The reader for files of one kind."""
    if files[0].kind == PARQUET:
        from trimtab.core.data.parquet import ParquetReader

        return ParquetReader(files)
    if files[0].kind == TFRECORD:
        from trimtab.core.data.tfrecord import TFRecordReader

        return TFRecordReader(files)
    from trimtab.core.data.text import TextReader

    return TextReader(files)
