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
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from trimtab.core.cluster.leftovers import pods_in
from trimtab.core.controller.places import PRIVATE_MARK
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
    me = {"pid": os.getpid(), "began": psutil.Process().create_time(), **_place()}
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
    except (OSError, ValueError, KeyError, TypeError):
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
            with _locked(owner.parent) as alone:  # of several that find it, one closes it; nobody who goes on with it
                if alone and _gone(owner):
                    private = private_of(owner.parent)
                    if private is not None and not pods_in(owner.parent):  # the last of them would clear it away
                        clear_private(private)
                    if _close(owner.parent, outbox):
                        found.append(owner.parent.name)
                    owner.unlink()
        except (OSError, ValueError, KeyError, TypeError, TrimtabError) as error:
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
    if told["host"] != platform.node() or told["namespace"] != _place()["namespace"]:
        return False
    return told["boot"] != _place()["boot"] or not _runs(told)


def _lives(told: dict[str, Any]) -> bool:
    """Whether a process lives for certain: what another machine or namespace says is no proof."""
    return all(told.get(key) == value for key, value in _place().items()) and _runs(told)


def _runs(told: dict[str, Any]) -> bool:
    try:
        process = psutil.Process(told["pid"])
        alive = process.status() != psutil.STATUS_ZOMBIE
        return alive and bool(abs(process.create_time() - told["began"]) <= 1.0)
    except psutil.NoSuchProcess:
        return False


def _named(job_dir: Path) -> dict[str, Any] | None:
    """What the job's directory says of its controller; None when nothing that can be read."""
    try:
        told = json.loads((job_dir / OWNER).read_text(encoding="utf-8"))
        return told if isinstance(told["pid"], int) and isinstance(told["began"], int | float) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def _locked(job_dir: Path) -> Iterator[bool]:
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


def _place() -> dict[str, str]:
    """The machine, its start, and the namespace in which a process id means something."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    return {"host": platform.node(), "boot": boot, "namespace": namespace}
