"""How an Airflow task finds its job again.

A task's process may die, be retried, cleared or mapped; whoever comes next must meet the same job and never start a
second one (cases 35, 39). So the job's name is computed from what identifies the task instance, and a generation rises
only when a finished or failed job is to be followed by a new one, never with the number of the try.
"""

from __future__ import annotations

import hashlib
import json
import re

from trimtab.core.errors import BadInput

_READABLE = 28  # characters of dag and task kept for the eye; the digest alone identifies
_DIGEST = 12


def job_name_of(dag_id: str, task_id: str, run_id: str, map_index: int | None = None, generation: int = 0) -> str:
    """The job name of one task instance: at most 50 of a-z, 0-9 and '-', the same for every try.

    Args:
        dag_id, task_id, run_id: as Airflow names them, of any length and alphabet.
        map_index: of a mapped task; None and -1 both mean "not mapped".
        generation: rises when a new job is meant although one of this name existed.

    Raises:
        BadInput: a generation below 0.
    """
    if generation < 0:
        raise BadInput("generation", generation, "give a whole number of at least 0")
    index = -1 if map_index is None else map_index
    return f"{_readable(dag_id, task_id)}-{_digest(dag_id, task_id, run_id, index)}-{generation}"


def family_of(dag_id: str, task_id: str) -> str:
    """The family of runs that all runs of one task belong to: what warm start looks at. At most 50 of a-z, 0-9, '-'.

    Args:
        dag_id, task_id: as Airflow names them, of any length and alphabet.
    """
    return f"{_readable(dag_id, task_id)}-{_digest(dag_id, task_id)}"


def _digest(*identity: object) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:_DIGEST]


def _readable(dag_id: str, task_id: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{dag_id}-{task_id}".lower())[:_READABLE].strip("-") or "task"
