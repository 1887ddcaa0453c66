"""What the training component hands on to the next step of a Kubeflow pipeline.

One place turns a job's result (the JSON of `trimtab train --json`) into typed outputs and metrics, so that component,
container and test agree. A figure that is not finite never becomes a metric: it would make the artifact void (case 42).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trimtab.core.domain.figures import finite

METRICS = ("auc", "log_loss", "samples_per_second", "batches_applied", "batches_skipped", "wall_seconds", "cpu_seconds")


class TrainOutputs(NamedTuple):
    """The component's outputs: who ran, how it ended, and whether every batch was applied once or skipped."""

    run_id: str
    state: str
    complete: bool


def outputs_of(result: Mapping[str, object]) -> TrainOutputs:
    """The typed outputs of a job's result."""
    counts, _ = finite(result)
    done = counts.get("batches_applied", 0.0) + counts.get("batches_skipped", 0.0)
    complete = done == counts.get("batches_expected") and counts.get("batches_duplicated") == 0
    return TrainOutputs(str(result["run_id"]), str(result["state"]), complete)


def metrics_of(result: Mapping[str, object]) -> tuple[dict[str, float], tuple[str, ...]]:
    """The metrics to log, and the names of those left out because they are not finite."""
    return finite({name: result[name] for name in METRICS if name in result})
