"""The probe process: `python -m trimtab.core.training.probe REQUEST.json`.

A user's function is looked at here, in a process of its own, before anything of the job is started: it may take
seconds to import, print, crash the interpreter or never return, and the command line must survive all of that without
knowing TensorFlow. The model is loaded and swapped as a worker will do it, and one training step is run on made-up
rows, which finds nearly every mistake a model can have. What is learned goes to files beside the request.
"""

from __future__ import annotations

import math
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.data.columns import Columns
from trimtab.core.data.dataset import Dataset
from trimtab.core.errors import BadInput, ModelError
from trimtab.core.training.probe_client import ANSWER, BLOCKS, MODEL, Answer, Request
from trimtab.core.wire.encode import read_json, to_json

ROWS = 8  # of the made-up batch: enough to tell rows from columns


def main(argv: list[str]) -> int:
    """Answers one request; the exit code is 0 whenever an answer was written."""
    path = Path(argv[0])
    request = read_json(Request, path)
    # The caller kills this process at its deadline; if the caller is gone, the alarm does.
    signal.alarm(math.ceil(request.deadline_seconds) + 5)
    out = path.parent
    try:
        look_at(request, out)
        answer = Answer()
    except BadInput as error:
        value = error.value if isinstance(error.value, int | float) else str(error.value)
        answer = Answer(type(error).__name__, error.field, value, error.remedy)
    (out / ANSWER).write_bytes(to_json(answer))
    return 0


def look_at(request: Request, out: Path) -> None:
    """Loads, swaps and tries the model; writes the model's spec and first blocks into `out`.

    Raises:
        ModelError, DataError: with what the user has to change.
    """
    from trimtab.core.training.runtime import configure_tensorflow

    configure_tensorflow(1)
    from trimtab.core.training.elastic import ElasticModel
    from trimtab.core.training.faults import user_error
    from trimtab.core.training.load import load_model

    spec = request.spec
    columns = Dataset.open(Path(request.dataset)).columns
    model = load_model(spec.model, columns, spec)
    try:
        elastic = ElasticModel(model, columns, ROWS)
        # Blocks first: nothing that a try-out changes may end up in them.
        np.savez(out / BLOCKS, **elastic.initial_blocks())  # type: ignore[arg-type]
        metrics = try_out(elastic, columns)
    except BadInput:
        raise
    except Exception as error:  # the user's layers, loss and metrics may raise anything
        raise user_error(spec.model, error, "one training step fails") from error
    described = elastic.spec(spec.model, str(out / BLOCKS), metrics)
    (out / MODEL).write_bytes(to_json(described))


def try_out(elastic: Any, columns: Columns) -> tuple[str, ...]:
    """One training step, one evaluation and the metrics on made-up rows; the names of the compiled metrics.

    Raises:
        ModelError: when one of them fails.
    """
    from trimtab.core.data.batches import Batch, aligned
    from trimtab.core.training.runtime import aligned_zeros
    from trimtab.core.training.step import TrainStep

    step = TrainStep(elastic, ROWS, seed=0)
    multi = {column.name: np.ones((ROWS, column.length), np.int64) for column in columns.multi}
    dense, label, weight = aligned(
        ((ROWS, len(columns.dense)), np.float32), ((ROWS,), np.float32), ((ROWS,), np.float32)
    )
    dense[:], label[:], weight[:] = 0.5, np.arange(ROWS) % 2, 1.0
    batch = Batch(0, ROWS, dense, np.ones((ROWS, len(columns.single)), np.int64), multi, label, weight)
    ids = step.ids(batch)
    rows = [aligned_zeros((1, group.dim)) for group in elastic.groups]
    places = [aligned_zeros((len(of_group),), np.int32) for of_group in ids]
    blocks = {name: block.ravel() for name, block in elastic.initial_blocks().items()}
    flat = (blocks.get("dense", np.zeros(0, np.float32)), blocks.get("state"))
    step.train(batch, rows, places, *flat)
    scores = step.score(batch, rows, places, *flat)
    rate = step.learning_rate(0)
    if not math.isfinite(rate) or rate <= 0:
        raise ModelError("--model", f"learning rate {rate}", "compile the optimizer with a finite rate above 0")
    return tuple(step.metric_names(scores, label, weight))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
