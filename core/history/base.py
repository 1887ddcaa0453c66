"""What every store of past jobs does.

Warm start is only as good as what it can trust here, so the contract is narrow: a record is written whole, writing it
again replaces it (a retry after a timeout, a resumed job), and nothing that is not finite is ever stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import TrimtabError
from trimtab.core.history.outline import Outlines


class HistoryAway(TrimtabError):
    """The store does not answer or refuses to write; the message says which store, why, and nothing of it is fatal."""


class History(Protocol):
    """A store of job records. Calls may come from several threads.

    Every call may raise `HistoryAway` where the store is a service or a file that can be out of reach.
    """

    def prepare(self) -> None:
        """Make ready what the first record would wait for; calling it again costs nothing."""
        ...

    def record(self, job: JobRecord) -> tuple[str, ...]:
        """Keep `job`, replacing an earlier record of the same run id.

        Returns:
            The names of figures and fields that were left out because they are not finite.
        """
        ...

    def fetch(self, tags: Mapping[str, str], limit: int) -> tuple[JobRecord, ...]:
        """Records that carry all of `tags` with the same values, the last written first, at most `limit` of them.

        No tags match every record. What cannot be read (another product's run, a newer format) is passed over.

        Raises:
            BadInput: `limit` is below 1.
        """
        ...

    def outlines(self, tags: Mapping[str, str], limit: int) -> Outlines:
        """What a job that starts asks: outlines of the records that carry all of `tags`, the last started first.

        At most `limit` of them, fast: one search and no file per run (see `outline`). Runs with these tags that cannot
        be read are passed over and counted, whoever made them.

        Raises:
            BadInput: `limit` is below 1.
        """
        ...

    def get(self, run_id: str) -> JobRecord | None:
        """The record of `run_id`, None when there is none that can be read."""
        ...

    def link(self, run_id: str) -> str:
        """The address of the run's page, "" when no server shows one."""
        ...

    def attach(self, run_id: str, artifacts: Mapping[str, Path]) -> None:
        """Keep files or directories beside a recorded job, each under its name; the same name again replaces.

        Raises:
            BadInput: no such run, or a path that is not there.
        """
        ...

    def log_model(self, run_id: str, directory: Path, signature: Mapping[str, object]) -> str:
        """Keep an exported model beside a recorded job; returns the address to load it by.

        Args:
            run_id: of a recorded job.
            directory: what was exported, with `model.keras` in it.
            signature: "inputs" and "outputs", each a mapping of name → {"dtype", "shape"} or a list of mappings with
                "name", "dtype" and "shape"; an open length is None or -1.

        Raises:
            BadInput: no such run, no model in the directory, or a signature that cannot be read.
        """
        ...
