"""Where the state document lies: a file replaced atomically under a lock, or memory in tests.

One operation matters, compare-and-swap, and one contract suite runs over every store. A reader of the file needs no
lock: it sees the old document or the new one, whole.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from trimtab.core.controller.document import Document, check_swap, decode_document, encode_document
from trimtab.core.errors import JobFailed, StaleState

log = logging.getLogger(__name__)

_TRIES = 50


class StateStore(Protocol):
    """A place for one state document."""

    def read(self) -> Document | None:
        """The stored document, or None before the first swap."""
        ...

    def compare_and_swap(self, document: Document, expected: int) -> Document:
        """Store `document` if the stored version is `expected` (0: nothing is stored); it gets the next version.

        Raises:
            StaleState: the stored version is another one; nothing is changed.
        """
        ...


class MemoryStore:
    """A store for tests and the simulator."""

    def __init__(self) -> None:
        self._data: bytes | None = None
        self._lock = threading.Lock()

    def read(self) -> Document | None:
        """The stored document; through its bytes, as every other store."""
        return decode_document(self._data) if self._data is not None else None

    def compare_and_swap(self, document: Document, expected: int) -> Document:
        """Store under the lock."""
        with self._lock:
            check_swap(self.read(), expected)
            stored = replace(document, version=expected + 1)
            self._data = encode_document(stored)
            return stored


class FileStore:
    """A store in one file; safe between processes of one machine.

    Args:
        path: of the document; a lock file stands beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Document | None:
        """The stored document."""
        try:
            return decode_document(self._path.read_bytes())
        except FileNotFoundError:
            return None

    def compare_and_swap(self, document: Document, expected: int) -> Document:
        """Write beside, sync, rename, sync the directory: all under the lock."""
        with self._locked():
            check_swap(self.read(), expected)
            stored = replace(document, version=expected + 1)
            beside = self._path.with_suffix(".tmp")
            with beside.open("wb") as file:
                file.write(encode_document(stored))
                file.flush()
                os.fsync(file.fileno())
            try:
                beside.replace(self._path)
                _sync_directory(self._path.parent)
            except OSError as error:  # "not stored" must be true: whoever believed it would meet its own document
                if self.read() != stored:
                    raise
                log.warning("%s is stored, but may not survive a power loss: %s", self._path, error)
            return stored

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def take_term(store: StateStore, fresh: Document) -> Document:
    """Become the controller in charge: the stored document (or `fresh`, the first) with the next term.

    Raises:
        JobFailed: other controllers keep changing the document.
    """
    for _ in range(_TRIES):
        present = store.read()
        base = present if present is not None else fresh
        try:
            return store.compare_and_swap(replace(base, term=base.term + 1), present.version if present else 0)
        except StaleState:
            continue
    raise JobFailed(f"job {fresh.job_id}: other controllers keep taking its state; run only one")
