"""Warm start: which runs count, how much, and what comes out."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Decision, JobRecord, Observation
from trimtab.core.optimizer.warm_start import (
    MOST_RUNS,
    ended,
    final_plan,
    prior_observations,
    similarity,
    warm_start,
)

GIB = 2**30
TAGS = {
    "model": "dlrm", "columns": "c1", "batch_size": "1024", "data": "f1", "rows": "100000", "max_cpu": "2",
    "max_memory_bytes": str(6 * GIB), "embedding_dim": "16",
}  # fmt: skip
NOW = 1_800_000_000.0


def plan(workers, worker_cpu=0.8, ps=1, ps_cpu=0.4, memory=GIB):
    return Plan(RolePlan(ps, ps_cpu, memory), RolePlan(workers, worker_cpu, memory))


def run(name, ended=100.0, last=None, **more):
    """A run that ended `ended` seconds ago, grew at second 10 of 60 and kept `last`."""
    last = last or plan(2)
    given_ = {
        "run_id": name, "job_name": "train", "state": JobState.FINISHED, "tags": dict(TAGS),
        "plans": (PlanChange(0.0, plan(1), "start"), PlanChange(10.0, last, "grow")),
        "observations": (Observation(last, 80_000.0, 0.018, 0.004, 1024, 40.0, 3.0, 200),), "decisions": (),
        "figures": {"wall_seconds": 60.0, "samples_per_second": 70_000.0}, "ended_at": NOW - ended,
    }  # fmt: skip
    return JobRecord(**{**given_, **more})


def test_the_plan_a_run_ended_with_comes_back_exactly():
    found = warm_start([run("a")], TAGS, NOW)
    assert found.plan == plan(2)
    assert found.note == "warm start from 1 run (a): 2 × 0.8 + 1 × 0.4"
    (past,) = found.runs
    assert (past.run_id, past.age_seconds, past.similarity, past.weight) == ("a", 100.0, 1.0, 1.0)
    assert (past.wall_seconds, past.throughput, past.plan) == (60.0, 80_000.0, plan(2))
    assert found.predicted.middle == 80_000.0 and found.predicted.low is None


def test_the_time_before_the_first_plan_is_no_part_of_what_plans_are_measured_by():
    """Eighteen seconds of preparation, fourteen with the first plan, eight with the last: those eight are enough."""
    plans = (PlanChange(18.1, plan(1), "start"), PlanChange(31.7, plan(2), "grow"))
    short = run("a", plans=plans, figures={"wall_seconds": 39.7})
    assert final_plan(short) == plan(2)


def test_a_last_plan_that_was_measured_counts_however_short_it_was():
    plans = (PlanChange(10.0, plan(1), "start"), PlanChange(57.0, plan(2), "grow"))
    late = run("a", plans=plans)
    assert final_plan(late) == plan(1)
    made = Decision(57.0, "grow", plan(2), "it pays", 2, before=plan(1), measured=90_000.0)
    assert final_plan(replace(late, decisions=(made,))) == plan(2)


@pytest.mark.parametrize("tag", ["job_name", "model_fingerprint"])
def test_runs_of_the_own_family_and_the_very_same_model_come_first(tag):
    mine = {**TAGS, "job_name": "nightly", "model_fingerprint": "m1"}
    other = run("other", ended=10.0, last=plan(4), tags={**mine, tag: "another"})
    own = run("own", ended=1000.0, last=plan(2), tags=mine)
    assert [one.run_id for one in warm_start([other, own], mine, NOW).runs] == ["own"]
    assert [one.run_id for one in warm_start([other], mine, NOW).runs] == ["other"], "better than nothing"
    failed = replace(own, state=JobState.FAILED)
    assert [one.run_id for one in warm_start([other, failed], mine, NOW).runs] == ["other"]


@pytest.mark.parametrize("tag", ["model", "columns", "batch_size"])
def test_hard_tags_must_be_equal(tag):
    found = warm_start([run("a", tags={**TAGS, tag: "other"})], TAGS, NOW)
    assert found.runs == () and found.plan is None
    assert found.note == "cold start, none of 1 past run has this model, columns and batch size"


def test_no_past_no_run_that_ended_well():
    assert warm_start([], TAGS, NOW).note == "cold start, there is no past run"
    failed = warm_start([run("a", state=JobState.FAILED)], TAGS, NOW)
    assert failed.runs == () and failed.note == "cold start, none of 1 similar run ended well and long enough"
    assert warm_start([run("a", plans=())], TAGS, NOW).runs == ()
    assert warm_start([run("a", state=JobState.RUNNING)], TAGS, NOW).runs == ()


def test_a_stopped_run_counts_by_the_plan_it_kept():
    assert warm_start([run("a", state=JobState.STOPPED)], TAGS, NOW).plan == plan(2)


def test_the_final_plan_is_the_last_that_was_in_force_long_enough():
    late = run("a", plans=(PlanChange(0.0, plan(1), ""), PlanChange(10.0, plan(2), ""), PlanChange(58.0, plan(4), "")))
    assert final_plan(late) == plan(2)
    short = run("a", figures={"wall_seconds": 12.0}, plans=(PlanChange(0.0, plan(1), ""), PlanChange(9.0, plan(2), "")))
    assert final_plan(short) == plan(2), "a fifth of a short run is long enough"
    unknown = run("a", figures={"wall_seconds": math.nan})
    assert final_plan(unknown) == plan(2), "then its windows say how long it was"


def test_newer_runs_weigh_more_and_the_weights_add_up():
    found = warm_start([run("old", 1000.0, plan(6)), run("new", 10.0, plan(2)), run("mid", 500.0, plan(2))], TAGS, NOW)
    weights = {one.run_id: one.weight for one in found.runs}
    assert weights["new"] > weights["mid"] > weights["old"] and sum(weights.values()) == pytest.approx(1.0)
    assert [one.run_id for one in found.runs] == ["new", "mid", "old"]
    assert found.plan.worker.replicas == 3, "2, 2 and 6, the last with a fifth of the weight"
    assert found.note.startswith("warm start from 3 runs (new, mid, old): ")


def test_similar_runs_come_first_and_only_so_many_count():
    alike = [run(f"r{index}", 10_000.0 + index) for index in range(MOST_RUNS)]
    others = [run(f"o{index}", 10.0 + index, plan(8), tags={**TAGS, "max_cpu": "64"}) for index in range(4)]
    found = warm_start([*others, *alike], TAGS, NOW)
    assert {one.run_id for one in found.runs} == {f"r{index}" for index in range(MOST_RUNS)}
    assert found.plan == plan(2)


def test_similarity_is_one_for_the_same_and_falls_with_every_difference():
    assert similarity(TAGS, TAGS) == 1.0
    values = [
        similarity({**TAGS, **change}, TAGS)
        for change in ({"rows": "90000"}, {"rows": "1000"}, {"rows": "1000", "max_cpu": "64"}, {"data": "f2"},
                       {"data": "f2", "rows": "1000", "max_cpu": "64", "embedding_dim": "64"})
    ]  # fmt: skip
    assert all(0 < one < 1 for one in values) and values[0] > values[1] > values[2] > values[4]
    assert similarity({}, {}) == 1.0
    assert 0 < similarity({"rows": "nonsense"}, TAGS) < 1


def test_a_clock_that_went_back_makes_no_negative_age():
    (past,) = warm_start([run("a", ended=-500.0)], TAGS, NOW).runs
    assert past.age_seconds == 0.0


def test_a_run_that_ran_out_of_memory_only_raises_floors():
    dead = run("dead", state=JobState.FAILED, out_of_memory="ps", last=plan(6))
    alone = warm_start([dead], TAGS, NOW)
    assert alone.runs == () and alone.plan.ps.memory_bytes == GIB * 3 // 2 and alone.plan.worker.memory_bytes == 0
    assert alone.floors == ("run dead ran out of memory with 1Gi per PS",)
    assert alone.note.endswith("; run dead ran out of memory with 1Gi per PS")
    both = warm_start([dead, run("good")], TAGS, NOW)
    assert [one.run_id for one in both.runs] == ["good"] and both.plan.worker == plan(2).worker
    assert both.plan.ps.memory_bytes == GIB * 3 // 2 and both.plan.ps.replicas == 1
    worker = warm_start([replace(dead, out_of_memory="worker"), dead], TAGS, NOW)
    assert (worker.plan.worker.memory_bytes, worker.plan.ps.memory_bytes) == (GIB * 3 // 2, GIB * 3 // 2)
    given = replace(dead, figures={**dead.figures, "ps_memory_bytes": 2.0 * GIB, "worker_memory_bytes": 9.0 * GIB})
    more = warm_start([given], TAGS, NOW)
    assert more.plan.ps.memory_bytes == 3 * GIB and more.floors[0].endswith("with 2Gi per PS"), "what it had at last"
    assert warm_start([replace(given, figures={"ps_memory_bytes": math.inf})], TAGS, NOW).plan == alone.plan


def test_prior_windows_come_from_the_newest_runs_in_equal_parts():
    long = run("long", 10.0, observations=tuple(
        Observation(plan(2), 80_000.0, 0.018, 0.004, 1024, float(i), 3.0, 200) for i in range(500)
    ))  # fmt: skip
    found = prior_observations([long, run("b", 20.0), run("c", 30.0), run("empty", 5.0, observations=())])
    assert 3 <= len(found) <= 40
    assert found[-1].time_seconds > 400, "the newest run last, from all of its time"
    assert len(prior_observations([long, run("b", 20.0)], runs=["b"])) == 1
    assert prior_observations([]) == ()


def month(days, size, jump=None, **more):
    """One run a day, the last one yesterday; workers of about 4 cores, PSs of 1, data and cores as `size` says."""
    found = []
    for day in range(days):
        cores = size(day) * (jump(day) if jump else 1.0)
        replicas = math.ceil(cores / 4)
        last = plan(replicas, round(cores / replicas * 20) / 20, math.ceil(cores / 16), 1.0, 8 * GIB)
        tags = {**TAGS, "data": f"d{day}", "rows": str(int(1e6 * size(day)))}
        plans = (PlanChange(0.0, last, "start"),)
        found.append(run(f"d{day:02d}", (days - day) * 86_400.0, last, tags=tags, plans=plans, **more))
    return found


def all_cores(found):
    return found.plan.worker.replicas * found.plan.worker.cpu


def test_a_drift_is_carried_on_and_said():
    today = {**TAGS, "data": "d14", "rows": str(int(1e6 * 100 * 1.02**14))}
    found = warm_start(month(14, lambda day: 100 * 1.02**day), today, NOW)
    assert all_cores(found) == pytest.approx(100 * 1.02**14, rel=0.01)
    assert "; cores of workers drift with the rows of the data (+1.0 % for each % of rows): carried on by" in found.note
    assert found.note.startswith("warm start from 14 runs (d13, d12, d11 and 11 more): ")
    nameless = {name: value for name, value in today.items() if name != "rows"}
    bare = [replace(one, tags={k: v for k, v in one.tags.items() if k != "rows"}) for one in
            month(14, lambda day: 100 * 1.02**day)]  # fmt: skip
    found = warm_start(bare, nameless, NOW)
    assert all_cores(found) == pytest.approx(100 * 1.02**14, rel=0.01)
    assert "; cores of workers drift by +2.0 % a day: carried on by +" in found.note


def test_a_new_level_is_followed_at_once_and_said():
    past = month(10, lambda day: 100.0, lambda day: 1.6 if day == 9 else 1.0)
    found = warm_start(past, TAGS, NOW)
    assert [one.run_id for one in found.runs] == ["d09"] and all_cores(found) == 160
    jumps = "workers had 160 cores instead of 100, PSs had 10 cores instead of 7"
    assert f"; the last run is far from those before ({jumps}): older plans do not count" in found.note
    past = month(11, lambda day: 100.0, lambda day: 1.6 if day >= 9 else 1.0)
    found = warm_start(past, TAGS, NOW)
    assert {one.run_id for one in found.runs} == {"d09", "d10"} and "the last 2 runs are far from" in found.note


def test_a_stray_run_does_not_count_and_is_said():
    found = warm_start(month(10, lambda day: 100.0, lambda day: 1.6 if day == 6 else 1.0), TAGS, NOW)
    assert "d06" not in [one.run_id for one in found.runs] and len(found.runs) == 9
    assert all_cores(found) == 100 and found.note.endswith("; 1 run lay far off and does not count")


def test_a_run_that_somebody_stopped_is_no_new_level():
    past = month(6, lambda day: 100.0, lambda day: 0.1 if day == 5 else 1.0)
    past[-1] = replace(past[-1], state=JobState.STOPPED)
    assert all_cores(warm_start(past, TAGS, NOW)) == 100


def test_runs_that_could_not_be_read_are_said():
    assert warm_start([], TAGS, NOW, unread=2).note == (
        "cold start, there is no past run; 2 runs of the history could not be read"
    )
    assert warm_start([run("a")], TAGS, NOW, unread=1).note.endswith("; 1 run of the history could not be read")


def test_as_many_embedding_rows_make_a_run_more_alike_where_both_are_known():
    mine = {**TAGS, "embedding_rows": "90000"}
    assert similarity(mine, mine) == 1.0
    fewer, near = ({**TAGS, "embedding_rows": rows} for rows in ("9000", "80000"))
    assert similarity(fewer, mine) < similarity(near, mine) < 1
    assert similarity(TAGS, mine) == similarity({**TAGS, "embedding_rows": ""}, mine) == 1.0


START = NOW - 10_000.0


def test_when_a_run_ended_is_believed_as_far_as_its_times_agree():
    good = run("a", started_at=START)
    assert ended(good, NOW) == NOW - 100.0
    assert ended(replace(good, ended_at=NOW + 60.0), NOW) == NOW, "clocks of two machines may differ a little"
    assert ended(replace(good, ended_at=NOW + 1e7), NOW) == START + 60.0, "not yet: then its start and length say it"
    assert ended(replace(good, ended_at=START - 5.0), NOW) == START + 60.0, "before its start"
    assert ended(replace(good, ended_at=None), NOW) == START + 60.0
    assert ended(replace(good, started_at=NOW + 1e7, ended_at=NOW + 2e7), NOW) is None
    assert ended(run("a", ended=-1e7, started_at=0.0), NOW) is None


def test_a_run_of_the_future_is_never_the_newest():
    """Also where a clock that went back makes every later run look older."""
    ahead = run("ahead", ended=-1e7, last=plan(6), started_at=NOW + 1e7 - 60)
    found = warm_start([ahead, run("old", 5000.0), run("new", 50.0)], TAGS, NOW)
    assert [one.run_id for one in found.runs] == ["new", "old", "ahead"]
    assert min(one.age_seconds for one in found.runs) == 0.0
    assert found.note.endswith("; when 1 run ended is not known (the clock went back): taken as oldest")
    (alone,) = warm_start([ahead], TAGS, NOW).runs
    assert alone.age_seconds == 0.0 and alone.plan == plan(6)


def test_times_that_run_backwards_within_a_record_add_nothing():
    back = (PlanChange(100.0, plan(1), ""), PlanChange(130.0, plan(2), ""), PlanChange(20.0, plan(4), ""))
    odd = run("a", plans=back, figures={"wall_seconds": 50.0})
    assert final_plan(odd) == plan(1), "30 s are known of it, and nothing of the others"
    assert final_plan(run("a", plans=back, figures={"wall_seconds": -5.0})) == plan(1)
    assert final_plan(run("a", plans=back, figures={"wall_seconds": 190.0})) == plan(4)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, math.nan, math.inf])
def test_a_length_that_cannot_be_is_none(seconds):
    odd = run("a", figures={"wall_seconds": seconds}, observations=())
    (past,) = warm_start([odd], TAGS, NOW).runs
    assert past.age_seconds == 100.0


PLANS = st.builds(plan, st.integers(1, 16), st.sampled_from([0.1, 0.55, 1.0]), st.integers(1, 8),
                  st.sampled_from([0.1, 0.3, 1.0]), st.integers(GIB // 4, 8 * GIB))  # fmt: skip


@given(st.lists(st.tuples(PLANS, st.floats(-100, 1e7)), min_size=1, max_size=8))
def test_what_comes_out_lies_between_what_went_in_or_was_carried_on_and_said(past):
    records = [run(f"r{index}", ended, last) for index, (last, ended) in enumerate(past)]
    found = warm_start(records, TAGS, NOW)
    assert found == warm_start(list(reversed(records)), TAGS, NOW), "the order of the records does not matter"
    assert sum(one.weight for one in found.runs) == pytest.approx(1.0)
    used = [one.plan for one in found.runs]
    for role in ("worker", "ps"):
        roles = [getattr(one, role) for one in used]
        mine = getattr(found.plan, role)
        carried = f"cores of {'workers' if role == 'worker' else 'PSs'} drift" in found.note
        least, most = min(one.replicas for one in roles), max(one.replicas for one in roles)
        assert (max(1, least // 2) if carried else least) <= mine.replicas <= (2 * most + 1 if carried else most)
        assert 0.1 <= mine.cpu <= max(one.cpu for one in roles)
        assert mine.memory_bytes == max(one.memory_bytes for one in roles)
