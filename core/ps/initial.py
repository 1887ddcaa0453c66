"""The first manifest: copies with empty applied sets, written before training.

Embedding rows need no copy: an absent row is computed from (seed, table, key). Dense blocks and moving averages start
from the values that the model's own initializers drew in the probe, so they are written down once and every
parameter server loads the same. A job that goes on from another's model starts with all of that one's rows instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trimtab.core.domain.intervals import EMPTY
from trimtab.core.domain.model_spec import EMBEDDING, VSHARDS, ModelSpec, TableSpec
from trimtab.core.errors import CorruptCopy
from trimtab.core.ps import storage
from trimtab.core.ps.copies import VshardCopy, read_copies, write_copies
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.layout import layout_of, newborn_rows
from trimtab.core.ps.manifest import VERSION, Manifest, ManifestRef, write_manifest
from trimtab.core.ps.rows import VshardRows


def write_initial(
    directory: str | os.PathLike[str], job_id: str, model: ModelSpec, source: Manifest | None = None
) -> ManifestRef:
    """Write the copies of all 512 vshards before the first batch, and the manifest that names them.

    Args:
        directory: path or URL; made.
        job_id: of the job that begins.
        model: its tables.
        source: where its rows come from, slots and counters too, one vshard in memory at a time. Its tables must be the
            model's. None: the rows are new.

    Raises:
        CorruptCopy: `model.initial_blocks` lacks a table or has other shapes; a copy of the source is damaged, missing
            or of other tables. OSError: the store refused.
    """
    folder = storage.absolute(os.fspath(directory))
    storage.make_directory(folder)
    copies = _first_copies(model) if source is None else _copies_of(source, model.tables)
    written = write_copies(storage.join(folder, "copies-initial.ttc"), copies, model.tables, order_id=0)
    manifest = Manifest(VERSION, job_id, model.fingerprint, VSHARDS, written.entries, written.sets)
    return write_manifest(folder, manifest)


def _first_copies(model: ModelSpec) -> Iterator[VshardCopy]:
    blocks = _initial_blocks(model)
    placed = {name: vshards(name, np.arange(len(values), dtype=np.int64)) for name, values in blocks.items()}
    for vshard in range(VSHARDS):
        yield VshardCopy(vshard, 0, EMPTY, EMPTY, _content(model.tables, blocks, placed, vshard))


def _copies_of(source: Manifest, tables: tuple[TableSpec, ...]) -> Iterator[VshardCopy]:
    """The source's rows as those of a new job: nothing counts as applied, and nobody has owned them."""
    found = [0] * len(tables)
    for copy in read_copies(source.entries, tables):
        for number, keys in enumerate(copy.content.keys):
            found[number] += len(keys)
        yield replace(copy, since=0, applied=EMPTY, skipped=EMPTY)
    for table, count in zip(tables, found, strict=True):
        if table.kind != EMBEDDING and count != table.rows:  # an absent block would silently be zeros
            raise CorruptCopy(f"run {source.job_id} has {count} of {table.rows} blocks of table '{table.name}'")


def _initial_blocks(model: ModelSpec) -> dict[str, np.ndarray]:
    wanted = [table for table in model.tables if table.kind != EMBEDDING]
    if not wanted:
        return {}
    with np.load(model.initial_blocks, allow_pickle=False) as stored:
        blocks = {}
        for table in wanted:
            if table.name not in stored or stored[table.name].shape != (table.rows, table.dim):
                raise CorruptCopy(f"{model.initial_blocks}: no [{table.rows}, {table.dim}] values for '{table.name}'")
            blocks[table.name] = stored[table.name].astype(np.float32)
    return blocks


def _content(
    tables: tuple[TableSpec, ...], blocks: dict[str, np.ndarray], placed: dict[str, np.ndarray], vshard: int
) -> VshardRows:
    keys, rows = [], []
    for table in tables:
        if table.name in blocks:
            mine = np.flatnonzero(placed[table.name] == vshard).astype(np.int64)
            keys.append(mine)
            rows.append(newborn_rows(table, blocks[table.name][mine]))
        else:
            keys.append(np.empty(0, np.int64))
            rows.append(np.empty((0, layout_of(table).width), np.float32))
    return VshardRows(tuple(keys), tuple(rows))
