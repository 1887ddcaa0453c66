"""What `resume` refuses, and what it makes of a job's directory; nothing is started in these tests."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from trimtab.core.clock import ManualClock
from trimtab.core.controller import lost
from trimtab.core.controller import resume as module
from trimtab.core.controller.changing import _question
from trimtab.core.controller.document import FORMAT, Document
from trimtab.core.controller.lost import OWNER, disown, own
from trimtab.core.controller.places import JobDir
from trimtab.core.controller.preparing import ROWS, JobRows, directory_of, located, remember_rows, same_rows
from trimtab.core.controller.progress import Showing
from trimtab.core.controller.resources import Memory, Resources
from trimtab.core.controller.result import RowCounts
from trimtab.core.controller.resume import resume
from trimtab.core.controller.running import Spent
from trimtab.core.controller.settings import Settings
from trimtab.core.controller.sharing import Sharing
from trimtab.core.controller.state import first_state
from trimtab.core.controller.store import FileStore
from trimtab.core.data.dataset import Dataset
from trimtab.core.data.prepare import prepare
from trimtab.core.domain.job import JobSpec, JobState, PlanChange
from trimtab.core.domain.model_spec import VSHARDS, ModelSpec
from trimtab.core.domain.plan import Limits, Plan, RolePlan
from trimtab.core.domain.records import Decision, JobEvent, JobRecord, Sample
from trimtab.core.errors import BadInput, JobFailed
from trimtab.core.history.record_file import write_record
from trimtab.core.ps.manifest import Manifest, write_manifest
from trimtab.core.wire.encode import to_json
from trimtab.core.wire.messages import CopyEntry, CopySet

PLAN = Plan(RolePlan(1, 0.3, 2**29), RolePlan(1, 1.0, 2**30))
ROWS_TEXT = "label,price,shop\n" + "".join(f"{n % 2},{n}.5,s{n % 5}\n" for n in range(40))


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of a job whose controller is gone."""
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRIMTAB_HISTORY", "none")
    (tmp_path / "rows.csv").write_text(ROWS_TEXT)
    folder = tmp_path / "home" / "jobs" / "20260101-000000-abcdef"
    for name in ("logs", "pods", "checkpoints"):
        (folder / name).mkdir(parents=True)
    entries = tuple(CopyEntry(v, 0, str(folder / "copies.ttc"), 0, 0, "", 0) for v in range(VSHARDS))
    manifest = Manifest(1, "20260101-000000-abcdef", "model", VSHARDS, entries, (CopySet((), ()),))
    ref = write_manifest(folder / "checkpoints", manifest)
    spec = JobSpec(str(tmp_path / "rows.csv"), batch_size=8, job_dir=str(folder))
    FileStore(folder / "state.json").compare_and_swap(Document(manifest.job_id, spec, PLAN, ref, term=3), 0)
    return folder


def change(job: Path, **changes: object) -> None:
    store = FileStore(job / "state.json")
    present = store.read()
    assert present is not None
    store.compare_and_swap(replace(present, **changes), present.version)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["nothing", "", "/nowhere/at/all", "..//x", "a\0b"])
def test_no_such_job_is_refused_and_near_ones_are_named(job: Path, name: str) -> None:
    with pytest.raises(BadInput, match=f"no such run or job directory; choose among {job.name}"):
        resume(name)


def test_a_directory_without_a_job_is_refused(job: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no job that has begun"):
        resume(str(tmp_path / "empty"))
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_finished_job_is_refused_by_its_id_and_by_its_path(job: Path) -> None:
    change(job, state=JobState.FINISHED)
    for name in (job.name, str(job)):
        with pytest.raises(BadInput, match="has finished; start a new job with --init-from"):
            resume(name)


def test_a_document_of_a_newer_format_is_refused(job: Path) -> None:
    tree = json.loads((job / "state.json").read_text())
    (job / "state.json").write_text(json.dumps(tree | {"format": FORMAT + 1}))
    with pytest.raises(BadInput, match="use a newer one"):
        resume(str(job))


def test_a_document_that_is_none_is_refused(job: Path) -> None:
    (job / "state.json").write_text("{")
    with pytest.raises(BadInput, match=r"state\.json cannot be read"):
        resume(str(job))


def test_a_job_whose_controller_lives_is_refused_naming_its_process(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.core.controller.lost._lock", lambda _: -1)
    (job / OWNER).write_text(json.dumps({"pid": 4711, "began": 1.0}))
    with pytest.raises(BadInput, match=r"its controller lives \(process 4711\)"):
        resume(str(job))


def test_a_checkpoint_that_cannot_be_read_is_a_failure(job: Path) -> None:
    for path in (job / "checkpoints").glob("manifest-*"):
        path.write_text("{}")
    with pytest.raises(JobFailed, match="checksum is wrong"):
        resume(str(job))


def test_a_checkpoint_that_changes_meanwhile_is_another_controllers(job: Path) -> None:
    """Where locks mean nothing (another machine's file system), its term may still be the one that was read."""
    found = module._look(JobDir(job, made=False))
    entries = tuple(replace(entry, length=1) for entry in found.manifest.entries)
    change(job, manifest=write_manifest(job / "checkpoints", replace(found.manifest, entries=entries)))
    with pytest.raises(JobFailed, match="another controller keeps changing"):
        module._take_over(found, None)


def test_a_directory_that_cannot_be_written_is_refused_and_can_be_tried_again(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(job_dir: Path, private: Path | None) -> None:
        raise OSError(28, "No space left on device")

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(lost, "name_controller", full)
            with pytest.raises(BadInput, match=r"cannot be written \(No space left"):
                resume(str(job))
    own(job)
    disown(job)


def test_what_was_refused_leaves_the_directory_as_it_was(job: Path, tmp_path: Path) -> None:
    told = json.dumps({"pid": 1 << 30, "began": 1.0, "host": "", "boot": "", "namespace": "", "private": "/nowhere"})
    (job / OWNER).write_text(told)
    (tmp_path / "rows.csv").unlink()
    before = (job / "state.json").read_bytes()
    with pytest.raises(BadInput, match=r"rows\.csv"):
        resume(str(job))
    assert (job / OWNER).read_text() == told
    assert (job / "state.json").read_bytes() == before
    own(job)  # and the lock is free
    disown(job)


def rows_of(tmp_path: Path, name: str = "rows.csv") -> JobRows:
    path = prepare(str(tmp_path / name), None, tmp_path / "cache")
    return JobRows(Dataset.open(path), path, None, RowCounts(8, 5, 1, 40), 5, 0)


def test_other_rows_than_the_job_began_with_are_refused(job: Path, tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    (job / "metadata.json").write_bytes((rows.dataset / "metadata.json").read_bytes())
    spec = JobSpec(str(tmp_path / "rows.csv"))
    same_rows(spec, rows, job)
    (tmp_path / "other.csv").write_text(ROWS_TEXT + "1,2.5,s1\n")
    with pytest.raises(BadInput, match=r"--data: .*not those that the job began with"):
        same_rows(spec, rows_of(tmp_path, "other.csv"), job)
    with pytest.raises(BadInput, match=r"--validation: .*not those that the job began with"):
        remember_rows(job, replace(rows, validation=tmp_path / "aaaa"))
        same_rows(spec, replace(rows, validation=tmp_path / "bbbb"), job)


def test_relative_paths_are_meant_against_where_the_job_was_started(job: Path, tmp_path: Path) -> None:
    (job / ROWS).write_text(json.dumps({"directory": "/started/here", "data": "x", "validation": None}))
    spec = JobSpec("rows.csv", columns="/abs/columns.yaml", validation="http://host/held.csv")
    found = located(spec, directory_of(job))
    assert (found.data, found.columns) == ("/started/here/rows.csv", "/abs/columns.yaml")
    assert found.validation == "http://host/held.csv"
    assert located(spec, directory_of(tmp_path)) == spec


def test_a_directory_that_was_moved_is_read_where_it_lies(job: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    job.rename(moved)
    found = module._look(module.find_job(str(moved)))
    assert Path(found.document.manifest.path).parent == moved / "checkpoints"
    assert found.document.spec.job_dir == str(moved)


def decision(number: int, at: float, ps: int, **more: object) -> Decision:
    before = Plan(RolePlan(ps - 1, 0.3, 2**29), PLAN.worker) if ps > 1 else None
    return Decision(at, "grow", Plan(RolePlan(ps, 0.3, 2**29), PLAN.worker), f"to {ps}", number, before=before, **more)  # type: ignore[arg-type]


def test_the_record_goes_on_with_what_only_the_document_knows(job: Path) -> None:
    store = FileStore(job / "state.json")
    slim = (decision(1, 0.0, 1), decision(2, 5.0, 2), decision(3, 9.0, 3))
    change(job, decisions=slim, plan=slim[-1].plan)
    document = store.read()
    assert document is not None
    full = replace(slim[1], evidence=("because",))
    plans = (PlanChange(0.0, slim[0].plan, "to 1"), PlanChange(5.0, slim[1].plan, "to 2"))
    record = JobRecord(document.job_id, "train", JobState.FAILED, {}, plans, (), (slim[0], full), {})
    state = first_state(Settings(document.job_id, 5, 0, "copies"), document, module.read_manifest(document.manifest))
    resumed = module._resumed(state, record, None, 20.0)
    assert [one.number for one in resumed.decisions] == [1, 2, 3]
    assert resumed.decisions[1].evidence == ("because",)
    assert [one.plan.ps.replicas for one in resumed.plans] == [1, 2, 3]
    assert resumed.switch is None


def test_nothing_was_spent_while_nobody_ran_the_job(job: Path) -> None:
    document = FileStore(job / "state.json").read()
    assert document is not None
    chosen = Settings(document.job_id, 5, 0, "copies", budget=1.0)
    state = first_state(chosen, document, module.read_manifest(document.manifest))
    plans = (PlanChange(0.0, PLAN, "start"),)
    record = JobRecord(
        document.job_id, "train", JobState.FAILED, {}, plans, (), (), {}, (Sample(50.0, None, None),),
        (JobEvent(70.0, "phase", "training"),),
    )  # fmt: skip
    resumed = module._resumed(state, record, None, 7200.0)
    question = _question(resumed, 7210.0)
    assert question.spent == pytest.approx(80.0 / 3600 * chosen.prices.per_hour(PLAN))
    assert question.time_seconds == 7210.0, "a deadline does not wait"


def alone(resources: Resources) -> Sharing:
    """Nobody else is on this machine."""
    return cast(Sharing, SimpleNamespace(join=lambda *_: resources))


def test_a_job_whose_record_is_lost_keeps_its_budget_and_what_was_asked_for(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "warm", lambda: None)
    (job / "metadata.json").write_bytes((rows_of(tmp_path).dataset / "metadata.json").read_bytes())
    (job / "model.json").write_bytes(to_json(ModelSpec("dlrm", (), 0, "", "model")))
    spec = JobSpec(str(tmp_path / "rows.csv"), batch_size=8, job_dir=str(job), budget=2.5, deadline_seconds=90.0)
    change(job, spec=spec)
    caps, clock = Limits(4.0, 4 * 2**30, 4, 4), ManualClock()
    history = Memory(tmp_path / "home", clock)
    found = module._look(module.find_job(job.name))
    prepared = module._prepare(
        found, alone(Resources(caps, caps, False, "")), history, Showing(None), threading.Event(), clock
    )
    record = prepared.job.record
    assert (record.budget, record.deadline_seconds) == (2.5, 90.0)
    assert record.asked[:2] == ("--data", spec.data)


def test_a_plan_that_the_caps_no_longer_allow_is_replaced_and_says_why(job: Path) -> None:
    store = FileStore(job / "state.json")
    document = store.read()
    assert document is not None
    smaller = replace(decision(4, 30.0, 1), kind="replace", before=decision(1, 0.0, 2).plan, reason="not within")
    changed = replace(document.decided(smaller), plan=smaller.plan)
    state = first_state(Settings(document.job_id, 5, 0, "copies"), changed, module.read_manifest(document.manifest))
    plans = (PlanChange(0.0, decision(1, 0.0, 2).plan, "to 2"),)
    record = JobRecord(document.job_id, "train", JobState.FAILED, {}, plans, (), (decision(1, 0.0, 2),), {})
    resumed = module._resumed(state, record, smaller, 30.0)
    assert [one.plan.ps.replicas for one in resumed.plans] == [2, 1]
    assert resumed.plans[-1].reason == "not within"
    assert resumed.switch is not None and resumed.switch.number == 4


@pytest.mark.parametrize(("memory", "stays"), [(4 * 2**30, True), (1200 * 2**20, False)])
def test_the_plan_stays_where_the_caps_allow_it(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, stays: bool
) -> None:
    monkeypatch.setattr(module, "warm", lambda: None)
    (job / "metadata.json").write_bytes((rows_of(tmp_path).dataset / "metadata.json").read_bytes())
    model = ModelSpec("dlrm", (), 0, "", "model")
    (job / "model.json").write_bytes(to_json(model))
    found = module._look(module.find_job(job.name))
    caps = Limits(4.0, memory, 4, 4)
    resources = Resources(caps, caps, False, "")
    clock = ManualClock()
    history = Memory(tmp_path / "home", clock)
    prepared = module._prepare(found, alone(resources), history, Showing(None), threading.Event(), clock)
    assert prepared.job.model == model and prepared.job.rows.counts.train_rows == 36
    assert prepared.job.record.state is JobState.RUNNING and prepared.job.record.run_id == job.name
    if stays:
        assert prepared.plan is None
    else:
        assert prepared.plan is not None and prepared.plan.before == PLAN
        assert prepared.plan.plan.memory_bytes <= memory
        assert str(PLAN) in prepared.plan.reason


def test_times_count_on_from_the_first_start_also_when_the_clock_was_put_back() -> None:
    clock = ManualClock(wall=1000.0)
    record = JobRecord("r", "train", JobState.FAILED, {}, (), (), (), {}, started_at=400.0)
    assert clock.now() - module._began(record, clock) == 600.0
    later = replace(record, started_at=990.0, samples=(Sample(50.0, None, None),), events=(JobEvent(70.0, "a", "b"),))
    assert clock.now() - module._began(later, clock) == 70.0


def test_a_record_that_is_lost_or_cut_is_begun_anew(job: Path) -> None:
    assert module._look(module.find_job(job.name)).record is None
    (job / "record.json").write_bytes(b"{")
    assert module._look(module.find_job(job.name)).record is None
    write_record(job / "record.json", JobRecord("r", "train", JobState.RUNNING, {}, (), (), (), {}))
    assert module._look(module.find_job(job.name)).record is not None


@pytest.mark.parametrize(
    ("told", "spent"),
    [
        ('{"cpu_seconds": 5, "resends_dropped": 2, "max_worker_gap_seconds": 0.5, "samples_per_second": null}',
         Spent(5.0, 2, 0.5, None)),
        ("{}", Spent()),
        ("[", Spent()),
        ("[]", Spent()),
    ],
)  # fmt: skip
def test_what_the_last_controller_told_counts_as_far_as_it_can_be_read(job: Path, told: str, spent: Spent) -> None:
    (job / "result.json").write_text(told)
    assert module._spent(module.find_job(job.name)) == spent
