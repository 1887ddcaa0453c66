"""A converted dataset, opened read-only by its path.

Opening costs the reading of one page and one footer, whatever the number of rows: each worker does it at its start.
Rows are gathered out of memory-mapped blocks; the kernel's page cache is shared by all processes of the machine.
"""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trimtab.core.data.columns import Columns
from trimtab.core.data.keys import Int64s
from trimtab.core.data.store import BLOCK_ROWS, ROWS_FILE, Metadata
from trimtab.core.errors import BadInput

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Some rows, ready for a model.

    Attributes:
        dense: float32[n, D], transformed. keys: int64[n, C] of the single categorical columns.
        multi: int64[n, K] by column. label, weight: float32[n].
    """

    dense: Float32s
    keys: Int64s
    multi: dict[str, Int64s]
    label: Float32s
    weight: Float32s


@dataclass(frozen=True)
class _Block:
    dense: Float32s
    keys: Int64s
    multi: dict[str, Int64s]
    label: Float32s
    weight: Float32s | None


class Dataset:
    """Rows by number. Use `Dataset.open`; reading is safe from several threads.

    Attributes:
        path: the directory. metadata: everything that is known of it.
    """

    def __init__(self, path: Path, metadata: Metadata, mapped: mmap.mmap, reader: Any) -> None:
        self.path = path
        self.metadata = metadata
        self._mapped = mapped
        self._reader = reader
        self._blocks: dict[int, _Block] = {}
        self._affine = _affine(metadata, metadata)

    @classmethod
    def open(cls, path: Path) -> Dataset:
        """Opens the directory that `prepare` returned.

        Raises:
            BadInput: it holds no whole dataset of this version.
        """
        path = Path(path)
        metadata = Metadata.read(path)
        with (path / ROWS_FILE).open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        try:
            reader = pa.ipc.open_file(pa.py_buffer(mapped))
        except pa.ArrowInvalid as error:
            raise BadInput("dataset", str(path), f"{ROWS_FILE} is damaged ({error}); convert again") from None
        return cls(path, metadata, mapped, reader)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.metadata.rows

    @property
    def columns(self) -> Columns:
        """Roles of the columns."""
        return self.metadata.columns

    @property
    def fingerprint(self) -> str:
        """Identity of contents, columns and format."""
        return self.metadata.fingerprint

    @property
    def label_mean(self) -> float:
        """Share of rows with label 1."""
        return self.metadata.label_sum / self.metadata.rows

    @property
    def labels_distinct(self) -> int:
        """How many different labels there are (2: data with one label only is refused)."""
        return 1 + (0 < self.metadata.label_sum < self.metadata.rows)

    def standardised_as(self, other: Dataset) -> Dataset:
        """This dataset with the means and deviations of `other`'s standard columns (validation as training)."""
        same = Dataset(self.path, self.metadata, self._mapped, self._reader)
        same._affine = _affine(self.metadata, other.metadata)
        return same

    def standardised_by(self, page: Path) -> Dataset:
        """This dataset with the means and deviations of a page of metadata; as it is where there is no such page.

        Raises:
            BadInput: the page is damaged.
        """
        try:
            theirs = json.loads(page.read_text(encoding="utf-8"))["standard"]
            standard = {}
            for name, own in self.metadata.standard.items():
                _, mean, deviation = theirs.get(name, own)
                standard[name] = (own[0], float(mean), float(deviation))
            return Dataset(self.path, replace(self.metadata, standard=standard), self._mapped, self._reader)
        except FileNotFoundError:
            return self
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput("dataset", str(page), f"is no page of metadata ({type(error).__name__})") from None

    def read(self, rows: Int64s) -> Rows:
        """The rows with these numbers, in this order (fresh arrays).

        Raises:
            BadInput: a number outside 0 .. rows-1.
        """
        columns, count = self.columns, len(rows)
        found = Rows(
            np.empty((count, len(columns.dense)), np.float32),
            np.empty((count, len(columns.single)), np.int64),
            {column.name: np.empty((count, column.length), np.int64) for column in columns.multi},
            np.empty(count, np.float32),
            np.empty(count, np.float32),
        )
        self.read_into(rows, found)
        return found

    def read_into(self, rows: Int64s, target: Rows) -> None:
        """As `read`, into the first ``len(rows)`` places of C-contiguous arrays."""
        if not len(rows):
            return
        if int(rows.min()) < 0 or int(rows.max()) >= self.rows:
            raise BadInput("row", int(rows.max()), f"row numbers go from 0 to {self.rows - 1}")
        blocks = rows // BLOCK_ROWS
        local = rows - blocks * BLOCK_ROWS
        first, last = int(blocks[0]), int(blocks[-1])
        edge = int(np.searchsorted(blocks != first, True)) if first != last else len(rows)
        if (blocks[:edge] == first).all() and (blocks[edge:] == last).all():  # a batch: one block, or one after another
            self._gather(first, local[:edge], target, slice(0, edge))
            if edge < len(rows):
                self._gather(last, local[edge:], target, slice(edge, len(rows)))
        else:
            for block in np.unique(blocks):
                at = np.flatnonzero(blocks == block)
                self._scatter(int(block), local[at], target, at)
        if self._affine is not None:
            scale, offset, standard = self._affine
            dense = target.dense[: len(rows)]
            part = dense[:, standard] * scale + offset
            dense[:, standard] = np.where(np.isnan(part), 0.0, part)

    def _gather(self, block: int, local: Int64s, target: Rows, at: slice) -> None:
        """Consecutive places of the target from one block; `mode="clip"` lets numpy write without a buffer."""
        source = self._block(block)
        np.take(source.dense, local, axis=0, out=target.dense[at], mode="clip")
        np.take(source.keys, local, axis=0, out=target.keys[at], mode="clip")
        for name, ids in source.multi.items():
            np.take(ids, local, axis=0, out=target.multi[name][at], mode="clip")
        np.take(source.label, local, out=target.label[at], mode="clip")
        if source.weight is None:
            target.weight[at] = 1.0
        else:
            np.take(source.weight, local, out=target.weight[at], mode="clip")

    def _scatter(self, block: int, local: Int64s, target: Rows, at: Int64s) -> None:
        source = self._block(block)
        target.dense[at] = source.dense[local]
        target.keys[at] = source.keys[local]
        for name, ids in source.multi.items():
            target.multi[name][at] = ids[local]
        target.label[at] = source.label[local]
        target.weight[at] = 1.0 if source.weight is None else source.weight[local]

    def _block(self, number: int) -> _Block:
        found = self._blocks.get(number)
        if found is None:
            found = self._blocks[number] = self._load(number)
        return found

    def _load(self, number: int) -> _Block:
        """Views of one block's columns: nothing is copied, and the kernel is asked to read ahead."""
        batch = self._reader.get_batch(number)
        names = batch.schema.names
        count = batch.num_rows

        def matrix(name: str, width: int, kind: type) -> npt.NDArray[Any]:
            if name not in names:
                return np.empty((count, 0), kind)
            flat = batch.column(names.index(name)).flatten().to_numpy(zero_copy_only=True)
            self._read_ahead(flat)
            return np.asarray(flat.reshape(count, width))

        columns = self.columns
        return _Block(
            matrix("dense", len(columns.dense), np.float32),
            matrix("keys", len(columns.single), np.int64),
            {column.name: matrix(f"multi:{column.name}", column.length, np.int64) for column in columns.multi},
            batch.column(names.index("label")).to_numpy(zero_copy_only=True),
            batch.column(names.index("weight")).to_numpy(zero_copy_only=True) if "weight" in names else None,
        )

    def _read_ahead(self, view: npt.NDArray[Any]) -> None:
        base = np.frombuffer(self._mapped, np.uint8, count=1).ctypes.data
        start = (view.ctypes.data - base) // mmap.PAGESIZE * mmap.PAGESIZE
        if view.nbytes and 0 <= start < len(self._mapped):
            self._mapped.madvise(mmap.MADV_WILLNEED, start, min(view.nbytes, len(self._mapped) - start))


def _affine(stored: Metadata, wanted: Metadata) -> tuple[Float64s, Float64s, Int64s] | None:
    """Scale and offset that turn stored values into standardised ones, and of which columns; None: of none."""
    dense = stored.columns.dense
    standard = np.array([at for at, column in enumerate(dense) if column.transform == "standard"], np.int64)
    if not len(standard):
        return None
    scale, offset = np.ones(len(standard)), np.zeros(len(standard))
    for at, column in enumerate(standard):
        name = dense[int(column)].name
        shift = stored.standard.get(name, (0.0, 0.0, 1.0))[0]
        _, mean, deviation = wanted.standard.get(name, (0.0, 0.0, 1.0))
        scale[at], offset[at] = 1.0 / deviation, (shift - mean) / deviation
    return scale, offset, standard
