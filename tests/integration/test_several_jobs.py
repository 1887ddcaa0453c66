"""Jobs that share a machine, on real processes: within it at every instant, each to its end, every batch once."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs import audit

from trimtab.core.clock import SystemClock
from trimtab.core.cluster.cgroup_names import file_text
from trimtab.core.cluster.cgroup_places import SELF_CGROUP, SELF_MOUNTS, places
from trimtab.core.cluster.cgroups import why_not_enforced
from trimtab.core.cluster.leftovers import pods_in
from trimtab.core.controller.capacity import Capacity, machine_room
from trimtab.core.controller.leases import held
from trimtab.core.ps.manifest import read_manifest

HERE = Path(__file__).parent
DEADLINE_SECONDS = 400.0  # a machine that many share is slow


class Job:
    """A job in a process of its own, with what it has said so far."""

    def __init__(self, home, sample, path, epochs, mode="auto", cpu="-", command=()):
        self.path = path
        runner = [sys.executable, str(HERE / "several_runner.py"), str(sample), str(path), str(epochs), mode, cpu]
        self.process = subprocess.Popen(
            command or runner, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={**os.environ, "TRIMTAB_HOME": str(home)},
        )  # fmt: skip
        self.said, self._news = [], threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        for line in self.process.stdout:
            with self._news:
                self.said.append(line.strip())
                self._news.notify_all()
        with self._news:
            self.said.append("")
            self._news.notify_all()

    def phases(self):
        return {line.split()[0] for line in self.said if line}

    def hear(self, what, seen=lambda line: True):
        """Wait for a line that begins so."""

        def heard():
            found = next((one for one in self.said if one.startswith(what) and seen(one)), None)
            return found or self.said[-1:] == [""]

        with self._news:
            assert self._news.wait_for(heard, DEADLINE_SECONDS), self.said[-5:]
            found = heard()
        assert found is not True, self.said[-20:]
        return found

    def until(self, done):
        """Wait, from line to line, until it is so."""
        with self._news:
            assert self._news.wait_for(done, DEADLINE_SECONDS), self.said[-5:]

    def trains(self, least):
        self.hear("training ", lambda line: int(line.split()[1]) >= least)

    def ends(self):
        assert self.process.wait(DEADLINE_SECONDS) == 0, self.said[-20:]
        return SimpleNamespace(**json.loads((self.path / "result.json").read_text()))

    def close(self):
        self.process.kill()
        self.process.wait()
        self._thread.join()
        self.process.stdout.close()
        for pod in pods_in(self.path):
            pod.kill()


@pytest.fixture
def begin(sample, tmp_path):
    jobs = []

    def begin(name, *arguments, **more):
        jobs.append(Job(tmp_path / "home", sample, tmp_path / name, *arguments, **more))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


@pytest.fixture
def book(tmp_path):
    capacity = Capacity(tmp_path / "home", SystemClock())
    return capacity.read


def quota_of(job):
    """Cores that the kernel lets all pods of a job have together; 0 without a group, the machine's without a limit."""
    for place in places(os.environ.get("TRIMTAB_CGROUP", ""), file_text(SELF_CGROUP), file_text(SELF_MOUNTS)):
        for group in place.path.glob(f"trimtab-job-*-{job.process.pid}-*"):
            words = f"{file_text(group / 'cpu.cfs_quota_us')} {file_text(group / 'cpu.cfs_period_us')}".split()
            words = words or file_text(group / "cpu.max").split()
            if len(words) == 2 and words[0].isdigit():
                return int(words[0]) / int(words[1])
    return 0.0


class Watch:
    """Samples leases and quotas until it is closed."""

    def __init__(self, book, jobs):
        self.book, self.jobs, self.over = book, jobs, threading.Event()
        self.leases, self.quotas, self.wrong = set(), set(), []
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self):
        while not self.over.wait(0.05):
            found = self.book()
            if not found.machine.holds(held(found.leases)):
                self.wrong.append(found)
            self.leases.add(tuple(sorted((one.run_id, one.held.cpu) for one in found.leases)))
            quotas = [quota_of(job) for job in self.jobs]
            if quotas == [quota_of(job) for job in self.jobs]:  # else one of them was changed between two readings
                self.quotas.add(tuple(quotas))

    def close(self):
        self.over.set()
        self.thread.join()


def check(job, epochs):
    result = job.ends()
    assert result.state == "finished", result.error
    numbering = audit(result, epochs)
    assert result.batches_applied == result.batches_expected == numbering.batches
    assert result.batches_duplicated == 0 and pods_in(job.path) == []
    return result


@pytest.mark.slow
def test_a_second_job_gets_its_share_of_a_machine_that_the_first_one_had_for_itself(begin, book):
    first = begin("first", 500)
    first.trains(20)
    machine = book().machine
    assert held(book().leases) == machine, "alone it has all of it"
    second = begin("second", 12)
    watch = Watch(book, [first, second])
    try:
        url = second.hear("figures ").split()[-1]
        second.trains(20)
        shares = {one.job_dir: one.held for one in book().leases}
        figures = urllib.request.urlopen(url, timeout=10).read().decode()
        check(second, 12)
        first.until(lambda: "room has become free" in (first.path / "events.jsonl").read_text())
        first.process.send_signal(signal.SIGINT)
        assert first.process.wait(DEADLINE_SECONDS) == 130, first.said[-20:]
    finally:
        watch.close()
    assert "waiting" in second.phases(), "the first one had to give way"
    assert all(one.cpu >= machine.cpu / 4 for one in shares.values()) and len(shares) == 2
    assert watch.wrong == [] and any(len(one) == 2 for one in watch.leases)
    assert all(sum(quotas) <= machine.cpu + 1e-6 for quotas in watch.quotas)
    assert why_not_enforced() or any(min(quotas) > 0 for quotas in watch.quotas), "both were held to something"
    assert 'trimtab_phase{phase="training"} 1.0' in figures and "trimtab_batches_expected" in figures
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=10)
    stopped = SimpleNamespace(**json.loads((first.path / "result.json").read_text()))
    numbers = list(read_manifest(stopped.model).applied())
    assert len(numbers) > 1000
    audit(stopped, 500, numbers)
    events = [json.loads(line) for line in (first.path / "events.jsonl").read_text().splitlines()]
    caps = [event for event in events if event["kind"] == "caps"]
    assert "another job of this machine waits for room" in caps[0]["text"]
    assert "room has become free on this machine" in caps[-1]["text"]
    plan = next(one for one in events if one["kind"] == "plan")
    if cores_of(plan["plan"]) > caps[0]["cpu"]:
        assert any(one["kind"] == "plan" and "waits for room" in one["text"] for one in events)
    assert book().leases == ()


@pytest.mark.slow
def test_a_killed_jobs_share_is_free_for_the_first_of_the_line_and_ctrl_c_leaves_no_place_in_it(
    begin, book, sample, tmp_path
):  # fmt: skip
    first = begin("first", 500, "fixed", str(machine_room().cpu))
    first.hear("starting ")
    second = begin("second", 4)
    second.hear("waiting ")
    other = tmp_path / "typed"
    typed = begin("typed", 1, command=[
        sys.executable, "-m", "trimtab.core.cli", "train", "--data", str(sample), "--model", "audit_model:build",
        "--job-dir", str(other), "--batch-size", "64"])  # fmt: skip
    holder = next(one.run_id for one in book().leases if not one.waits)
    typed.hear("waiting", lambda line: f"{holder} holds " in line and line.endswith("; 1 waits before it"))
    typed.process.send_signal(signal.SIGINT)
    assert typed.process.wait(30) == 130
    assert not other.exists() and len(book().leases) == 2
    first.trains(20)
    assert held(book().leases) == book().lease(holder).held
    first.process.send_signal(signal.SIGKILL)
    check(second, 4)
    assert book().leases == () and pods_in(first.path) == []


def cores_of(plan):
    from trimtab.core.domain.quantities import parse_cpu

    return sum(one["replicas"] * parse_cpu(one["cpu"]) for one in plan.values())
