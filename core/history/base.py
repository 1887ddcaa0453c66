"""What every store of past jobs does.

Warm start is only as good as what it can trust here, so the contract is narrow: a record is written whole, writing it
again replaces it (a retry after a timeout, a resumed job), and nothing that is not finite is ever stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from trimtab.core.domain.records import JobRecord


class History(Protocol):
    """A store of job records. Calls may come from several threads."""

    def record(self, job: JobRecord) -> tuple[str, ...]:
        """Keep `job`, replacing an earlier record of the same run id.

        Returns:
            The names of figures that were left out because they are not finite.
        """
        ...

    def fetch(self, tags: Mapping[str, str], limit: int) -> tuple[JobRecord, ...]:
        """Records that carry all of `tags` with the same values, the last written first, at most `limit` of them.

        No tags match every record.

        Raises:
            BadInput: `limit` is below 1.
        """
        ...
