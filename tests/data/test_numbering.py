"""Which rows a batch number means: exactly once each, the same everywhere, and for free at any size."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.data.keys import mix, splitmix64
from trimtab.core.data.numbering import Numbering
from trimtab.core.errors import BadInput

GOLDEN_HELD = [[1, 3, 7, 12], [1, 2, 7, 9], [3, 6]]
GOLDEN_ROWS = [
    [9, 2, 4, 15, 10, 13, 0, 8],
    [34, 32, 33, 39, 36, 37],
    [4, 11, 9, 0, 8, 2, 6, 14],
    [30, 31, 21, 24, 29, 16],
]
GOLDEN_FULL = [57633, 30895, 8712, 11408, 1110, 15534]
GOLDEN_SUM = 18299841618347488232


def made(rows, batch, epochs=1, seed=0, validation=0.0, block=16):
    return Numbering(rows, batch, epochs, seed, validation, block_rows=block)


@st.composite
def numberings(draw):
    rows = draw(st.integers(1, 200))
    validation = draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]))
    settings_ = {
        "rows": rows, "batch": draw(st.integers(1, 60)), "epochs": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 2**63)), "validation": validation,
        "block": draw(st.sampled_from([1, 2, 7, 16, 64])),
    }  # fmt: skip
    try:
        return made(**settings_)
    except BadInput:
        return made(**{**settings_, "validation": 0.0, "batch": min(settings_["batch"], rows)})


@settings(max_examples=150)
@given(numberings())
def test_each_epoch_covers_each_training_row_exactly_once(numbering):
    held = np.concatenate([numbering.held_out(block) for block in range(numbering.blocks)])
    expected = np.flatnonzero(~held).tolist()
    assert len(expected) == numbering.train_rows
    for epoch in range(numbering.epochs):
        first = epoch * numbering.batches_per_epoch
        batches = [numbering.rows_of(first + at) for at in range(numbering.batches_per_epoch)]
        assert sorted(np.concatenate(batches).tolist()) == expected
        assert [len(batch) for batch in batches[:-1]] == [numbering.batch_size] * (len(batches) - 1)
        assert 1 <= len(batches[-1]) <= numbering.batch_size


@settings(max_examples=150)
@given(numberings())
def test_evaluation_covers_each_held_out_row_exactly_once_in_order(numbering):
    held = np.concatenate([numbering.held_out(block) for block in range(numbering.blocks)])
    batches = [numbering.evaluation_rows_of(at) for at in range(numbering.evaluation_batches)]
    found = np.concatenate(batches).tolist() if batches else []
    assert found == np.flatnonzero(held).tolist()
    assert len(found) == numbering.validation_rows
    assert all(1 <= len(batch) <= numbering.batch_size for batch in batches)


@settings(max_examples=50)
@given(numberings(), st.randoms())
def test_the_order_of_asking_changes_nothing(numbering, random):
    again = made(
        numbering.rows, numbering.batch_size, numbering.epochs, numbering.seed, numbering.validation,
        numbering.block_rows,
    )  # fmt: skip
    numbers = list(range(numbering.batches))
    random.shuffle(numbers)
    shuffled = {number: again.rows_of(number).tolist() for number in numbers}
    assert shuffled == {number: numbering.rows_of(number).tolist() for number in range(numbering.batches)}


def test_golden_split_and_shuffle():
    """Frozen: a resumed job must find the rows that it left."""
    numbering = made(40, 8, 2, 7, 0.25)
    assert [numbering.held_out(block).nonzero()[0].tolist() for block in range(3)] == GOLDEN_HELD
    assert [numbering.rows_of(number).tolist() for number in (0, 3, 4, 7)] == GOLDEN_ROWS


def test_golden_at_full_size():
    numbering = Numbering(200_000, 1024, 2, 11, 0.1)
    assert numbering.batches_per_epoch == 176
    assert numbering.rows_of(200)[:6].tolist() == GOLDEN_FULL
    assert int(splitmix64(np.concatenate([numbering.rows_of(n) for n in (0, 99, 351)])).sum()) == GOLDEN_SUM


def test_the_rule_as_it_is_written_down():
    """Held out and order from the definition, by plain sorting."""
    numbering = made(40, 20, 1, 5, 0.3, block=64)

    def under(key, row):
        return int(splitmix64(np.array([int(splitmix64(np.array([row], np.uint64))[0]) ^ key], np.uint64))[0])

    ranked = sorted(range(40), key=lambda row: under(mix(5, 1), row))
    held = {row for rank, row in enumerate(ranked) if (rank + 0.5) / 40 < 0.3}
    assert set(numbering.held_out(0).nonzero()[0].tolist()) == held
    order = sorted(set(range(40)) - held, key=lambda row: (under(mix(5, 3, 0), row) >> 16, row))
    assert numbering.rows_of(0).tolist() == order[:20]


def test_another_process_agrees():
    program = (
        "from trimtab.core.data.numbering import Numbering; n = Numbering(150_000, 700, 2, 3, 0.1); "
        "print(n.rows_of(5).tolist(), n.rows_of(300).tolist(), n.evaluation_rows_of(7).tolist())"
    )
    numbering = Numbering(150_000, 700, 2, 3, 0.1)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    expected = [numbering.rows_of(5), numbering.rows_of(300), numbering.evaluation_rows_of(7)]
    assert answer.strip() == " ".join(str(rows.tolist()) for rows in expected)


def test_epochs_and_seeds_differ_and_the_split_does_not_change_between_epochs():
    numbering = made(64, 64, 2)
    assert numbering.rows_of(0).tolist() != numbering.rows_of(1).tolist()
    assert numbering.rows_of(0).tolist() != made(64, 64, 1, seed=1).rows_of(0).tolist()
    one, two = made(64, 8, 2, validation=0.5), made(64, 8, 2, seed=1, validation=0.5)
    assert one.held_out(0).tolist() != two.held_out(0).tolist()


def test_a_larger_fraction_holds_out_the_same_rows_and_more():
    small, large = made(64, 8, validation=0.2, block=64), made(64, 8, validation=0.4, block=64)
    assert not (small.held_out(0) & ~large.held_out(0)).any()


def test_batches_stay_within_few_blocks():
    """The shuffle is by blocks: a batch reads from as many blocks as it must, not from everywhere."""
    numbering = Numbering(10**6, 1024, 1, 0, 0.1)
    for number in (0, 100, 500, numbering.batches - 1):
        blocks = numbering.rows_of(number) // numbering.block_rows
        assert len(np.unique(blocks)) <= 2


def test_opening_looks_at_no_row(monkeypatch):
    """10^12 rows: what is known at once must not depend on hashing rows; one batch hashes one or two blocks."""
    hashed = []

    def counting(key, numbers):
        hashed.append(len(numbers))
        return splitmix64(splitmix64(numbers) ^ np.uint64(key))

    monkeypatch.setattr("trimtab.core.data.numbering._under", counting)
    numbering = Numbering(10**12, 4096, 3, 1, 0.1)
    assert numbering.validation_rows == pytest.approx(10**11, rel=1e-4)
    assert numbering.batches == 3 * -(-numbering.train_rows // 4096)
    assert numbering.evaluation_rows_of(numbering.evaluation_batches - 1)[-1] > 10**12 - 10**5
    assert sum(hashed) <= 2 * numbering.block_rows
    hashed.clear()
    numbering = Numbering(10**8, 1024, 3, 1, 0.1)
    numbering.rows_of(numbering.batches - 1)
    assert sum(hashed) <= numbering.blocks + 4 * numbering.block_rows
    assert numbering.blocks == 1526


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 11), "--batch-size: 11: there are only 10 training rows"),
        ((10, 10, 1, 0, 0.5), "--batch-size: 10: there are only 5 training rows"),
        ((10, 0), "--batch-size: 0: give a whole number of at least 1"),
        ((10, 2, 0), "--epochs: 0"),
        ((0, 1), "rows: 0"),
        ((4, 1, 1, 0, 0.1), "--validation: 0.1: holds out none of 4 rows; give 0, or at least 0.25"),
        ((4, 1, 1, 0, 0.99), "--validation: 0.99: leaves none of 4 rows to train on"),
        ((4, 1, 1, 0, 1.0), "--validation: 1.0: give a share"),
        ((4, 1, 1, 0, float("nan")), "--validation: nan"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(BadInput, match=message):
        Numbering(*arguments)


@pytest.mark.parametrize("number", [-1, 10])
def test_a_number_outside(number):
    numbering = made(80, 8)
    assert numbering.batches == 10
    with pytest.raises(BadInput, match="numbers go from 0 to 9"):
        numbering.rows_of(number)
    with pytest.raises(BadInput, match="batch number"):
        numbering.evaluation_rows_of(number)


def test_what_is_returned_is_the_caller_s():
    numbering = made(64, 8)
    numbering.rows_of(0)[:] = -1
    assert numbering.rows_of(0).min() >= 0
