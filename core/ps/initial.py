"""The first manifest: copies with empty applied sets, written before training.

Embedding rows need no copy: an absent row is computed from (seed, table, key). Dense blocks and moving averages start
from the values that the model's own initializers drew in the probe, so they are written down once and every
parameter server loads the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trimtab.core.domain.intervals import EMPTY
from trimtab.core.domain.model_spec import EMBEDDING, VSHARDS, ModelSpec, TableSpec
from trimtab.core.errors import CorruptCopy
from trimtab.core.ps.copies import VshardCopy, write_copies
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.layout import layout_of, newborn_rows
from trimtab.core.ps.manifest import VERSION, Manifest, ManifestRef, write_manifest
from trimtab.core.ps.rows import VshardRows


def write_initial(directory: Path, job_id: str, model: ModelSpec) -> ManifestRef:
    """Write the copies of all 512 vshards before the first batch, and the manifest that names them.

    Raises:
        CorruptCopy: `model.initial_blocks` lacks a table or has other shapes. OSError: the disk refused.
    """
    blocks = _initial_blocks(model)
    placed = {name: vshards(name, np.arange(len(values), dtype=np.int64)) for name, values in blocks.items()}

    def copies() -> list[VshardCopy]:
        return [
            VshardCopy(vshard, 0, EMPTY, EMPTY, _content(model.tables, blocks, placed, vshard))
            for vshard in range(VSHARDS)
        ]

    directory.mkdir(parents=True, exist_ok=True)
    written = write_copies(directory / "copies-initial.ttc", copies(), model.tables, order_id=0)
    manifest = Manifest(VERSION, job_id, model.fingerprint, VSHARDS, written.entries, written.sets)
    return write_manifest(directory, manifest)


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
