"""Batches as the training step takes them: static shapes, aligned, nothing that the rows did not have."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.data.batches import BatchReader, aligned
from trimtab.core.data.columns import MISSING_KEY
from trimtab.core.data.dataset import Dataset
from trimtab.core.data.numbering import Numbering
from trimtab.core.data.prepare import prepare
from trimtab.core.data.store import BLOCK_ROWS
from trimtab.core.errors import BadInput


@pytest.fixture(scope="module")
def dataset(sample_files, tmp_path_factory):
    return Dataset.open(prepare(str(sample_files[".parquet"]), None, tmp_path_factory.mktemp("cache")))


def arrays(batch):
    return [batch.dense, batch.keys, batch.label, batch.weight, *batch.multi.values()]


shapes = st.lists(st.integers(0, 9), min_size=1, max_size=3)


@given(st.lists(st.tuples(shapes, st.sampled_from(["f4", "i8", "u1"])), min_size=1))
def test_aligned_arrays_do_not_meet(wanted):
    found = aligned(*((tuple(shape), np.dtype(kind)) for shape, kind in wanted))
    for at, array in enumerate(found):
        assert (array.shape, array.dtype) == (tuple(wanted[at][0]), np.dtype(wanted[at][1]))
        assert array.ctypes.data % 64 == 0
        array[...] = at
    assert all((array == at).all() for at, array in enumerate(found))


def test_every_training_row_comes_once_with_its_own_values(dataset):
    numbering = Numbering(dataset.rows, 128, 2, 5, 0.1)
    reader = BatchReader(dataset, numbering)
    whole = dataset.read(np.arange(dataset.rows))
    for number in range(numbering.batches):
        batch, rows = reader.train(number), numbering.rows_of(number)
        assert (batch.number, batch.rows) == (number, len(rows))
        np.testing.assert_array_equal(batch.dense[: batch.rows], whole.dense[rows])
        np.testing.assert_array_equal(batch.keys[: batch.rows], whole.keys[rows])
        np.testing.assert_array_equal(batch.label[: batch.rows], whole.label[rows])
        assert batch.weight.sum() == batch.rows


def test_shapes_are_static_and_memory_is_fit_for_dlpack(dataset):
    numbering = Numbering(dataset.rows, 128, 1, 5, 0.1)
    reader = BatchReader(dataset, numbering)
    batches = [reader.train(0), reader.train(numbering.batches - 1), reader.evaluate(numbering.evaluation_batches - 1)]
    assert batches[1].rows < 128
    for batch in batches:
        assert batch.dense.shape == (128, 13)
        assert batch.keys.shape == (128, 26)
        assert batch.label.shape == batch.weight.shape == (128,)
        for array in arrays(batch):
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert array.ctypes.data % 64 == 0


def test_padding_repeats_the_last_row_with_weight_0(dataset):
    numbering = Numbering(dataset.rows, 128, 1, 5, 0.1)
    batch = BatchReader(dataset, numbering).train(numbering.batches - 1)
    real = batch.rows
    assert batch.weight[:real].tolist() == [1] * real
    assert batch.weight[real:].tolist() == [0] * (128 - real)
    assert (batch.keys[real:] == batch.keys[real - 1]).all()
    assert (batch.dense[real:] == batch.dense[real - 1]).all()
    assert (batch.label[real:] == batch.label[real - 1]).all()


def test_a_batch_belongs_to_its_caller(dataset):
    reader = BatchReader(dataset, Numbering(dataset.rows, 64))
    first = reader.train(0)
    copies = [array.copy() for array in arrays(first)]
    for number in range(1, 20):
        for array in arrays(reader.train(number)):
            array[...] = 0
    for array, copy in zip(arrays(first), copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    np.testing.assert_array_equal(reader.train(0).keys, first.keys)


def test_evaluation_on_held_out_rows(dataset):
    numbering = Numbering(dataset.rows, 100, 1, 5, 0.1)
    reader = BatchReader(dataset, numbering)
    assert reader.evaluation_batches == numbering.evaluation_batches == 3
    batches = [reader.evaluate(number) for number in range(3)]
    assert sum(batch.rows for batch in batches) == 300
    np.testing.assert_array_equal(batches[0].keys, dataset.read(numbering.evaluation_rows_of(0)).keys)


OWN = "label,t,tags,k\n"
COLUMNS = (
    "label: label\ndense: [{name: t, transform: standard}]\nmulti_hot: {tags: {length: 2}}\n"
    "categorical: [{name: k, values: text}]\n"
)


def test_other_rows_are_evaluated_in_order_and_standardised_as_the_training_rows(load, write):
    train = load(write("a.csv", OWN + "0,10,x|y,a\n1,20,,b\n"), COLUMNS)
    other = load(write("b.csv", OWN + "0,15,x,a\n1,,y,c\n1,35,z,d\n"), COLUMNS)
    reader = BatchReader(train, Numbering(train.rows, 2), other)
    assert reader.evaluation_batches == 2
    first, last = reader.evaluate(0), reader.evaluate(1)
    assert first.dense.tolist() == [[0], [0]]  # the training mean; missing
    assert last.dense.tolist() == [[4], [4]]
    assert (last.rows, last.weight.tolist()) == (1, [1, 0])
    assert first.multi["tags"].shape == (2, 2)
    assert (first.multi["tags"][:, 1] == MISSING_KEY).all()
    assert other.read(np.arange(3)).dense.tolist() == [[-1], [0], [1]]  # by itself
    with pytest.raises(BadInput, match="numbers go from 0 to 1"):
        reader.evaluate(2)


def test_rows_are_standardised_as_another_page_says(load, write, tmp_path):
    """A job that goes on from another's model scales its columns as that one did, its validation rows included."""
    first = load(write("a.csv", OWN + "0,10,x|y,a\n1,20,,b\n"), COLUMNS)
    today = load(write("b.csv", OWN + "0,15,x,a\n1,,y,c\n1,35,z,d\n"), COLUMNS)
    assert today.standardised_by(tmp_path / "none.json") is today
    same = today.standardised_by(first.path / "metadata.json")
    assert same.read(np.arange(3)).dense.tolist() == [[0], [0], [4]]
    assert BatchReader(same, Numbering(3, 1), today).evaluate(2).dense.tolist() == [[4]]
    assert today.read(np.arange(3)).dense.tolist() == [[-1], [0], [1]]
    for text in ("{", "{}", "[]", '{"standard": {"t": 1}}', '{"standard": {"t": ["a", "b", "c"]}}'):
        (tmp_path / "page.json").write_text(text)
        with pytest.raises(BadInput, match=r"page\.json"):
            today.standardised_by(tmp_path / "page.json")


def test_other_rows_with_other_columns_are_refused(load, write):
    train, other = load(write("a.csv", "label,x,y\n0,1,1\n1,2,1\n")), load(write("b.csv", "label,x,z\n0,1,1\n1,2,1\n"))
    with pytest.raises(BadInput, match="--validation: 'z instead of y': is read differently"):
        BatchReader(train, Numbering(train.rows, 1), other)


def test_a_numbering_of_another_size_is_refused(dataset):
    with pytest.raises(BadInput, match=f"the dataset has {dataset.rows} rows"):
        BatchReader(dataset, Numbering(dataset.rows + 1, 10))


def test_rows_across_blocks_in_any_order(load, tmp_path):
    """More rows than a block: a batch across the edge, and any other order."""
    rows = BLOCK_ROWS + 1000
    path = tmp_path / "long.csv"
    path.write_text("label,n\n" + "".join(f"{at % 2},{at}\n" for at in range(rows)))
    long = load(path, "label: label\ndense: [{name: n, transform: none}]\ncategorical: []\n")
    assert long.rows == rows
    for wanted in (
        np.arange(BLOCK_ROWS - 5, BLOCK_ROWS + 5),
        np.arange(rows - 10, rows - 2000, -17),
        np.array([0, rows - 1, 5, rows - 2, 0]),
        np.zeros(0, np.int64),
    ):
        assert long.read(wanted).dense[:, 0].tolist() == wanted.tolist()
        assert long.read(wanted).label.tolist() == (wanted % 2).tolist()
    for wrong in ([-1], [rows]):
        with pytest.raises(BadInput, match=f"row numbers go from 0 to {rows - 1}"):
            long.read(np.array(wrong))
    numbering = Numbering(rows, 1000, 1, 2, 0.1)
    reader = BatchReader(long, numbering)
    seen = np.concatenate([reader.train(at).dense[: reader.train(at).rows, 0] for at in range(numbering.batches)])
    assert len(np.unique(seen)) == numbering.train_rows


def test_threads_share_a_reader(dataset):
    numbering = Numbering(dataset.rows, 64, 1, 1, 0.1)
    reader = BatchReader(dataset, numbering)
    expected = [BatchReader(dataset, numbering).train(number).keys for number in range(numbering.batches)]
    wrong: list[int] = []

    def check(numbers):
        for number in numbers:
            if not np.array_equal(reader.train(number).keys, expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=check, args=(range(at, numbering.batches, 4),)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
