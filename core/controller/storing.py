"""What the driver stores: manifests, the state document, and the deletion of what newer ones supersede.

A store may take its time or hang, and not only one behind a URL: a disk that is full of other writes makes a sync wait
for all of them. The loop that calls parameter servers must not wait for that, or they would take their controller for
dead. So all of it has a thread of its own, one thing at a time: the state says that a swap is on its way, and the next
one waits for its result. At an orderly end what is queued gets a few seconds more.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from trimtab.core.clock import Clock
from trimtab.core.controller.actions import CommitDocument, RemoveSuperseded
from trimtab.core.controller.inputs import CommitResult
from trimtab.core.controller.store import StateStore
from trimtab.core.errors import StaleState, TrimtabError
from trimtab.core.ps import storage
from trimtab.core.ps.manifest import remove_superseded, write_manifest
from trimtab.core.ps.snapshots import remove_of_others

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0


class Storing:
    """One job's writes.

    Args:
        store: of the state document.
        copies: directory (or URL) of manifests. snapshots: directory of this node's snapshots, "" for none.
        first: path of the manifest that the job begins with.
        done: hears how each swap ended, from another thread.
    """

    def __init__(
        self, store: StateStore, copies: str, snapshots: str, first: str, done: Callable[[CommitResult], None]
    ) -> None:
        self._store, self._copies, self._snapshots, self._done = store, copies, snapshots, done
        self._manifests = [first]
        self._apart: queue.SimpleQueue[Callable[[], None] | None] | None = None

    def commit(self, action: CommitDocument) -> None:
        """Write the manifest, if there is one, and swap the document in; `done` hears how it ended."""
        self._do(lambda: self._done(self._swap(action)))

    def remove(self, action: RemoveSuperseded, manifest: str) -> None:
        """Delete what was superseded; `manifest` is the path of the one in force. What stays only costs room.

        A manifest stays until it was superseded twice: an order that names the last one may still be on its way.
        """
        if manifest not in self._manifests:
            self._manifests.append(manifest)
        old, self._manifests = self._manifests[:-2], self._manifests[-2:]

        def delete() -> None:
            remove_superseded(action.old, action.new)
            for path in old:
                with suppress(OSError):
                    storage.remove(path)
            if action.alive:
                remove_of_others(self._snapshots, action.alive)
                self._remove_parts(action.alive)

        self._do(delete)

    def close(self, clock: Clock) -> None:
        """Wait for what is queued, but not long: a store that hangs must not keep the job from ending."""
        works, self._apart = self._apart, None
        if works is None:
            return
        done = threading.Event()
        works.put(done.set)
        works.put(None)
        with suppress(KeyboardInterrupt):  # what stays only costs room
            if clock.wait(done, CLOSE_SECONDS):
                return
        log.warning("%s: not everything that was superseded could be deleted in time", self._copies)

    def _remove_parts(self, alive: Iterable[str]) -> None:
        """Delete what dead servers left half written, where a file system knows no files without a name."""
        if not storage.is_local(self._copies):
            return
        stems = tuple(f"copies-{process[:12]}-" for process in alive)
        with suppress(OSError):
            for name in storage.list_names(self._copies):
                if name.startswith("copies-") and name.endswith(".part") and not name.startswith(stems):
                    storage.remove(storage.join(self._copies, name))

    def _do(self, work: Callable[[], None]) -> None:
        if self._apart is None:
            self._apart = queue.SimpleQueue()
            threading.Thread(target=self._work_apart, args=(self._apart,), name="store", daemon=True).start()
        self._apart.put(work)

    @staticmethod
    def _work_apart(works: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := works.get()) is not None:
            try:
                work()
            except Exception:  # the thread must live; `done` has told the driver what broke in a step
                log.exception("storing failed")

    def _swap(self, action: CommitDocument) -> CommitResult:
        document = action.document
        try:
            if action.manifest is not None:
                document = replace(document, manifest=write_manifest(self._copies, action.manifest))
            stored = self._store.compare_and_swap(document, document.version)
        except StaleState as error:
            return CommitResult(None, stale=True, error=str(error))
        except (OSError, TrimtabError) as error:
            return CommitResult(None, error=str(error))
        except Exception as error:  # a swap without a result would be waited for
            log.exception("a swap failed")
            return CommitResult(None, error=f"{type(error).__name__}: {error}")
        return CommitResult(stored, action.manifest)
