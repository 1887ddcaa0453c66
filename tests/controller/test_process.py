"""A process is the one that a file names, whatever becomes of ids and of the wall clock."""

import os
import subprocess
import sys

import psutil
import pytest

from trimtab.core.controller.process import process_began, process_runs


def test_this_process_runs_and_another_start_is_another_process():
    began = process_began(os.getpid())
    assert process_runs(os.getpid(), began)
    assert not process_runs(os.getpid(), began + 100.0)


def test_a_clock_that_is_set_makes_no_other_process_of_it(monkeypatch):
    """What psutil adds to the kernel's figure moves with the wall clock; leases and jobs would lose their holders."""
    began = process_began(os.getpid())
    plain = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: plain(self) + 7200.0)
    assert process_runs(os.getpid(), began)


def test_what_an_earlier_version_wrote_is_understood():
    assert process_runs(os.getpid(), psutil.Process().create_time())


def test_one_that_has_ended_does_not_run():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    began = process_began(child.pid)
    assert process_runs(child.pid, began)
    child.communicate(b"\n")
    assert not process_runs(child.pid, began)
    with pytest.raises(psutil.NoSuchProcess):
        process_began(child.pid)
