"""Which pods will meet their memory limit: by what they use, what is certain to come, and the pace of it."""

import math

import pytest

from trimtab.core.domain.plan import PS_BASE_BYTES, table_room
from trimtab.core.optimizer.stability.memory import MemoryRules, Use, kept, outlook, ps_need, size_for

MIB = 1 << 20
RULES = MemoryRules()
BASE = 60 * MIB  # what a process uses beside its table


def samples(*uses):
    found = ()
    for use in uses:
        found = kept(found, use, RULES)
    return found


def server(pace, seconds=5.0, start=40 * MIB, busy=0.5, beside=0.0, cores=0.5):
    """A parameter server whose table grows by `pace` bytes per second, and by `beside` what lies beside it."""
    found = ()
    for step in range(int(seconds / 0.5) + 1):
        at = step * 0.5
        table = int(start + pace * at)
        used = int(BASE + table + beside * at)
        found = kept(found, Use(at, used, table, 0, busy * cores * at, cores), RULES)
    return found


def test_a_growing_table_is_seen_to_meet_its_limit():
    limit = 512 * MIB
    seen = outlook(server(2 * MIB), limit, RULES)
    table = 50 * MIB
    assert seen.need == pytest.approx(PS_BASE_BYTES + 1.25 * table, abs=MIB)
    assert seen.rate == pytest.approx(2.5 * MIB, rel=0.01), "pages that change while copies are written count"
    assert seen.seconds_left == pytest.approx((limit - seen.need) / (2.5 * MIB), rel=0.01)
    assert not seen.starved


def test_the_need_is_the_limit_just_when_the_table_is_full():
    limit = 700 * MIB
    assert ps_need(table_room(limit)) == pytest.approx(limit, rel=1e-6)
    full = outlook(server(0.0, start=table_room(limit) + MIB), limit, RULES)
    assert full.seconds_left == 0.0


def test_what_does_not_grow_meets_no_limit():
    assert outlook(server(0.0), 512 * MIB, RULES).seconds_left == math.inf


def test_two_samples_say_nothing_of_the_pace():
    assert outlook(server(50 * MIB, seconds=0.5), 512 * MIB, RULES).rate == 0.0


def test_a_process_that_is_larger_than_usual_needs_more():
    heavy = samples(*(Use(one * 0.5, 400 * MIB, 100 * MIB) for one in range(4)))
    assert outlook(heavy, 512 * MIB, RULES).need == pytest.approx(300 * MIB + 125 * MIB)
    writing = samples(
        Use(0.0, 160 * MIB, 100 * MIB), *(Use(one * 0.5, 185 * MIB, 100 * MIB, copying=True) for one in range(1, 6))
    )
    assert outlook(writing, 512 * MIB, RULES).need == pytest.approx(PS_BASE_BYTES + 125 * MIB), "counted once"


def test_a_queue_in_front_of_busy_cores_asks_for_cores_and_not_for_memory():
    """Case 12: many workers on one slow core; what is resident rises, and no memory would be enough."""
    starved = outlook(server(0.1 * MIB, beside=20 * MIB, busy=1.0), 512 * MIB, RULES)
    assert starved.starved and starved.busy == pytest.approx(1.0)
    assert not outlook(server(0.1 * MIB, beside=20 * MIB, busy=0.4), 512 * MIB, RULES).starved, "the cores are free"
    assert not outlook(server(30 * MIB, beside=20 * MIB, busy=1.0), 512 * MIB, RULES).starved, "the table grows"


def test_a_table_that_gave_rows_away_begins_anew():
    """Case 32: what was sampled before a change says nothing after it."""
    before = server(4 * MIB)
    after = kept(before, Use(6.0, BASE + 20 * MIB, 20 * MIB), RULES)
    assert len(after) == 1
    assert outlook(after, 512 * MIB, RULES).rate == 0.0


def worker(pace, seconds, cache=0):
    found = ()
    for step in range(int(seconds / 0.5) + 1):
        jitter = 8 * MIB if step % 4 == 0 else 0
        found = kept(found, Use(step * 0.5, int(500 * MIB + pace * step * 0.5 + jitter), 0, cache), RULES)
    return found


def test_a_worker_needs_room_for_the_log_that_still_fills():
    seen = outlook(worker(0.0, 10.0, cache=64 * MIB), 600 * MIB, RULES)
    assert seen.need == 572 * MIB
    assert seen.rate == 0.0, "a few seconds of ups and downs are no growth"


def test_a_worker_that_leaks_is_seen_after_a_while():
    seen = outlook(worker(2 * MIB, 60.0), 800 * MIB, RULES)
    assert seen.rate == pytest.approx(2 * MIB, rel=0.05)
    assert 80 < seen.seconds_left < 110
    assert outlook(worker(0.0, 60.0), 800 * MIB, RULES).seconds_left > 600


def test_a_higher_limit_lasts_and_steps_are_few():
    seen = outlook(server(2 * MIB, start=80 * MIB), 512 * MIB, RULES)
    size = size_for(seen, 512 * MIB, RULES)
    assert size % MIB == 0
    assert (size - seen.need) / seen.rate >= RULES.enough_seconds
    fast = outlook(server(90 * MIB, start=40 * MIB, seconds=2.0), 512 * MIB, RULES)
    assert size_for(fast, 512 * MIB, RULES) == 1024 * MIB, "what grows fast at first takes no more at once"
    slow = outlook(server(0.001 * MIB, start=400 * MIB), 700 * MIB, RULES)
    assert size_for(slow, 700 * MIB, RULES) >= 1.12 * 700 * MIB


def test_kept_samples_are_bounded():
    assert len(server(MIB, seconds=100.0)) == RULES.samples
    assert len(worker(0.0, 300.0)) == RULES.samples
