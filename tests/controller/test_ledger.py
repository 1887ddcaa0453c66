"""The ledger: a subtraction that counts only what present owners say, and lends nothing twice without need."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.controller.holds import FIRST_SHARD, SMALLEST_SHARD, Hold, shard_size
from trimtab.core.controller.ledger import EvaluationLedger, Ledger
from trimtab.core.domain.intervals import EMPTY, Interval, IntervalSet
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.wire.messages import TRAIN, BatchScores, Routing, Served, to_bitmap


def routing(version: int, owners: tuple[str, ...], since: tuple[int, ...]) -> Routing:
    """Vshard v belongs to place v mod len(owners)."""
    count = len(owners)
    return Routing(
        version, owners, tuple(f"unix:{name}" for name in owners), tuple(v % count for v in range(VSHARDS)),
        tuple(since[v % count] for v in range(VSHARDS)),
    )  # fmt: skip


def served(
    place: int, count: int, since: int, *applied: Interval, skipped: tuple[Interval, ...] = ()
) -> tuple[Served, ...]:
    return (Served(to_bitmap(range(place, VSHARDS, count)), since, applied, skipped),)


def hold(key: int, lo: int, hi: int, pod: str = "w") -> Hold:
    return Hold(key, TRAIN, lo, hi, pod, 0.0)


TWO = Ledger(100).routed(routing(1, ("a", "b"), (1, 1)))


def test_nothing_is_known_or_lent_before_every_owner_has_spoken() -> None:
    one = TWO.reported("a", 1, served(0, 2, 1, (0, 100)))
    assert not one.served
    assert (one.applied, one.todo) == (EMPTY, EMPTY)
    both = one.reported("b", 2, served(1, 2, 1))
    assert both.served
    assert both.todo == IntervalSet.span(0, 100)


def test_a_batch_is_applied_when_every_owner_has_it() -> None:
    ledger = TWO.reported("a", 1, served(0, 2, 1, (0, 60))).reported("b", 2, served(1, 2, 1, (40, 80)))
    assert ledger.applied == IntervalSet.span(40, 60)
    assert ledger.todo == IntervalSet([(0, 40), (60, 100)])


def test_a_batch_that_any_owner_skipped_is_skipped() -> None:
    ledger = TWO.reported("a", 1, served(0, 2, 1, (0, 9), skipped=((3, 4),)))
    ledger = ledger.reported("b", 2, served(1, 2, 1, (0, 9), skipped=((5, 6),)))
    assert ledger.skipped == IntervalSet([(3, 4), (5, 6)])


def test_strangers_and_older_reports_change_nothing() -> None:
    ledger = TWO.reported("a", 5, served(0, 2, 1, (0, 50))).reported("b", 6, served(1, 2, 1, (0, 50)))
    assert ledger.reported("zombie", 9, served(0, 2, 1, (0, 100))) == ledger
    assert ledger.reported("a", 5, served(0, 2, 1, (0, 100))) == ledger
    assert ledger.reported("a", 4, ()) == ledger


def test_trace_5_a_late_report_of_a_former_tenure_does_not_count() -> None:
    """ps0 is restored from a copy without batch 0; a report of its former tenure says it has batch 0."""
    ledger = TWO.reported("a", 1, served(0, 2, 1, (0, 1))).reported("b", 2, served(1, 2, 1, (0, 1)))
    assert ledger.applied == IntervalSet.span(0, 1)
    ledger = ledger.routed(routing(2, ("a", "b"), (2, 1)))  # the same process, a new tenure
    assert ledger.applied == EMPTY  # what was known of v is forgotten
    late = ledger.reported("a", 9, served(0, 2, 1, (0, 1)))
    assert not late.served
    assert late.todo == EMPTY
    true = late.reported("a", 10, served(0, 2, 2))
    assert 0 in true.todo


def test_trace_5_an_unnoticed_restart_is_another_process() -> None:
    ledger = TWO.reported("a", 1, served(0, 2, 1, (0, 1))).reported("b", 2, served(1, 2, 1, (0, 1)))
    ledger = ledger.routed(routing(2, ("a2", "b"), (2, 1)))
    assert ledger.reported("a", 9, served(0, 2, 1, (0, 1))) == ledger
    assert 0 in ledger.reported("a2", 10, served(0, 2, 2)).todo


def test_numbers_of_an_ended_loan_wait_for_reports_that_were_asked_for_later() -> None:
    ledger = TWO.reported("a", 1, served(0, 2, 1)).reported("b", 2, served(1, 2, 1))
    ledger = ledger.given(hold(1, 0, 10))
    assert ledger.todo == IntervalSet.span(10, 100)
    ledger, gone = ledger.ended(lambda one: one.id == 1, sequence=4)  # requests 3 and 4 are on their way
    assert [one.id for one in gone] == [1]
    for sequence, name, at in ((3, "a", 0), (4, "b", 1), (5, "a", 0)):
        ledger = ledger.reported(name, sequence, served(at, 2, 1))
        assert 0 not in ledger.todo  # b has not answered a later request yet
    ledger = ledger.reported("b", 6, served(1, 2, 1, (0, 10)))
    assert ledger.todo == IntervalSet.span(0, 100)  # a, asked later, still has not got them: they are lost


def test_ending_what_is_not_lent_changes_nothing() -> None:
    assert TWO.ended(lambda _: True, 3) == (TWO, ())


@given(
    sets=st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=5), min_size=3, max_size=3),
    loans=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=4),
)
def test_the_todo_is_the_subtraction(sets: list[list[Interval]], loans: list[Interval]) -> None:
    ledger = Ledger(64).routed(routing(1, ("a", "b", "c"), (1, 1, 1)))
    for at, name in enumerate("abc"):
        ledger = ledger.reported(name, at + 1, served(at, 3, 1, *sets[at]))
    model = np.ones((3, 64), bool)
    for at, intervals in enumerate(sets):
        model[at] = False
        for lo, hi in intervals:
            model[at, lo:hi] = True
    left = ~model.all(axis=0)
    for key, (lo, length) in enumerate(loans):
        ledger = ledger.given(hold(key, lo, min(64, lo + length)))
        left[lo : lo + length] = False
    assert list(ledger.todo) == list(np.flatnonzero(left))


def test_scores_count_once_and_in_range_only() -> None:
    ledger = EvaluationLedger(3)
    first, again, outside = (BatchScores(number, text, b"", b"") for number, text in ((1, b"1"), (1, b"2"), (3, b"")))
    ledger, fresh = ledger.scored((first, again, outside))
    assert fresh == (first,)
    assert ledger.todo == IntervalSet([(0, 1), (2, 3)])
    same, fresh = ledger.scored((again,))
    assert (same, fresh) == (ledger, ())
    done, _ = ledger.scored((BatchScores(0, b"", b"", b""), BatchScores(2, b"", b"", b"")))
    assert done.complete


def test_shards_start_small_grow_with_speed_and_shrink_at_the_end() -> None:
    assert shard_size(None, 0, 10_000, 2) == FIRST_SHARD
    assert shard_size(100.0, 8, 10_000, 2) == 16  # at most twice the last one
    assert shard_size(100.0, 400, 10_000, 2) == 150  # 1.5 s of work
    assert shard_size(100.0, 400, 40, 4) == 5  # a half of what is left, shared by four
    assert shard_size(100.0, 400, 3, 4) == 3
    assert shard_size(0.1, 8, 1000, 1) == 1  # a slow worker gets what it can do


@given(
    speed=st.none() | st.floats(0, 1e6),
    last=st.integers(0, 5000),
    left=st.integers(1, 10**6),
    workers=st.integers(0, 99),
)
def test_a_shard_is_never_empty_nor_more_than_is_left(speed: float | None, last: int, left: int, workers: int) -> None:
    size = shard_size(speed, last, left, workers)
    assert 1 <= size <= left
    assert size <= max(SMALLEST_SHARD, FIRST_SHARD, 2 * last)
