"""A history that lives as long as its process: for tests, notebooks and the simulator."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from pathlib import Path

from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import BadInput
from trimtab.core.history.outline import Outlines, outline
from trimtab.core.history.sieve import sieve


class InMemoryHistory:
    """`History` in a dictionary, by run id, in the order of the last writing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, JobRecord] = {}
        self._attached: dict[str, dict[str, Path]] = {}

    def prepare(self) -> None:
        """A dictionary is always ready."""

    def record(self, job: JobRecord) -> tuple[str, ...]:
        """Keep `job`; see `History.record`."""
        kept, dropped = sieve(job)
        with self._lock:
            self._jobs.pop(job.run_id, None)
            self._jobs[job.run_id] = copy.deepcopy(kept)
        return dropped

    def fetch(self, tags: Mapping[str, str], limit: int) -> tuple[JobRecord, ...]:
        """The newest records that carry `tags`; see `History.fetch`."""
        if limit < 1:
            raise BadInput("limit", limit, "give a whole number of at least 1")
        with self._lock:
            jobs = list(reversed(self._jobs.values()))
        matching = [job for job in jobs if tags.items() <= job.tags.items()]
        return tuple(matching[:limit])

    def outlines(self, tags: Mapping[str, str], limit: int) -> Outlines:
        """Outlines of the records that carry `tags`; see `History.outlines`."""
        if limit < 1:
            raise BadInput("limit", limit, "give a whole number of at least 1")
        with self._lock:
            jobs = [job for job in reversed(self._jobs.values()) if tags.items() <= job.tags.items()]
        jobs.sort(key=lambda job: -job.started_at)
        return Outlines(tuple(outline(job) for job in jobs[:limit]))

    def get(self, run_id: str) -> JobRecord | None:
        """The record of `run_id`; see `History.get`."""
        with self._lock:
            return self._jobs.get(run_id)

    def link(self, run_id: str) -> str:
        """No server shows it; see `History.link`."""
        return ""

    def attach(self, run_id: str, artifacts: Mapping[str, Path]) -> None:
        """Remember where the files lie; see `History.attach`."""
        for name, path in artifacts.items():
            if not path.exists():
                raise BadInput(name, str(path), "there is no such file or directory")
        with self._lock:
            self._known(run_id)
            self._attached.setdefault(run_id, {}).update(artifacts)

    def attached(self, run_id: str) -> dict[str, Path]:
        """What was attached to `run_id`, by name."""
        with self._lock:
            return dict(self._attached.get(run_id, {}))

    def log_model(self, run_id: str, directory: Path, signature: Mapping[str, object]) -> str:
        """Remember where the model lies; see `History.log_model`."""
        if not (directory / "model.keras").is_file():
            raise BadInput("directory", str(directory), "there is no model.keras in it")
        with self._lock:
            self._known(run_id)
            self._attached.setdefault(run_id, {})["model"] = directory
        return directory.as_uri()

    def _known(self, run_id: str) -> None:
        if run_id not in self._jobs:
            raise BadInput("run_id", run_id, "there is no record of this run")
