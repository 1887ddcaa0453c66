"""Copies that lie on a server's own node: written often, read by whoever takes a dead server's vshards over.

A snapshot is a file of copies and an index of them, named after the process that wrote it and its own checksum. Every
copy is true about itself, so any file found here may be the source of a vshard, as long as its set contains that of the
manifest's copy; the one with most batches is taken. Nothing rests on a snapshot: one that is cut short, damaged or
lost costs a few seconds of training again. So they are not synced to the disk, and pruned without ceremony.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.errors import WireError
from trimtab.core.ps.copies import checksum
from trimtab.core.ps.manifest import Manifest
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.messages import CopiesWritten, CopyEntry, CopySet

log = logging.getLogger(__name__)

VERSION = 1
_NAME = "snapshot-{process}-{number}"


@dataclass(frozen=True)
class SnapshotIndex:
    """What one snapshot holds: copies of one job, model and process; `sets` is what `set_index` points into."""

    version: int
    job_id: str
    fingerprint: str
    process: str
    entries: tuple[CopyEntry, ...]
    sets: tuple[CopySet, ...]


@dataclass(frozen=True)
class Source:
    """A copy that a vshard may be loaded from: where it lies, and the batches in its rows."""

    entry: CopyEntry
    applied: IntervalSet


def data_path(directory: str, process: str, number: int) -> Path:
    """The file of the copies of a process's snapshot."""
    return Path(directory) / (_NAME.format(process=process[:12], number=number) + ".ttc")


def write_index(
    directory: str, job_id: str, fingerprint: str, process: str, number: int, written: CopiesWritten
) -> None:
    """Make a snapshot count: its copies can be found from now on. Raises OSError."""
    data = to_json(SnapshotIndex(VERSION, job_id, fingerprint, process, written.entries, written.sets))
    stem = _NAME.format(process=process[:12], number=number)
    beside = Path(directory) / f"{stem}.part"
    try:
        beside.write_bytes(data)
        beside.replace(Path(directory) / f"{stem}-{checksum(data)}.json")
    finally:
        beside.unlink(missing_ok=True)


def read_indexes(directory: str, job_id: str, fingerprint: str) -> list[SnapshotIndex]:
    """The whole indexes of this job and model in `directory`; others are passed over."""
    found = []
    for path in sorted(Path(directory).glob("snapshot-*.json")) if directory else []:
        try:
            data = path.read_bytes()
            if checksum(data) != path.stem.rpartition("-")[2]:
                raise WireError("its checksum is wrong")
            index = from_json(SnapshotIndex, data)
        except (OSError, WireError) as error:
            log.info("snapshot %s is passed over: %s", path.name, error)
            continue
        right = (index.version, index.job_id, index.fingerprint) == (VERSION, job_id, fingerprint)
        if right and all(0 <= entry.set_index < len(index.sets) for entry in index.entries):
            found.append(index)
    return found


def sources_of(vshards: Iterable[int], manifest: Manifest, indexes: Iterable[SnapshotIndex]) -> dict[int, list[Source]]:
    """For each vshard the copies it may be loaded from, the freshest first; the manifest's is always among them.

    A copy whose set does not contain that of the manifest's is none: it would undo what was closed.
    """
    wanted = set(vshards)
    sets = {place: IntervalSet(held.applied) for place, held in enumerate(manifest.sets)}
    found = {v: [Source(manifest.entries[v], sets[manifest.entries[v].set_index])] for v in wanted}
    least = {v: held[0].applied for v, held in found.items()}
    for index in indexes:
        for place, held in enumerate(index.sets):
            applied = IntervalSet(held.applied)
            fits: dict[int, bool] = {}
            for entry in index.entries:
                if entry.set_index != place or entry.vshard not in wanted or not 0 <= entry.vshard < VSHARDS:
                    continue
                known = manifest.entries[entry.vshard].set_index
                if known not in fits:
                    fits[known] = applied != least[entry.vshard] and applied.issuperset(least[entry.vshard])
                if fits[known]:
                    found[entry.vshard].append(Source(entry, applied))
    for held_by in found.values():
        held_by.sort(key=lambda source: len(source.applied), reverse=True)
    return found


def prune(directory: str, process: str, keep: int) -> None:
    """Delete a process's own snapshots but the one numbered `keep`, and what was left half written."""
    stem, kept = f"snapshot-{process[:12]}-", _NAME.format(process=process[:12], number=keep)
    for path in Path(directory).glob(f"{stem}*"):
        if path.stem != kept and not path.stem.startswith(f"{kept}-"):
            with contextlib.suppress(OSError):
                path.unlink()


def remove_of_others(directory: str, processes: Iterable[str]) -> None:
    """Delete the snapshots of all processes but these: later checkpoints hold what the others knew.

    With nobody left the directory goes, too.
    """
    stems = tuple(f"snapshot-{process[:12]}-" for process in processes)
    for path in Path(directory).glob("snapshot-*") if directory else ():
        if not path.name.startswith(stems):
            with contextlib.suppress(OSError):
                path.unlink()
    if directory and not stems:
        with contextlib.suppress(OSError):
            Path(directory).rmdir()
