"""Who controls a job, and jobs whose controller ended without a word.

A controller holds a lock in the job's directory as long as it lives, so that there is never a second one beside it;
the kernel takes the lock back however it ends. The directory also names the controller's process. One that is killed,
or goes down with its machine, leaves a record that says "running": whoever comes next on the same machine and finds
that process gone closes the record, once, and lets the history have it. Of another machine or process namespace nobody
here can tell.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.core.cluster.leftovers import pods_in
from trimtab.core.controller.places import PRIVATE_MARK
from trimtab.core.controller.process import process_began, process_place, process_runs
from trimtab.core.controller.signals import heeds_signals
from trimtab.core.domain.job import JobState
from trimtab.core.errors import BadInput, TrimtabError
from trimtab.core.history import outbox as box
from trimtab.core.history.record_file import FILE, read_record, write_record

log = logging.getLogger(__name__)

OWNER = "controller.json"
LOCK = "controller.lock"
REASON = "its controller ended without a word: it was killed, or the machine went down"


_held: dict[str, int] = {}  # locks of this process, by job directory


def own(job_dir: Path, private: Path | None = None) -> None:
    """This process is the job's controller, until `disown`.

    Args:
        job_dir: of the job. private: of its sockets and its secret, for whoever has to clear it away.

    Raises:
        BadInput: another controller of this job lives; names its process.
    """
    key = str(job_dir.absolute())
    handle = -1 if key in _held else _lock(job_dir)
    other = _named(job_dir)
    if handle == -1 or (other is not None and other["pid"] != os.getpid() and _lives(other)):
        if handle is not None and handle >= 0:
            os.close(handle)
        pid = f"process {other['pid']}" if other is not None else "a process that has just begun"
        remedy = f"its controller lives ({pid}); stop that one first, or let it go on"
        raise BadInput("JOB", str(job_dir), remedy)
    if handle is not None:
        _held[key] = handle
    try:
        name_controller(job_dir, private)
    except OSError:
        release(job_dir)
        raise


def name_controller(job_dir: Path, private: Path | None) -> None:
    """Write down that this process is the controller, with its private directory once it has one."""
    me = {"pid": os.getpid(), "began": process_began(os.getpid()), "heeds_signals": heeds_signals(), **process_place()}
    me |= {"private": str(private)} if private is not None else {}
    beside = job_dir / f".{OWNER}.new"
    beside.write_text(json.dumps(me), encoding="utf-8")
    beside.replace(job_dir / OWNER)


def disown(job_dir: Path) -> None:
    """The job has ended in order."""
    with suppress(OSError):
        (job_dir / OWNER).unlink()
    release(job_dir)


def release(job_dir: Path) -> None:
    """Give the lock up, as the end of this process would."""
    handle = _held.pop(str(job_dir.absolute()), None)
    if handle is not None and handle >= 0:
        os.close(handle)


def silent(job_dir: Path) -> bool:
    """Whether the controller that the job's directory names has ended for certain, without a word."""
    try:
        return _gone(job_dir / OWNER)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


@dataclass(frozen=True)
class Controller:
    """Whom a job's directory names as its controller.

    Attributes:
        pid, began: its process, and when that began. host: the machine it named.
        here: whether its process id means something to this process; else nobody here can tell how it is.
        alive: whether it runs; false where that is not known.
        private: directory of its socket and its secret, None while it has none.
        heeds_signals: whether a signal stops the job in order, and not a program that runs it among other things; told
            by a file of this user.
    """

    pid: int
    began: float
    host: str
    here: bool
    alive: bool
    private: Path | None
    heeds_signals: bool = False

    @property
    def runs(self) -> bool:
        """Whether its process is still there now."""
        return self.here and process_runs(self.pid, self.began)

    def signal(self, number: int) -> bool:
        """Send it a signal that ends, if it lives here and heeds that; false when not, or it is somebody else's."""
        if not (self.alive and self.heeds_signals):
            return False
        try:
            os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def controller_of(job_dir: Path) -> Controller | None:
    """The controller that the job's directory names; None when nobody acts, or nothing can be read."""
    told = _named(job_dir)
    if told is None:
        return None
    place, host = process_place(), str(told.get("host", ""))
    here = host == place["host"] and told.get("namespace") == place["namespace"]
    private = told.get("private")
    alive = here and _lives(told)
    heeds = told.get("heeds_signals") is True and _ours(job_dir / OWNER)
    return Controller(told["pid"], told["began"], host, here, alive, Path(private) if private else None, heeds)


def _ours(path: Path) -> bool:
    """Whether a file is this user's: another one's could name any process of ours."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def private_of(job_dir: Path) -> Path | None:
    """The private directory of the controller that the job's directory names; None when nobody says."""
    told = _named(job_dir)
    return Path(told["private"]) if told is not None and told.get("private") else None


def clear_private(private: Path) -> None:
    """Remove what a dead controller left of sockets and secret; any other directory is left alone."""
    with suppress(OSError):
        found = private.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and private.name.startswith(PRIVATE_MARK):
            shutil.rmtree(private, ignore_errors=True)


def close_lost(jobs: Path, outbox: Path) -> tuple[str, ...]:
    """Close the records of jobs whose controller is gone; returns their run ids. Never raises.

    Args:
        jobs: where job directories lie. outbox: where a record waits for the history.
    """
    found = []
    for owner in sorted(jobs.glob(f"*/{OWNER}")):
        try:
            with locked(owner.parent) as alone:  # of several that find it, one closes it; nobody who goes on with it
                if alone and _gone(owner):
                    private = private_of(owner.parent)
                    if private is not None and not pods_in(owner.parent):  # the last of them would clear it away
                        clear_private(private)
                    if _close(owner.parent, outbox):
                        found.append(owner.parent.name)
                    owner.unlink()
        except (OSError, ValueError, KeyError, TypeError, RecursionError, TrimtabError) as error:
            log.info("%s: %s", owner, error)
    return tuple(found)


def _close(job_dir: Path, outbox: Path) -> bool:
    path = job_dir / FILE
    if not path.exists():
        return False
    record = read_record(path)
    if record.state is not JobState.RUNNING:
        return False
    times = [one.time_seconds for one in record.samples] + [one.time_seconds for one in record.events]
    last = max(times, default=0.0)
    ended = replace(record, state=JobState.FAILED, reason=REASON, ended_at=record.started_at + last)
    write_record(path, ended)
    box.put(outbox, ended, {}).close()
    return True


def _gone(owner: Path) -> bool:
    """Whether the process that the file names has ended for certain."""
    told = json.loads(owner.read_text(encoding="utf-8"))
    if told["host"] != platform.node() or told["namespace"] != process_place()["namespace"]:
        return False
    return told["boot"] != process_place()["boot"] or not process_runs(told["pid"], told["began"])


def _lives(told: dict[str, Any]) -> bool:
    """Whether a process lives for certain: what another machine or namespace says is no proof."""
    here = all(told.get(key) == value for key, value in process_place().items())
    return here and process_runs(told["pid"], told["began"])


def _named(job_dir: Path) -> dict[str, Any] | None:
    """What the job's directory says of its controller; None when nothing that can be read."""
    try:
        told = json.loads((job_dir / OWNER).read_text(encoding="utf-8"))
        return told if isinstance(told["pid"], int) and isinstance(told["began"], int | float) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


@contextmanager
def locked(job_dir: Path) -> Iterator[bool]:
    """Holds the job's lock for a moment; yields whether nobody else has it."""
    if str(job_dir.absolute()) in _held:
        yield False
        return
    handle = _lock(job_dir)
    try:
        yield handle != -1
    finally:
        if handle is not None and handle >= 0:
            os.close(handle)


def _lock(job_dir: Path) -> int | None:
    """The job's lock: its descriptor, -1 when another has it, None where the file system has no locks."""
    handle = os.open(job_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except BlockingIOError:
        os.close(handle)
        return -1
    except OSError:
        os.close(handle)
        return None


def _let_go() -> None:
    """A child that was forked from a controller is none, and must not keep its lock."""
    for handle in _held.values():
        with suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
