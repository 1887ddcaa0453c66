"""The process between task and job: whatever happens to the task, the job is asked once, and ended if it does not."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

# Says that it is ready and what it is asked; ends at the first SIGTERM, unless it is stubborn. It waits for the signal
# itself: a handler that becomes due just before a sleep would run only after it.
JOB = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.write(1, f"{os.getpid()}\\n".encode())
while signal.sigwait([signal.SIGTERM]):
    os.write(1, b"asked\\n")
    if "stubborn" not in sys.argv:
        os.write(1, b"ends\\n")
        os._exit(7)
"""
# A task: starts the keeper as the operator does, says its pid, and dies when told.
TASK = """
import os, subprocess, sys
keeper = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
os.write(2, f"{keeper.pid}\\n".encode())
sys.stdin.read()
"""
ENDS_SECONDS = 30
GRACE_SECONDS = 3.0  # enough for a job that is asked to say so, however busy the machine


def keeper(grace, *job):
    return [sys.executable, "-m", "trimtab.airflow_plugin.keeper", str(grace), sys.executable, "-c", JOB, *job]


@pytest.fixture
def start():
    """Starts a keeper; returns it and its job, which has said that it is ready."""
    started = []

    def begin(grace, *job):
        process = subprocess.Popen(
            keeper(grace, *job), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process, psutil.Process(int(process.stdout.readline()))

    yield begin
    for process in started:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait()


def test_the_exit_code_and_output_are_the_commands():
    code = "print('out'); import sys; print('err', file=sys.stderr); sys.exit(2)"
    command = [sys.executable, "-m", "trimtab.airflow_plugin.keeper", "1", sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as kept:
        assert kept.stdout.read() == "out\n" and kept.stderr.read() == "err\n"
        assert kept.wait(ENDS_SECONDS) == 2


def test_a_closed_line_asks_once_and_the_job_ends_in_order(start):
    process, job = start(60)
    assert os.getsid(job.pid) == job.pid, "signals for the task's group do not reach the job"
    process.stdin.close()
    assert process.stdout.read() == "asked\nends\n"
    assert process.wait(ENDS_SECONDS) == 7


def test_a_job_that_does_not_end_is_killed_after_the_grace(start):
    process, job = start(GRACE_SECONDS, "stubborn")
    process.stdin.close()
    assert process.stdout.read() == "asked\n"
    assert process.wait(ENDS_SECONDS) == 128 + signal.SIGKILL
    assert not job.is_running()


def test_several_reasons_are_one_request(start):
    """A second SIGTERM would be taken as impatience, and the job's own end would be cut short."""
    process, _ = start(GRACE_SECONDS, "stubborn")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    process.stdin.close()
    assert process.stdout.read() == "asked\n"
    assert process.wait(ENDS_SECONDS) == 128 + signal.SIGKILL


def test_a_task_that_is_killed_leaves_no_job_behind():
    reads, writes = os.pipe()
    task = subprocess.Popen(
        [sys.executable, "-c", TASK, *keeper(60)], stdin=subprocess.PIPE, stdout=writes, stderr=subprocess.PIPE
    )
    os.close(writes)
    kept = psutil.Process(int(task.stderr.readline()))
    with os.fdopen(reads) as said:
        assert int(said.readline()) > 0
        task.kill()
        task.wait()
        assert said.read() == "asked\nends\n"  # to its end: nobody writes to it any more
    kept.wait(ENDS_SECONDS)
    assert not kept.is_running()
    task.stdin.close()
    task.stderr.close()
