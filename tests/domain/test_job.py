"""A job's specification refuses what can be known to be wrong, in the words of the command line."""

import math
from pathlib import Path

import pytest

from trimtab.core.domain.job import BUILT_IN_MODELS, JobSpec, JobState, Mode, PlanChange
from trimtab.core.domain.plan import Limits, Plan, Prices, RolePlan
from trimtab.core.errors import BadInput

BAD = [
    ("--data", {"data": ""}),
    ("--data", {"data": None}),
    ("--epochs", {"epochs": 0}),
    ("--epochs", {"epochs": 1.5}),
    ("--epochs", {"epochs": True}),
    ("--batch-size", {"batch_size": 0}),
    ("--batch-size", {"batch_size": -5}),
    ("--workers", {"workers": 0}),
    ("--ps", {"ps": -1}),
    ("--max-workers", {"limits": Limits(workers=0)}),
    ("--max-ps", {"limits": Limits(ps=0)}),
    ("--max-cpu", {"limits": Limits(cpu=0.0)}),
    ("--max-cpu", {"limits": Limits(cpu=math.nan)}),
    ("--max-memory", {"limits": Limits(memory_bytes=0)}),
    ("--embedding-dim", {"embedding_dim": 0}),
    ("--seed", {"seed": -1}),
    ("--mode", {"mode": "automatic"}),
    ("--model", {"model": "dlrn"}),
    ("--model", {"model": "package.module"}),
    ("--model", {"model": "module:function:more"}),
    ("--model", {"model": "module:function\n"}),
    ("--learning-rate", {"learning_rate": math.nan}),
    ("--learning-rate", {"learning_rate": math.inf}),
    ("--learning-rate", {"learning_rate": 0.0}),
    ("--learning-rate", {"learning_rate": "0.1"}),
    ("--job-name", {"job_name": ""}),
    ("--job-name", {"job_name": "Train"}),
    ("--job-name", {"job_name": "-a"}),
    ("--job-name", {"job_name": "a b"}),
    ("--job-name", {"job_name": "../a"}),
    ("--job-name", {"job_name": "a\n"}),
    ("--job-name", {"job_name": "a" * 51}),
    ("--validation", {"validation": ""}),
    ("--validation", {"validation": 1.0}),
    ("--validation", {"validation": -0.1}),
    ("--validation", {"validation": math.nan}),
    ("orphan_grace_seconds", {"orphan_grace_seconds": 0.0}),
    ("orphan_grace_seconds", {"orphan_grace_seconds": "30"}),
    ("--data", {"data": 3}),
    ("--data", {"data": b"rows.csv"}),
    ("--data", {"data": "rows\0.csv"}),
    ("--columns", {"columns": 3}),
    ("--columns", {"columns": ["a"]}),
    ("--job-dir", {"job_dir": 3}),
    ("--job-dir", {"job_dir": ""}),
    ("--validation", {"validation": None}),
    ("--validation", {"validation": [0.1]}),
    ("--validation", {"validation": True}),
    ("--validation", {"validation": 10**400}),
    ("--model", {"model": None}),
    ("--model", {"model": ["dlrm"]}),
    ("--job-name", {"job_name": 3}),
    ("--learning-rate", {"learning_rate": 10**400}),
    ("--learning-rate", {"learning_rate": True}),
    ("--seed", {"seed": 2**63}),
    ("--mode", {"mode": None}),
    ("--mode", {"mode": []}),
    ("limits", {"limits": None}),
    ("limits", {"limits": {"cpu": 2}}),
    ("--max-cpu", {"limits": Limits(cpu="2")}),
    ("--max-cpu", {"limits": Limits(cpu=10**400)}),
    ("--max-memory", {"limits": Limits(memory_bytes="4Gi")}),
    ("--max-memory", {"limits": Limits(memory_bytes=1.5)}),
    ("--max-memory", {"limits": Limits(memory_bytes=math.inf)}),
    ("--max-workers", {"limits": Limits(workers="2")}),
    ("prices", {"prices": None}),
    ("--core-hour-price", {"prices": Prices(core_hour="0.04")}),
    ("--core-hour-price", {"prices": Prices(core_hour=0.0)}),
    ("--gib-hour-price", {"prices": Prices(gib_hour=-1.0)}),
    ("--gib-hour-price", {"prices": Prices(gib_hour=math.nan)}),
    ("--currency", {"prices": Prices(currency="")}),
    ("--currency", {"prices": Prices(currency="dollars and cents")}),
    ("--budget", {"budget": 0}),
    ("--budget", {"budget": math.inf}),
    ("--deadline", {"deadline_seconds": -1.0}),
]


@pytest.mark.parametrize(("field", "given"), BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_be_right_names_field_and_remedy(field, given):
    with pytest.raises(BadInput) as caught:
        JobSpec(**{"data": "rows.csv", **given})
    assert caught.value.field == field
    assert caught.value.remedy
    assert str(caught.value).startswith(field + ": ")


def test_what_is_right_is_taken_as_it_is():
    for model in (*BUILT_IN_MODELS, "my_models:build", "package.module:make_it"):
        assert JobSpec(data="rows.csv", model=model).model == model
    assert JobSpec(data="rows.csv", job_name="a" * 50).job_name == "a" * 50
    assert JobSpec(data="rows.csv", validation=0).validation == 0
    assert JobSpec(data="rows.csv", validation="other.csv").validation == "other.csv"


def test_paths_may_be_path_objects_and_whole_bytes_a_float():
    spec = JobSpec(
        data=Path("rows.csv"), columns=Path("c.yaml"), job_dir=Path("job"), validation=Path("other.csv"),
        limits=Limits(memory_bytes=4e9),
    )  # fmt: skip
    assert (spec.data, spec.columns, spec.job_dir, spec.validation) == ("rows.csv", "c.yaml", "job", "other.csv")
    assert type(spec.limits.memory_bytes) is int


def test_a_mode_may_be_its_word():
    assert JobSpec(data="rows.csv", mode="fixed").mode is Mode.FIXED


def test_a_job_dir_is_decided_without_changing_the_spec():
    spec = JobSpec(data="rows.csv")
    assert spec.with_job_dir("jobs/1").job_dir == "jobs/1"
    assert spec.job_dir is None


def test_states_are_their_words():
    assert [state.value for state in JobState] == ["running", "finished", "stopped", "failed"]


def test_a_plan_change_shows_time_plan_and_reason():
    plan = Plan(RolePlan(1, 0.5, 2**30), RolePlan(2, 1.0, 2**30))
    assert PlanChange(1.23456, plan, "cold default").as_dict() == {
        "time": 1.235, "plan": plan.as_dict(), "reason": "cold default"
    }  # fmt: skip


@pytest.mark.parametrize("field", ["data", "checkpoint_dir", "init_from", "validation"])
@pytest.mark.parametrize(
    "url", ["ftp://me:hunter2@host/x", "simplecache::sftp://me:hunt@er2@host:22/x", "https://:hunter2@host"]
)
def test_a_password_in_a_url_is_refused_and_not_repeated(field, url):
    with pytest.raises(BadInput) as caught:
        JobSpec(**{"data": "rows.csv", field: url})
    assert caught.value.field == f"--{field.replace('_', '-')}"
    assert "credentials" in str(caught.value)
    assert "hunt" not in f"{caught.value} {caught.value.value}" and "er2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["ftp://me@host/x", "s3://bucket/a:b@c", "hdfs://host:8020/user@home", "https://host/?at=1:2@3", "a:b@c"]
)
def test_a_url_without_a_password_is_taken(url):
    assert JobSpec(url, checkpoint_dir=url).checkpoint_dir == url
