"""A store at a distance, for tests: what it holds lies in a folder, but it behaves as an object store does.

A file appears when its upload ends, all at once, and closing a file is what ends its upload, so that an error inside a
`with` block makes half a file a whole one. Directory listings are remembered and go stale. Beside the folder named in
ODD_STORE lies `faults.json`; while it names a fault, every process meets it:

    {"no_space_after": n}   an upload of more than n bytes fails in the way of a full disk
    {"cut_at": n}           an upload keeps its first n bytes and says nothing
    {"strange": true}       opening fails with an error that is no OSError
"""

import errno
import json
import os
import shutil
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

ROOT = "ODD_STORE"
PART_BYTES = 4096


class StoreError(Exception):
    """What a library of a store raises, and nobody else knows."""


class OddFile(AbstractBufferedFile):
    """An upload in parts."""

    def _initiate_upload(self):
        self.parts = []

    def _upload_chunk(self, final=False):
        self.parts.append(self.buffer.getvalue())
        whole, faults = b"".join(self.parts), self.fs.faults()
        if len(whole) > faults.get("no_space_after", len(whole)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        if final:
            self.fs.where(self.path).write_bytes(whole[: faults.get("cut_at", len(whole))])
        return True

    def discard(self):
        self.parts = []


class OddFileSystem(LocalFileSystem):
    """Paths are odd://bucket/name."""

    protocol = "odd"

    def __init__(self, **more):
        super().__init__(**more)
        self.listings = {}

    @classmethod
    def _strip_protocol(cls, path):
        text = os.fspath(path).removeprefix("odd://").strip("/")
        root = os.environ[ROOT].strip("/")
        return text.removeprefix(root).strip("/")

    def where(self, path):
        return Path(os.environ[ROOT]) / self._strip_protocol(path)

    def faults(self):
        try:
            return json.loads(Path(os.environ[ROOT]).with_name("faults.json").read_text())
        except FileNotFoundError:
            return {}

    def _open(self, path, mode="rb", block_size=None, autocommit=True, **more):
        if self.faults().get("strange"):
            raise StoreError("the store is moody today")
        return OddFile(self, path, mode, block_size=PART_BYTES, autocommit=autocommit)

    def cat_file(self, path, start=None, end=None, **more):
        if self.faults().get("strange"):
            raise StoreError("the store is moody today")
        return self.where(path).read_bytes()[slice(start, end)]

    def info(self, path, **more):
        found = self.where(path).stat()
        kind = "directory" if self.where(path).is_dir() else "file"
        return {"name": self._strip_protocol(path), "size": found.st_size, "type": kind}

    def ls(self, path, detail=False, **more):
        if path not in self.listings:
            self.listings[path] = sorted(each.name for each in self.where(path).iterdir())
        names = [f"{self._strip_protocol(path)}/{name}" for name in self.listings[path]]
        return [self.info(name) for name in names] if detail else names

    def invalidate_cache(self, path=None):
        self.listings.clear()

    def makedirs(self, path, exist_ok=False):
        self.where(path).mkdir(parents=True, exist_ok=exist_ok)

    def rm_file(self, path):
        self.where(path).unlink()
        self.listings.clear()

    def rmdir(self, path):
        shutil.rmtree(self.where(path)) if not any(self.where(path).iterdir()) else None

    def exists(self, path, **more):
        return self.where(path).exists()


def register():
    """Make odd:// known to this process."""
    fsspec.register_implementation("odd", OddFileSystem, clobber=True)
