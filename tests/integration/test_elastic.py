"""Plans change on real processes: nothing lost, nothing twice, no pause, and never more than the caps."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from jobs import PS, WORKER, audit, pods_of

from trimtab.core.cluster.cgroups import why_not_enforced
from trimtab.core.controller import run
from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, JobState, Mode
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.domain.plan import Limits
from trimtab.core.domain.records import Decision
from trimtab.core.history.record_file import read_record
from trimtab.core.ps.manifest import read_manifest
from trimtab.core.ps.reader import read_rows
from trimtab.core.wire.encode import read_json

AUDIT = "audit_model:build"
GIB = 2**30
QUICK = {"settle_seconds": 0.2, "window_seconds": 0.3}


class Script:
    """An optimizer that goes through given numbers of (workers, PSs), one step per question."""

    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, question):
        plan = question.plan
        if not self.steps:
            return Decision(question.time_seconds, "hold", plan, "the script is over", before=plan)
        workers, ps = self.steps.pop(0)
        new = replace(plan, ps=replace(plan.ps, replicas=ps), worker=replace(plan.worker, replicas=workers))
        return Decision(question.time_seconds, "replace", new, "as scripted", action=f"To {new}", before=plan)


@pytest.fixture
def scripted(monkeypatch):
    def use(*steps):
        script = Script(*steps)
        monkeypatch.setattr(run, "decide", script)
        return script

    return use


def shape(plan):
    return plan.worker.replicas, plan.ps.replicas


def check(result, numbering):
    assert result.state is JobState.FINISHED, result.error
    assert result.batches_expected == result.batches_applied == numbering.batches
    assert result.batches_duplicated == result.batches_skipped == 0
    assert result.rows_expected == result.rows_applied
    assert pods_of("trimtab.core") == []


class Watcher:
    """Samples a job every 50 ms: quotas of its groups, and memory of its processes that is shared with nobody else."""

    def __init__(self):
        self.cores, self.caps, self.memory, self.most_pods = [], [], [], 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.wait(0.05):
            self.cores.append(quotas("*/"))
            self.caps.append(quotas(""))
            memory, pods = 0, 0
            for child in psutil.Process().children(recursive=True):
                try:
                    memory += child.memory_full_info().pss
                    pods += 1
                except psutil.Error:
                    continue
            self.memory.append(memory)
            self.most_pods = max(self.most_pods, pods)


def quotas(below):
    """Cores that the pods' groups of this process's job may use together; `below` "": what their parent may use."""
    total, mine = 0.0, f"trimtab-job-*-{os.getpid()}-*"
    for root in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        for quota in root.glob(f"**/{mine}/{below}cpu.cfs_quota_us"):
            try:
                if below and not (quota.parent / "cgroup.procs").read_text().strip():
                    continue
                given = int(quota.read_text())
                period = int(quota.with_name("cpu.cfs_period_us").read_text())
            except OSError:
                continue
            total += given / period if given > 0 and "zygote" not in quota.parent.name else 0.0
        if total:
            break
    return total


def test_workers_and_servers_come_and_go_within_the_caps(sample, tmp_path, scripted):
    script = scripted((2, 1), (2, 2), (1, 2), (1, 1))
    limits = Limits(cpu=1.6, memory_bytes=3 * GIB, workers=2, ps=2)
    spec = JobSpec(
        str(sample), model=AUDIT, epochs=60, batch_size=64, job_dir=str(tmp_path / "job"), seed=3, limits=limits
    )
    with Watcher() as watched:
        result = train(spec, **QUICK)
    check(result, audit(result, epochs=60))
    assert script.steps == []
    assert [shape(change.plan) for change in result.plans] == [(1, 1), (2, 1), (2, 2), (1, 2), (1, 1)]
    assert result.resends_dropped == 0, "planned changes leave nothing half done"
    changes = [one for one in result.decisions if one["kind"] == "replace"]
    assert len(changes) == 4 and all(one["paused_seconds"] is not None for one in changes)
    if why_not_enforced() == "":
        assert 0 < max(watched.cores) <= 1.6 + 1e-6
        assert {round(cap, 3) for cap in watched.caps} <= {0.0, 1.6}, "the kernel holds all of it, zygotes included"
        assert 1.6 in {round(cap, 3) for cap in watched.caps}
    assert GIB / 2 < max(watched.memory) <= limits.memory_bytes
    assert watched.most_pods >= 4


def test_moves_leave_the_very_same_bits(sample, tmp_path, scripted):
    """One worker, staleness 0: servers that come and go in mid-run change no bit of the model."""
    tables = []
    for steps in ((), ((1, 2), (1, 3), (1, 1))):
        script = scripted(*steps)
        job_dir = tmp_path / f"job-{len(steps)}"
        spec = JobSpec(
            str(sample), epochs=40, batch_size=128, job_dir=str(job_dir), seed=3, workers=1, ps=1,
            limits=Limits(ps=3, workers=1),
        )  # fmt: skip
        result = train(spec, **QUICK)
        assert result.state is JobState.FINISHED, result.error
        assert script.steps == []
        tables.append(read_rows(read_manifest(result.model), read_json(ModelSpec, job_dir / "model.json")))
    still, moved = tables
    assert still.keys() == moved.keys()
    for name in still:
        assert (still[name][0] == moved[name][0]).all()
        assert (still[name][1] == moved[name][1]).all(), name
    assert np.isfinite(still["dense"][1]).all()


@pytest.mark.parametrize(("module", "steps"), [(PS, ((1, 2), (1, 1))), (WORKER, ((2, 1), (1, 1)))])
def test_a_kill_while_a_change_is_under_way_costs_only_repairs(sample, tmp_path, scripted, module, steps):
    """Whoever is hit, the one that comes, leaves or stays: each change meets one kill -9."""
    scripted(*steps)
    plans, killed = [None], []

    def progress(now):
        if now.phase != "training" or now.plan == plans[-1]:
            return
        first, plans[-1:] = plans[-1] is None, [now.plan]
        if not first:
            victims = sorted(pods_of(module), key=lambda process: process.create_time())
            if victims:
                victim = victims[-1 if len(killed) % 2 else 0]
                victim.send_signal(signal.SIGKILL)
                killed.append(victim.pid)

    spec = JobSpec(str(sample), model=AUDIT, epochs=45, batch_size=64, job_dir=str(tmp_path / "job"), seed=3)
    result = train(spec, progress=progress, checkpoint_seconds=1.0, **QUICK)
    check(result, audit(result, epochs=45))
    assert len(killed) == 2
    assert [shape(change.plan) for change in result.plans][:2] == [(1, 1), steps[0]]


def test_a_job_that_growth_does_not_help_stays_small(sample, tmp_path):
    """One core is all there is, and one worker with its server uses it up: there is room for two, but no gain."""
    limits = Limits(cpu=1.0)
    spec = JobSpec(
        str(sample), epochs=80, batch_size=256, job_dir=str(tmp_path / "job"), seed=3, limits=limits, mode=Mode.AUTO
    )
    result = train(spec, settle_seconds=0.5, window_seconds=2.0)
    assert result.state is JobState.FINISHED, result.error
    assert result.decisions[1:], "it was asked"
    assert {shape(change.plan) for change in result.plans} == {(1, 1)}
    assert all(change.plan.cpu <= 1.0 + 1e-9 for change in result.plans)
    record = read_record(tmp_path / "job" / "record.json")
    holds = [one for one in record.decisions if one.kind == "hold"]
    assert holds and all(one.reason for one in holds)
    larger = [one for hold in holds for one in hold.considered if one.plan.worker.replicas > 1]
    assert larger and all(one.why_not for one in larger), "more workers were looked at, and it says why not"


def test_advice_is_said_and_nothing_changes(sample, tmp_path, scripted):
    scripted((2, 1), (2, 1), (2, 1))
    spec = JobSpec(
        str(sample), model=AUDIT, epochs=8, batch_size=64, job_dir=str(tmp_path / "job"), seed=3, workers=1, ps=1,
        mode=Mode.ADVISE,
    )  # fmt: skip
    told = []
    result = train(spec, progress=lambda now: told.append(now.decisions), **QUICK)
    check(result, audit(result, epochs=8))
    assert [shape(change.plan) for change in result.plans] == [(1, 1)]
    (advice,) = [one for one in result.decisions if one["advised"]]
    assert advice["action"].startswith("To 2")
    assert any(one.advised for one in told[-1])
