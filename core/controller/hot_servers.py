"""What is done about a parameter server that everybody waits for.

The cheapest that helps comes first: vshards move, it gets more cores, another one takes its place.
"""

from __future__ import annotations

from trimtab.core.controller.state import Draft


def watch_servers(draft: Draft) -> None:
    """Look at the parameter servers' times, shares and traffic, and act on what is found."""
