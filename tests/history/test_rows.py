"""What MLflow's pages are given: points, tags, tables and the note."""

import json
import math
from dataclasses import replace

from history_records import LARGE, SMALL, START, full, job, sample

from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import Decision, Range
from trimtab.core.history.mlflow import rows
from trimtab.core.history.outline import decode_outline, outline


def all_points(record, after=-1):
    return [point for points in rows.points(record, after) for point in points]


def test_the_points_of_a_sample():
    record = full(samples=(sample(12.5, 1500.0, 1800.0, workers=2),))
    found = {point.key: point.value for point in all_points(record)}
    assert found == {
        "plan/workers": 2, "plan/worker_cores": 0.75, "plan/ps": 1, "plan/ps_cores": 0.5, "throughput": 1500.0,
        "predicted_throughput": 1800.0, "batches_done": 125, "table_gib": 1 / 1024, "worker-0/cpu": 0.7,
        "worker-0/memory_gib": 1.0, "worker-1/cpu": 0.7, "worker-1/memory_gib": 1.0, "ps-0/memory_gib": 0.25,
    }  # fmt: skip
    assert {(point.timestamp, point.step) for point in all_points(record)} == {(int((START + 12.5) * 1000), 12)}


def test_the_plan_of_a_point_is_the_one_in_force():
    assert rows.plan_at(full().plans, 10.4) == SMALL
    assert rows.plan_at(full().plans, 10.5) == LARGE
    assert rows.plan_at((), 1.0) is None


def test_a_step_has_one_point_per_metric():
    """Also with ten samples a second, and with a pod beside its follower at the same place."""
    old, new = sample(3.0, workers=1).pods[0], replace(sample(3.0).pods[0], pod="worker-0-t1-g1")
    dense = (*(sample(at / 10) for at in range(30)), replace(sample(3.0), pods=(old, new)))
    seen = [(point.key, point.step) for point in all_points(job("a", samples=dense))]
    assert len(seen) == len(set(seen))
    assert {step for _, step in seen} == {0, 1, 2, 3}


def test_only_what_is_new_is_given():
    record = full(seconds=20)
    assert {point.step for point in all_points(record, 14)} == {15, 16, 17, 18, 19}
    assert all_points(record, 19) == []
    first = replace(record, samples=record.samples[:15])
    assert all_points(first) + all_points(record, 14) == all_points(record)  # a retry would write the same rows


def test_a_place_is_named_without_its_process():
    assert [rows.place_of(pod) for pod in ("worker-0-t1-g3", "ps-11-t2-g0", "worker-2", "odd")] == [
        "worker-0", "ps-11", "worker-2", "odd",
    ]  # fmt: skip


def test_figures_come_at_the_end_and_once():
    record = full()
    assert rows.outcome(replace(record, state=JobState.RUNNING), {}, 3, 7) == []
    found = {point.key: point.value for point in rows.outcome(record, {"auc": 0.75}, 3, 7)}
    assert found == {"samples_per_second": 1400.0, "wall_seconds": 21.0, "nonfinite_dropped": 3.0}


def test_tags_hold_identity_and_state_and_nothing_of_mlflow():
    given = job("a", {"model": "dlrm", "mlflow.user": "x", "trimtab.state": "x", "no\nkey": "x"})
    tags = rows.tags(given, ("auc",))
    assert decode_outline(tags.pop("trimtab.outline"), "a") == outline(given)
    assert tags == {
        "model": "dlrm", "trimtab.run_id": "a", "trimtab.state": "finished", "trimtab.job_name": "daily",
        "trimtab.nonfinite_dropped": "1", "trimtab.nonfinite": "auc",
    }  # fmt: skip
    assert rows.tags(full(), ())["trimtab.warm_start"] == "20261129-x"


def test_the_tables():
    plans, decisions = (json.loads(table(full())) for table in (rows.plans_table, rows.decisions_table))
    assert [dict(zip(plans["columns"], row, strict=True))["workers"] for row in plans["data"]] == [1, 2]
    grow = dict(zip(decisions["columns"], decisions["data"][1], strict=True))
    assert grow["reason"] == "Workers use 97 % of their cores"
    assert (grow["before"], grow["plan"]) == (str(SMALL), str(LARGE))
    assert (grow["present"], grow["predicted"], grow["predicted_low"], grow["measured"]) == (1e3, 1.8e3, 1.6e3, 1750.0)
    assert grow["error"] == 1750.0 / 1800.0 - 1 and grow["held"] == "k2" and grow["law"] is None


def test_candidates_and_the_front_are_tables_where_there_are_any():
    record = full()
    assert list(rows.tables(job("a"))) == ["plans.json", "decisions.json"]
    assert list(rows.tables(record)) == ["plans.json", "decisions.json", "candidates.json"]
    found = rows.tables(replace(record, front=record.decisions[1].considered))
    candidates, front = (json.loads(found[name]) for name in ("candidates.json", "front.json"))
    first, second = (dict(zip(candidates["columns"], row, strict=True)) for row in candidates["data"])
    assert (first["number"], first["plan"], first["predicted_high"], first["chosen"]) == (2, str(LARGE), 2000.0, True)
    assert (second["plan"], second["predicted_low"], second["cost_per_hour"]) == (str(SMALL), None, 0.04)
    assert front["data"] == [[str(LARGE), 0.07, 1800.0, True], [str(SMALL), 0.04, 1000.0, False]]


def test_an_error_that_no_number_can_hold_is_left_out():
    tiny = replace(full().decisions[1], predicted=Range(1e-300), measured=1e300)
    table = json.loads(rows.decisions_table(full(decisions=(tiny,))))
    assert dict(zip(table["columns"], table["data"][0], strict=True))["error"] is None


def test_the_note_is_a_page_of_markdown():
    note = rows.note(full())
    assert note.startswith("**daily**, finished\n\nwarm\n\n| figure | value |\n| --- | --- |\n| auc | 0.75 |")
    assert f"| 0:10 | {LARGE} | Workers use 97 % |" in note
    assert "| 0:10 | Add 1 worker: 1 → 2 | 1,800 (1,600 to 2,000) | 1,750 |" in note


def test_the_note_cannot_be_broken_by_words():
    note = rows.note(full(reason="a | b\n\n<script>", state=JobState.FAILED))
    assert note.startswith("**daily**, failed: a \\| b &lt;script>\n")


def test_a_long_job_has_a_short_note():
    plans = tuple(replace(full().plans[0], time_seconds=float(at)) for at in range(500))
    decisions = tuple(Decision(float(at), "grow", LARGE, "r" * 500, predicted=Range(1.0)) for at in range(500))
    note = rows.note(full(plans=plans, decisions=decisions, figures={f"figure_{at}": 1.0 for at in range(500)}))
    assert 0 < len(note) <= 4000
    assert "more in the tables beside this page" in note


def test_a_long_value_has_a_short_stand_in():
    assert rows.tag_value("x" * 4000) == "x" * 4000
    assert len(rows.tag_value("x" * 4001)) < 100
    assert rows.tag_value("x" * 4001) != rows.tag_value("y" * 4001)


def test_nothing_that_is_given_is_not_finite():
    assert all(math.isfinite(point.value) for point in all_points(full()))
