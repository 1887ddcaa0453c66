"""What is done about a worker that has become slow.

Smaller data shards first, near the end a second worker for the same range, then a new worker in its place that is up
before it goes.
"""

from __future__ import annotations

from trimtab.core.controller.state import Draft


def watch_workers(draft: Draft) -> None:
    """Look at the workers' speeds, and act on what is found."""
