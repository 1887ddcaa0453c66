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
    """The component's outputs.

    Attributes:
        run_id: of the job. state: how it ended.
        complete: whether every batch was applied once or skipped.
        warm_from: ids of the past runs that the first plan rests on; empty: a cold start.
        note: what the first plan rests on, as a sentence; "" when it was not said.
        plan: the plan that the job ended with, as in the job's JSON; empty without one.
    """

    run_id: str
    state: str
    complete: bool
    warm_from: list[str]
    note: str
    plan: dict[str, object]


def outputs_of(result: Mapping[str, object]) -> TrainOutputs:
    """The typed outputs of a job's result."""
    counts, _ = finite(result)
    done = counts.get("batches_applied", 0.0) + counts.get("batches_skipped", 0.0)
    complete = done == counts.get("batches_expected") and counts.get("batches_duplicated") == 0
    warm = result.get("warm_start")
    warm = warm if isinstance(warm, Mapping) else {}
    note = warm.get("note")
    return TrainOutputs(
        str(result["run_id"]), str(result["state"]), complete, _run_ids(warm.get("runs")),
        note if isinstance(note, str) else "", _last_plan(result.get("plans")),
    )  # fmt: skip


def metrics_of(result: Mapping[str, object]) -> tuple[dict[str, float], tuple[str, ...]]:
    """The metrics to log, and the names of those left out because they are not finite."""
    return finite({name: result[name] for name in METRICS if name in result})


def _run_ids(runs: object) -> list[str]:
    if not isinstance(runs, list | tuple):
        return []
    return [str(run["run_id"] if isinstance(run, Mapping) else run) for run in runs]


def _last_plan(plans: object) -> dict[str, object]:
    if not isinstance(plans, list | tuple) or not plans or not isinstance(plans[-1], Mapping):
        return {}
    plan = plans[-1].get("plan")
    return dict(plan) if isinstance(plan, Mapping) else {}
