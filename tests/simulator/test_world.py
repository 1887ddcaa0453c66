"""The simulated world: what its parts do by themselves, that a seed is one story, and how it is told."""

import subprocess
import sys
from collections import Counter
from itertools import pairwise

import mutations
import pytest

from trimtab.core.controller.inputs import Tick
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Decision
from trimtab.core.simulator import __main__ as command
from trimtab.core.simulator.job_world import JobWorld
from trimtab.core.simulator.loop import DrivenLoop
from trimtab.core.simulator.network import CALLS, PUSHES, Network, Weather
from trimtab.core.simulator.promises import PromiseBroken
from trimtab.core.simulator.rows import Rows
from trimtab.core.simulator.runs import run_schedule, seeds_of, shrunk
from trimtab.core.simulator.schedules import KINDS, plan_schedule
from trimtab.core.simulator.storage import Storage, copies_of
from trimtab.core.simulator.thrash import Thrash
from trimtab.core.wire.messages import Routing

ALL = (1 << VSHARDS) - 1


def told(seed):
    """A run's story, line by line, and its end."""
    lines = []
    return run_schedule(plan_schedule(seed), lines.append).ending, lines


@pytest.mark.parametrize("seed", [1, 24])
def test_a_seed_is_one_story(seed):
    assert told(seed) == told(seed)
    ending, lines = told(seed)
    assert ending is not None and len(lines) > 10 and "EVENT" in "\n".join(lines)


def test_a_job_without_faults_ends_in_about_the_time_that_its_work_takes():
    schedule = plan_schedule(1)
    while schedule.events:
        schedule = schedule.without(0)
    ending = run_schedule(schedule).ending
    assert ending is not None and str(ending.state) == "finished" and ending.lives == 1
    assert 0.5 * schedule.seconds < ending.seconds < 3 * schedule.seconds + 10


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_event_comes_about(kind):
    """It is carried out in some of the first schedules that have it, and the job ends."""
    for seed in range(4):
        run = run_schedule(plan_schedule(seed, kind))
        assert not run.wrong, run


# ---- rows, copies, wires


def test_rows_take_a_number_once_and_a_copy_replaces_them():
    rows = Rows()
    rows.load(ALL, 1, IntervalSet())
    assert rows.push(3, ALL) == ALL and rows.push(3, 0b11) == 0b11 and rows.duplicates == 1
    assert rows.push(4, 0b11) == 0b11 and [len(part.applied) for part in rows.parts if part.mask & 0b11] == [2]
    assert rows.newer(ALL, 1) == 0 and rows.newer(ALL, 2) == ALL
    rows.load(0b1, 2, IntervalSet([(0, 2)]))
    assert rows.newer(ALL, 2) == ALL & ~0b1
    assert {part.applied for part in rows.parts if part.mask & 0b1} == {IntervalSet([(0, 2)])}
    assert rows.served == ALL


def test_rows_that_are_handed_over_are_served_no_more_and_stay_until_they_are_dropped():
    rows = Rows()
    rows.load(ALL, 1, IntervalSet([(0, 5)]))
    assert rows.hand_over(0b110, 1) == [(0b110, IntervalSet([(0, 5)]))]
    assert rows.hand_over(0b110, 2) == [], "that tenure never was"
    assert rows.hand_over(0b100, 1) == [(0b100, IntervalSet([(0, 5)]))], "asked again it is told again"
    assert rows.push(7, 0b111) == 0b001
    rows.drop(0b110, 2)
    assert rows.hand_over(0b110, 1) == []


def test_storage_keeps_what_files_hold_apart_from_what_manifests_say():
    storage, rows = Storage(), Rows()
    rows.load(ALL, 1, IntervalSet([(0, 5)]))
    written = storage.write("p1-1", 1, copies_of(rows))
    rows.push(5, ALL)
    assert storage.files["p1-1"][0].applied == IntervalSet([(0, 5)]), "as it was then"
    assert len(written.entries) == VSHARDS
    assert storage.read("manifest-0", 0b11) == [(0b11, IntervalSet())]


def test_weather_loses_doubles_and_delays():
    loop, came = DrivenLoop(3), []
    network = Network(loop)
    network.weather = {CALLS: Weather(lost=0.3, doubled=0.3, late=0.3, seconds=2.0)}
    for number in range(300):
        network.send(CALLS, lambda number=number: came.append(number))
        network.send(PUSHES, lambda number=number: came.append(-1))
    loop.run(10.0)
    times = Counter(one for one in came if one >= 0)
    assert came.count(-1) == 300
    assert 60 < sum(number not in times for number in range(300)) < 110
    assert 40 < sum(count == 2 for count in times.values()) < 110
    order = [one for one in came if one >= 0]
    assert order != sorted(order)


def test_a_machine_that_stood_still_finds_its_events_late():
    loop, ran = DrivenLoop(0), []
    loop.after(1.0, lambda: loop.clock.advance(5.0))
    loop.after(2.0, lambda: ran.append(loop.clock.now()))
    loop.after(9.0, lambda: ran.append(loop.clock.now()))
    loop.run(10.0)
    assert ran == [6.0, 9.0] and loop.clock.now() == 10.0


# ---- promises


def lay(*places):
    """A routing whose vshards all lie at one place, after another."""
    return [Routing(at + 1, ("a", "b", "c"), ("", "", ""), (place,) * VSHARDS) for at, place in enumerate(places)]


def thrash():
    def say(promise, holds, text):
        if not holds:
            raise PromiseBroken(promise, text)

    return Thrash(say)


def move(watch, *places):
    routings = lay(*places)
    for old, new in pairwise(routings):
        watch.moved(old, new)


def test_a_vshard_may_go_and_come_back_once():
    move(thrash(), 0, 1, 2)
    move(thrash(), 0, 1, 0)
    with pytest.raises(PromiseBroken, match="at most one reversal"):
        move(thrash(), 0, 1, 0, 1)
    watch = thrash()
    move(watch, 0, 1, 0)
    watch.stimulus()
    move(watch, 0, 1, 0)


def test_a_plan_may_change_and_change_back_once():
    one, two = (Plan(RolePlan(count, 0.5, 1 << 28), RolePlan(1, 0.5, 1 << 30)) for count in (1, 2))

    def decide(watch, *plans):
        for before, after in pairwise(plans):
            watch.decided(before, Decision(0.0, "memory", after, "because", before=before))

    decide(thrash(), one, two, one)
    with pytest.raises(PromiseBroken, match="at most one reversal"):
        decide(thrash(), one, two, one, two)


def test_promises_are_looked_at_after_each_step():
    world = JobWorld(plan_schedule(1))
    world.begin()
    world.loop.run(5.0)
    steps = world.promises.steps
    assert world.life is not None
    world.life.feed(Tick())
    assert world.promises.steps == steps + 1


# ---- how it is told


def test_a_failing_schedule_is_shrunk_to_what_it_needs(monkeypatch):
    mutations.lends_while_it_stops(monkeypatch)
    seed = mutations.found_by()[0]
    schedule = plan_schedule(seed)
    smaller = shrunk(schedule)
    assert len(smaller.events) < len(schedule.events) or len(schedule.events) == 1
    assert "stop" in [event.kind for event in smaller.events]
    assert run_schedule(smaller).wrong


def test_seeds_are_numbers_and_ranges():
    assert seeds_of(["3", "7-9"]) == [3, 7, 8, 9]


def test_one_seed_is_told_as_it_happens(capsys):
    assert command.main(["1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 1: a ") and "pod_started" in said
    assert said.splitlines()[-1].startswith("seed 1: finished")


def test_a_broken_promise_is_told_with_what_is_needed_for_it(capsys, monkeypatch):
    mutations.uses_a_name_again(monkeypatch)
    seed = mutations.found_by()[0]
    assert command.main([f"{seed}-{seed}", "--part", "0/1"]) == 1
    said = capsys.readouterr().out
    assert f"seed {seed}: WRONG: PromiseBroken: names are used once" in said
    assert f"make simulate SEED={seed}" in said and "needed of that" in said


def test_processes_share_the_seeds():
    words = [sys.executable, "-m", "trimtab.core.simulator", "0-5"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "6 seeds: every promise was kept\n"
