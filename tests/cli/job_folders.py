"""Job directories as controllers leave them, and a controller that answers what a test says."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from trimtab.core.clock import ManualClock
from trimtab.core.controller.document import Document
from trimtab.core.controller.lost import OWNER, disown, own, release
from trimtab.core.controller.result import no_result
from trimtab.core.controller.status import ANSWERS, nothing_known
from trimtab.core.controller.store import FileStore
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import JobRecord
from trimtab.core.history.record_file import FILE, write_record
from trimtab.core.ps.manifest import Manifest, write_manifest
from trimtab.core.wire.commands import JobAnswer, JobCommand
from trimtab.core.wire.control import serve_controller
from trimtab.core.wire.messages import CopyEntry, CopySet, WorkerOrders
from trimtab.core.wire.secrets import new_secret

PLAN = Plan(RolePlan(1, 0.5, 2**28), RolePlan(2, 0.75, 2**30))
DAY = 86_400.0


def job_folder(folder: Path, spec: JobSpec | None = None, closed: int = 40, started_at: float = 1000.0) -> Path:
    """A job that trains: 40 of 100 batches are closed. Nobody controls it."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "logs").mkdir()
    run, spec = folder.name, spec if spec is not None else JobSpec("data.csv", job_name="nightly")
    entries = tuple(CopyEntry(v, 0, "initial", 0, 0, "", 0) for v in range(VSHARDS))
    manifest = Manifest(1, run, "model", VSHARDS, entries, (CopySet(((0, closed),), ()),))
    ref = write_manifest(folder / "checkpoints", manifest)
    FileStore(folder / "state.json").compare_and_swap(Document(run, spec, PLAN, ref), 0)
    write_record(folder / FILE, JobRecord(
        run, "nightly", JobState.RUNNING, {}, (), (), (), {"batches_expected": 100.0}, started_at=started_at,
        job_dir=str(folder),
    ))  # fmt: skip
    return folder


def end(folder: Path, state: JobState = JobState.FINISHED, reason: str = "", ended_at: float = 2000.0) -> Path:
    """The job ends as a controller would write it."""
    store = FileStore(folder / "state.json")
    document = store.read()
    assert document is not None
    store.compare_and_swap(replace(document, state=state, reason=reason), document.version)
    record = JobRecord(
        folder.name, "nightly", state, {}, (), (), (), {"batches_expected": 100.0}, started_at=1000.0,
        ended_at=ended_at, reason=reason, job_dir=str(folder),
    )  # fmt: skip
    write_record(folder / FILE, record)
    result = {**no_result(state, reason), "batches_expected": 100, "batches_applied": 80, "batches_skipped": 0}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def die(folder: Path) -> None:
    """Its controller was killed."""
    own(folder)
    told = json.loads((folder / OWNER).read_text())
    release(folder)
    (folder / OWNER).write_text(json.dumps({**told, "began": told["began"] - 100}))


@contextmanager
def answering(folder: Path, answer: Callable[[JobCommand], JobAnswer]) -> Iterator[Path]:
    """This process controls the job, and answers so; yields its private directory."""
    private = Path(tempfile.mkdtemp(prefix="trimtab-"))
    server = None
    try:
        secret = new_secret(private / "secret")
        own(folder, private)
        server = serve_controller(str(private / "controller.sock"), secret, lambda _: WorkerOrders(1), answer)
        yield private
    finally:
        if server is not None:
            server.close()
        disown(folder)
        shutil.rmtree(private, ignore_errors=True)


def stands(folder: Path, **changes: object) -> dict[str, object]:
    """A status as a controller tells it."""
    told = nothing_known(folder.name, str(folder))
    told |= {"controller": ANSWERS, "phase": "training", "job_name": "nightly", "pid": os.getpid(), "batches_done": 55,
             "batches_expected": 100, "plan": PLAN.as_dict(), "started_at": 1000.0, "as_of": 1000.0}  # fmt: skip
    return told | changes


class Script(ManualClock):
    """A clock that does the next thing of a list at each waiting, and then nothing more."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self.steps = list(steps)

    def wait(self, event: object, seconds: float) -> bool:
        """One more step."""
        if self.steps:
            self.steps.pop(0)()
        self.advance(seconds)
        return False
