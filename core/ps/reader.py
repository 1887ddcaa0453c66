"""A trained model read from its manifest, without any parameter server running.

What export, tests and a curious person need: all rows of all tables as plain arrays.
"""

from __future__ import annotations

import numpy as np

from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.errors import CorruptCopy
from trimtab.core.ps.copies import read_copies
from trimtab.core.ps.manifest import Manifest
from trimtab.core.ps.rows import Floats, Int64s


def read_rows(manifest: Manifest, model: ModelSpec) -> dict[str, tuple[Int64s, Floats]]:
    """For each table its keys i64[n], ascending, and values f32[n, dim] (slots left out).

    Raises:
        CorruptCopy: a copy is damaged, or the manifest is of another model.
    """
    if manifest.fingerprint != model.fingerprint:
        raise CorruptCopy(f"manifest of model {manifest.fingerprint} cannot be read as model {model.fingerprint}")
    keys: list[list[Int64s]] = [[] for _ in model.tables]
    values: list[list[Floats]] = [[] for _ in model.tables]
    for copy in read_copies(manifest.entries, model.tables):
        content = copy.content
        for number, table in enumerate(model.tables):
            keys[number].append(content.keys[number])
            values[number].append(content.rows[number][:, : table.dim])
    found: dict[str, tuple[Int64s, Floats]] = {}
    for number, table in enumerate(model.tables):
        all_keys = np.concatenate(keys[number])
        order = np.argsort(all_keys, kind="stable")
        found[table.name] = (all_keys[order], np.concatenate(values[number])[order])
    return found
