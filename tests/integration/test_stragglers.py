"""A worker that hangs though it lives: another one comes in its place, and every batch still counts once."""

import threading
from types import SimpleNamespace

import pytest
from jobs import WORKER, audit, pods_of

from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, Mode
from trimtab.core.domain.plan import Limits
from trimtab.core.errors import Interrupted
from trimtab.core.ps.manifest import read_manifest


def test_a_hung_worker_gets_a_successor_and_every_batch_counts_once(sample, tmp_path):
    stop, hung, job_dir = threading.Event(), [], tmp_path / "job"

    def progress(now):
        if now.phase == "training" and now.batches_done > 300 and not hung:
            victim = min(pods_of(WORKER), key=lambda process: process.create_time())
            victim.suspend()
            hung.append(victim)
        if hung and '"straggler_replaced"' in (job_dir / "events.jsonl").read_text(encoding="utf-8"):
            stop.set()

    spec = JobSpec(
        str(sample), model="audit_model:build", epochs=2000, batch_size=64, job_dir=str(job_dir), seed=3,
        workers=3, ps=1, mode=Mode.FIXED, limits=Limits(workers=4),
    )  # fmt: skip
    with pytest.raises(Interrupted) as ended:
        train(spec, progress=progress, stop=stop)
    outcome = ended.value.outcome
    assert outcome is not None and outcome["state"] == "stopped"
    assert hung and not hung[0].is_running() and pods_of("trimtab.core") == []
    held = read_manifest(outcome["model"]).applied()
    assert len(held) > 300
    assert outcome["batches_duplicated"] == 0
    audit(SimpleNamespace(**outcome), epochs=2000, numbers=list(held))
    events = (job_dir / "events.jsonl").read_text(encoding="utf-8")
    assert '"taken_back"' in events and '"slow_worker"' in events
