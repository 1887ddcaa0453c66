"""The cached form of a dataset on disk: one Arrow IPC file of equal blocks, and a page of metadata.

The file is laid out for one access: all features of some rows of one block. Each row's dense values and keys lie side
by side (fixed-size lists), so a block *is* a float32[n, D] and an int64[n, C] matrix in the page cache, gathered by
one `take` without parsing or copying the block. A block is the unit of shuffling. Text has no index beside it: this
file is the index.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trimtab.core.data.columns import Columns, columns_from_dict
from trimtab.core.data.convert import Converted
from trimtab.core.errors import BadInput, TrimtabError

VERSION = 1  # of the cached form; another version is converted anew
BLOCK_ROWS = 65_536
_TILE = 512
ROWS_FILE, METADATA_FILE = "rows.arrow", "metadata.json"


@dataclass(frozen=True)
class Metadata:
    """What is known of a cached dataset without touching its rows.

    Attributes:
        source, format, files: where the rows came from, for people.
        rows, bytes: of the Arrow file. label_sum: rows with label 1.
        ignored: columns that detection left out, with the reason.
        missing: missing values by column; cut: multi-hot rows with more ids than kept.
        distinct: estimated number of distinct keys by column.
        standard: for each standard column [shift, mean, deviation]: stored is value - shift.
    """

    fingerprint: str
    columns: Columns
    rows: int
    bytes: int
    label_sum: float
    source: str
    format: str
    files: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...] = ()
    missing: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    distinct: dict[str, int] = field(default_factory=dict)
    standard: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Writes the page, durable before it returns."""
        tree = {**self.__dict__, "version": VERSION, "columns": self.columns.as_dict()}
        with (directory / METADATA_FILE).open("w", encoding="utf-8") as file:
            json.dump(tree, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, directory: Path) -> Metadata:
        """Reads and checks the page.

        Raises:
            BadInput: the directory holds no whole dataset of this version.
        """
        try:
            tree = json.loads((directory / METADATA_FILE).read_text(encoding="utf-8"))
            version = tree.pop("version")
            if version != VERSION:
                raise BadInput("dataset", str(directory), f"has version {version}, this release reads {VERSION}")
            tree["columns"] = columns_from_dict(tree["columns"])
            tree["files"] = tuple(tree["files"])
            tree["ignored"] = tuple((name, reason) for name, reason in tree["ignored"])
            tree["standard"] = {name: tuple(values) for name, values in tree["standard"].items()}
            found = cls(**tree)
            size = (directory / ROWS_FILE).stat().st_size
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            remedy = f"is no converted dataset ({type(error).__name__}); convert the data again"
            raise BadInput("dataset", str(directory), remedy) from None
        if size != found.bytes:
            remedy = f"{ROWS_FILE} has {size} bytes, not {found.bytes}; convert again"
            raise BadInput("dataset", str(directory), remedy)
        return found


class BlockWriter:
    """Writes converted rows as blocks of exactly `BLOCK_ROWS` rows (the last one shorter), in bounded memory."""

    def __init__(self, path: Path, columns: Columns, block_rows: int = BLOCK_ROWS) -> None:
        self._columns = columns
        self._block_rows = block_rows
        self._used = 0
        self._label = np.empty(block_rows, np.float32)
        self._weight = np.empty(block_rows, np.float32) if columns.weight is not None else None
        self._dense = np.empty((block_rows, len(columns.dense)), np.float32)
        self._keys = np.empty((block_rows, len(columns.single)), np.int64)
        self._multi = {column.name: np.empty((block_rows, column.length), np.int64) for column in columns.multi}
        self._file = path.open("wb")
        self._writer = pa.ipc.new_file(self._file, schema_of(columns))

    def add(self, rows: Converted) -> None:
        """Appends rows."""
        total, at = len(rows.label), 0
        while at < total:
            take = min(total - at, self._block_rows - self._used)
            source, target = slice(at, at + take), slice(self._used, self._used + take)
            self._label[target] = rows.label[source]
            self._dense[target] = rows.dense[source]
            for first in range(at, at + take, _TILE):  # a transposition: tile by tile, or each line is fetched often
                tile = slice(first, min(first + _TILE, at + take))
                place = slice(self._used + first - at, self._used + tile.stop - at)
                self._keys[place] = rows.keys[tile]
            for name, ids in rows.multi.items():
                self._multi[name][target] = ids[source]
            if self._weight is not None and rows.weight is not None:
                self._weight[target] = rows.weight[source]
            at += take
            self._used += take
            if self._used == self._block_rows:
                self._flush()

    def close(self) -> None:
        """Writes the last block and makes the file durable."""
        if self._used:
            self._flush()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Closes without finishing: the file stays unreadable."""
        self._file.close()

    def _flush(self) -> None:
        used, self._used = self._used, 0
        arrays = [pa.array(self._label[:used])]
        if self._weight is not None:
            arrays.append(pa.array(self._weight[:used]))
        matrices: list[npt.NDArray[Any]] = [self._dense, self._keys, *self._multi.values()]
        for matrix in matrices:
            if matrix.shape[1]:
                flat = pa.array(matrix[:used].reshape(-1))
                arrays.append(pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1]))
        schema = schema_of(self._columns)
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def schema_of(columns: Columns) -> Any:
    """The Arrow schema of the cached form: label, weight?, dense?, keys?, and one list per multi-hot column."""
    fields = [pa.field("label", pa.float32(), nullable=False)]
    if columns.weight is not None:
        fields.append(pa.field("weight", pa.float32(), nullable=False))
    if columns.dense:
        fields.append(pa.field("dense", _list(pa.float32(), len(columns.dense)), nullable=False))
    if columns.single:
        fields.append(pa.field("keys", _list(pa.int64(), len(columns.single)), nullable=False))
    for column in columns.multi:
        fields.append(pa.field(f"multi:{column.name}", _list(pa.int64(), column.length), nullable=False))
    return pa.schema(fields)


def _list(kind: Any, length: int) -> Any:
    return pa.list_(pa.field("item", kind), length)


def whole(directory: Path) -> bool:
    """Whether `directory` holds a dataset that can be used as it is."""
    try:
        Metadata.read(directory)
    except TrimtabError:
        return False
    return True
