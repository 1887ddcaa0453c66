"""What is done before a pod meets its memory limit, and after one has.

More memory where the caps have room, vshards move, another parameter server, at last a stop with a reason.
"""

from __future__ import annotations

from trimtab.core.controller.state import Draft


def watch_memory(draft: Draft) -> None:
    """Look at each pod's memory and its forecast, and act before a limit is met."""
