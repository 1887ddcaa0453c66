"""A dry run: the way of `train` up to the first plan, and nothing started, nothing written but the rows' cache."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from trimtab.core.controller import looking, previewing, run
from trimtab.core.controller.previewing import preview_job
from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, JobState, Mode, PlanChange
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.domain.plan import Limits, Plan, RolePlan
from trimtab.core.domain.records import JobRecord, Observation, Range
from trimtab.core.errors import BadInput
from trimtab.core.history.memory import InMemoryHistory
from trimtab.core.history.outbox import put, waiting
from trimtab.core.optimizer.outlook import WhatIf

MIB = 2**20
LIMITS = Limits(1.5, 8 * 1024 * MIB, 3, 2)
PAST = Plan(RolePlan(1, 0.25, 512 * MIB), RolePlan(2, 0.6, 1024 * MIB))
Given = Callable[..., JobSpec]


class Refusing(InMemoryHistory):
    """A store that nobody may write to."""

    def prepare(self) -> None:
        raise AssertionError("a store was made")


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    store = Refusing()
    monkeypatch.delenv("TRIMTAB_HISTORY", raising=False)
    monkeypatch.setattr("trimtab.core.controller.resources.open_history", lambda home: store)
    return store


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Given:
    """A job on 400 rows; the model's probe is a stand-in, so that no process is needed."""
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(looking, "probe", lambda spec, dataset, place: ModelSpec("dlrm", (), 0, "", "model"))
    monkeypatch.setattr(run, "warm", lambda: None)
    rows = "".join(f"{n % 2},{n}.5,s{n % 5}\n" for n in range(400))
    (tmp_path / "rows.csv").write_text("label,price,shop\n" + rows)

    def make(**changes: object) -> JobSpec:
        changes = {"batch_size": 8, "limits": LIMITS} | changes
        return JobSpec(str(tmp_path / "rows.csv"), **changes)  # type: ignore[arg-type]

    return make


def files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def past_run(tags: dict[str, str], speed: float = 900.0) -> JobRecord:
    """A run like the job, which ended with `PAST`."""
    windows = tuple(Observation(PAST, speed, 0.016, 0.003, 8, 10.0 + at, 5.0, 50) for at in range(4))
    return JobRecord(
        "20261129-101010-aaaaaa", "train", JobState.FINISHED, tags, (PlanChange(1.0, PAST, "why"),), windows, (),
        {"wall_seconds": 60.0, "samples_per_second": speed}, started_at=1_790_000_000.0, ended_at=1_790_000_060.0,
    )  # fmt: skip


def tags_of(given: Given, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The identity that such a job has."""
    seen: list[dict[str, str]] = []
    kept = previewing.begin

    def spy(*arguments: object) -> object:
        tags, beginning = kept(*arguments)  # type: ignore[arg-type]
        seen.append(tags)
        return tags, beginning

    monkeypatch.setattr(previewing, "begin", spy)
    preview_job(given())
    monkeypatch.setattr(previewing, "begin", kept)
    return seen[0]


def test_a_cold_job_is_told_without_seconds(given: Given, history: Refusing) -> None:
    found = preview_job(given(), [WhatIf(workers=2)])
    assert found.preview.relative and found.preview.first.seconds is None
    assert found.batches == 45 and found.preview.rows == 360
    assert found.preview.decision.kind == "start" and "no past run" in found.preview.decision.reason
    assert found.preview.what_if[0].plan.worker.replicas == 2


def test_nothing_is_started_and_nothing_is_written_but_the_rows(
    given: Given, history: Refusing, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    preview_job(given())
    cached = files(home)
    assert {path.parts[:2] for path in cached} == {("cache", "data")}
    preview_job(given(checkpoint_dir=str(tmp_path / "copies"), job_dir=str(tmp_path / "job"), budget=1.0))
    assert files(home) == cached, "the rows are in the cache already"
    assert not (tmp_path / "copies").exists() and not (tmp_path / "job").exists()
    assert psutil.Process().children(recursive=True) == []
    assert history.fetch({}, 5) == ()


def test_a_record_that_waits_counts_and_stays_where_it_is(
    given: Given, history: Refusing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = past_run(tags_of(given, monkeypatch))
    put(tmp_path / "home" / "outbox", record, {}).close()
    before = files(tmp_path / "home")
    found = preview_job(given())
    assert [run.run_id for run in found.warm.runs] == [record.run_id]
    assert len(waiting(tmp_path / "home" / "outbox")) == 1 and history.fetch({}, 5) == ()
    assert files(tmp_path / "home") == before


def test_a_warm_job_is_what_train_would_begin_with(
    given: Given, history: Refusing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.record(past_run(tags_of(given, monkeypatch)))
    found = preview_job(given())
    assert found.preview.first.throughput == Range(pytest.approx(900.0))
    assert found.preview.first.seconds == pytest.approx(360 / 900.0)
    begun: list[run._Prepared] = []

    def stop(prepared: run._Prepared, *_: object) -> None:
        begun.append(prepared)
        raise BadInput("enough", "", "the first plan is known")

    monkeypatch.setattr(run, "_set_up", stop)
    with pytest.raises(BadInput, match="enough"):
        train(given())
    decision, record = begun[0].beginning.decision, begun[0].job.record
    assert decision.plan == found.preview.first.plan and decision.reason == found.preview.decision.reason
    assert decision.predicted is not None and decision.predicted.middle == pytest.approx(900.0)
    assert decision.law == found.preview.law and decision.held == found.preview.held
    assert decision.considered[0].chosen and len(decision.considered) > 1
    assert [one.plan for one in record.front] == [one.plan for one in found.preview.front][: len(record.front)]
    assert record.asked[:2] == ("--data", str(tmp_path / "rows.csv"))


@pytest.mark.parametrize("begin", [train, preview_job])
@pytest.mark.parametrize(
    ("limit", "field"), [({"deadline_seconds": 0.01}, "--deadline"), ({"budget": 1e-9}, "--budget")]
)
def test_what_past_runs_make_impossible_is_refused_before_anything_is_started(
    given: Given,
    history: Refusing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[JobSpec], object],
    limit: dict[str, float],
    field: str,
) -> None:
    history.record(past_run(tags_of(given, monkeypatch)))
    with pytest.raises(BadInput) as refused:
        begin(given(**limit))
    assert refused.value.field == field and " × " in refused.value.remedy
    jobs = tmp_path / "home" / "jobs"
    assert not jobs.exists() or list(jobs.iterdir()) == []


def test_the_runs_that_the_law_was_fitted_on_are_named(
    given: Given, history: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many runs may speak for a plan; the law rests on the windows of the five heaviest, whatever the mode."""
    tags = tags_of(given, monkeypatch)
    for at in range(7):
        record = past_run(tags)
        ended_at = record.started_at + 60.0 + 86_400.0 * at
        history.record(replace(record, run_id=f"run-{at}", started_at=ended_at - 60.0, ended_at=ended_at))
    auto, fixed = preview_job(given()), preview_job(given(mode=Mode.FIXED, workers=1, ps=1))
    assert len(auto.warm.runs) == 7 and fixed.warm.runs == ()
    for found in (auto, fixed):
        assert "of 5 past runs" in found.preview.law and "run-6" in found.preview.rests_on[0]
        assert "run-0" not in found.preview.rests_on[0]


@pytest.mark.parametrize("mode", [Mode.FIXED, Mode.ADVISE])
def test_in_modes_that_keep_the_plan_it_alone_counts(
    given: Given, history: Refusing, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    history.record(past_run(tags_of(given, monkeypatch)))
    with pytest.raises(BadInput, match="the plan that this mode keeps"):
        preview_job(given(mode=mode, workers=1, ps=1, deadline_seconds=0.01))


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"batch_size": 401}, "--batch-size"), ({"init_from": "nothing"}, "--init-from"),
     ({"limits": Limits(cpu=0.1)}, "--max-cpu"), ({"workers": 4}, "--workers")],
)  # fmt: skip
def test_bad_input_is_that_of_train(given: Given, history: Refusing, changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        preview_job(given(**changes))


def test_a_used_directory_is_refused(given: Given, history: Refusing, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--job-dir"):
        preview_job(given(job_dir=str(tmp_path)))
    with pytest.raises(BadInput, match="--job-dir"):
        preview_job(given(job_dir=str(tmp_path / "rows.csv")))


def test_a_preview_that_fails_costs_the_explanation_and_not_the_job(
    given: Given, history: Refusing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(previewing, "preview", broken)
    begun: list[run._Prepared] = []

    def stop(prepared: run._Prepared, *_: object) -> None:
        begun.append(prepared)
        raise BadInput("enough", "", "the first plan is known")

    monkeypatch.setattr(run, "_set_up", stop)
    monkeypatch.setattr(history, "prepare", lambda: None)
    with pytest.raises(BadInput, match="enough"):
        train(given())
    assert begun[0].beginning.decision.considered == () and begun[0].job.record.front == ()


def test_it_can_be_stopped(given: Given, history: Refusing) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Exception, match="before anything was started"):
        preview_job(given(), stop=stop)


def test_a_lost_job_is_left_to_train(given: Given, history: Refusing, tmp_path: Path) -> None:
    """Closing its record is a writing that a dry run must not do."""
    from trimtab.core.history.record_file import write_record

    folder = tmp_path / "home" / "jobs" / "lost"
    folder.mkdir(parents=True)
    record = replace(past_run({}), state=JobState.RUNNING, ended_at=None, job_dir=str(folder))
    write_record(folder / "record.json", record)
    (folder / "controller.json").write_text('{"pid": 1, "began": 0}')
    before = (folder / "record.json").read_bytes()
    preview_job(given())
    assert (folder / "record.json").read_bytes() == before
