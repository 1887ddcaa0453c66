"""Golden vectors of preprocessing (cases 56 to 58): what the model is fed for a given piece of text."""

import math

import numpy as np
import pytest

from trimtab.core.data.columns import MISSING_KEY
from trimtab.core.data.keys import text_key
from trimtab.core.errors import BadInput, DataError

CRITEO_ROWS = (
    "0\t1\t-2\t\t0\t1382" + "\t" * 8 + "\t68fd1e64\t80e26c9b" + "\t" * 24 + "\n"
    "1\t\t0\t7\t\t-1" + "\t" * 8 + "\tffffffff\t" + "\t" * 24 + "\n"
)


def test_criteo_golden_vector(load, write):
    dataset = load(write("train.txt", CRITEO_ROWS))
    rows = dataset.read(np.arange(2))
    assert dataset.metadata.format == "criteo"
    assert rows.label.tolist() == [0, 1]
    assert rows.weight.tolist() == [1, 1]
    expected = np.zeros((2, 13))
    expected[0, 0] = math.log(2)  # 1 → log(1 + 1)
    expected[0, 4] = math.log(1383)
    expected[1, 2] = math.log(8)  # missing, 0 and negative are 0
    np.testing.assert_array_equal(rows.dense, expected.astype(np.float32))
    assert rows.keys[0, :3].tolist() == [0x68FD1E64, 0x80E26C9B, MISSING_KEY]
    assert rows.keys[1, 0] == 0xFFFFFFFF
    assert (rows.keys[:, 2:] == MISSING_KEY).all()
    assert dataset.metadata.missing["I3"] == 1
    assert dataset.metadata.missing["C2"] == 1


COLUMNS = """
label: bought
weight: w
dense:
  - {name: raw, transform: none}
  - {name: price, transform: standard}
  - count
categorical:
  - {name: shop, values: text}
  - {name: city, buckets: 100}
multi_hot:
  - {name: tags, length: 3}
"""
CSV = (
    "id,bought,w,raw,price,count,shop,city,tags\n"
    '1,1,0.5,-3.5,10,8,"a,b",bern,x|y\n'
    "2,0,2,,20,-4,NA,,\n"
    "3,0,1,NaN,,inf,a,basel,x||y|z|u\n"
    "4,1,1,1e3,30,,a,bern,z\n"
)


def test_own_columns_golden_vector(load, write):
    dataset = load(write("own.csv", CSV), COLUMNS)
    rows = dataset.read(np.arange(4))
    assert rows.label.tolist() == [1, 0, 0, 1]
    assert rows.weight.tolist() == [0.5, 2, 1, 1]
    assert rows.dense[:, 0].tolist() == [-3.5, 0, 0, 1000]
    deviation = math.sqrt(200 / 3)
    np.testing.assert_allclose(rows.dense[:, 1], [-10 / deviation, 0, 0, 10 / deviation], rtol=1e-6)
    np.testing.assert_allclose(rows.dense[:, 2], [math.log(9), 0, 0, 0], rtol=1e-6)
    assert rows.keys[:, 0].tolist() == [text_key(b"a,b"), text_key(b"NA"), text_key(b"a"), text_key(b"a")]
    bern, basel = (text_key(name) % 2**64 % 100 for name in (b"bern", b"basel"))
    assert rows.keys[:, 1].tolist() == [bern, MISSING_KEY, basel, bern]
    x, y, z = (text_key(name) for name in (b"x", b"y", b"z"))
    gap = MISSING_KEY
    assert rows.multi["tags"].tolist() == [[x, y, gap], [gap] * 3, [x, y, z], [z, gap, gap]]
    assert dataset.metadata.cut == {"tags": 1}
    assert {name: dataset.metadata.missing[name] for name in ("raw", "price", "count", "shop", "city", "tags")} == {
        "raw": 2, "price": 1, "count": 2, "shop": 0, "city": 1, "tags": 1,
    }  # fmt: skip


def test_standard_keeps_the_digits_of_large_values(load, write):
    seconds = [1_700_000_000 + step for step in (0, 1, 2, 3)]
    text = "y,t\n" + "".join(f"{at % 2},{value}\n" for at, value in enumerate(seconds))
    dataset = load(write("t.csv", text), "label: y\ndense: [{name: t, transform: standard}]\n")
    expected = (np.arange(4) - 1.5) / np.std(np.arange(4))
    np.testing.assert_allclose(dataset.read(np.arange(4)).dense[:, 0], expected, rtol=1e-6)


def test_standard_without_spread_is_zero(load, write):
    dataset = load(write("t.csv", "y,t\n0,5\n1,5\n"), "label: y\ndense: [{name: t, transform: standard}]\n")
    assert dataset.read(np.arange(2)).dense.tolist() == [[0], [0]]


def test_nothing_infinite_reaches_a_model(load, write):
    columns = "label: y\ndense: [{name: t, transform: none}, u, {name: v, transform: standard}]\n"
    dataset = load(write("t.csv", "y,t,u,v\n0,1e300,1e300,1e300\n1,-1e300,2,1\n"), columns)
    assert np.isfinite(dataset.read(np.arange(2)).dense).all()


@pytest.mark.parametrize("label", ["2", "", "yes", "0.5", "nan"])
def test_a_label_that_is_not_0_or_1_names_its_row(load, write, label):
    path = write("t.csv", f"y,x\n0,1\n\n1,2\n{label},3\n")
    with pytest.raises(DataError, match=r"t\.csv: row 5: '?.*label column y takes 0 or 1") as caught:
        load(path)
    assert label in str(caught.value)


def test_labels_of_other_spellings(load, write):
    dataset = load(write("t.csv", "y,x\n0.0,1\n1.0,2\ntrue,3\nFalse,4\n"))
    assert dataset.read(np.arange(4)).label.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("value", [0, 1])
def test_labels_all_equal_are_refused(load, write, value):
    path = write("t.csv", "y,x\n" + f"{value},1\n" * 5)
    with pytest.raises(DataError, match=f"label {value} in all 5 rows"):
        load(path)


@pytest.mark.parametrize("weight", ["-1", "", "inf"])
def test_a_weight_out_of_range_names_its_row(load, write, weight):
    path = write("t.csv", f"y,w,x\n0,1,1\n1,{weight},2\n")
    with pytest.raises(DataError, match=r"row 3.*weight column w takes a finite number of at least 0"):
        load(path, "label: y\nweight: w\ndense: [x]\n")


def test_text_in_a_dense_column_names_row_and_column(load, write):
    path = write("t.csv", "y,a,b\n0,1,1\n1,2,abc\n")
    with pytest.raises(DataError, match=r"t\.csv: row 3: 'abc': column b takes a number"):
        load(path, "label: y\ndense: [a, b]\n")


def test_errors_are_bad_input():
    assert issubclass(DataError, BadInput)
