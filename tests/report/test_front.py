"""The front in pictures, on the page and in a terminal, whatever there is to draw."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import report_records

from trimtab.core.domain.job import Objective
from trimtab.core.domain.plan import Limits, Plan, Prices, RolePlan
from trimtab.core.domain.records import Decision, Observation, Range, WarmStart
from trimtab.core.optimizer.outlook import WhatIf
from trimtab.core.optimizer.preview import preview
from trimtab.core.optimizer.question import Question
from trimtab.core.report import front_picture
from trimtab.core.report.front import preview_text, shown_front
from trimtab.core.report.front_panel import front_at_start
from trimtab.core.report.front_picture import write_front
from trimtab.core.report.page import page

MIB = 2**20
FIRST = Plan(RolePlan(1, 0.3, 300 * MIB), RolePlan(1, 0.8, 800 * MIB))


def look(prior=True, limits=None, currency="$", speed=10_000.0, what_ifs=()):
    windows = tuple(Observation(FIRST, speed, 0.04, 0.012, 512, 10.0 * at, 5.0, 100) for at in range(1, 4))
    caps = limits or Limits(4.0, 16 * 1024 * MIB, 8, 2)
    asked = Question(0.0, FIRST, 512, 200, (), windows if prior else (), caps, Objective.BALANCED,
                     Prices(currency=currency), (), {})  # fmt: skip
    return preview(asked, Decision(0.0, "start", FIRST, "why.", 1, "Start"), 102_400, (), what_ifs)


@pytest.mark.parametrize(
    "found",
    [
        look(), look(prior=False), look(limits=Limits(1.1, 1100 * MIB, 1, 1)), look(currency="EUR"), look(speed=1e-3),
        look(speed=1e11), look(what_ifs=[WhatIf(workers=one) for one in range(1, 12)]),
        look(what_ifs=[WhatIf(workers=10**6)]),
    ],
    ids=["warm", "cold", "small", "long currency", "slow", "fast", "many asked", "huge"],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_whatever_there_is_can_be_drawn_and_told(found, tmp_path):
    write_front(found, tmp_path / "a.png", dark=found.relative)
    assert (tmp_path / "a.png").stat().st_size > 5000
    text = preview_text(found, WarmStart(), 200)
    assert text.startswith("Would start with ") and "What this rests on" in text
    assert len(shown_front(found)) <= 16


def test_the_same_front_is_the_same_svg(tmp_path):
    for name in ("a.svg", "b.svg"):
        write_front(look(), tmp_path / name)
    first, second = ((tmp_path / name).read_text() for name in ("a.svg", "b.svg"))
    assert first.count("<path") == second.count("<path") > 5 and "<dc:date>" not in first


def test_labels_do_not_lie_on_each_other():
    taken = []
    places = [front_picture._free_place("a label of some length", 0.5, 0.5, taken) for _ in range(6)]
    heights = [up for _, _, up in places]
    assert all(before - after >= 20 - 1e-9 for before, after in pairwise(heights))
    side, across, _ = front_picture._free_place("a label of some length", 0.99, 0.5, [])
    assert side == "right" and across < 0, "it stays on the picture"


def test_the_page_shows_where_the_job_began_on_its_front():
    shown = front_at_start(report_records.warm())
    assert "The front at the start" in shown and "3 plans that no other one beat" in shown and "<svg" in shown
    assert shown in page(report_records.warm())
    assert front_at_start(report_records.grown()) == "", "without past runs there is none"


def test_a_front_of_a_broken_record_is_left_out_or_drawn_without_what_is_not_finite():
    job = report_records.warm()
    broken = replace(job.front[0], throughput=Range(math.nan))
    assert "2 plans that no other one beat" in front_at_start(replace(job, front=(broken, *job.front[1:])))
    assert front_at_start(replace(job, front=(broken,))) == ""
    zero = replace(job.front[1], throughput=Range(0.0), cost_per_hour=0.0)
    assert "<svg" in front_at_start(replace(job, front=(zero,)))
