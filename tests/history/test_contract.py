"""The contract of every history store; a new store joins by adding itself to STORES."""

import json
import math
from dataclasses import replace

import pytest

from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import BadInput
from trimtab.core.history.memory import InMemoryHistory

STORES = {"memory": InMemoryHistory}


@pytest.fixture(params=STORES.values(), ids=STORES.keys())
def history(request):
    return request.param()


def job(run_id, tags=None, figures=None):
    return JobRecord(run_id, "daily", JobState.FINISHED, tags or {}, (), (), (), figures or {})


def test_what_was_recorded_is_fetched_last_written_first(history):
    for run_id in ("a", "b", "c"):
        history.record(job(run_id))
    assert [found.run_id for found in history.fetch({}, 10)] == ["c", "b", "a"]
    assert [found.run_id for found in history.fetch({}, 2)] == ["c", "b"]


def test_an_empty_history_has_no_jobs(history):
    assert history.fetch({}, 5) == ()


def test_every_tag_must_match(history):
    history.record(job("a", {"model": "dlrm", "batch_size": "1024"}))
    history.record(job("b", {"model": "dlrm", "batch_size": "512"}))
    history.record(job("c", {"model": "dcn"}))
    assert [found.run_id for found in history.fetch({"model": "dlrm"}, 5)] == ["b", "a"]
    assert [found.run_id for found in history.fetch({"model": "dlrm", "batch_size": "1024"}, 5)] == ["a"]
    assert history.fetch({"model": "dlrm", "cluster": "x"}, 5) == ()


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
