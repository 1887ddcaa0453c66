"""`trimtab explain`: by run id, by path, from the store; unknown runs are named with their neighbours."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.core import cli, cli_explain
from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Decision, JobRecord
from trimtab.core.history.record_file import write_record

RUN = "20261130-201758-0a1b2c"
PLAN = Plan(RolePlan(1, 0.25, 2**29), RolePlan(1, 0.75, 2**30))
JOB = JobRecord(RUN, "daily", JobState.FINISHED, {"model": "dlrm"}, (PlanChange(0.0, PLAN, "start"),), (),
                (Decision(3.0, "hold", PLAN, "A second worker would gain 1 %.", 1, "Keep 1 × 0.75 + 1 × 0.25", PLAN),),
                {"wall_seconds": 12.0}, started_at=1_796_069_878.0)  # fmt: skip


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of its own with one run in it, and no store."""
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "home" / "jobs" / RUN
    folder.mkdir(parents=True)
    write_record(folder / "record.json", JOB)
    return tmp_path / "home"


def trimtab(*arguments):
    with pytest.raises(SystemExit) as left:
        cli.main(["explain", *map(str, arguments)])
    return left.value.code


@pytest.mark.parametrize("where", ["id", "directory", "file"])
def test_a_run_is_explained(home, capsys, where):
    folder = home / "jobs" / RUN
    assert trimtab({"id": RUN, "directory": folder, "file": folder / "record.json"}[where]) == 0
    shown = capsys.readouterr()
    assert "A second worker would gain 1 %." in shown.out and f"daily ({RUN})" in shown.out
    assert shown.err == ""


def test_as_json(home, capsys):
    assert trimtab(RUN, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "trimtab.report/1" and found["job"]["run"] == RUN
    assert [one["reason"] for one in found["decisions"]] == ["A second worker would gain 1 %."]


def test_the_page_is_written(home, capsys, tmp_path):
    assert trimtab(RUN, "--html", tmp_path / "r.html") == 0
    assert "A second worker would gain" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert f"report: {tmp_path / 'r.html'}" in capsys.readouterr().err
    assert trimtab(RUN, "--html", tmp_path / "no" / "r.html") == cli.BAD_INPUT
    assert "--html" in capsys.readouterr().err


def test_a_running_job(home, capsys):
    write_record(home / "jobs" / RUN / "record.json", replace(JOB, state=JobState.RUNNING, decisions=()))
    assert trimtab(RUN) == 0
    assert "No decision yet." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["20261130-201758-0a1b2d", "0a1b2c"])
def test_an_unknown_run_is_named_with_its_neighbours(home, capsys, name):
    assert trimtab(name) == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert name in said and f"near: {RUN}" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("name", ["", "..", "no/such/place", "x\0y", "zzz"])
def test_what_names_no_run(home, capsys, name):
    assert trimtab(name, "--json") == cli.BAD_INPUT
    shown = capsys.readouterr()
    assert json.loads(shown.out)["bad_input"]["field"] == "RUN_ID"


def test_a_job_that_has_no_record_yet(home, capsys):
    (home / "jobs" / "empty").mkdir()
    assert trimtab("empty") == cli.BAD_INPUT
    assert "has no record.json" in capsys.readouterr().err


def test_a_broken_record_is_said_and_not_guessed(home, capsys):
    (home / "jobs" / RUN / "record.json").write_text('{"format": 1, "record": {')
    assert trimtab(RUN) == cli.FAILED
    (home / "jobs" / RUN / "record.json").write_text('{"format": 99, "record": {}}')
    assert trimtab(RUN) == cli.BAD_INPUT
    assert "99" in capsys.readouterr().err


def test_a_run_that_only_the_store_has(home, capsys, monkeypatch):
    asked = []

    class Store:
        def get(self, run_id):
            asked.append(run_id)
            return replace(JOB, run_id=run_id) if run_id == "elsewhere" else None

    def open_store(place):
        asked.append(place)
        return Store()

    monkeypatch.setattr("trimtab.core.history.open.open_history", open_store)
    assert trimtab("elsewhere") == cli.BAD_INPUT and asked == []  # there is no store to ask
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert trimtab("elsewhere") == 0
    assert asked == [home, "elsewhere"]
    assert "daily (elsewhere)" in capsys.readouterr().out
    assert trimtab("nowhere") == cli.BAD_INPUT
    assert trimtab("../jobs") == cli.BAD_INPUT and "../jobs" not in asked


def test_a_store_that_is_away_is_said(home, capsys, monkeypatch):
    from trimtab.core.history.base import HistoryAway

    def away(place):
        raise HistoryAway("MLflow does not answer")

    monkeypatch.setattr("trimtab.core.history.open.open_history", away)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert trimtab("elsewhere") == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert "MLflow does not answer" in said and "no such run" in said


def test_nothing_heavy_is_loaded_for_a_record_on_disk(home):
    import subprocess

    code = (
        "import sys; from trimtab.core import cli_explain; cli_explain.run(sys.argv[1], None, as_json=True); "
        "print([m for m in ('mlflow', 'tensorflow', 'matplotlib', 'scipy', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, RUN], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_relative_path(home, capsys, monkeypatch):
    monkeypatch.chdir(home / "jobs")
    assert cli_explain.find(f"./{RUN}").run_id == RUN
    assert cli_explain.find(str(Path(RUN) / "record.json")).run_id == RUN
