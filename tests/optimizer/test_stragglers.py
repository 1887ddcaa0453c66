"""Who is slow: against its peers, over several samples, and never because of what all of them meet."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from trimtab.core.optimizer.stability.stragglers import (
    Reading,
    StragglerRules,
    Track,
    cleared,
    lagging,
    looked,
    very_slow,
)

RULES = StragglerRules()


def watch(
    rates: dict[str, list[float]], seed: int = 0, noise: float = 0.0, cpu: dict[str, float] | None = None
) -> list[dict[str, Track]]:
    """Tracks after each second of workers with these batches per second (0: it has begun but does nothing)."""
    rng = random.Random(seed)
    done = dict.fromkeys(rates, 0.0)
    tracks: dict[str, Track] = {}
    found = []
    for second in range(max(len(one) for one in rates.values())):
        readings = {}
        for name, speeds in rates.items():
            if second < len(speeds):
                done[name] += speeds[second] * rng.uniform(1 - noise, 1 + noise)
                readings[name] = Reading(second + 1.0, int(done[name]), (cpu or {}).get(name, 0.3), True)
        tracks = looked(tracks, readings, RULES)
        found.append(tracks)
    return found


def slow_at(found: list[dict[str, Track]]) -> dict[str, int]:
    """In which second each was called slow first."""
    first: dict[str, int] = {}
    for second, tracks in enumerate(found):
        for name, track in tracks.items():
            if track.slow:
                first.setdefault(name, second)
    return first


def test_a_worker_that_falls_to_a_tenth_is_found_within_seconds_and_nobody_else():
    found = watch({"a": [10] * 40, "b": [10] * 40, "c": [10] * 20 + [1] * 20, "d": [10] * 40}, noise=0.2)
    assert list(slow_at(found)) == ["c"] and slow_at(found)["c"] <= 27
    assert very_slow(found[-1]["c"], RULES)
    assert found[-1]["c"].ratio == pytest.approx(0.1, abs=0.05) and found[-1]["c"].rate == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("seed", range(10))
def test_even_workers_with_moods_are_never_called_slow(seed: int):
    rng = random.Random(seed)
    rates = {name: [10 * rng.lognormvariate(0, 0.35) for _ in range(200)] for name in "abcde"}
    assert not slow_at(watch(rates, seed, noise=0.2))


def test_a_pause_of_all_is_nobodys_fault():
    rates = {name: [10.0] * 20 + [0.0] * 20 + [10.0] * 20 for name in "abc"}
    assert not slow_at(watch(rates))


def test_when_all_become_slow_nobody_is():
    assert not slow_at(watch({name: [10.0] * 20 + [2.0] * 40 for name in "abc"}))


def test_a_worker_alone_has_no_peers():
    assert not slow_at(watch({"a": [10.0] * 20 + [0.5] * 40}))


def test_of_two_workers_the_slow_one_is_found():
    assert list(slow_at(watch({"a": [10.0] * 40, "b": [10.0] * 10 + [1.0] * 30}))) == ["b"]


def test_slow_batches_take_more_samples_before_anything_is_said():
    quick = slow_at(watch({"a": [10.0] * 90, "b": [10.0] * 90, "c": [1.0] * 90}))["c"]
    late = slow_at(watch({"a": [0.5] * 90, "b": [0.5] * 90, "c": [0.05] * 90}))["c"]
    assert quick < 12 < late, "a few batches more or less are no news"


def test_a_little_slow_is_not_very_slow():
    found = watch({"a": [10.0] * 40, "b": [10.0] * 40, "c": [4.2] * 40})
    assert "c" in slow_at(found) and not very_slow(found[-1]["c"], RULES)


def test_between_the_bounds_nothing_changes():
    rates = {"a": [10.0] * 90, "b": [10.0] * 90, "c": [2.0] * 30 + [6.0] * 30 + [9.5] * 30}
    found = watch(rates)
    assert found[29]["c"].slow and found[59]["c"].slow and not found[-1]["c"].slow
    assert not slow_at(watch({"a": [10.0] * 60, "b": [10.0] * 60, "c": [6.0] * 60}))


def test_a_worker_that_has_begun_a_moment_ago_is_not_judged():
    tracks: dict[str, Track] = {}
    for second in range(1, 10):
        readings = {name: Reading(second, 10 * second, 0.3, True) for name in ("a", "b")}
        if second > 3:
            readings["new"] = Reading(second, 1, 0.3, True)
        tracks = looked(tracks, readings, RULES)
    assert tracks["new"].ratio is None and tracks["a"].ratio == pytest.approx(1)


def test_who_has_nothing_to_do_is_not_slow():
    tracks: dict[str, Track] = {}
    for second in range(1, 40):
        idle = second > 15
        readings = {name: Reading(second, 10 * second, 0.3, True) for name in ("a", "b")}
        readings["c"] = Reading(second, 10 * min(second, 15), 0.3, not idle)
        tracks = looked(tracks, readings, RULES)
        assert not tracks["c"].slow


def test_samples_from_before_a_change_do_not_count():
    found = watch({"a": [10.0] * 12, "b": [10.0] * 12, "c": [1.0] * 12})
    kept = cleared(found[-1])
    assert not kept["c"].readings and kept["c"].slow and not very_slow(kept["c"], RULES)
    after = looked(kept, {name: Reading(20.0, 500, 0.3, True) for name in "abc"}, RULES)
    assert after["c"].ratio == kept["c"].ratio, "one sample says nothing"


def test_with_fewer_cores_less_is_expected():
    rates = {"a": [10.0] * 30, "b": [10.0] * 30, "c": [2.5] * 30}
    assert "c" in slow_at(watch(rates))
    assert not slow_at(watch(rates, cpu={"a": 0.4, "b": 0.4, "c": 0.1}))


def test_parameter_servers_that_are_far_apart_are_told_of():
    assert lagging({"ps-0": 994, "ps-1": 23}, 10.0, RULES) == ("ps-1", 971)
    assert lagging({"ps-0": 994, "ps-1": 950}, 10.0, RULES) is None, "reports lag, too"
    assert lagging({"ps-0": 994}, 10.0, RULES) is None
    fast = replace(RULES, lag_seconds=2.0)
    assert lagging({"ps-0": 994, "ps-1": 900}, 100.0, fast) is None
