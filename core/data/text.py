"""Delimited text: CSV with a header, and Criteo's TSV without one.

pyarrow parses, in bounded memory and at the speed of the disk. Its messages name neither the file nor always the row,
so a fault is looked for a second time, slowly and line by line, and only then: the common path stays fast and the
rare one says exactly where. Rows are lines: a quoted value may hold the delimiter, not a line break.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.csv as pacsv

from trimtab.core.data.columns import Columns, check_present
from trimtab.core.data.readers import SAMPLE_ROWS, Chunk, Report
from trimtab.core.data.sources import CRITEO, DELIMITED, SourceFile
from trimtab.core.data.streams import ByteStream, head_of, text_lines
from trimtab.core.errors import DataError

CRITEO_NAMES = ("label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27)))
NULLS = ("", "NA", "N/A", "#N/A", "n/a", "NULL", "null", "None", "NaN", "nan", "-nan", "\\N")
_HEAD = 2**20
_BLOCK = 8 * 2**20


@dataclass(frozen=True)
class Layout:
    """How one text file is laid out: names of its columns, delimiter, lines up to and with the header (0: none)."""

    names: tuple[str, ...]
    delimiter: str
    skip: int

    @property
    def header(self) -> bool:
        """Whether a line holds the names."""
        return self.skip > 0


class TextReader:
    """Reads CSV (``,``, ``;`` or tab, with header) or Criteo TSV, plain or gzip."""

    def __init__(self, files: list[SourceFile]) -> None:
        self.files = files
        self.layout = layout_of(files[0])
        self.format = DELIMITED if self.layout.header else CRITEO

    def sample(self) -> Any:
        """The first rows with every column as binary text."""
        head = head_of(self.files[0], _HEAD)
        if len(head) == _HEAD:
            head = head[: head.rfind(b"\n") + 1]
        options = _convert_options(self.layout, None)
        try:
            table = pacsv.read_csv(pa.BufferReader(head), *_options(self.layout, False), options)
        except pa.ArrowInvalid as error:
            if _has_rows(self.files[0], self.layout):
                self._explain(self.files[0], None, error)
            table = None
        if table is None or table.num_rows == 0:
            raise DataError(self.files[0].name, "0 rows", "the file has no rows; give a file with rows")
        return table.slice(0, SAMPLE_ROWS)

    def chunks(self, columns: Columns, report: Report) -> Iterator[Chunk]:
        """All rows: dense and weight as float64, the rest as binary text."""
        total = sum(file.size for file in self.files)
        done = 0
        for file in self.files:
            layout = layout_of(file)
            if layout.header != self.layout.header:
                raise DataError(file.name, "another layout", f"the first file is {self.format}; give one layout")
            check_present(columns.names, layout.names, file.name)
            row = 0
            with ByteStream(file) as stream:
                try:
                    reader = pacsv.open_csv(
                        pa.PythonFile(stream, mode="r"), *_options(layout, True), _convert_options(layout, columns)
                    )
                    for batch in reader:
                        yield Chunk(file, row, batch)
                        row += batch.num_rows
                        report((done + stream.raw_offset) / max(1, total))
                except pa.ArrowInvalid as error:
                    if row or _has_rows(file, layout):  # a part with nothing but a header is no fault
                        self._explain(file, columns, error)
            done += file.size

    def where(self, file: SourceFile, row: int) -> str:
        """The line of a row: blank lines do not count as rows, but do as lines."""
        row += self.layout.header
        with text_lines(file) as lines:
            for number, line in enumerate(lines, 1):
                row -= bool(line.strip(b"\r\n"))
                if row < 0:
                    return f"row {number}"
        return f"row {row}"

    def _explain(self, file: SourceFile, columns: Columns | None, error: Exception) -> NoReturn:
        """Finds the line that pyarrow could not take and names it."""
        layout = layout_of(file)
        expected = len(layout.names)
        numbers = {} if columns is None else {layout.names.index(name): name for name in _numeric(columns)}
        with text_lines(file) as lines:
            for number, line in enumerate(lines, 1):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if not text:
                    continue
                fields = _split(text, layout)
                place = f"{file.name}: row {number}"
                if len(fields) != expected:
                    remedy = f"expected {expected}, as in the first row; mend or remove the row"
                    raise DataError(place, f"{len(fields)} columns", remedy) from None
                if number <= layout.skip:
                    continue
                for at, name in numbers.items():
                    if fields[at] not in NULLS and not _number(fields[at]):
                        raise DataError(place, fields[at], f"column {name} takes a number, or nothing") from None
        raise DataError(file.name, str(error).split("\n")[0], "the text cannot be parsed") from None


def layout_of(file: SourceFile) -> Layout:
    """Reads how a file is laid out from its first line.

    Raises:
        DataError: no lines, no header where one is needed, or a name twice in it.
    """
    head = head_of(file, _HEAD).removeprefix(b"\xef\xbb\xbf")
    skip, line = next(((at, each) for at, each in enumerate(head.splitlines(), 1) if each), (0, b""))
    if not line:
        raise DataError(file.name, "0 rows", "the file has no rows; give a file with rows")
    text = line.decode("utf-8", "replace")
    delimiter = max("\t,;", key=text.count)
    criteo = text.split(delimiter)
    if len(criteo) == len(CRITEO_NAMES) and criteo[0] in ("0", "1") and all(not v or _number(v) for v in criteo[1:14]):
        return Layout(CRITEO_NAMES, delimiter, 0)
    names = tuple(_split(text, Layout((), delimiter, skip)))
    if any(not name or _number(name) for name in names):
        remedy = "is no header; put column names into row 1 (only Criteo's 40 columns, label first, go without)"
        raise DataError(f"{file.name}: row {skip}", text[:60], remedy)
    for at, name in enumerate(names):
        if name in names[:at]:
            raise DataError(f"{file.name}: row {skip}", name, "is in the header twice; give each column its own name")
    return Layout(names, delimiter, skip)


def _has_rows(file: SourceFile, layout: Layout) -> bool:
    return any(line for line in head_of(file, _HEAD).splitlines()[layout.skip :])


def _options(layout: Layout, threads: bool) -> tuple[Any, Any]:
    quote = '"' if layout.header else False
    return (
        pacsv.ReadOptions(
            use_threads=threads, block_size=_BLOCK, column_names=list(layout.names), skip_rows=layout.skip
        ),
        pacsv.ParseOptions(delimiter=layout.delimiter, quote_char=quote, double_quote=True),
    )


def _convert_options(layout: Layout, columns: Columns | None) -> Any:
    """Types: everything binary for a sample; for the rows numbers where numbers are wanted."""
    wanted = list(layout.names if columns is None else columns.names)
    types = dict.fromkeys(wanted, pa.binary())
    if columns is not None:
        types.update(dict.fromkeys(_numeric(columns), pa.float64()))
    return pacsv.ConvertOptions(
        column_types=types, include_columns=wanted, null_values=list(NULLS), strings_can_be_null=False, check_utf8=False
    )


def _numeric(columns: Columns) -> list[str]:
    weight = [] if columns.weight is None else [columns.weight]
    return [*weight, *(column.name for column in columns.dense)]


def _split(text: str, layout: Layout) -> list[str]:
    if not layout.header:
        return text.split(layout.delimiter)
    return next(csv.reader([text], delimiter=layout.delimiter), [])


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
