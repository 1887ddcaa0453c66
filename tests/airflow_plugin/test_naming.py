"""One task instance, one job name, whatever tries to find it (cases 35, 39)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.airflow_plugin.naming import job_name_of
from trimtab.core.domain.job import JobSpec
from trimtab.core.errors import BadInput

IDS = st.text(max_size=250)


@given(IDS, IDS, IDS, st.none() | st.integers(-1, 10**6), st.integers(0, 10**6))
def test_any_task_gets_a_name_that_a_job_may_have(dag, task, run, index, generation):
    name = job_name_of(dag, task, run, index, generation)
    assert JobSpec(data="rows.csv", job_name=name).job_name == name
    assert job_name_of(dag, task, run, index, generation) == name


def test_not_mapped_is_said_in_two_ways_and_means_one_thing():
    assert job_name_of("d", "t", "r", None) == job_name_of("d", "t", "r", -1)


def test_everything_that_identifies_a_task_instance_changes_the_name():
    names = [
        job_name_of("dag", "task", "run"), job_name_of("dag2", "task", "run"), job_name_of("dag", "task2", "run"),
        job_name_of("dag", "task", "run2"), job_name_of("dag", "task", "run", 0), job_name_of("dag", "task", "run", 1),
        job_name_of("dag", "task", "run", generation=1),
        job_name_of("dag-task", "", "run"), job_name_of("", "dag-task", "run"),
    ]  # fmt: skip
    assert len(set(names)) == len(names)


def test_a_person_can_read_whose_it_is():
    assert job_name_of("Daily Ads", "train", "scheduled__2026-11-30").startswith("daily-ads-train-")


def test_a_generation_below_zero_is_refused():
    with pytest.raises(BadInput, match="generation"):
        job_name_of("d", "t", "r", generation=-1)
