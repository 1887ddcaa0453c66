"""Hot parameter servers are told from slow jobs, and each by its cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trimtab.core.optimizer.stability.hot_ps import (
    Cause,
    HotRules,
    ServerLook,
    Window,
    cooled,
    find_hot,
    saturated,
    speed_of,
    why,
)

RULES = HotRules()
CALM = ServerLook(share=0.5, cpu=0.2, waited=0.004, busy=0.005, traffic=0.25)


def window(*hot: tuple[int, ServerLook], step: float = 0.06, places: int = 4, at: float = 0.0) -> Window:
    return Window(at, step, dict.fromkeys(range(places), CALM) | dict(hot))


def seen(*hot: tuple[int, ServerLook], times: int = 3, **more: float) -> list[Window]:
    return [window(*hot, **more) for _ in range(times)]  # type: ignore[arg-type]


BUSY_HOST = replace(CALM, cpu=0.1, waited=0.04, busy=0.05)
STARVED = replace(CALM, cpu=0.48, waited=0.04, busy=0.012)
LOADED = replace(CALM, cpu=0.4, waited=0.03, busy=0.012, traffic=0.6, heaviest=0.02)
HEAVY = replace(LOADED, heaviest=0.7)


@pytest.mark.parametrize(
    ("look", "cause", "words"),
    [
        (BUSY_HOST, Cause.HOST, "works at 0.10 of their speed and gets 20% of its cores"),
        (STARVED, Cause.CORES, "uses 96% of its cores"),
        (LOADED, Cause.LOAD, "takes 60% of the traffic, 2.4 times its part"),
        (HEAVY, Cause.VSHARD, "one vshard alone takes 70% of its traffic"),
    ],
)
def test_each_cause_is_told_with_its_numbers(look: ServerLook, cause: Cause, words: str) -> None:
    found = find_hot(seen((2, look)), (), RULES)
    assert found is not None and (found.place, found.cause) == (2, cause)
    assert words in why(found)
    assert "of a step of 60 ms are spent waiting for it, 4 ms for each of the others" in why(found)


def test_a_starved_server_lacks_cores_whatever_its_memory_does() -> None:
    """Case 12: it is never memory that is asked for."""
    found = find_hot(seen((0, STARVED)), (), RULES)
    assert found is not None and found.cause is Cause.CORES and found.use >= RULES.full


@pytest.mark.parametrize(
    "windows",
    [
        seen(times=5),
        seen((2, BUSY_HOST), times=2),
        [*seen((2, BUSY_HOST), times=2), window((1, BUSY_HOST))],
        [*seen((2, BUSY_HOST), times=2), window(), *seen((2, BUSY_HOST), times=2)],
        seen((2, replace(BUSY_HOST, waited=0.01))),  # a tenth of a step
        seen((2, replace(BUSY_HOST, waited=0.4)), step=4.0),  # next to what a step needs it is nothing
        seen(*((place, BUSY_HOST) for place in range(4))),  # all alike
    ],
    ids=["calm", "too few", "another each time", "with a pause", "little", "long steps", "all"],
)
def test_what_is_not_hot(windows: list[Window]) -> None:
    assert find_hot(windows, (), RULES) is None


def test_only_the_last_windows_count() -> None:
    assert find_hot([*seen(times=5), *seen((3, BUSY_HOST))], (), RULES) is not None
    assert find_hot([*seen((3, BUSY_HOST)), *seen(times=1)], (), RULES) is None


def test_a_place_that_should_carry_less_has_too_much_sooner() -> None:
    slow = replace(CALM, cpu=0.2, waited=0.04, busy=0.005, traffic=0.22, capacity=0.5)
    found = find_hot(seen((1, slow)), (), RULES)
    assert found is not None and found.cause is Cause.LOAD and found.times == pytest.approx(1.54)


def test_a_single_server_is_compared_with_itself_before() -> None:
    alone = replace(CALM, traffic=1.0)
    calm = seen((0, alone), places=1)
    slow = seen((0, replace(alone, cpu=0.1, waited=0.04, busy=0.05)), places=1)
    found = find_hot(slow, calm, RULES)
    assert found is not None and found.cause is Cause.HOST and found.alone
    assert "4 ms before: it works at 0.10 of its speed then" in why(found)
    assert find_hot(slow, (), RULES) is None, "nobody knows what is usual"
    full = seen((0, replace(alone, cpu=0.49, waited=0.04, busy=0.05)), places=1)
    assert find_hot(full, calm, RULES) is None, "more work than before is the optimizer's business"


def test_a_machine_that_is_slow_makes_no_single_server_hot() -> None:
    alone = replace(CALM, traffic=1.0)
    calm = seen((0, alone), places=1)
    slow = replace(alone, cpu=0.1, waited=0.04, busy=0.05)
    assert find_hot(seen((0, slow), places=1, step=0.096), calm, RULES) is not None, "computing takes as long as it did"
    assert find_hot(seen((0, slow), places=1, step=0.6), calm, RULES) is None, "computing takes ten times as long"


def test_what_was_hot_cools_only_well_below() -> None:
    still = replace(BUSY_HOST, waited=0.0075 + 0.004)
    assert find_hot(seen((2, replace(still, waited=0.0079))), (), RULES) is None
    assert not cooled(seen((2, still)), (), 2, RULES)
    assert cooled(seen(), (), 2, RULES)
    assert not cooled([*seen(times=2), window((2, BUSY_HOST))], (), 2, RULES)
    assert not cooled(seen(times=2), (), 2, RULES), "two windows say nothing yet"


def test_saturation_of_all_is_no_hot_server() -> None:
    full = replace(CALM, cpu=0.49, waited=0.012)
    windows = seen(*((place, full) for place in range(4)))
    assert find_hot(windows, (), RULES) is None
    assert saturated(windows, RULES) == pytest.approx(0.98)
    assert saturated(seen(), RULES) is None
    idle = seen(*((place, replace(full, waited=0.001)) for place in range(4)))
    assert saturated(idle, RULES) is None, "nobody waits"


def test_where_shares_are_not_enforced_no_one_lacks_cores() -> None:
    free = replace(STARVED, share=0.0)
    found = find_hot([Window(0.0, 0.06, dict.fromkeys(range(4), replace(CALM, share=0.0)) | {1: free})] * 3, (), RULES)
    assert found is not None and found.cause is Cause.HOST


def test_speed_needs_somebody_to_compare_with() -> None:
    assert speed_of(seen((1, BUSY_HOST)), 1) == pytest.approx(0.1)
    assert speed_of(seen(places=1), 0) is None
    assert speed_of([], 0) is None
    assert speed_of(seen((1, replace(CALM, traffic=0.0))), 1) is None
