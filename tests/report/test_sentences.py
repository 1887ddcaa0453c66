"""Sentences: the verb first, gains rounded down, losses up, unknown is a dash and never a zero."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Decision, JobEvent, JobRecord
from trimtab.core.report.sentences import accounting, outcome, whole
from trimtab.core.report.words import duration

PLAN = Plan(RolePlan(1, 1.0, 2**30), RolePlan(2, 1.0, 2**30))


def job(state=JobState.FINISHED, decisions=(), plans=(), **figures):
    return JobRecord("run", "daily", state, {}, plans, (), decisions, figures)


def plain(text):
    return text.replace("\u202f", " ").replace("\u00a0", " ")


def test_a_finished_job_with_a_baseline():
    text = outcome(job(wall_seconds=2460, static_wall_seconds=4033, cost=0.77, static_cost=1.0))
    assert plain(text) == "Finished in 41 min: 39 % faster and 23 % cheaper than predicted for the static request."


def test_without_a_baseline_no_comparison():
    assert plain(outcome(job(wall_seconds=45))) == "Finished in 45 s."


def test_a_loss_stands_in_the_same_place_and_is_rounded_up():
    text = plain(outcome(job(wall_seconds=1031, static_wall_seconds=1000, cost=0.69, static_cost=1.0)))
    assert "4 % slower and 31 % cheaper than predicted" in text


def test_a_stopped_job_says_why():
    stop = Decision(1380, "stop", PLAN, "no plan leaves the PSs enough memory to finish.")
    held = Decision(60, "hold", PLAN, "a hold")
    found = job(JobState.STOPPED, (held, stop), wall_seconds=1380, batches_expected=1000, batches_applied=409)
    expected = "Stopped after 23 min, 40 % trained: no plan leaves the PSs enough memory to finish."
    assert plain(outcome(found)) == expected


def test_a_failed_job_without_a_known_reason_makes_none_up():
    assert plain(outcome(job(JobState.FAILED, wall_seconds=10))) == "Failed after 10 s, – trained."


def test_a_running_job():
    found = job(JobState.RUNNING, batches_expected=100, batches_applied=50, batches_skipped=6)
    assert plain(outcome(found)) == "Training: 56 % done."


def test_the_second_line_accounts_for_batches():
    counts = {"batches_expected": 12000, "batches_applied": 11990, "batches_skipped": 3, "batches_duplicated": 0}
    known = job(plans=(None, None), **counts)
    assert plain(accounting(known)) == "1 plan change, 3 batches skipped, 0 batches repeated, 7 batches missing."
    events = (JobEvent(1.0, "resumed", "a"), JobEvent(2.0, "served", "b"), JobEvent(3.0, "resumed", "c"))
    assert plain(accounting(replace(known, events=events))).startswith("1 plan change, resumed 2 times, 3 batches")
    assert "resumed once" in accounting(replace(known, events=events[:2])) and "resumed" not in accounting(known)
    unknown = plain(accounting(job()))
    assert unknown == "0 plan changes, – batches skipped, – batches repeated, – batches missing."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (59, "59 s"), (59.2, "60 s"), (60, "1 min"), (3600, "1 h"), (7500, "2 h 5 min"),
        (None, "–"), (math.nan, "–"), (-1, "–"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert plain(duration(seconds)) == text


def test_counts_have_thin_spaces_and_a_real_minus():
    assert whole(185400) == "185\u202f400"
    assert whole(-1200) == "\u22121\u202f200"
    assert whole(math.inf) == "–"


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_no_sentence_promises_more_than_was_measured(actual, static):
    text = plain(outcome(job(wall_seconds=actual, static_wall_seconds=static)))
    percent, word = text.split(": ")[1].split(" % ")
    gain = 100 * (1 - actual / static)
    said = int(percent) if word.startswith("faster") else -int(percent)
    assert said <= gain + 1e-5
    assert gain - said < 1 + 1e-5
