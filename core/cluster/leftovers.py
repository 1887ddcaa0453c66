"""Pods that outlived their controller, found and ended before another controller starts its own.

They would leave by themselves after their grace, but until then they hold the memory that the new ones need. A pod is
known by its configuration's path in its command line. Each is asked first: a parameter server that has lost its
controller then writes what it has. Who does not end in time is killed with its whole group.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path

import psutil

from trimtab.core.clock import Clock

GRACE_SECONDS = 15.0  # between SIGTERM and SIGKILL: a snapshot of gigabytes takes its time
_KILLED_SECONDS = 5.0  # for the kernel to take a killed process's memory back
_POLL_SECONDS = 0.05
_MODULES = "trimtab.core."


def pods_in(job_dir: Path) -> list[psutil.Process]:
    """Living processes of this user that were started with a configuration in `job_dir`/pods."""
    pods = job_dir.absolute() / "pods"
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = " ".join(process.cmdline())  # a forked pod shows its whole command as one word
            mine = process.pid != os.getpid() and process.uids().real == os.getuid()
            if mine and _MODULES in words and _names(words, pods) and _alive(process):
                found.append(process)
    return found


def _names(words: str, pods: Path) -> bool:
    """Whether a command names a file in the directory `pods`, by whatever path: a link may lead there, too."""
    for start in re.finditer(r"(?<= )/", words):
        path = words[start.start() :]
        if path.startswith(f"{pods}{os.sep}"):
            return True
        with suppress(OSError, ValueError):
            if Path(path).parent.samefile(pods):
                return True
    return False


def end_pods(job_dir: Path, clock: Clock, grace_seconds: float = GRACE_SECONDS) -> tuple[int, int]:
    """End what is left of a job's pods; returns how many there were, and how many had to be killed.

    Args:
        job_dir: of the job, whose controller is dead.
        clock: for the grace. grace_seconds: from the polite signal to the other one.
    """
    pods = pods_in(job_dir)
    for pod in pods:
        with suppress(psutil.Error):
            pod.send_signal(signal.SIGTERM)
    left = _wait(pods, clock, grace_seconds)
    for pod in left:
        _kill(pod)
    _wait(left, clock, _KILLED_SECONDS)
    return len(pods), len(left)


def _wait(pods: list[psutil.Process], clock: Clock, seconds: float) -> list[psutil.Process]:
    """Those that still live after at most `seconds`."""
    never, end = threading.Event(), clock.now() + seconds
    left = [pod for pod in pods if _alive(pod)]
    while left and clock.now() < end:
        clock.wait(never, _POLL_SECONDS)
        left = [pod for pod in left if _alive(pod)]
    return left


def _alive(pod: psutil.Process) -> bool:
    """Whether it is the same process still, and no zombie that nobody reaps."""
    try:
        return bool(pod.is_running() and pod.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _kill(pod: psutil.Process) -> None:
    with suppress(psutil.Error, OSError):
        if pod.is_running() and os.getpgid(pod.pid) == pod.pid:
            os.killpg(pod.pid, signal.SIGKILL)
        else:
            pod.kill()
