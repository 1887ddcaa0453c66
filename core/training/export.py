"""The export process: `python -m trimtab.core.training.export REQUEST.json`.

A process of its own, as the probe is and for its reasons: TensorFlow and the user's code stay out of the command. It
reads the final manifest, builds the model as a worker does, writes it as a plain Keras model and then loads what it
wrote: a file that another process could not read, or that computes something else, is no export.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.data.columns import Columns, columns_from_dict
from trimtab.core.data.keys import MISSING_KEY
from trimtab.core.domain.model_spec import EMBEDDING, ModelSpec
from trimtab.core.errors import BadInput, CorruptCopy, ModelError, TrimtabError
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.ps.reader import read_rows
from trimtab.core.training.export_client import EXAMPLE, FORMAT, MODEL, SIGNATURE, Answer, Request
from trimtab.core.wire.encode import read_json, to_json

Inputs = list[tuple[str, str, str, tuple[int, ...]]]  # see `export_graph.inputs_of`
BATCH = 8  # rows with which the model is traced; the written one takes any number


def main(argv: list[str]) -> int:
    """Answers one request; the exit code is 0 whenever an answer was written."""
    path = Path(argv[0])
    request = read_json(Request, path)
    # The caller kills this process at its deadline; if the caller is gone, the alarm does.
    signal.alarm(math.ceil(request.deadline_seconds) + 5)
    try:
        answer = Answer(export(request))
    except BadInput as error:
        value = error.value if isinstance(error.value, int | float) else str(error.value)
        answer = Answer({}, type(error).__name__, error.field, value, error.remedy)
    except TrimtabError as error:
        answer = Answer({}, type(error).__name__, remedy=str(error))
    (path.parent / "answer.json").write_bytes(to_json(answer))
    return 0


def export(request: Request) -> dict[str, int]:
    """Write model, signature and example; returns the trained rows of each embedding table.

    Raises:
        ModelError: the model's code has changed, or it has a part that cannot be exported.
        CorruptCopy: a copy is damaged.
    """
    from trimtab.core.training.runtime import configure_tensorflow

    configure_tensorflow(1)
    from trimtab.core.training.elastic import ElasticModel
    from trimtab.core.training.export_graph import inputs_of, plain_model, set_weights
    from trimtab.core.training.load import load_model

    out, spec, columns = Path(request.out), request.spec, columns_from_dict(request.data.columns)
    described = read_json(ModelSpec, request.model)
    elastic = ElasticModel(load_model(spec.model, columns, spec), columns, BATCH)
    if elastic.fingerprint() != described.fingerprint:
        remedy = "its code is not what the job trained; export with the code of then"
        raise ModelError("--model", spec.model, remedy)
    rows = read_rows(read_manifest(request.manifest), described)
    set_weights(elastic, rows)
    model = plain_model(elastic, rows, columns, request.data.standard)
    inputs = inputs_of(columns, elastic.compiled.name)
    _save(model, spec.model, inputs, out / MODEL)
    page = signature(request.run_id, spec.model, columns, inputs)
    (out / SIGNATURE).write_text(json.dumps(page, indent=1) + "\n", "utf-8")
    (out / EXAMPLE).write_text(resources.files(__package__).joinpath("export_example.txt").read_text("utf-8"), "utf-8")
    return {table.name: len(rows[table.name][0]) for table in described.tables if table.kind == EMBEDDING}


def signature(run_id: str, model: str, columns: Columns, inputs: Inputs) -> dict[str, Any]:
    """Inputs and outputs of the written model, with what each column's values are; -1 is the number of rows."""
    by_name: dict[str, dict[str, Any]] = {}
    for column in columns.dense:
        by_name[column.name] = {"kind": "dense", "transform": column.transform}
    for single in columns.categorical:
        kind = "categorical" if single.length == 1 else "multi_hot"
        by_name[single.name] = {"kind": kind, "values": single.values, "buckets": single.buckets}
    described = [
        {"name": name, "column": column, "dtype": dtype, "shape": [-1, *shape], **by_name[column]}
        for name, column, dtype, shape in inputs
    ]
    output = {"name": "score", "dtype": "float32", "shape": [-1, 1]}
    return {
        "format": FORMAT, "run_id": run_id, "model": model, "missing_key": MISSING_KEY, "inputs": described,
        "outputs": [output],
    }  # fmt: skip


def _save(model: Any, name: str, inputs: Inputs, path: Path) -> None:
    """Write the model and read it back.

    Raises:
        ModelError: it cannot be written or loaded. CorruptCopy: what was loaded computes something else.
    """
    import keras

    draw = np.random.default_rng(0)
    rows = {
        name: draw.normal(size=(BATCH, *shape)) if dtype == "float64" else draw.integers(0, 3, (BATCH, *shape))
        for name, _, dtype, shape in inputs
    }
    try:
        model.save(path)
        loaded = keras.models.load_model(path)
    except Exception as error:  # whatever a layer's own saving and loading raise
        said = " ".join(str(error).split())[:300]
        raise ModelError("--model", name, f"it can't be written as a plain Keras model: {said}") from error
    wrote, read = (np.asarray(one(rows)).ravel() for one in (model, loaded))
    if not np.allclose(wrote, read, rtol=0, atol=1e-6, equal_nan=True):
        raise CorruptCopy(f"{path}: what was read back gives {read[:3]} instead of {wrote[:3]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
