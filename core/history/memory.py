"""A history that lives as long as its process: for tests, notebooks and the simulator."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from trimtab.core.domain.figures import finite
from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import BadInput


class InMemoryHistory:
    """`History` in a dictionary, by run id, in the order of the last writing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, JobRecord] = {}

    def record(self, job: JobRecord) -> tuple[str, ...]:
        """Keep `job`; see `History.record`."""
        kept, dropped = finite(job.figures)
        with self._lock:
            self._jobs.pop(job.run_id, None)
            self._jobs[job.run_id] = replace(job, tags=dict(job.tags), figures=kept)
        return dropped

    def fetch(self, tags: Mapping[str, str], limit: int) -> tuple[JobRecord, ...]:
        """The newest records that carry `tags`; see `History.fetch`."""
        if limit < 1:
            raise BadInput("limit", limit, "give a whole number of at least 1")
        with self._lock:
            jobs = list(reversed(self._jobs.values()))
        matching = [job for job in jobs if tags.items() <= job.tags.items()]
        return tuple(matching[:limit])
