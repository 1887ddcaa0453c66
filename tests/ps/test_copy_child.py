"""Children that write copies: one instant, nothing of the parent's, and an end in any case."""

import fcntl
import os
import signal
import socket
import threading
import warnings
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from trimtab.core.clock import ManualClock, SystemClock
from trimtab.core.ps.copy_child import ChildFailed, ChildTooLarge, fork_child, lasting, progressed

NEVER = threading.Event()


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).ppid() != os.getpid()


def hang():
    threading.Event().wait(600)
    return b"late"


def test_it_answers_with_what_the_memory_held_at_the_fork():
    held = {"value": 1}
    child = fork_child(lambda: str(held["value"]).encode() * 100_000)
    held["value"] = 2
    assert child.wait(SystemClock(), 60, NEVER) == b"1" * 100_000
    assert gone(child.pid)


def test_a_failure_comes_back_as_its_reason():
    child = fork_child(lambda: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(ChildFailed, match="No space left"):
        child.wait(SystemClock(), 60, NEVER)
    assert gone(child.pid)


def test_a_killed_child_is_no_answer_and_was_too_large():
    """So the kernel ends a child whose memory it wants."""
    child = fork_child(hang)
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(ChildTooLarge, match="-9"):
        child.wait(SystemClock(), 60, NEVER)


def test_a_child_that_hangs_is_killed_at_its_deadline():
    clock = ManualClock()
    child = fork_child(hang)
    os.kill(child.pid, signal.SIGSTOP)  # not even its signals are handled
    threading.Timer(0.1, clock.advance, [61]).start()
    with pytest.raises(ChildFailed, match="took more than 60 s"):
        child.wait(clock, 60, NEVER)
    assert gone(child.pid)


def test_progress_is_heard_and_its_absence_is_the_end():
    def works_then_hangs():
        for _ in range(100):
            progressed()
        return hang()

    clock = ManualClock()
    child = fork_child(works_then_hangs)
    timers = [threading.Timer(0.3 + 0.1 * n, clock.advance, [20]) for n in range(3)]
    for timer in timers:
        timer.start()
    with pytest.raises(ChildFailed, match="no progress for 50 s"):
        child.wait(clock, 3600, NEVER, silence_seconds=50)
    assert gone(child.pid)


def test_a_last_step_that_shows_no_progress_has_a_time_of_its_own():
    def uploads_for_ever():
        progressed()
        lasting()
        return hang()

    clock = ManualClock()
    child = fork_child(uploads_for_ever)
    timers = [threading.Timer(0.3 + 0.2 * n, clock.advance, [100]) for n in range(4)]
    for timer in timers:
        timer.start()
    with pytest.raises(ChildFailed, match="no progress for 350 s"):
        child.wait(clock, 3600, NEVER, silence_seconds=50, last_seconds=350)
    assert gone(child.pid)


def test_signs_of_progress_are_no_part_of_the_answer():
    child = fork_child(lambda: b"{answer...!}" if [progressed() for _ in range(1000)] + [lasting()] else b"")
    assert child.wait(SystemClock(), 60, NEVER) == b"{answer...!}"
    progressed()  # means nothing here
    lasting()


def test_a_child_that_nobody_wants_is_ended():
    given_up = threading.Event()
    given_up.set()
    child = fork_child(hang)
    with pytest.raises(ChildFailed, match="given up"):
        child.wait(SystemClock(), 600, given_up)
    assert gone(child.pid)


def open_files():
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(one.readlink()))
    return "\n".join(found).encode()


def test_it_holds_no_socket_and_no_file_of_its_parent(tmp_path):
    here, there = socket.socketpair()
    with (tmp_path / "open").open("w"), here, there:
        assert f"socket:[{os.fstat(here.fileno()).st_ino}]" in open_files().decode()
        found = fork_child(open_files).wait(SystemClock(), 60, NEVER).decode().splitlines()
        assert not {f"socket:[{os.fstat(one.fileno()).st_ino}]" for one in (here, there)} & set(found)
        assert str(tmp_path / "open") not in found


def test_it_dies_with_its_parent(tmp_path):
    """A server that is killed leaves no child that writes on."""
    pid_file = tmp_path / "pid"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parent = os.fork()
    if parent == 0:
        child = fork_child(hang)
        pid_file.write_text(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    child = int(pid_file.read_text())
    for _ in range(500):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            return
        threading.Event().wait(0.01)
    pytest.fail("the child lives on")


def test_the_kernel_takes_it_first():
    child = fork_child(lambda: Path("/proc/self/oom_score_adj").read_bytes())
    assert child.wait(SystemClock(), 60, NEVER).strip() == b"1000"


def test_a_server_with_thousands_of_lines_hears_it_too():
    """Its descriptors are beyond what `select` takes."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3000:
        pytest.skip("this machine gives no descriptors beyond 1023")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, hard))
    try:
        child = fork_child(lambda: threading.Event().wait(0.3) or b"done")
        low, child._answer = child._answer, fcntl.fcntl(child._answer, fcntl.F_DUPFD, 2500)
        os.close(low)
        assert child.wait(SystemClock(), 60, NEVER) == b"done"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
