"""Where rows come from: which files a path, glob, directory or URL means, in which order and format.

Everything is opened through fsspec, so that a laptop's path and an object store's URL take the same way. The list is
sorted, because the number of a row (and with it shuffle and split) is its place in it. A file's identity is cheap
but follows its contents: small files are hashed whole; of larger ones head, tail and samples between them are
hashed, together with everything by which the store tells one version from the next (size, times, etag).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, cast

from trimtab.core.errors import DataError

CRITEO, DELIMITED, PARQUET, TFRECORD = "criteo", "csv", "parquet", "tfrecord"
TEXT = "text"  # CSV with a header or Criteo's without: told apart by the first line

_EXTENSIONS = {
    ".tsv": TEXT, ".txt": TEXT, ".csv": TEXT, ".parquet": PARQUET, ".pq": PARQUET, ".parq": PARQUET,
    ".tfrecord": TFRECORD, ".tfrecords": TFRECORD, ".tfr": TFRECORD,
}  # fmt: skip
_KINDS = ".tsv, .csv, .txt (also .gz), .parquet, .tfrecord"
_WHOLE_BYTES = 16 * 2**20  # files up to this size are hashed whole
_PIECE_BYTES = 64 * 2**10
_PIECES = 16
_VERSION_KEYS = ("mtime", "created", "ino", "ETag", "etag", "md5Hash", "crc32c", "generation", "VersionId",
                 "LastModified", "last_modified", "updated", "content_md5")  # fmt: skip


@dataclass(frozen=True)
class SourceFile:
    """One file of the source.

    Attributes:
        name: as a person would name it (with the protocol when it is not local).
        path: as its file system names it.
        size: bytes.
        kind: text | parquet | tfrecord.
        system: the fsspec file system.
    """

    name: str
    path: str
    size: int
    kind: str
    system: Any

    def open(self) -> BinaryIO:
        """The raw bytes, seekable.

        Raises:
            DataError: it cannot be opened.
        """
        try:
            return cast(BinaryIO, self.system.open(self.path, "rb", block_size=2**20))
        except (OSError, ValueError) as error:
            remedy = "cannot be opened; check that it exists and may be read"
            raise DataError(self.name, _reason(error), remedy) from None


def list_files(source: str, field: str = "--data") -> list[SourceFile]:
    """The files that `source` means, sorted by path, all of one kind.

    Raises:
        DataError: nothing is there, a directory has no data files, a file is empty, or kinds are mixed.
    """
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(source)
    except (ValueError, ImportError, OSError) as error:
        raise DataError(field, source, f"cannot be opened ({_reason(error)})") from None
    local = "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))
    try:
        paths = _paths(system, path, source, field)
        infos = [(each, system.info(each)) for each in paths]
    except OSError as error:
        raise DataError(field, source, f"cannot be read ({_reason(error)})") from None
    files = []
    for each, info in infos:
        name = _shown(each) if local else str(system.unstrip_protocol(each))
        size = info.get("size")
        if size == 0:
            raise DataError(name, "0 bytes", "the file is empty; give a file with rows")
        files.append(SourceFile(name, each, int(size or 0), _kind(system, each, name), system))
    for file in files[1:]:
        if file.kind != files[0].kind:
            kinds = f"{files[0].name} is {files[0].kind} and {file.name} is {file.kind}"
            raise DataError(field, source, f"mixes formats: {kinds}; give files of one format")
    return files


def identity(files: list[SourceFile]) -> list[dict[str, Any]]:
    """What identifies the files' present contents; equal only for unchanged files."""
    return [_identity(file) for file in files]


def _paths(system: Any, path: str, source: str, field: str) -> list[str]:
    exists = system.exists(path)
    if not exists and any(mark in path for mark in "*?["):
        found = sorted(each for each in system.glob(path) if system.isfile(each))
        if not found:
            raise DataError(field, source, "the pattern matches no file; check it, and quote it in a shell")
        return found
    if not exists:
        raise DataError(field, source, "no such file or directory; give a path, glob, directory or URL of rows")
    if not system.isdir(path):
        return [path]
    below = [each for each in sorted(system.find(path)) if not _hidden(each, path)]
    found = [each for each in below if _by_extension(each)]
    if not found:  # part-00000, day_0.gz and the like: names that say nothing, so the contents must
        found = [each for each in below if "." not in each.rsplit("/", 1)[-1].removesuffix(".gz")]
    if not found:
        raise DataError(field, source, f"the directory has no data files; it should have {_KINDS}")
    return found


def _hidden(path: str, root: str) -> bool:
    """Whether a file is a writer's own (``_SUCCESS``, ``.part.crc``), not data."""
    return any(part.startswith((".", "_")) for part in path[len(root) :].split("/") if part)


def _by_extension(path: str) -> str | None:
    name = path.rsplit("/", 1)[-1].lower()
    return _EXTENSIONS.get(Path(name.removesuffix(".gz")).suffix)


def _kind(system: Any, path: str, name: str) -> str:
    """The kind by extension, else by the first bytes."""
    known = _by_extension(path)
    if known is not None:
        return known
    from trimtab.core.data.streams import head_of
    from trimtab.core.data.tfrecord import looks_like_records

    head = head_of(SourceFile(name, path, 0, TEXT, system), 4096)
    if head[:4] == b"PAR1":
        return PARQUET
    if looks_like_records(head):
        return TFRECORD
    if b"\0" not in head and head.strip():
        return TEXT
    raise DataError(name, head[:8], f"neither the name nor the contents tell the format; name it {_KINDS}")


def _identity(file: SourceFile) -> dict[str, Any]:
    with file.open() as stream:
        size = stream.seek(0, 2)
        digest = blake2b(digest_size=16)
        if size <= _WHOLE_BYTES:
            stream.seek(0)
            while piece := stream.read(2**20):
                digest.update(piece)
            return {"size": size, "hash": digest.hexdigest()}
        for at in range(_PIECES + 1):  # the first is the head, the last the tail
            stream.seek((size - _PIECE_BYTES) * at // _PIECES)
            digest.update(stream.read(_PIECE_BYTES))
    file.system.invalidate_cache()
    info: Mapping[str, Any] = file.system.info(file.path)
    versions = {key: str(info[key]) for key in _VERSION_KEYS if info.get(key) is not None}
    return {"size": size, "hash": digest.hexdigest(), "path": file.name, **versions}


def _shown(path: str) -> str:
    """A local path as short as it can be named from here."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__).split("\n")[0]
