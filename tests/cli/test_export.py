"""`trimtab export` around the export itself, which is a stand-in here: names, what is printed, a store that is away."""

import json

import pytest

from trimtab.core import cli, cli_export
from trimtab.core.errors import BadInput
from trimtab.core.training.export_client import Exported

SIGNATURE = {"inputs": [{"name": "I1"}, {"name": "C1"}], "outputs": [{"name": "score"}]}


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    for name in ("20261130-201758-a1b2c3", "20261201-090000-d4e5f6"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
    return tmp_path / "jobs"


def export(monkeypatch, capsys, *arguments, logged=None):
    def stand_in(job_dir, out, cache, tell):
        tell("building the model")
        return Exported(job_dir.name, out, SIGNATURE, {"embedding_C1": 7})

    def log_model(run_id, directory, signature):
        if isinstance(logged, Exception):
            raise logged
        assert signature is SIGNATURE
        return logged

    history = type("History", (), {"log_model": staticmethod(log_model)})()
    monkeypatch.setattr(cli_export, "export_job", stand_in)
    monkeypatch.setattr("trimtab.core.history.open.open_history", lambda home: history)
    with pytest.raises(SystemExit) as ended:
        cli.main(["export", *arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_a_run_is_found_by_its_id_or_its_directory(jobs, tmp_path):
    place = jobs / "20261130-201758-a1b2c3"
    assert cli_export.find_job(place.name, jobs) == place
    assert cli_export.find_job(str(place), tmp_path / "none") == place


def test_an_unknown_run_is_told_the_nearest(jobs, tmp_path):
    with pytest.raises(BadInput, match=r"RUN: '20261130-201758-a1b2': .* among 20261130-201758-a1b2c3"):
        cli_export.find_job("20261130-201758-a1b2", jobs)
    with pytest.raises(BadInput, match="choose among 20261201-090000-d4e5f6, 20261130-201758-a1b2c3"):
        cli_export.find_job("", jobs)
    with pytest.raises(BadInput, match="there is none yet"):
        cli_export.find_job("x", tmp_path / "none")


def test_what_was_written_is_said(jobs, tmp_path, monkeypatch, capsys):
    arguments = ("20261130-201758-a1b2c3", "--out", str(tmp_path / "out"))
    code, out, err = export(monkeypatch, capsys, *arguments, logged="models:/m-1")
    assert code == 0
    assert "the model of run 20261130-201758-a1b2c3, 1 embeddings with 7 rows" in out and "models:/m-1" in out
    assert "not in the history" not in err
    code, out, _ = export(monkeypatch, capsys, *arguments, "--json", logged="models:/m-1")
    answer = json.loads(out)
    assert code == 0
    assert (answer["mlflow"], answer["note"], answer["rows"]) == ("models:/m-1", "", {"embedding_C1": 7})
    assert answer["model"] == str(tmp_path / "out" / "model.keras")


def test_a_store_that_is_away_costs_only_the_entry(jobs, tmp_path, monkeypatch, capsys):
    arguments = ("20261130-201758-a1b2c3", "--out", str(tmp_path / "out"), "--json")
    code, out, err = export(monkeypatch, capsys, *arguments, logged=ConnectionError("refused\nby the server"))
    assert code == 0
    answer = json.loads(out)
    assert answer["mlflow"] is None
    assert answer["note"] == "the model is exported, but not in the history: refused by the server"
    assert answer["note"] in err


def test_a_missing_option_is_refused(jobs, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["export", "x"])
    assert ended.value.code == 2
    assert "--out" in capsys.readouterr().err
