"""From an operator's fields to the command line of a job, and from its last words to a result or an error.

Apart from the operator, so that it can be tested without Airflow. Fields may have been Jinja templates, which render
everything to text, None included (case 41): the command line parses text anyway, with one clear line for what is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

OPTIONS = (
    "data", "columns", "model", "epochs", "batch_size", "workers", "ps", "max_cpu", "max_memory", "max_workers",
    "max_ps", "mode", "objective", "budget", "deadline", "core_hour_price",
    "gib_hour_price", "currency", "learning_rate", "job_name", "job_dir", "validation", "seed", "embedding_dim",
    "checkpoint_dir", "init_from", "metrics_port",
)  # fmt: skip
BAD_INPUT, INTERRUPTED = 2, 130  # exit codes of `trimtab train`
_NOT_GIVEN = (None, "", "None", "none")


def keeper_command(options: Mapping[str, Any], grace_seconds: float) -> list[str]:
    """The keeper's command line for a job with these options; those that are None, "" or "None" are left out."""
    train = [sys.executable, "-m", "trimtab.core.cli", "train", "--json"]
    for name in OPTIONS:
        value = options.get(name)
        if value not in _NOT_GIVEN:
            train.append(f"--{name.replace('_', '-')}={value}")
    return [sys.executable, "-m", "trimtab.airflow_plugin.keeper", f"{grace_seconds:g}", *train]


def result_of(output: str) -> dict[str, Any] | None:
    """The job's result from what it printed on standard output; None if it printed none."""
    lines = output.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def fault_of(code: int, result: Mapping[str, Any] | None) -> tuple[str, bool]:
    """Why the job did not finish, and whether trying again is useless; ("", False) when it did.

    Args:
        code: exit code of the command. result: what it printed.
    """
    if code == 0 and result is not None:
        return "", False
    said = result.get("error") if result is not None else None
    run = f"run {result['run_id']}" if result is not None and result.get("run_id") else "the job"
    if code == BAD_INPUT:
        return str(said or "a field of the operator cannot be used"), True
    if code == INTERRUPTED:
        return f"{run} was stopped", False
    return f"{run} failed: {said or f'its process ended with exit code {code}'}", False
