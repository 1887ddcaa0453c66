"""How a job stands: the same keys whether its controller answers, died, ended or lives elsewhere."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.core.controller import status as form
from trimtab.core.controller.commanding import Commands
from trimtab.core.controller.document import Document
from trimtab.core.controller.inputs import CheckpointRequested, StopRequested
from trimtab.core.controller.losses import Losses
from trimtab.core.controller.lost import OWNER, REASON, disown, name_controller, own, release
from trimtab.core.controller.result import no_result
from trimtab.core.controller.rounds import Checkpoints, Stop
from trimtab.core.controller.settings import Settings
from trimtab.core.controller.state import Departed, Phase, Pod, State, first_state
from trimtab.core.controller.status import KEYS, POD_KEYS, About, Seen, StatusBoard, nothing_known, status_of
from trimtab.core.controller.status_files import NEVER_BEGAN, left_of, status_of_files
from trimtab.core.controller.store import FileStore
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Finding, JobRecord, PodSample, Sample
from trimtab.core.errors import Refused
from trimtab.core.history.record_file import FILE, write_record
from trimtab.core.ps.manifest import Manifest, ManifestRef, write_manifest
from trimtab.core.wire.commands import JobAnswer, JobCommand
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.messages import CopyEntry, CopySet, PsReport

RUN = "20261201-120000-0a1b2c"
PLAN = Plan(RolePlan(1, 0.5, 2**28), RolePlan(2, 0.75, 2**30))
ABOUT = About("nightly", "/jobs/x", 4711, 1000.0, resends_dropped=2, max_worker_gap_seconds=0.25, cpu_seconds=10.0)


def manifest(closed: int) -> Manifest:
    entries = tuple(CopyEntry(v, 0, "initial", 0, 0, "", 0) for v in range(VSHARDS))
    return Manifest(1, RUN, "model", VSHARDS, entries, (CopySet(((0, closed),) if closed else (), ()),))


def state(closed: int = 40) -> State:
    document = Document(RUN, JobSpec("data.csv"), PLAN, ManifestRef("/jobs/x/checkpoints/m.json", "0"), 1)
    settings = Settings(RUN, 100, 0, "copies", batch_size=64, began_at=50.0)
    return first_state(settings, document, manifest(closed))


def training(**changes: object) -> State:
    worker = Pod("worker-0-t1-g1", ("worker", 0), 0.0, seen=True, heard_at=99.0, cpu_seconds=7.0, rss_bytes=600,
                 batches=30, speed=2.0)  # fmt: skip
    new = Pod("worker-1-t1-g1", ("worker", 1), 90.0, seen=True)
    report = PsReport("p0", "unix:p0", 3, rows=1000, table_bytes=4096, pushes=70, rss_bytes=5000, duplicates=3)
    server = Pod("ps-0-t1-g1", ("ps", 0), 0.0, seen=True, heard_at=99.5, process="p0", report=report, cpu_seconds=3.0)
    losses, _ = Losses(first_at=60.0).with_reports((), 100, 100.0)
    now = replace(
        state(), phase=Phase.TRAINING, pods={pod.name: pod for pod in (worker, new, server)},
        losses=replace(losses, samples=((95.0, 640),), recent=0.5, first_at=60.0), max_gap_seconds=0.5, resends=1,
        departed={"worker-7-t1-g3": Departed(0.05, 2**30)},
        findings={("straggler", "worker-0"): Finding("straggler", "worker-0", "it is slow", 40.0)},
        checkpoints=Checkpoints(asked=2, taken=2, done=1, at=88.0),
    )  # fmt: skip
    return replace(now, **changes)  # type: ignore[arg-type]


def test_every_key_is_told_of_a_running_job() -> None:
    told = status_of(training(), 100.0, ABOUT, Seen(Phase.TRAINING, 70.0), "all is well", 2000.0)
    assert tuple(told) == KEYS
    assert (told["state"], told["controller"], told["phase"], told["phase_seconds"]) == (
        "running",
        "answers",
        "training",
        30.0,
    )
    assert (told["pid"], told["job_name"], told["started_at"], told["as_of"]) == (4711, "nightly", 1000.0, 2000.0)
    assert (told["batches_expected"], told["samples_per_second"], told["loss"]) == (100, 64.0, 0.5)
    assert told["wall_seconds"] == 50.0
    assert (told["resends_dropped"], told["max_worker_gap_seconds"], told["cpu_seconds"]) == (2 + 1 + 3, 0.5, 20.0)
    saved = told["checkpoint"]
    assert (saved["batches"], saved["age_seconds"], saved["asked"], saved["done"]) == (40, 12.0, 2, 1)
    assert told["findings"] == [{"kind": "straggler", "subject": "worker-0", "text": "it is slow", "seconds": 10.0}]
    json.dumps(told, allow_nan=False)


def test_every_key_is_told_of_every_pod() -> None:
    told = status_of(training(), 100.0, ABOUT, Seen(cpu={"worker-0-t1-g1": 0.6}), "", 2000.0)
    assert all(tuple(one) == POD_KEYS for one in told["pods"])
    by_name = {one["name"]: one for one in told["pods"]}
    ps, first, second, gone = (
        by_name[name] for name in ("ps-0-t1-g1", "worker-0-t1-g1", "worker-1-t1-g1", "worker-7-t1-g3")
    )
    assert (ps["state"], ps["pushes"], ps["rows"], ps["rss_bytes"], ps["memory_bytes"]) == (
        "running",
        70,
        1000,
        5000,
        2**28,
    )
    assert (first["cpu_used"], first["samples_per_second"], first["batches"], first["heard_seconds"]) == (
        0.6,
        128.0,
        30,
        1.0,
    )
    assert (second["state"], second["rss_bytes"], second["heard_seconds"]) == ("starting", None, None)
    assert (gone["state"], gone["role"], gone["place"], gone["cpu"]) == ("ending", "worker", 7, 0.05)
    assert sum(one["cpu"] for one in told["pods"]) == pytest.approx(2 * 0.75 + 0.5 + 0.05, abs=0.01)


def test_a_pods_own_memory_is_told() -> None:
    now = training()
    slot = replace(now.slots["ps", 0], memory_bytes=2**29, out_of_memory=2)
    told = status_of(replace(now, slots={**now.slots, ("ps", 0): slot}), 100.0, ABOUT, Seen(), "", 2000.0)
    assert told["pods"][0]["memory_bytes"] == 2**29 and told["pods"][0]["out_of_memory"] == told["out_of_memory"] == 2


def test_what_is_not_finite_or_not_known_is_null() -> None:
    now = training(losses=Losses(recent=float("nan")), max_gap_seconds=float("inf"))
    told = status_of(now, 100.0, ABOUT, Seen(cpu={"worker-0-t1-g1": float("inf")}), "", 2000.0)
    assert told["loss"] is None and told["max_worker_gap_seconds"] is None and told["samples_per_second"] is None
    json.dumps(told, allow_nan=False)


def test_a_look_remembers_since_when_a_phase_is_and_what_pods_use() -> None:
    now = training()
    seen = Seen().after(now, 100.0)
    assert (seen.phase, seen.phase_since, seen.cpu["worker-0-t1-g1"]) == (Phase.TRAINING, 100.0, None)
    worker = replace(now.pods["worker-0-t1-g1"], heard_at=103.0, cpu_seconds=9.0)
    seen = seen.after(replace(now, pods={**now.pods, worker.name: worker}), 103.0)
    assert seen.phase_since == 100.0 and seen.cpu[worker.name] == 0.5 and "worker-1-t1-g1" not in seen.cpu
    soon = replace(worker, heard_at=103.1, cpu_seconds=9.5)
    seen = seen.after(replace(now, pods={soon.name: soon}, phase=Phase.CLOSING), 104.0)
    assert (seen.phase, seen.phase_since, seen.cpu[soon.name]) == (Phase.CLOSING, 104.0, 0.5), "too short to tell"


# ---- commands


def commands(now: State) -> tuple[Commands, list[object]]:
    heard: list[object] = []

    def ask(*wanted: object) -> tuple[State, float, str]:
        heard.extend(wanted)
        return now, 100.0, ""

    return Commands(ask, StatusBoard(ABOUT, lambda: 2000.0)), heard


def test_commands_become_inputs_and_answers_tell_how_it_stands() -> None:
    server, heard = commands(training())
    assert server.answer(JobCommand(RUN)).status["run_id"] == RUN and heard == []
    assert server.answer(JobCommand(RUN, "checkpoint")).refused == ""
    server.answer(JobCommand(RUN, "stop"))
    server.answer(JobCommand(RUN, "stop", now=True))
    reason = "stopped by `trimtab stop`"
    assert heard == [CheckpointRequested(), StopRequested(reason), StopRequested(reason, now=True)]
    answer = server.answer(JobCommand(RUN))
    assert from_json(JobAnswer, to_json(answer)) == answer, "it goes over the wire as it is"


def test_another_jobs_command_is_refused() -> None:
    server, heard = commands(training())
    with pytest.raises(Refused, match="this is the controller of job"):
        server.answer(JobCommand("another", "stop"))
    assert heard == []


@pytest.mark.parametrize(
    ("changes", "why"), [({"phase": Phase.OVER}, "has ended"), ({"stop": Stop("x", 1.0)}, "being stopped")]
)
def test_a_checkpoint_that_comes_too_late_is_refused_and_a_stop_never(changes: dict[str, object], why: str) -> None:
    server, heard = commands(training(**changes))
    assert why in server.answer(JobCommand(RUN, "checkpoint")).refused and heard == []
    assert server.answer(JobCommand(RUN, "stop")).refused == "" and len(heard) == 1


# ---- by its files


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The directory of a job that trains, as its controller has written it."""
    folder = tmp_path / RUN
    (folder / "checkpoints").mkdir(parents=True)
    ref = write_manifest(folder / "checkpoints", manifest(40))
    FileStore(folder / "state.json").compare_and_swap(
        Document(RUN, JobSpec("data.csv", job_name="nightly"), PLAN, ref), 0
    )
    write_record(folder / FILE, record())
    own(folder)
    return folder


def record(**changes: object) -> JobRecord:
    sample = Sample(31.0, 640.0, None, (PodSample("worker-0", "worker", 0.5, 600),), 55, 4096)
    found = JobRecord(
        RUN, "nightly", JobState.RUNNING, {}, (), (), (), {"batches_expected": 100.0}, samples=(sample,),
        started_at=1000.0, job_dir="x",
    )  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]


def ended(job: Path, to: JobState, reason: str = "") -> None:
    store = FileStore(job / "state.json")
    document = store.read()
    assert document is not None
    store.compare_and_swap(replace(document, state=to, reason=reason), document.version)
    write_record(job / FILE, record(state=to, reason=reason, ended_at=1060.0))
    result = {**no_result(to, reason or "x"), "batches_expected": 100, "batches_applied": 79, "batches_skipped": 1,
              "samples_per_second": 321.0, "wall_seconds": 60.0, "cpu_seconds": 30.0, "resends_dropped": 4}  # fmt: skip
    (job / "result.json").write_text(json.dumps(result))


def told_of(job: Path) -> dict[str, object]:
    told = status_of_files(left_of(job), 1100.0)
    assert tuple(told) == KEYS
    json.dumps(told, allow_nan=False)
    return told


def test_one_that_lives_and_was_not_asked_is_told_as_last_written(job: Path) -> None:
    try:
        told = told_of(job)
    finally:
        disown(job)
    assert (told["state"], told["controller"], told["pid"]) == ("running", "silent", os.getpid())
    assert (told["batches_done"], told["batches_expected"], told["samples_per_second"]) == (55, 100, 640.0)
    assert [one["name"] for one in told["pods"]] == ["worker-0"]  # type: ignore[attr-defined]
    assert told["checkpoint"]["batches"] == 40  # type: ignore[index]


def test_one_that_died_is_told_with_what_its_checkpoint_holds(job: Path) -> None:
    told = json.loads((job / OWNER).read_text())
    release(job)
    (job / OWNER).write_text(json.dumps({**told, "began": told["began"] - 100}))
    found = told_of(job)
    assert (found["state"], found["controller"], found["error"], found["pid"]) == ("failed", "died", REASON, None)
    assert (found["batches_done"], found["phase"], found["pods"]) == (40, "over", [])
    (job / OWNER).unlink()  # its record was closed by whoever came next
    write_record(job / FILE, record(state=JobState.FAILED, reason=REASON, ended_at=1031.0))
    found = told_of(job)
    assert (found["controller"], found["state"], found["ended_at"], found["wall_seconds"]) == (
        "died",
        "failed",
        1031.0,
        31.0,
    )


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.STOPPED, JobState.FAILED])
def test_one_that_ended_is_told_by_its_result(job: Path, state: JobState) -> None:
    ended(job, state, "" if state is JobState.FINISHED else "a reason")
    disown(job)
    found = told_of(job)
    assert (found["state"], found["controller"], found["phase"]) == (str(state), "ended", "over")
    assert (found["batches_done"], found["checkpoint"]["batches"]) == (80, 80)  # type: ignore[index]
    assert (found["samples_per_second"], found["resends_dropped"], found["ended_at"]) == (321.0, 4, 1060.0)
    assert found["error"] == (None if state is JobState.FINISHED else "a reason")


def test_one_that_writes_its_record_is_over_and_still_there(job: Path) -> None:
    name_controller(job, job / "private")
    ended(job, JobState.FINISHED)
    try:
        assert told_of(job)["phase"] == "over"
    finally:
        disown(job)


def test_one_of_another_machine_is_told_as_such(job: Path) -> None:
    told = json.loads((job / OWNER).read_text())
    release(job)
    (job / OWNER).write_text(json.dumps({**told, "host": "elsewhere"}))
    found = told_of(job)
    assert (found["state"], found["controller"], found["batches_done"]) == ("running", "elsewhere", 55)


def test_one_that_is_being_prepared_stands_in_line_or_never_began(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / RUN
    folder.mkdir(parents=True)
    (folder / "spec.json").write_bytes(to_json(JobSpec("data.csv", job_name="nightly")))
    own(folder)
    try:
        told = told_of(folder)
        assert (told["controller"], told["phase"], told["job_name"]) == ("silent", "preparing", "nightly")
        assert status_of_files(left_of(folder, frozenset([str(folder)])), 1.0)["phase"] == "waiting"
    finally:
        disown(folder)
    told = told_of(folder)
    assert (told["state"], told["controller"], told["error"]) == ("failed", "died", NEVER_BEGAN)


@pytest.mark.parametrize("damage", ["{]", "[" * 100_000, '{"batches_applied": "x", "wall_seconds": "long"}'])
def test_damaged_files_are_told_as_not_known(job: Path, damage: str) -> None:
    for name in ("state.json", FILE, "result.json", "ps.json", "spec.json"):
        (job / name).write_text(damage)
    try:
        found = told_of(job)
    finally:
        disown(job)
    assert found["batches_done"] is None and found["plan"] is None


def test_the_page_names_every_key(repository: Path) -> None:
    page = (repository / "docs" / "formats.md").read_text(encoding="utf-8")
    section = page.partition("## Status of a job")[2].partition("\n## ")[0]
    inner = nothing_known("", "")["checkpoint"]
    for key in (*KEYS, *POD_KEYS, *inner):
        assert f"`{key}`" in section or key in ("cpu", "memory_bytes"), key
        assert key in (form.__doc__ or ""), key
