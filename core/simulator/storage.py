"""Where a simulated job's copies and manifests lie: what a file really holds, beside what a manifest says of it.

Both are kept apart on purpose. The end of a job is judged on the manifest, and a promise is only worth something if it
is checked against what the writers wrote.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps.manifest import Manifest, ManifestRef
from trimtab.core.simulator.rows import Rows
from trimtab.core.wire.messages import CopiesWritten, CopyEntry, CopySet, from_bitmap

JOB = "job"
INITIAL = "initial"


@dataclass(frozen=True)
class Copy:
    """Vshards of one file: their tenure, and what was in their rows when they were written."""

    mask: int
    since: int
    applied: IntervalSet


class Storage:
    """All files, and those that were deleted."""

    def __init__(self) -> None:
        entries = tuple(CopyEntry(vshard, 0, INITIAL, 0, 0, "", 0) for vshard in range(VSHARDS))
        first = Manifest(1, JOB, "model", VSHARDS, entries, (CopySet((), ()),))
        self.files: dict[str, tuple[Copy, ...]] = {INITIAL: (Copy((1 << VSHARDS) - 1, 0, EMPTY),)}
        self.manifests: dict[str, Manifest] = {"manifest-0": first}
        self.first = ManifestRef("manifest-0", "0")
        self._masks: dict[str, tuple[tuple[str, int], ...]] = {}

    def write(self, name: str, order: int, copies: tuple[Copy, ...]) -> CopiesWritten:
        """Keep copies as one file; what its writer tells of it."""
        self.files[name] = copies
        entries = tuple(
            CopyEntry(vshard, copy.since, name, 0, 0, "", at)
            for at, copy in enumerate(copies) for vshard in from_bitmap(f"{copy.mask:x}")
        )  # fmt: skip
        return CopiesWritten(order, entries, tuple(CopySet(copy.applied.intervals, ()) for copy in copies))

    def put(self, manifest: Manifest) -> ManifestRef:
        """Keep a manifest."""
        ref = ManifestRef(f"manifest-{len(self.manifests)}", "0")
        self.manifests[ref.path] = manifest
        return ref

    def remove(self, old: Manifest, new: Manifest) -> None:
        """Delete what the old manifest names and its successor does not."""
        for file in {entry.file for entry in old.entries} - {entry.file for entry in new.entries}:
            self.files.pop(file, None)

    def read(self, path: str, mask: int) -> list[tuple[int, IntervalSet]]:
        """What the manifest's copies of these vshards really hold, as masks with their sets.

        Raises:
            KeyError: a file is not there any more.
        """
        found = []
        for file, named in self.masks(path):
            wanted = named & mask
            if wanted:
                found += [(copy.mask & wanted, copy.applied) for copy in self.files[file] if copy.mask & wanted]
        return found

    def masks(self, path: str) -> tuple[tuple[str, int], ...]:
        """The files of a manifest, each with the vshards that it is named for."""
        if path not in self._masks:
            masks: dict[str, int] = {}
            for entry in self.manifests[path].entries:
                masks[entry.file] = masks.get(entry.file, 0) | 1 << entry.vshard
            self._masks[path] = tuple(masks.items())
        return self._masks[path]


def copies_of(rows: Rows) -> tuple[Copy, ...]:
    """A copy of everything that is served, as it is at this instant."""
    return tuple(Copy(part.mask, part.since, part.applied) for part in rows.parts if part.served)
