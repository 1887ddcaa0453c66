"""A growing table under a real memory group: never killed while the caps leave room, and killed when nobody acts."""

import json
import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import pods_of

from trimtab.core.cluster.cgroups import PodGroups, open_shares
from trimtab.core.controller import launch, run, serving, step
from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, JobState, Mode
from trimtab.core.domain.plan import Limits, Plan
from trimtab.core.errors import Interrupted

MIB = 1 << 20
ROWS, COLUMNS = 40_000, 26
DIM = 32
TABLE = ROWS * COLUMNS * (8 * DIM + 37)  # bytes at the end: no two rows share an id
FIRST = 256 * MIB


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Click rows of which every id is new."""
    ids = np.arange(ROWS * COLUMNS, dtype=np.int64).reshape(ROWS, COLUMNS)
    columns = {"label": pa.array(np.arange(ROWS) % 4 == 0).cast(pa.int8())}
    columns |= {f"I{number}": pa.array(np.arange(ROWS) % (number + 7)) for number in range(1, 14)}
    columns |= {f"C{number + 1}": pa.array(ids[:, number]) for number in range(COLUMNS)}
    path = tmp_path_factory.mktemp("rows") / "new_ids.parquet"
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture(autouse=True)
def groups(require):
    """The kernel holds pods to their memory here."""
    shares = open_shares(None, None)
    note = shares.memory_note
    shares.close()
    require("cgroup", isinstance(shares, PodGroups) and note == "", note)


@pytest.fixture(autouse=True)
def small_server(monkeypatch):
    """The first plan gives the parameter server too little; the caps have far more."""
    found = run.explained

    def small(*asked):
        decision, front = found(*asked)
        plan = decision.plan
        return replace(decision, plan=Plan(replace(plan.ps, memory_bytes=FIRST), plan.worker)), front

    monkeypatch.setattr(run, "explained", small)


def limit_of(group, file):
    """A group's limit; 0 where it has just been made, so that nobody is in it and it has none yet."""
    text = (group / file).read_text().strip()
    if text == "max" or int(text) >= 1 << 60:
        if not (group / "cgroup.procs").read_text().strip():
            return 0
        text = (group / file).read_text().strip()  # it was given one before anybody came
    return int(text)


class Watcher(threading.Thread):
    """Looks at the memory groups of this process's job."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.most_used, self.limits, self.caps, self.sums = 0, [], set(), [0]

    def run(self):
        while not self.ended.wait(0.05):
            for job in Path("/sys/fs/cgroup").glob(f"**/trimtab-job-*-{os.getpid()}-*"):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
                names = names if (job / names[0]).exists() else ("memory.max", "memory.current")
                if (job / names[0]).exists():
                    with suppress(OSError):  # pods come and go
                        self.look(job, *names)

    def look(self, job, limit, used):
        self.caps.add(int((job / limit).read_text()))
        pods = [path for path in job.iterdir() if path.is_dir() and path.name.startswith(("ps-", "worker-"))]
        self.sums.append(sum(limit_of(pod, limit) for pod in pods))
        for pod in pods:
            if pod.name.startswith("ps-"):
                self.most_used = max(self.most_used, int((pod / used).read_text()))
                if (here := limit_of(pod, limit)) and self.limits[-1:] != [here]:
                    self.limits.append(here)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()


def spec(rows, **more):
    return JobSpec(
        str(rows), batch_size=512, embedding_dim=DIM, seed=3, workers=1, ps=1, validation=0.0, mode=Mode.FIXED,
        limits=Limits(cpu=2.0, memory_bytes=3 << 30, workers=1, ps=1), **more,
    )  # fmt: skip


def events(job_dir, kind):
    lines = (Path(job_dir) / "events.jsonl").read_text().splitlines()
    return [one["text"] for one in map(json.loads, lines) if one["kind"] == kind]


def test_a_growing_table_is_never_killed_while_the_caps_have_room(rows, tmp_path):
    with Watcher() as watched:
        result = train(spec(rows, job_dir=str(tmp_path / "job")))
    assert result.state is JobState.FINISHED, result.error
    assert result.batches_applied == result.batches_expected and result.resends_dropped == 0
    assert events(result.job_dir, "oom") == [] and events(result.job_dir, "pod_lost") == []
    raises = events(result.job_dir, "memory")
    assert raises and all("its limit rises to" in text for text in raises)
    assert watched.limits[0] == FIRST and watched.limits == sorted(watched.limits)
    assert watched.most_used > TABLE > FIRST, "it would not have fitted into what it had at first"
    assert watched.caps == {3 << 30}
    assert max(watched.sums) <= 3 << 30
    assert pods_of("trimtab.core") == []


def test_the_same_job_is_killed_when_nobody_acts(rows, tmp_path, monkeypatch):
    """Neither the watch nor the table's own guard: what is left is the kernel, and it is recognised."""
    monkeypatch.setattr(step, "watch_memory", lambda draft: None)
    monkeypatch.setattr(launch, "table_room", lambda nbytes: 1 << 40)
    monkeypatch.setattr(serving, "table_limit", lambda state, pod: 0)
    killed = threading.Event()
    path = tmp_path / "job"

    def look(_):
        if (path / "events.jsonl").exists() and events(path, "oom"):
            killed.set()

    with pytest.raises(Interrupted):
        train(spec(rows, job_dir=str(path)), progress=look, stop=killed)
    (text,) = events(path, "oom")
    assert text.startswith("ps-0-t1-g1 was killed for want of memory: it had 256Mi, the next one gets 384Mi")
    assert events(path, "pod_lost")[0].startswith("ps-0-t1-g1 was killed for want of memory")
