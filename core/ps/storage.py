"""Where copies and manifests lie: a path of this machine, or a URL of anything that fsspec writes.

Both ways keep one promise, because a checkpoint rests on it: a file is there whole or not at all, and a name that
exists is never written again. On this machine a file has no name until it is complete, so that even a process that is
killed leaves nothing. Elsewhere the name is looked up first, what has arrived is measured at the end, and what is not
whole is removed; no two processes ever write different bytes under one name, so that looking first is enough.

Every failure is an OSError, whatever the library behind a URL raises. File systems are looked up anew in each call:
fsspec keeps one per process and makes new ones after a fork.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# "://" makes a URL, as in fsspec; "::" chains two of them.
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(://|::.*://)")
_LOCAL = re.compile(r"(file|local)://")
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_IN_PROC = Path("/proc/self/fd")
_SYNC_BYTES = 64 << 20  # piece by piece: a sync of gigabytes at the end would look like a disk that hangs
_MOST_AT_ONCE = 1 << 30  # bytes: the system reads less than 2 GiB with one call
_MODE = 0o666  # less the umask, as for every file


def is_local(url: str) -> bool:
    """Whether `url` is a path of this machine (file:// included)."""
    return bool(_LOCAL.match(url)) or not _REMOTE.match(url)


def absolute(url: str) -> str:
    """`url` as every process of a job understands it: a path from the root, a URL as it is."""
    return str(_path(url).absolute()) if is_local(url) else url


def join(base: str, name: str) -> str:
    """`name` in the directory `base`."""
    return f"{base.rstrip('/')}/{name}"


def parent(url: str) -> str:
    """The directory in which `url` lies."""
    return str(_path(url).parent) if is_local(url) else url.rstrip("/").rpartition("/")[0]


def name_of(url: str) -> str:
    """The last part of `url`."""
    return url.rstrip("/").rpartition("/")[2]


def prepare(url: str) -> None:
    """Load what `url` needs, before threads and forks: an import that a fork cuts in two never ends in the child.

    Raises:
        OSError: nothing here knows such URLs.
    """
    if not is_local(url):
        _system(url)


def make_directory(url: str) -> None:
    """Make the directory with those above it; one that exists is fine (raises OSError)."""
    if is_local(url):
        _path(url).mkdir(parents=True, exist_ok=True)
        return
    system, path = _system(url)
    with _as_os_error(url):
        system.makedirs(path, exist_ok=True)


def try_out(url: str) -> None:
    """Write, read and delete a small file in the directory, which is made: a store tells only so what it permits.

    Raises:
        OSError: one of it failed.
    """
    make_directory(url)
    probe = join(url, f"probe-{secrets.token_hex(8)}")
    try:
        write_new(probe, [b"trimtab"])
        if read_bytes(probe) != b"trimtab":
            raise OSError(errno.EIO, "what was read is not what was written", probe)
    finally:
        remove(probe)


def write_new(url: str, chunks: Iterable[bytes], durable: bool = True) -> int:
    """Write a new file, whole or not at all; returns its bytes.

    Args:
        url: of the file; its directory exists.
        chunks: what it holds, piece by piece; what they raise goes through, and nothing is left.
        durable: whether it has to survive a power loss when this returns. A store behind a URL always promises that.

    Raises:
        FileExistsError: there is one of this name; it is untouched. OSError: it could not be written.
    """
    if is_local(url):
        return _write_local(_path(url), chunks, durable=durable)
    return _write_remote(url, chunks)


def read_bytes(url: str) -> bytes:
    """The whole file (raises OSError)."""
    if is_local(url):
        return _path(url).read_bytes()
    system, path = _system(url)
    with _as_os_error(url):
        return bytes(system.cat_file(path))


def read_range(url: str, offset: int, length: int) -> bytes:
    """`length` bytes from `offset` on, fewer where the file ends before (raises OSError)."""
    if is_local(url):
        with _path(url).open("rb", buffering=0) as source:
            return _pread(source.fileno(), offset, length)
    if length == 0:
        return b""  # no store has a range of nothing
    system, path = _system(url)
    with _as_os_error(url):
        found = bytes(system.cat_file(path, start=offset, end=offset + length))
    return found if len(found) <= length else found[offset : offset + length]  # a server that knows no ranges


def read_into(url: str, offset: int, length: int) -> memoryview:
    """As `read_range`, into memory of the caller's own: what is read can be written to (raises OSError)."""
    found = memoryview(bytearray(length))
    if not is_local(url):
        data = read_range(url, offset, length)
        found[: len(data)] = data
        return found[: len(data)]
    got = 0
    with _path(url).open("rb", buffering=0) as source:
        while got < length:
            count = os.preadv(source.fileno(), [found[got : got + _MOST_AT_ONCE]], offset + got)
            if count == 0:
                break
            got += count
    return found[:got]


def exists(url: str) -> bool:
    """Whether there is a file or a directory of this name (raises OSError where that cannot be known)."""
    if is_local(url):
        return _path(url).exists()
    system, path = _system(url)
    with _as_os_error(url):
        system.invalidate_cache()  # another process may have made it since
        return bool(system.exists(path))


def remove(url: str) -> None:
    """Delete the file; one that is not there is fine (raises OSError)."""
    with suppress(FileNotFoundError):
        if is_local(url):
            _path(url).unlink()
            return
        system, path = _system(url)
        with _as_os_error(url):
            system.rm_file(path)


def remove_directory(url: str) -> None:
    """Delete the directory if it is empty, as far as its store has directories at all; never fails."""
    with suppress(OSError):
        if is_local(url):
            _path(url).rmdir()
            return
        system, path = _system(url)
        with _as_os_error(url):
            system.rmdir(path)


def list_names(url: str) -> list[str]:
    """The names in a directory, sorted; none where it does not exist (raises OSError where it cannot be read)."""
    try:
        if is_local(url):
            return sorted(each.name for each in _path(url).iterdir())
        system, path = _system(url)
        with _as_os_error(url):
            system.invalidate_cache()
            found = {str(each).rstrip("/") for each in system.ls(path, detail=False)}
            return sorted(name_of(each) for each in found if each.strip("/") != path.strip("/"))
    except FileNotFoundError:
        return []


# ---- this machine


def _path(url: str) -> Path:
    return Path(_LOCAL.sub("", url, count=1))


def _write_local(path: Path, chunks: Iterable[bytes], *, durable: bool) -> int:
    if path.exists():  # before gigabytes are written in vain; the link below is what forbids it
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    beside, handle = None, -1
    try:
        beside, handle = _open_beside(path)
        written = synced = 0
        for chunk in chunks:
            written += _write_all(handle, chunk)
            if durable and written - synced >= _SYNC_BYTES:
                os.fsync(handle)
                synced = written
        if durable:
            os.fsync(handle)
        # A link is never made over an existing name, as a rename would be.
        if beside is not None:
            os.link(beside, path)
        else:  # src_dir_fd makes Python follow the link in /proc to the file that has no name yet
            os.link(_IN_PROC / str(handle), path, src_dir_fd=above, follow_symlinks=True)
        if durable:
            os.fsync(above)  # the name, too, has to survive
        return written
    finally:
        if beside is not None:
            beside.unlink()
        if handle >= 0:
            os.close(handle)
        os.close(above)


def _open_beside(path: Path) -> tuple[Path | None, int]:
    """A file without a name, or, where the file system has none such, with a name of its own; name and descriptor."""
    if _IN_PROC.is_dir():
        try:
            return None, os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, _MODE)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    return beside, os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)


def _write_all(handle: int, chunk: bytes) -> int:
    left = memoryview(chunk)
    while left:
        left = left[os.write(handle, left) :]
    return len(chunk)


def _pread(handle: int, offset: int, length: int) -> bytes:
    """As `os.pread`, which gives 2 GiB at most at once."""
    pieces = []
    while length > 0 and (piece := os.pread(handle, min(length, 1 << 30), offset)):
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# ---- anything else


def _system(url: str) -> tuple[Any, str]:
    """The file system of `url`, and its path there."""
    with _as_os_error(url):
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
        return system, str(path)


@contextmanager
def _as_os_error(url: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # each library behind fsspec has errors of its own; none may end a process
        said = " ".join(str(error).split()) or "no reason given"
        raise OSError(errno.EIO, f"{type(error).__name__}: {said}", url) from error


def _write_remote(url: str, chunks: Iterable[bytes]) -> int:
    if exists(url):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), url)
    system, path = _system(url)
    with _as_os_error(url):
        out = system.open(path, "wb")
    written = 0
    try:
        for chunk in chunks:
            with _as_os_error(url):
                out.write(chunk)
            written += len(chunk)
        with _as_os_error(url):
            out.close()
            system.invalidate_cache()
            arrived = system.info(path)["size"]
            if arrived != written:
                raise OSError(errno.EIO, f"{arrived} of {written} bytes have arrived", url)
        return written
    except BaseException:
        _abandon(system, path, out)
        raise


def _abandon(system: Any, path: str, out: Any) -> None:
    """Throw away what was not finished. Closing would finish it: a buffered upload becomes a file by being closed."""
    for give_up in (getattr(out, "discard", None), lambda: setattr(out, "closed", True), out.close,
                    lambda: system.rm_file(path)):  # fmt: skip
        with suppress(Exception):  # the failure that led here is the one to tell
            if give_up is not None:
                give_up()
