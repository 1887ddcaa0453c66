"""A recipe's steps come in an order that can be run, or it says why there is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.errors import BadInput
from trimtab.pipelines.steps import Step, in_order


@given(st.lists(st.sets(st.integers(0, 9)), max_size=10), st.randoms(use_true_random=False))
def test_each_step_stands_behind_those_it_waits_for(waits, chance):
    steps = [Step(f"s{at}", tuple(f"s{n}" for n in sorted(needed) if n < at)) for at, needed in enumerate(waits)]
    shuffled = list(steps)
    chance.shuffle(shuffled)
    found = in_order(shuffled)
    assert sorted(found, key=lambda step: step.name) == sorted(steps, key=lambda step: step.name)
    place = {step.name: at for at, step in enumerate(found)}
    assert all(place[needed] < place[step.name] for step in steps for needed in step.after)


def test_free_steps_keep_the_order_given():
    assert [step.name for step in in_order([Step("b"), Step("a"), Step("c")])] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Step("a"), Step("a")], "name each step differently"),
        ([Step("a", ("b",))], "step a, after: 'b'"),
        ([Step("a", ("b",)), Step("b", ("a",))], "wait for itself"),
        ([Step("a", ("a",))], "wait for itself"),
    ],
)
def test_what_cannot_be_ordered_says_why(steps, words):
    with pytest.raises(BadInput, match=words):
        in_order(steps)
