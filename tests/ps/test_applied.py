"""Applied sets against plain Python sets, one per vshard."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.ps.applied import AppliedSets

V = 6
covers = st.integers(0, 2**V - 1)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["push", "skip", "put", "remove"]), st.integers(0, 12), covers), max_size=40))
def test_any_history_equals_a_set_per_vshard(history):
    sets, applied, skipped = AppliedSets(), {}, {}
    for what, number, cover in history:
        members = [v for v in range(V) if cover >> v & 1]
        if what == "put":
            sets.put(cover, IntervalSet.span(0, number), EMPTY)
            applied.update({v: set(range(number)) for v in members})
            skipped.update({v: set() for v in members})
        elif what == "remove":
            sets.remove(cover)
            for v in members:
                applied.pop(v, None), skipped.pop(v, None)
        else:
            here = cover & sets.members()
            lacking = sets.lacking(number, here)
            assert lacking == sum(1 << v for v in members if v in applied and number not in applied[v])
            sets.mark(number, lacking, what == "skip")
            for v in members:
                if v in applied and number not in applied[v]:
                    applied[v].add(number)
                    if what == "skip":
                        skipped[v].add(number)
    assert sets.members() == sum(1 << v for v in applied)
    for v in applied:
        assert set(sets.of(v).applied) == applied[v]
        assert set(sets.of(v).skipped) == skipped[v]
    different = {(tuple(sorted(applied[v])), tuple(sorted(skipped[v]))) for v in applied}
    assert len(sets.classes()) == len(different)  # equal sets are shared


def test_a_set_never_forgets_and_stays_small():
    sets = AppliedSets()
    sets.put(2**512 - 1, EMPTY, EMPTY)
    for number in range(5000):
        sets.mark(number, sets.lacking(number, 2**512 - 1), False)
    (only,) = sets.classes()
    assert only.applied.intervals == ((0, 5000),)
    assert sets.lacking(0, 2**512 - 1) == 0
