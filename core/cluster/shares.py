"""What a local cluster wants to have of the machine: pods held to their cores and to their memory.

The cluster itself neither knows nor asks how that is done, or whether it can be: it says what each pod has, and whoever
wants to know reads the notes.
"""

from __future__ import annotations

from typing import Protocol


class Shares(Protocol):
    """What one job's pods are held to. Nothing here raises: what can't be done becomes a note."""

    @property
    def note(self) -> str:
        """Empty while shares of cores are enforced, else one sentence why not."""
        ...

    @property
    def memory_note(self) -> str:
        """Empty while limits of memory are enforced, else one sentence why not."""
        ...

    def give(self, pod: str, cpu: float) -> None:
        """Give a pod `cpu` cores, now and in place; makes its group if it has none."""
        ...

    def hold(self, pod: str, memory_bytes: int) -> None:
        """Hold a pod that was given cores to so many bytes, in place, but never to less than it uses and a margin."""
        ...

    def caps(self, cpu: float | None, memory_bytes: int | None) -> None:
        """What all pods together may use from now on; None: no limit."""
        ...

    def limit(self, pod: str) -> int:
        """The bytes that a pod is held to at present, 0 for none."""
        ...

    def used(self, pod: str) -> int:
        """The bytes that a pod uses and could not give back, 0 where that is not known."""
        ...

    def kills(self, pod: str) -> int:
        """How many of a pod's processes the kernel has killed for want of memory."""
        ...

    def doors(self, pod: str) -> list[str]:
        """The files to which a process writes "0" to enter the pod's groups; none where there are none."""
        ...

    def enter(self, pod: str, pid: int) -> None:
        """Put a process, with all its threads, into the pod's groups."""
        ...

    def drop(self, pod: str) -> None:
        """Remove an ended pod's groups, and kill what is still in them."""
        ...

    def close(self) -> bool:
        """Remove everything; False while something is left, then call it again."""
        ...


class NoShares:
    """Shares where the machine allows none."""

    def __init__(self, note: str, memory_note: str = "") -> None:
        self.note = note
        self.memory_note = memory_note or "limits of memory are not enforced: no control group can be used"

    def give(self, pod: str, cpu: float) -> None:
        """Nothing."""

    def hold(self, pod: str, memory_bytes: int) -> None:
        """Nothing."""

    def caps(self, cpu: float | None, memory_bytes: int | None) -> None:
        """Nothing."""

    def limit(self, pod: str) -> int:
        """None."""
        return 0

    def used(self, pod: str) -> int:
        """Not known."""
        return 0

    def kills(self, pod: str) -> int:
        """Not known."""
        return 0

    def doors(self, pod: str) -> list[str]:
        """Nowhere."""
        return []

    def enter(self, pod: str, pid: int) -> None:
        """Nothing."""

    def drop(self, pod: str) -> None:
        """Nothing."""

    def close(self) -> bool:
        """Nothing is left."""
        return True
