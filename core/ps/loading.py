"""How a server comes by the rows of vshards that nobody alive holds: from the freshest copy that can be read whole.

Copies are read, checked and decoded by a few threads ahead of the one that puts them into the table, because training
waits for it. A damaged copy is passed over for the next best; only when none is left the order fails.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.errors import CorruptCopy
from trimtab.core.ps.copies import VshardCopy, read_copies, read_copy
from trimtab.core.ps.manifest import Manifest, read_manifest
from trimtab.core.ps.snapshots import Source, read_indexes, sources_of

log = logging.getLogger(__name__)

_READERS = 2
_AHEAD = 4  # pieces read and not yet put in
_PIECE_BYTES = 4 << 20  # copies that adjoin are read together: a store at a distance takes its time for each request


class Loading:
    """Reads copies for one server."""

    def __init__(self, job_id: str, model: ModelSpec, snapshots: str) -> None:
        """`snapshots` is this node's directory of them, "" for none."""
        self._job_id, self._model, self._snapshots = job_id, model, snapshots

    def sources(self, manifest_path: str, vshards: list[int]) -> dict[int, list[Source]]:
        """For each vshard the copies it may come from, the freshest first.

        Raises:
            CorruptCopy: the manifest cannot be read, or is of another job or model.
        """
        manifest: Manifest = read_manifest(manifest_path)
        if (manifest.job_id, manifest.fingerprint) != (self._job_id, self._model.fingerprint):
            raise CorruptCopy(f"manifest {manifest_path} is of job {manifest.job_id} or of another model")
        return sources_of(vshards, manifest, read_indexes(self._snapshots, self._job_id, self._model.fingerprint))

    def copies(self, sources: dict[int, list[Source]]) -> Iterator[list[VshardCopy]]:
        """The best whole copy of each vshard, some at a time, as they are read.

        Raises:
            CorruptCopy: no copy of a vshard can be read whole.
        """
        with ThreadPoolExecutor(_READERS, thread_name_prefix="read-copy") as pool:
            running: deque[Future[list[VshardCopy]]] = deque()
            for piece in _pieces(sources):
                running.append(pool.submit(self._read, piece))
                if len(running) >= _AHEAD:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()

    def _read(self, piece: list[list[Source]]) -> list[VshardCopy]:
        """The best copies together; if one of them is not whole, each by itself."""
        try:
            return list(read_copies([candidates[0].entry for candidates in piece], self._model.tables))
        except CorruptCopy:
            return [self._best(candidates) for candidates in piece]

    def _best(self, candidates: list[Source]) -> VshardCopy:
        for source in candidates[:-1]:
            try:
                return read_copy(source.entry, self._model.tables)
            except CorruptCopy as error:
                log.warning("%s: the next best copy is taken", error)
        return read_copy(candidates[-1].entry, self._model.tables)


def _pieces(sources: dict[int, list[Source]]) -> Iterator[list[list[Source]]]:
    """Candidates of several vshards at a time, as they lie in their files."""
    piece: list[list[Source]] = []
    size = 0
    for candidates in sorted(sources.values(), key=lambda held: (held[0].entry.file, held[0].entry.offset)):
        if piece and size + candidates[0].entry.length > _PIECE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(candidates)
        size += candidates[0].entry.length
    if piece:
        yield piece
