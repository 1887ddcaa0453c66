"""`trimtab plan`: the options of `train`, what if, the picture, one JSON object. What looks at the job is a stand-in;
tests/controller/test_previewing.py takes the real way."""

import json
from dataclasses import replace

import pytest

from trimtab.core import cli, cli_plan
from trimtab.core.controller.previewing import Previewed
from trimtab.core.domain.job import JobSpec, Objective
from trimtab.core.domain.plan import Limits, Plan, Prices, RolePlan
from trimtab.core.domain.records import Decision, Observation, PastRun, WarmStart
from trimtab.core.errors import BadInput
from trimtab.core.optimizer.outlook import WhatIf
from trimtab.core.optimizer.preview import preview
from trimtab.core.optimizer.question import Question

MIB = 2**20
FIRST = Plan(RolePlan(1, 0.3, 300 * MIB), RolePlan(1, 0.8, 800 * MIB))


def made(spec, what_ifs, warm=True):
    """What a job on 1,024,000 rows would be told."""
    windows = tuple(Observation(FIRST, 10_000.0, 0.04, 0.012, 512, 10.0 * at, 5.0, 100) for at in range(1, 4))
    asked = Question(
        0.0, FIRST, 512, 2000, (), windows if warm else (), Limits(2.0, 8 * 1024 * MIB, 4, 2), spec.objective,
        spec.prices, (), {}, budget=spec.budget, deadline_seconds=spec.deadline_seconds,
    )  # fmt: skip
    runs = (PastRun("run-a", 60.0, 1.0, 1.0, FIRST, 100.0, 10_000.0),) if warm else ()
    decision = Decision(0.0, "start", FIRST, "Warm start from 1 run (run-a).", 1, f"Start with {FIRST}")
    found = preview(asked, decision, 1_024_000, [run.run_id for run in runs], what_ifs)
    return Previewed(spec, found, WarmStart(runs, FIRST if warm else None, note="warm start from 1 run (run-a)"), 2000)


@pytest.fixture
def plan(monkeypatch, capsys):
    """Runs `trimtab plan`: (exit code, stdout, stderr, the jobs that were looked at)."""

    def run(*arguments, warm=True):
        looked = []

        def preview_job(spec, what_ifs, progress, stop):
            looked.append(spec)
            return made(spec, what_ifs, warm)

        monkeypatch.setattr("trimtab.core.controller.previewing.preview_job", preview_job)
        with pytest.raises(SystemExit) as ended:
            cli.main(["plan", "--data", "rows.csv", *map(str, arguments)])
        out, err = capsys.readouterr()
        return ended.value.code, out.replace("\u202f", " ").replace("\u00a0", " "), err, looked

    return run


def test_the_options_are_those_of_train(plan):
    own = {"what_if", "picture", "as_json"}
    assert {one.name for one in cli.plan.params} - own == {one.name for one in cli.train.params} - {"as_json"}
    given = ("--epochs", 3, "--budget", 2.5, "--deadline", "2h", "--objective", "fastest", "--currency", "EUR")
    code, _, _, (spec,) = plan(*given, "--core-hour-price", 0.03)
    assert code == 0
    assert spec == JobSpec(
        "rows.csv", epochs=3, budget=2.5, deadline_seconds=7200.0, objective=Objective.FASTEST,
        prices=Prices(0.03, currency="EUR"),
    )  # fmt: skip


def test_what_a_terminal_shows(plan):
    code, out, _, _ = plan("--what-if", "workers=2,worker_cpu=0.6", "--what-if", "workers=9", "--deadline", "10s")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "Would start with 1 × 0.8 + 1 × 0.3 (workers × cores + PSs × cores)"
    assert "  Warm start from 1 run (run-a)." in lines
    assert "The whole job: 1 024 000 rows in 2 000 batches of 512" in lines
    first = next(line for line in lines if line.startswith("  start"))
    assert "10.0 k" in first and "1 min 42 s" in first
    assert "What if 2 × 0.6 + 1 × 0.3" in lines and any("Against the first plan" in line for line in lines)
    flat = " ".join(out.split())
    assert "7.5 cores of 2 (--max-cpu)" in flat and "9 workers of 4 (--max-workers)" in flat
    assert "No range: nothing of this job has been measured" in out
    assert "the fastest plan within the caps" in flat
    assert max(len(line) for line in lines) <= 100


def test_without_past_runs_no_second_and_no_money_of_the_whole_job_is_told(plan):
    _, out, _, _ = plan("--what-if", "workers=2", warm=False)
    assert "× first plan" in out and "samples/s" not in out
    assert "no similar past run has been measured" in out
    _, shown, _, _ = plan("--what-if", "workers=2", "--json", warm=False)
    found = json.loads(shown)
    every = [found["first"], found["best"], found["fastest"], found["cheapest"], *found["front"], *found["what_if"]]
    assert {(one["throughput"], one["seconds"], one["cost"]) for one in every} == {(None, None, None)}
    assert found["relative"] is True and found["what_if"][0]["seconds_more"] is None


def test_json_is_one_object(plan):
    code, out, err, _ = plan("--json", "--what-if", "workers=2,ps=1,worker_cpu=0.6")
    assert code == 0 and out.count("\n") == 1
    found = json.loads(out)
    assert found["plan"] == FIRST.as_dict() and found["bad_input"] is None and found["relative"] is False
    first, wish = found["first"], found["what_if"][0]
    assert first["seconds"] == pytest.approx(1_024_000 / first["throughput"])
    assert first["cost"] == pytest.approx(first["cost_per_hour"] * first["seconds"] / 3600)
    assert wish["seconds_more"] == pytest.approx(wish["seconds"] - first["seconds"])
    assert wish["cost_more"] == pytest.approx(wish["cost"] - first["cost"])
    assert {(one["low"], one["high"]) for one in found["front"]} == {(None, None)}
    assert found["plans_compared"] > len(found["front"]) > 5
    assert found["warm_start"]["runs"][0]["run_id"] == "run-a" and found["held"]
    assert "reading rows" in err


@pytest.mark.parametrize("name", ["front.png", "front.SVG"])
def test_the_front_is_drawn(plan, tmp_path, name):
    code, _, err, _ = plan("--picture", tmp_path / name, "--what-if", "workers=2")
    assert code == 0 and f"picture: {tmp_path / name}" in err
    start = (tmp_path / name).read_bytes()[:400]
    assert start.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in start


def test_a_picture_that_cannot_be(plan, tmp_path):
    code, _, err, looked = plan("--picture", tmp_path / "front.jpg")
    assert (code, looked) == (cli.BAD_INPUT, []) and ".png or .svg" in err, "found out before anything else is done"
    code, _, err, _ = plan("--picture", tmp_path / "no" / "front.png")
    assert code == cli.BAD_INPUT and "--picture" in err


def test_a_plan_that_is_asked_about():
    assert cli_plan.parse_what_if("workers=8,ps=2") == WhatIf(8, 2)
    given = " workers = 8 , worker-cpu=500m,PS_CPU=1.5,batch_size=2048"
    assert cli_plan.parse_what_if(given) == WhatIf(8, None, 0.5, 1.5, 2048)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workes=8", "did you mean workers?"), ("", "give workers, ps"), ("cats=2", "give workers, ps"),
        ("workers", "give a value"), ("workers=", "give a value"), ("workers=0", "whole number"),
        ("ps=1.5", "whole number"), ("ps=-1", "whole number"), ("ps=٣", "whole number"),
        ("workers=99999999999999999999", "whole number"), ("workers=1,workers=2", "given twice"),
        ("worker_cpu=0", "more than 0"), ("worker_cpu=x", "Kubernetes quantity"), ("ps_cpu=1,ps_cpu=1", "given twice"),
        ("ps_cpu=nan", "Kubernetes quantity"), ("workers=2,", "give workers, ps"),
    ],
)  # fmt: skip
def test_what_no_plan_is(plan, text, said):
    with pytest.raises(BadInput, match="--what-if") as refused:
        cli_plan.parse_what_if(text)
    assert said in refused.value.remedy
    code, out, err, looked = plan("--what-if", text, "--json")
    assert code == cli.BAD_INPUT and looked == [] and len(err.splitlines()) == 1
    assert json.loads(out)["bad_input"]["field"].startswith("--what-if")


def test_bad_options_are_refused_in_the_words_of_train(plan):
    code, _, err, looked = plan("--budget", "-1")
    assert code == cli.BAD_INPUT and looked == [] and "--budget" in err


def test_a_smaller_job_costs_less_and_says_so(plan):
    _, out, _, _ = plan("--what-if", "worker_cpu=0.4", "--json")
    first, wish = (json.loads(out)[name] for name in ("first", "what_if"))
    assert wish[0]["cost_per_hour"] < first["cost_per_hour"] and wish[0]["seconds_more"] > 0
    assert replace(FIRST, worker=replace(FIRST.worker, cpu=0.4)).as_dict() == wish[0]["plan"]
