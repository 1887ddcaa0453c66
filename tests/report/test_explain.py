"""Decisions as text: reason, what else, predicted beside measured; right and wrong predictions said alike."""

from dataclasses import replace
from unicodedata import category

import pytest
import report_records
from hypothesis import HealthCheck, given, settings

from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import Decision, Range
from trimtab.core.report import measures, sentences
from trimtab.core.report.explain import COLUMNS, explain
from trimtab.core.report.sentences import decision_line

FIRST, SECOND = report_records.FIRST, report_records.SECOND


def plain(text):
    return text.replace("\u202f", " ").replace("\u00a0", " ").replace("\u2212", "-")


def changed(**given):
    return replace(Decision(41.2, "grow", SECOND, "a reason.", 2, "Add 1 worker: 1 → 2", FIRST), **given)


def test_each_decision_is_told():
    text = plain(explain(report_records.grown()))
    lines = text.splitlines()
    assert lines[0] == "daily-dlrm (20261130-201758-0a1b2c): Finished in 2 min 31 s."
    assert "  2     0:41  Add 1 worker: 1 → 2  (applied)" in lines
    assert "     *  2 × 0.75 + 1 × 0.25  34.8 k (31.0–37.2 k)  $0.080" in lines
    assert "        3 × 0.75 + 1 × 0.25  40.1 k (33.0–45.0 k)  $0.11   beyond the cap of 2 cores" in lines
    assert "     Inside the predicted 80 % range: measured 33.9 k samples/s after 20.4 k with the plan before." in lines
    assert "Outside the predicted range 38.0–44.0 k: measured 36.2 k samples/s" in text
    assert "Switch 1.3 s, longest wait of a worker 0.21 s." in text
    assert "(probed)" in text and "(held)" in text
    assert lines[-1] == "Every batch was applied exactly once."
    assert max(len(line) for line in lines) <= COLUMNS


def test_what_came_true_is_told_beside_what_was_predicted():
    lines = plain(explain(report_records.grown())).splitlines()
    place = lines.index("What came true (samples/s)")
    assert [line.split() for line in lines[place + 2 : place + 4]] == [
        ["2", "34.8", "k", "31.0–37.2", "k", "33.9", "k", "-3", "%", "inside"],
        ["3", "41.0", "k", "38.0–44.0", "k", "36.2", "k", "-12", "%", "outside"],
    ]
    said = " ".join(lines[place + 4 : place + 6])
    assert said.startswith(
        "2 predictions were checked: 8 % off in the median, 12 % at most (decision 3); 1 of 2 ranges"
    )
    found = measures.accuracy(report_records.grown())
    assert (found.checked, found.ranged, found.inside, found.worst) == (2, 2, 1, 3)
    assert found.worst_error == pytest.approx(1 - 36_200 / 41_000)
    assert "came true" not in explain(report_records.just_begun()), "nothing was checked"


def test_a_single_prediction_and_one_without_a_range():
    job = report_records.grown()
    one = replace(job, decisions=(changed(predicted=Range(30_000.0), measured=33_000.0),))
    assert plain(sentences.came_true(one)) == "One prediction was checked: 10 % off; none had a range."
    advised = replace(job, decisions=(changed(predicted=Range(3e4), measured=3e4, advised=True),))
    assert sentences.came_true(advised) == ""


def test_the_start_tells_its_front_its_law_and_what_was_held():
    text = plain(explain(report_records.warm()))
    assert "     The front at the start, as past runs predicted it:" in text.splitlines()
    assert "     *  1 × 0.75 + 1 × 0.25  20.0 k  $0.050" in text.splitlines()
    assert "Predicted by the quota law, fitted on 12 windows of 2 past runs." in text
    assert "Held at a prior, because the measurements can't tell them: CPU per PS." in text
    many = replace(report_records.warm(), front=report_records.warm().front * 30)
    assert len(explain(many).splitlines()) < len(text.splitlines()) + 60


def test_a_running_job_is_told_as_far_as_it_is():
    assert "No decision yet." in explain(report_records.just_begun())
    job = replace(report_records.grown(), state=JobState.RUNNING)
    waiting = replace(job, decisions=(*job.decisions[:1], replace(job.decisions[1], measured=None)))
    assert "Not measured yet." in explain(waiting)
    assert "No decision was made." in explain(replace(report_records.just_begun(), state=JobState.STOPPED))


@pytest.mark.parametrize(
    ("given", "running", "text"),
    [
        ({"advised": True, "measured": 5.0}, False, "Only advised: the plan stayed as it was."),
        ({"measured": 33_900.0}, False, "Measured 33.9 k samples/s. Nothing was predicted."),
        ({"predicted": Range(30_000.0)}, True, "Not measured yet."),
        ({"predicted": Range(30_000.0)}, False, "Not measured: no settled window came after it."),
        ({"predicted": Range(30_000.0), "measured": 33_000.0}, False,
         "Measured 33.0 k samples/s, 10 % over the predicted 30.0 k; no range was given."),
        ({"predicted": Range(30_000.0, 29_000.0, 31_000.0), "measured": 28_000.0}, False,
         "Outside the predicted range 29.0–31.0 k: measured 28.0 k samples/s, 7 % under the predicted 30.0 k."),
        ({"predicted": Range(30_000.0, 29_000.0, 31_000.0), "measured": 30_500.0}, False,
         "Inside the predicted 80 % range: measured 30.5 k samples/s after 20.0 k with the plan before."),
        ({"predicted": Range(30_000.0, 29_000.0, 31_000.0), "measured": float("nan")}, False,
         "Not measured: no settled window came after it."),
        ({"kind": "hold", "predicted": Range(1.0)}, False, ""),
    ],
)  # fmt: skip
def test_what_is_said_afterwards(given, running, text):
    earlier = 20_000.0 if "plan before" in text else None
    assert plain(sentences.afterwards(changed(**given), running, earlier)) == text


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "0:41 Add 1 worker: 1 → 2. a reason."),
        ({"advised": True}, "0:41 Add 1 worker: 1 → 2 (only advised). a reason."),
        ({"action": "", "reason": "two\n lines."}, "0:41 Grow: 1 × 0.75 + 1 × 0.25 → 2 × 0.75 + 1 × 0.25. two lines."),
        ({"action": "", "kind": "hold"}, "0:41 Keep 2 × 0.75 + 1 × 0.25. a reason."),
        ({"action": "", "kind": "start"}, "0:41 Start with 2 × 0.75 + 1 × 0.25. a reason."),
        ({"action": "", "kind": "stop", "time_seconds": float("nan")}, "– Stop the job. a reason."),
    ],
)
def test_one_line_for_the_display(given, line):
    assert decision_line(changed(**given)) == line


def test_a_wrong_prediction_is_said_as_plainly_as_a_right_one():
    text = plain(sentences.timeline(report_records.grown()))
    assert text.startswith("2 plan changes took throughput from 20.4 k to 36.2 k samples/s (+77 %).")
    assert text.endswith("Decision 3 measured 12 % under its prediction; 1 of 2 predictions were inside their range.")
    job = report_records.grown()
    unseen = replace(job, decisions=job.decisions[:2])
    assert plain(sentences.timeline(unseen)).endswith(" The prediction held.")
    assert "%" not in plain(sentences.timeline(unseen)), "the last plan was never measured: no gain is claimed"


def test_a_stopped_job_tells_what_was_trained_and_what_is_kept():
    job = report_records.grown()
    figures = {"wall_seconds": 40.0, "batches_expected": 1000.0, "batches_applied": 0.0, "batches_trained": 114.0}
    stopped = replace(job, state=JobState.STOPPED, figures=figures, reason="interrupted", decisions=())
    assert plain(sentences.outcome(stopped)) == (
        "Stopped after 40 s, 11 % trained (0 % kept in the last checkpoint): interrupted."
    )
    saved = replace(stopped, figures=figures | {"batches_applied": 114.0})
    assert plain(sentences.outcome(saved)) == "Stopped after 40 s, 11 % trained: interrupted."


@pytest.mark.parametrize(
    ("figures", "state", "text"),
    [
        ({"batches_duplicated": 2.0}, JobState.FINISHED, "2 batches were applied more than once."),
        ({"batches_applied": 2600.0}, JobState.FINISHED, "37 of 2 637 batches are missing."),
        ({"batches_applied": 2630.0, "batches_skipped": 7.0}, JobState.FINISHED,
         "Every batch was applied exactly once, but 7 that were not finite and were skipped."),
        ({"batches_applied": 1000.0}, JobState.STOPPED,
         "Every batch of the 1 000 applied was applied exactly once; 1 637 are left."),
        ({"batches_applied": float("inf")}, JobState.RUNNING, "The batches were not counted yet."),
    ],
)  # fmt: skip
def test_what_is_said_of_the_data(figures, state, text):
    job = report_records.grown()
    assert plain(sentences.data(replace(job, state=state, figures=job.figures | figures))) == text


def test_a_terminal_gets_no_orders_from_a_log():
    job = replace(report_records.failed(), reason="\x1b[2Jgone\x07", run_id="a\x1bb")
    text = explain(job)
    assert "\x1b" not in text and "\x07" not in text and "gone" in text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(report_records.records)
def test_any_record_can_be_told(record):
    text = explain(record)
    assert all(one == "\n" or category(one)[0] != "C" for one in text)
    assert len([line for line in text.splitlines() if line[:3].strip().isdigit()]) >= len(record.decisions)
