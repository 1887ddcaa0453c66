"""From an operator's fields, templates rendered to text included, to a command line; and from its end to an error."""

import json
import sys

import pytest

from trimtab.airflow_plugin.command import OPTIONS, fault_of, keeper_command, result_of
from trimtab.airflow_plugin.naming import family_of
from trimtab.core import cli
from trimtab.core.domain.job import JobSpec


def test_every_option_of_the_command_is_there_and_no_other():
    known = [name for option in cli.train.params for name in option.opts if name != "--json"]
    assert sorted(f"--{name.replace('_', '-')}" for name in OPTIONS) == sorted(known)


@pytest.mark.parametrize("absent", [None, "", "None"])
def test_what_was_not_given_is_left_out(absent):
    """A template renders None to text (case 41)."""
    command = keeper_command({"data": "rows.csv", "max_cpu": absent, "workers": absent}, 30.0)
    train = [sys.executable, "-m", "trimtab.core.cli", "train", "--json", "--data=rows.csv"]
    assert command == [sys.executable, "-m", "trimtab.airflow_plugin.keeper", "30", *train]


def test_numbers_and_their_text_give_the_same_command():
    numbers = keeper_command({"data": "x", "batch_size": 512, "max_cpu": 1.5, "seed": 0}, 1.5)
    assert numbers == keeper_command({"data": "x", "batch_size": "512", "max_cpu": "1.5", "seed": "0"}, 1.5)
    assert "--seed=0" in numbers and "--batch-size=512" in numbers and numbers[3] == "1.5"


def test_a_value_that_looks_like_an_option_stays_a_value():
    assert "--data=--workers" in keeper_command({"data": "--workers"}, 1)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('{"run_id": "a"}\n', {"run_id": "a"}),
        ('noise\n{"run_id": "a"}', {"run_id": "a"}),
        ("", None),
        ("oh", None),
        ("[1]", None),
    ],
)
def test_the_result_is_the_last_line(output, expected):
    assert result_of(output) == expected


@pytest.mark.parametrize(
    ("code", "result", "fault"),
    [
        (0, {"run_id": "r"}, ("", False)),
        (0, None, ("the job failed: its process ended with exit code 0", False)),
        (2, {"run_id": None, "error": "--data: 'x': no such file"}, ("--data: 'x': no such file", True)),
        (1, {"run_id": "r", "error": "worker 1 ended"}, ("run r failed: worker 1 ended", False)),
        (130, {"run_id": "r", "error": None}, ("run r was stopped", False)),
        (137, None, ("the job failed: its process ended with exit code 137", False)),
    ],
)
def test_why_a_job_did_not_finish_and_whether_to_try_again(code, result, fault):
    assert fault_of(code, result) == fault


def test_all_runs_of_a_task_are_one_family_of_jobs():
    family = family_of("Daily Ads", "train")
    assert family.startswith("daily-ads-train-")
    assert family == family_of("Daily Ads", "train") != family_of("Daily", "Ads train")
    assert JobSpec(data="x", job_name=family).job_name == family
    assert JobSpec(data="x", job_name=family_of("ü" * 300, "ß" * 300)).job_name
    json.dumps(family)
