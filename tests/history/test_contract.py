"""The contract of every history store; a new store joins by adding itself to STORES."""

import itertools
import json
import math
from dataclasses import replace

import pytest
from history_records import LARGE, full, job

from trimtab.core.domain.job import JobState
from trimtab.core.errors import BadInput
from trimtab.core.history.memory import InMemoryHistory
from trimtab.core.history.mlflow.store import MlflowHistory
from trimtab.core.history.outline import Outlines, outline

STORES = ("memory", "sqlite", "server")
COUNT = itertools.count()


@pytest.fixture(params=STORES)
def history(request, monkeypatch):
    if request.param == "memory":
        return InMemoryHistory()
    if request.param == "sqlite":
        return MlflowHistory(None, request.getfixturevalue("home"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f"contract-{next(COUNT)}")  # a server is shared, an experiment is not
    return MlflowHistory(request.getfixturevalue("server"), request.getfixturevalue("tmp_path"))


def test_what_was_recorded_is_fetched_last_written_first(history):
    for run_id in ("a", "b", "c"):
        history.record(job(run_id))
    assert [found.run_id for found in history.fetch({}, 10)] == ["c", "b", "a"]
    assert [found.run_id for found in history.fetch({}, 2)] == ["c", "b"]


def test_an_empty_history_has_no_jobs(history):
    assert history.fetch({}, 5) == ()
    assert history.get("a") is None
    assert history.outlines({}, 5) == Outlines()
    history.prepare()
    history.prepare()
    assert history.fetch({}, 5) == ()


def test_every_tag_must_match(history):
    history.record(job("a", {"model": "dlrm", "batch_size": "1024"}))
    history.record(job("b", {"model": "dlrm", "batch_size": "512"}))
    history.record(job("c", {"model": "dcn"}))
    assert [found.run_id for found in history.fetch({"model": "dlrm"}, 5)] == ["b", "a"]
    assert [found.run_id for found in history.fetch({"model": "dlrm", "batch_size": "1024"}, 5)] == ["a"]
    assert history.fetch({"model": "dlrm", "cluster": "x"}, 5) == ()


@pytest.mark.parametrize("value", ["", "it's", 'both \' and "', "%", "a\\b", "x" * 9000, "Ünïcode ×"])
def test_any_value_of_a_tag_is_found_and_no_other(history, value):
    history.record(job("a", {"model": value}))
    history.record(job("b", {"model": "dlrm"}))
    assert [found.run_id for found in history.fetch({"model": value}, 5)] == ["a"]
    assert history.fetch({"model": value}, 5)[0].tags == {"model": value}


def test_writing_again_replaces_and_counts_as_the_last(history):
    history.record(job("a", figures={"auc": 0.7}))
    history.record(job("b"))
    history.record(job("a", figures={"auc": 0.8}))
    found = history.fetch({}, 10)
    assert [one.run_id for one in found] == ["a", "b"]
    assert found[0].figures == {"auc": 0.8}


def test_what_is_not_finite_is_left_out_and_named(history):
    dropped = history.record(job("a", figures={"auc": 0.7, "log_loss": math.nan, "gap": math.inf}))
    assert set(dropped) == {"log_loss", "gap"}
    kept = history.fetch({}, 1)[0].figures
    assert kept == {"auc": 0.7}
    json.dumps(kept, allow_nan=False)


def test_a_record_is_a_copy(history):
    tags = {"model": "dlrm"}
    given = job("a", tags, {"auc": 0.7})
    history.record(given)
    tags["model"] = "dcn"
    given.figures["auc"] = 0.1
    found = history.fetch({"model": "dlrm"}, 1)[0]
    assert found == replace(given, tags={"model": "dlrm"}, figures={"auc": 0.7})


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(history, limit):
    with pytest.raises(BadInput, match="limit"):
        history.fetch({}, limit)
    with pytest.raises(BadInput, match="limit"):
        history.outlines({}, limit)


def test_outlines_are_of_the_runs_that_started_last_whoever_wrote_last(history):
    for run_id, started in (("b", 2e9), ("a", 1e9), ("c", 3e9)):
        history.record(full(run_id, started_at=started, tags={"model": "dlrm", "batch_size": "512"}))
    history.record(full("other", started_at=4e9, tags={"model": "dcn"}))
    history.record(history.get("a"))
    found = history.outlines({"model": "dlrm"}, 5)
    assert [one.run_id for one in found.records] == ["c", "b", "a"] and found.unread == 0
    assert found.records == tuple(outline(history.get(one.run_id)) for one in found.records)
    assert [one.run_id for one in history.outlines({"model": "dlrm", "batch_size": "512"}, 2).records] == ["c", "b"]
    assert history.outlines({"model": "nothing"}, 5) == Outlines()


def test_the_outline_of_a_run_that_goes_on_is_that_of_its_last_record(history):
    first = full("a", state=JobState.RUNNING, ended_at=None, observations=())
    history.record(first)
    history.record(full("a"))
    assert history.outlines({}, 5) == Outlines((outline(full("a")),))


@pytest.mark.parametrize("value", ["it's", 'both \' and "', "x" * 9000, "Ünïcode ×"])
def test_any_value_of_a_tag_has_its_outlines(history, value):
    history.record(job("a", {"model": value}))
    history.record(job("b", {"model": "dlrm"}))
    assert [one.run_id for one in history.outlines({"model": value}, 5).records] == ["a"]


def test_a_whole_record_comes_back_as_it_was(history):
    given = full()
    assert history.record(given) == ()
    assert history.get(given.run_id) == given
    assert history.fetch({"model": "dlrm"}, 1) == (given,)


def test_a_running_job_grows_and_ends(history):
    end = full(seconds=30)
    for seconds in (5, 15, 30):
        history.record(replace(end, state=JobState.RUNNING, ended_at=None, samples=end.samples[:seconds]))
        assert len(history.get(end.run_id).samples) == seconds
    history.record(end)
    assert history.get(end.run_id) == end


def test_a_plan_of_any_length_comes_back(history):
    plans = full().plans * 1000
    given = full(plans=(*plans, replace(plans[0], plan=LARGE, reason="because " * 3000)))
    history.record(given)
    assert history.get(given.run_id).plans == given.plans


def test_files_and_folders_can_be_attached_again(history, tmp_path):
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "a.txt").write_text("a")
    (tmp_path / "report-7.html").write_text("<p>1</p>")
    history.record(job("a"))
    for _ in range(2):
        history.attach("a", {"report.html": tmp_path / "report-7.html", "page": tmp_path / "page"})
    with pytest.raises(BadInput, match=r"x\.html"):
        history.attach("a", {"x.html": tmp_path / "nothing"})
    with pytest.raises(BadInput, match="run_id"):
        history.attach("b", {"page": tmp_path / "page"})


def test_a_model_needs_a_run_and_a_file(history, tmp_path):
    entry = {"dense": {"dtype": "float32", "shape": [None, 13]}}
    signature = {"inputs": entry, "outputs": [{"name": "score", "dtype": "float32", "shape": [-1, 1]}]}
    history.record(job("a"))
    with pytest.raises(BadInput, match=r"model\.keras"):
        history.log_model("a", tmp_path, signature)
    (tmp_path / "model.keras").write_bytes(b"x")
    with pytest.raises(BadInput, match="run_id"):
        history.log_model("b", tmp_path, signature)
    assert history.log_model("a", tmp_path, signature) == history.log_model("a", tmp_path, signature) != ""


def test_only_a_server_has_a_page(history):
    history.record(job("a"))
    link = history.link("a")
    served = isinstance(history, MlflowHistory) and history.place.server
    assert link.startswith(f"{history.place.uri}/#/experiments/") if served else link == ""
    assert history.link("nobody") == ""
