"""Thousands of simulated jobs, each with what its seed brings: every promise is kept. `make simulate` runs more."""

import pytest

from trimtab.core.simulator.runs import run_seeds
from trimtab.core.simulator.schedules import ENDS_A_LIFE, KINDS, plan_schedule

SEEDS, PART = 2000, 100


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_every_promise_is_kept(first):
    wrong = [str(run) for run in run_seeds(range(first, first + PART)) if run.wrong]
    assert not wrong, "\n\n".join(wrong) + "\n\nreplay one of them with `make simulate SEED=n`"


def test_a_seed_means_one_schedule():
    made = [[str(plan_schedule(seed)) for seed in range(100)] for _ in range(2)]
    assert made[0] == made[1]
    assert len({one.partition(":")[2] for one in made[0]}) == 100


def test_the_seeds_meet_every_kind_of_fault_in_many_ways():
    kinds = dict.fromkeys(KINDS, 0)
    for seed in range(SEEDS):
        schedule = plan_schedule(seed)
        assert KINDS[seed % len(KINDS)] in [event.kind for event in schedule.events]
        assert sum(event.kind in ENDS_A_LIFE for event in schedule.events) <= 3
        for event in schedule.events:
            kinds[event.kind] += 1
    assert min(kinds.values()) > 60
