"""The manifest: for every vshard, the one copy that counts.

A checkpoint is not a barrier but a map. The next manifest is the last one with newer copies put in, copy by copy, and
it counts from the moment the state document names it. The end of a job is judged here and nowhere else: when every
vshard's copy holds all batches (docs/design.md, "How exactly-once works").
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.values import replace
from trimtab.core.errors import CorruptCopy, WireError
from trimtab.core.ps import storage
from trimtab.core.ps.copies import checksum
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.messages import CopiesWritten, CopyEntry, CopySet, Routing

VERSION = 1


@dataclass(frozen=True)
class ManifestRef:
    """A manifest's file and its checksum: what the state document holds."""

    path: str
    checksum: str


@dataclass(frozen=True)
class Manifest:
    """For each vshard, in order, its copy; `sets` is what the entries' `set_index` points into.

    Attributes:
        version: of this format.
        job_id: whose copies these are; fingerprint: of the model whose tables they hold.
        vshards: how many virtual shards the rows are spread over (512).
    """

    version: int
    job_id: str
    fingerprint: str
    vshards: int
    entries: tuple[CopyEntry, ...]
    sets: tuple[CopySet, ...]

    def applied_of(self, vshard: int) -> IntervalSet:
        """Batches in the rows of one vshard's copy, skipped ones included."""
        return IntervalSet(self.sets[self.entries[vshard].set_index].applied)

    def applied(self) -> IntervalSet:
        """Batches that every vshard's copy holds."""
        common: IntervalSet | None = None
        for index in {entry.set_index for entry in self.entries}:
            held = IntervalSet(self.sets[index].applied)
            common = held if common is None else common & held
        return common if common is not None else EMPTY

    def skipped(self) -> IntervalSet:
        """Batches that any vshard's copy skipped."""
        found = EMPTY
        for index in {entry.set_index for entry in self.entries}:
            found = found | IntervalSet(self.sets[index].skipped)
        return found

    def complete(self, batches: int) -> bool:
        """Whether every vshard's copy holds exactly the batches 0 .. batches-1."""
        whole = IntervalSet.span(0, batches)
        return all(
            IntervalSet(self.sets[index].applied) == whole for index in {entry.set_index for entry in self.entries}
        )


def write_manifest(directory: str | os.PathLike[str], manifest: Manifest) -> ManifestRef:
    """Write the manifest into a directory (path or URL), durable when this returns; its name is its checksum.

    Raises:
        OSError: the store refused.
    """
    data = to_json(manifest)
    mark = checksum(data)
    path = storage.join(storage.absolute(os.fspath(directory)), f"manifest-{mark}.json")
    try:
        storage.write_new(path, [data])
    except FileExistsError:
        if checksum(storage.read_bytes(path)) != mark:  # what a store kept of an upload that was cut
            storage.remove(path)
            storage.write_new(path, [data])
    return ManifestRef(path, mark)


def read_manifest(ref: ManifestRef | str | os.PathLike[str]) -> Manifest:
    """The manifest, whole. Copies that lie beside it are taken from there, wherever they were written: a checkpoint
    that was moved or downloaded as a whole is as good as before.

    Raises:
        CorruptCopy: missing, damaged, of a newer version, or not a manifest.
    """
    path = ref.path if isinstance(ref, ManifestRef) else os.fspath(ref)
    named = storage.name_of(path).removeprefix("manifest-").removesuffix(".json")
    try:
        data = storage.read_bytes(path)
        if checksum(data) != (ref.checksum if isinstance(ref, ManifestRef) else named):
            raise CorruptCopy(f"manifest {path}: checksum is wrong")
        manifest = from_json(Manifest, data)
    except (OSError, WireError) as error:
        raise CorruptCopy(f"manifest {path}: cannot be read: {error}") from error
    if manifest.version > VERSION:
        raise CorruptCopy(f"manifest {path}: version {manifest.version} is newer than this trimtab's {VERSION}")
    numbers = [entry.vshard for entry in manifest.entries]
    if numbers != list(range(manifest.vshards)) or manifest.vshards != VSHARDS:
        raise CorruptCopy(f"manifest {path}: does not name each of {VSHARDS} vshards once")
    if any(not 0 <= entry.set_index < len(manifest.sets) for entry in manifest.entries):
        raise CorruptCopy(f"manifest {path}: an entry names a set that is not there")
    return _beside(manifest, storage.parent(storage.absolute(path)))


def merge(old: Manifest, written: CopiesWritten, routing: Routing, process: str) -> Manifest:
    """`old` with those of the written copies put in that may count.

    A copy counts if its writer is the present owner of its vshard under the present tenure, and if it holds all that
    the copy which it replaces holds (a zombie's or an older copy would undo what was closed).
    """
    entries = list(old.entries)
    sets = list(old.sets)
    places: dict[CopySet, int] = {held: number for number, held in enumerate(sets)}
    whole: dict[tuple[int, int], bool] = {}  # few sets stand for many vshards, so each pair is compared once
    for entry in written.entries:
        owner = routing.owner[entry.vshard]
        if owner < 0 or routing.processes[owner] != process or routing.since[entry.vshard] != entry.since:
            continue
        held, pair = written.sets[entry.set_index], (entry.set_index, old.entries[entry.vshard].set_index)
        if pair not in whole:
            whole[pair] = IntervalSet(held.applied).issuperset(old.applied_of(entry.vshard))
        if not whole[pair]:
            continue
        place = places.setdefault(held, len(sets))
        if place == len(sets):
            sets.append(held)
        entries[entry.vshard] = entry if entry.set_index == place else replace(entry, set_index=place)
    return _compact(replace(old, entries=tuple(entries), sets=tuple(sets)))


def remove_superseded(old: Manifest, new: Manifest) -> None:
    """Delete the files that the old manifest named and its successor does not; never any other."""
    kept = {entry.file for entry in new.entries}
    for file in {entry.file for entry in old.entries} - kept:
        with contextlib.suppress(OSError):  # a file that cannot be deleted only costs room
            storage.remove(file)


def _beside(manifest: Manifest, directory: str) -> Manifest:
    """The manifest with those files taken from `directory` that lie there and were written elsewhere."""
    elsewhere = {entry.file for entry in manifest.entries if storage.parent(entry.file) != directory}
    if not elsewhere:
        return manifest
    try:
        there = set(storage.list_names(directory))
    except OSError:  # a place that can be read but not listed: then nothing was moved there
        return manifest
    moved = {file: storage.join(directory, name) for file in elsewhere if (name := storage.name_of(file)) in there}
    entries = (replace(entry, file=moved.get(entry.file, entry.file)) for entry in manifest.entries)
    return replace(manifest, entries=tuple(entries))


def _compact(manifest: Manifest) -> Manifest:
    """Without sets that no entry points to."""
    used = sorted({entry.set_index for entry in manifest.entries})
    if len(used) == len(manifest.sets):
        return manifest
    place = {old: new for new, old in enumerate(used)}
    return replace(
        manifest,
        entries=tuple(replace(entry, set_index=place[entry.set_index]) for entry in manifest.entries),
        sets=tuple(manifest.sets[index] for index in used),
    )
