"""Records that no store has taken yet.

A job must not wait for MLflow, and its record must not depend on MLflow being there when the job ends. So the record
lies in the job's directory, and a small file in the outbox names it until a store has taken it: the next `trimtab
train` or `trimtab history` delivers it. An entry is locked by whoever delivers it, from before it can be seen until it
is gone, so that two processes never make two runs of one job; a dead process's lock is void by itself.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import BadInput, CorruptCopy, TrimtabError, WireError
from trimtab.core.history.base import History, HistoryAway
from trimtab.core.history.record_file import FILE, FORMAT, read_record, write_record
from trimtab.core.wire.encode import from_json, to_json

FOLDER = "outbox"  # under TRIMTAB_HOME
_VOID = ".void"


@dataclass(frozen=True)
class _Letter:
    """What an entry says: where the record and its artifacts lie."""

    format: int
    run_id: str
    record: str
    artifacts: dict[str, str]


@dataclass(frozen=True)
class Delivered:
    """What a delivery did.

    Attributes:
        count: records that a store took. left: records that still wait.
        error: why they wait, "" when nothing went wrong.
    """

    count: int
    left: int
    error: str = ""


class Entry:
    """One waiting record, locked by this process as long as it is not closed."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path, self._handle = path, handle

    def done(self) -> None:
        """The record was taken: the entry goes."""
        with suppress(OSError):
            self._path.unlink()
        self.close()

    def close(self) -> None:
        """Leave the entry to whoever delivers next."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def set_aside(self) -> None:
        """Nobody can deliver it: keep it under another name for a person to look at."""
        with suppress(OSError):
            self._path.replace(self._path.with_name(self._path.name + _VOID))
        self.close()

    def read(self) -> _Letter:
        """What it says (raises OSError, WireError)."""
        return from_json(_Letter, self._path.read_bytes())


def put(outbox: Path, record: JobRecord, artifacts: Mapping[str, Path]) -> Entry:
    """Keep `record` until a store has taken it; the entry is locked by this process.

    The record goes to its job's directory, or beside the entry when that is not known or gone.

    Args:
        outbox: the folder of entries, made when needed.
        record: complete.
        artifacts: names and paths of what is to be attached.

    Raises:
        OSError: it cannot be written.
    """
    outbox.mkdir(parents=True, exist_ok=True)
    folder = Path(record.job_dir).absolute() if record.job_dir else None
    place = folder / FILE if folder is not None and folder.is_dir() else outbox / f"{record.run_id}.record"
    write_record(place, record)
    named = {name: str(path.absolute()) for name, path in artifacts.items()}
    letter = to_json(_Letter(FORMAT, record.run_id, str(place), named))
    path = outbox / f"{record.run_id}.json"
    beside = outbox / f".{record.run_id}.{os.getpid()}"
    handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(handle, letter)
        os.fsync(handle)
        beside.replace(path)
    except BaseException:
        os.close(handle)
        with suppress(OSError):
            beside.unlink()
        raise
    return Entry(path, handle)


def deliver(history: History, record: JobRecord, artifacts: Mapping[str, Path]) -> None:
    """Record a job and attach what is still there of its artifacts (raises HistoryAway)."""
    history.record(record)
    there = {name: path for name, path in artifacts.items() if path.exists()}
    if there:
        history.attach(record.run_id, there)


def waiting(outbox: Path) -> tuple[Path, ...]:
    """The entries, oldest run first."""
    try:
        return tuple(sorted(path for path in outbox.glob("*.json") if not path.name.startswith(".")))
    except OSError:
        return ()


def deliver_waiting(open_history: Callable[[], History], outbox: Path) -> Delivered:
    """Deliver every waiting record that nobody else delivers right now; never raises for a store that is away.

    The store is opened only when something waits. It stops at the first record that the store does not take.
    """
    paths = waiting(outbox)
    if not paths:
        return Delivered(0, 0)
    try:
        history = open_history()
    except TrimtabError as error:
        return Delivered(0, len(paths), str(error))
    count, problem = 0, ""
    for path in paths:
        entry = _claim(path)
        if entry is None:
            continue
        try:
            count += _deliver_entry(history, entry)
        except HistoryAway as error:
            problem = str(error)
            break
        except (TrimtabError, OSError) as error:
            problem = f"{path.name}: {error}"
        finally:
            entry.close()
    return Delivered(count, len(waiting(outbox)), problem)


def read_waiting(outbox: Path) -> tuple[JobRecord, ...]:
    """The records that wait, oldest run first, without delivering them; what cannot be read is passed over."""
    found = []
    for path in waiting(outbox):
        with suppress(OSError, TrimtabError):
            found.append(read_record(Path(from_json(_Letter, path.read_bytes()).record)))
    return tuple(found)


def _claim(path: Path) -> Entry | None:
    """The entry, locked; None when somebody else has it or it has just been delivered."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == path.stat().st_ino:
            return Entry(path, handle)
    except OSError:
        pass
    os.close(handle)
    return None


def _deliver_entry(history: History, entry: Entry) -> int:
    """Deliver one entry: 1 when the store took it, 0 when there is nothing that could be delivered."""
    try:
        letter = entry.read()
        record = read_record(Path(letter.record))
    except FileNotFoundError:
        entry.done()  # the job's directory was removed, and the record with it
        return 0
    except (WireError, CorruptCopy):
        entry.set_aside()
        raise
    except BadInput:
        raise  # of a newer version, which will deliver it
    deliver(history, record, {name: Path(path) for name, path in letter.artifacts.items()})
    entry.done()
    beside = Path(letter.record)
    if beside.name != FILE:
        with suppress(OSError):
            beside.unlink()
    return 1
