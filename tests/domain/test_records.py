"""What a record says of the time in which nobody ran its job."""

from dataclasses import replace

import pytest

from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import JobEvent, JobRecord, Sample, idle_spans, seconds_without

BARE = JobRecord("r", "train", JobState.RUNNING, {}, (), (), (), {})
SAMPLES = tuple(Sample(at, None, None) for at in (10.0, 20.0, 500.0, 510.0))
TWICE = replace(
    BARE, samples=SAMPLES,
    events=(JobEvent(22.0, "checkpoint", "a"), JobEvent(490.0, "resumed", "b"), JobEvent(900.0, "resumed", "c")),
)  # fmt: skip


def test_a_job_is_idle_from_the_last_sign_of_a_controller_to_its_resume():
    assert idle_spans(TWICE) == ((22.0, 490.0), (510.0, 900.0))
    assert idle_spans(TWICE, 905.0) == ((22.0, 490.0), (510.0, 900.0), (900.0, 905.0))
    assert idle_spans(replace(BARE, samples=SAMPLES), 2000.0) == ((510.0, 2000.0),)


def test_a_job_that_was_not_resumed_or_of_which_nothing_is_known_was_never_idle():
    assert idle_spans(replace(BARE, samples=SAMPLES)) == ()
    assert idle_spans(BARE, 100.0) == (), "what is not known is paid for"


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [(0.0, 22.0, 22.0), (0.0, 490.0, 22.0), (100.0, 200.0, 0.0), (400.0, 600.0, 110.0 - 90.0), (30.0, 10.0, 0.0)],
)
def test_seconds_without_idle_ones(start, end, left):
    assert seconds_without(start, end, idle_spans(TWICE)) == pytest.approx(left)
