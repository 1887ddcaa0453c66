"""Jobs whose controller ended without a word: found later, and their records closed.

A controller that is killed, or goes down with its machine, leaves a record that says "running". Each job directory
names its controller's process while it lives; whoever comes next on the same machine and finds that process gone closes
the record, once, and lets the history have it. Of another machine or process namespace nobody here can tell.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from trimtab.core.domain.job import JobState
from trimtab.core.errors import TrimtabError
from trimtab.core.history import outbox as box
from trimtab.core.history.record_file import FILE, read_record, write_record

log = logging.getLogger(__name__)

OWNER = "controller.json"
REASON = "its controller ended without a word: it was killed, or the machine went down"


def own(job_dir: Path) -> None:
    """Say that this process is the job's controller."""
    me = {"pid": os.getpid(), "began": psutil.Process().create_time(), **_place()}
    (job_dir / OWNER).write_text(json.dumps(me), encoding="utf-8")


def disown(job_dir: Path) -> None:
    """The job has ended in order."""
    with suppress(OSError):
        (job_dir / OWNER).unlink()


def close_lost(jobs: Path, outbox: Path) -> tuple[str, ...]:
    """Close the records of jobs whose controller is gone; returns their run ids. Never raises.

    Args:
        jobs: where job directories lie. outbox: where a record waits for the history.
    """
    found = []
    for owner in sorted(jobs.glob(f"*/{OWNER}")):
        try:
            if _gone(owner):
                claimed = owner.with_name(f".{OWNER}.{os.getpid()}")
                owner.rename(claimed)  # of several that find it, one closes it
                if _close(owner.parent, outbox):
                    found.append(owner.parent.name)
                claimed.unlink()
        except (OSError, ValueError, TrimtabError) as error:
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
    if told["boot"] != _place()["boot"]:
        return True
    try:
        return bool(abs(psutil.Process(told["pid"]).create_time() - told["began"]) > 1.0)
    except psutil.NoSuchProcess:
        return True


def _place() -> dict[str, str]:
    """The machine, its start, and the namespace in which a process id means something."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    return {"host": platform.node(), "boot": boot, "namespace": namespace}
