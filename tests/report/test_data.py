"""The report's data keeps its contract, whatever a record holds."""

import json
import random
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

import jsonschema
import pytest
import report_records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.records import Decision, JobEvent, Range, Sample
from trimtab.core.report import measures
from trimtab.core.report.data import event_kind, report_data

SCHEMA = json.loads(files("trimtab.core.report").joinpath("static/report.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
RELAXED = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check(data):
    text = json.dumps(data, allow_nan=False)
    VALIDATOR.validate(json.loads(text))
    return data


@RELAXED
@given(report_records.records)
def test_any_record_makes_valid_data(record):
    data = check(report_data(record))
    spans = data["predicted"]
    assert all(one["t0"] <= one["t1"] for one in spans)
    assert all(before["t1"] <= after["t0"] for before, after in pairwise(spans))
    assert len({one["n"] for one in data["decisions"]}) == len(record.decisions)
    for one in data["decisions"]:
        if one["verdict"] is not None:
            inside = one["predicted"]["lo"] <= one["measured"] <= one["predicted"]["hi"]
            assert (one["verdict"] == "inside") == inside


def test_the_schema_would_notice():
    data = report_data(report_records.grown())
    data["decisions"][0]["n"] = 0
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(data)


def test_a_whole_job():
    data = check(report_data(report_records.grown()))
    assert data["job"]["status"] == "finished"
    assert [one["t"] for one in data["plans"]] == [0.0, 42.5, 80.0]
    assert [one["verdict"] for one in data["decisions"]] == [None, "inside", "outside", None, None]
    assert [one["n"] for one in data["decisions"]] == [1, 2, 3, 4, 5]
    assert data["decisions"][1]["candidates"][1]["gain"] == pytest.approx(34_800 / 20_300 - 1)
    assert data["totals"]["first_psi"] == 20_400.0 and data["totals"]["last_psi"] == 36_200.0
    hours = (42.5 * 1.0 + 37.5 * 1.75 + 71.4 * 2.0) / 3600
    assert data["totals"]["core_h"] == pytest.approx(hours)
    counts = data["data"]
    assert counts["batches_applied"] + counts["skipped"] + counts["left"] == counts["batches_expected"]
    assert [one["kind"] for one in data["events"]] == ["crash", "recovery"]
    assert counts["checkpoints"] == 1


def test_a_job_that_waited_to_be_resumed_cost_nothing_meanwhile():
    job = report_records.grown()
    late = replace(job, samples=tuple(replace(one, time_seconds=one.time_seconds + 3600.0 * (one.time_seconds > 90.0))
                                      for one in job.samples),
                   events=(*job.events[:1], JobEvent(3690.5, "resumed", "term 2")),
                   figures=job.figures | {"wall_seconds": 3751.4})  # fmt: skip
    waited = 3690.5 - 90.0  # the last sample before
    assert measures.cost(late) == pytest.approx(
        measures.cost(job) + (3600.0 - waited) / 3600 * job.prices.per_hour(job.plans[-1].plan)
    )
    assert measures.core_hours(late) == pytest.approx(measures.core_hours(job) + (3600.0 - waited) / 3600 * 2.0)


def test_the_front_the_law_and_how_true_it_came():
    data = check(report_data(report_records.warm()))
    launch = data["pareto"]["launch"]
    assert [(cost, speed) for cost, speed, _ in launch["front"]] == [(0.03, 11e3), (0.05, 2e4), (0.08, 33e3)]
    assert launch["chosen"]["psi"] == 20_000.0 and launch["chosen"]["plan"]["workers"] == 1
    assert data["decisions"][0]["law"].startswith("quota law") and data["decisions"][0]["held"] == ["CPU per PS"]
    assert data["decisions"][0]["error"] == pytest.approx(0.02)
    accuracy = data["accuracy"]
    assert (accuracy["checked"], accuracy["ranged"], accuracy["inside"], accuracy["worst"]) == (3, 2, 1, 3)
    assert accuracy["text"].startswith("3 predictions were checked")
    assert report_data(report_records.grown())["pareto"]["launch"] is None
    assert report_data(report_records.just_begun())["accuracy"] is None


def test_the_same_job_again_is_asked_for_in_the_words_it_had():
    (again, _) = report_data(report_records.warm())["reproduce"]
    assert again == "trimtab train --data rows.parquet --model dlrm --epochs 2 --budget 3"
    (older, _) = report_data(report_records.grown())["reproduce"]
    assert older.startswith("trimtab train --data DATA --model dlrm"), "a record that does not know"


def test_predictions_begin_when_the_plan_is_in_force_and_are_not_redrawn():
    spans = report_data(report_records.grown())["predicted"]
    assert [(one["t0"], one["t1"], one["p50"]) for one in spans] == [(42.5, 78.4, 34_800.0), (78.4, 151.4, 41_000.0)]
    job = report_records.grown()
    shorter = replace(job, decisions=job.decisions[:3])
    assert report_data(shorter)["predicted"] == spans  # the holds after it change nothing that was said before


def test_a_cold_plan_gets_its_band_from_the_first_hold():
    job = report_records.grown()
    hold = Decision(30.0, "hold", report_records.FIRST, "no gain", predicted=Range(20_000.0, 19_000.0, 21_000.0))
    spans = measures.prediction_spans(replace(job, decisions=(job.decisions[0], hold, *job.decisions[1:])))
    assert [(one.start, one.end) for one in spans[:2]] == [(30.0, 42.5), (42.5, 78.4)]


def test_what_was_only_advised_is_no_prediction_of_what_was_done():
    job = report_records.grown()
    advised = tuple(replace(one, advised=True) for one in job.decisions)
    data = report_data(replace(job, decisions=advised, samples=()))
    assert data["predicted"] == []
    assert {one["verdict"] for one in data["decisions"]} == {None}
    assert {one["note"].startswith("Only advised") for one in data["decisions"]} == {True}


def test_without_decisions_the_samples_say_what_was_predicted():
    spans = measures.prediction_spans(replace(report_records.grown(), decisions=()))
    found = [(one.start, one.end, one.range.middle) for one in spans]
    assert found == [(44.0, 80.0, 34_800.0), (80.0, 148.0, 41_000.0)]


@given(st.integers(601, 5000), st.integers(0, 5000), st.integers(0, 999))
@settings(max_examples=40)
def test_a_long_series_keeps_its_extremes_its_gaps_and_the_ends_of_plans(length, cut, seed):
    draw = random.Random(seed)
    points = tuple((float(t), None if draw.random() < 0.02 else draw.uniform(1, 100)) for t in range(length))
    found = measures.thinned(points, [float(cut)])
    assert len(found) <= measures.MOST_POINTS
    assert list(found) == sorted(set(found), key=lambda one: one[0]) and set(found) <= set(points)
    values = [v for _, v in points if v is not None]
    assert {max(values), min(values)} <= {v for _, v in found}
    assert (None in [v for _, v in found]) == (None in [v for _, v in points])
    assert {points[0], points[-1], *points[max(0, cut - 1) : cut + 1]} <= set(found)


def test_a_long_job_stays_small():
    job = report_records.grown()
    many = tuple(Sample(float(t), 20_000.0 + t % 977, None) for t in range(20_000))
    data = check(report_data(replace(job, samples=many)))
    assert len(data["throughput"]["t"]) <= measures.MOST_POINTS


def test_a_stopped_job_has_batches_left_and_none_lost():
    data = check(report_data(report_records.failed()))
    assert data["data"]["left"] == 1583 and data["data"]["lost"] is None
    assert data["outcome"]["cause"] == "the PSs ran out of memory"
    finished = replace(report_records.failed(), state=JobState.FINISHED)
    assert report_data(finished)["data"]["lost"] == 1583


def test_the_same_record_gives_the_same_data():
    assert report_data(report_records.grown()) == report_data(report_records.grown())


@pytest.mark.parametrize(
    ("kind", "mark"),
    [("pod_lost", "crash"), ("worker_failed", "crash"), ("recovered", "recovery"), ("restarted", "recovery"),
     ("straggler", "straggler"), ("out_of_memory", "memory"), ("store_away", "note"), ("", "note")],
)  # fmt: skip
def test_each_event_has_a_mark(kind, mark):
    assert event_kind(JobEvent(1.0, kind, "")) == mark


def test_plans_out_of_order_and_without_a_time():
    job = report_records.grown()
    plans = (PlanChange(80.0, report_records.THIRD, ""), PlanChange(float("nan"), report_records.SECOND, ""),
             PlanChange(-3.0, report_records.FIRST, ""))  # fmt: skip
    spans = measures.plan_spans(replace(job, plans=plans))
    assert [(one.start, one.end) for one in spans] == [(0.0, 80.0), (80.0, 151.4)]


def test_the_command_can_be_pasted():
    data = report_data(replace(report_records.grown(), job_name="a'b; rm x"))
    assert """--job-name 'a'"'"'b; rm x'""" in data["reproduce"][0]
    assert data["reproduce"][1] == "trimtab explain 20261130-201758-0a1b2c"
