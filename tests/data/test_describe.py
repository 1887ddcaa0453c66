"""What `trimtab data describe` says."""

import json

import numpy as np
import pytest

from trimtab.core.data.dataset import Dataset
from trimtab.core.data.describe import columns_line, describe
from trimtab.core.data.prepare import prepare
from trimtab.core.data.sketch import DistinctSketch, Moments
from trimtab.core.errors import BadInput

TEXT = "id,label,w,price,shop,tags\n" + "".join(
    f"{at},{at % 2},1,{'' if at % 4 == 0 else at / 2},s{at % 7},{'|'.join('abc'[: at % 4])}\n" for at in range(80)
)
COLUMNS = """
label: label
weight: w
dense: [{name: price, transform: standard}]
categorical: [{name: shop, buckets: 1000}]
multi_hot: {tags: {length: 2}}
"""


def test_described_by_a_columns_file(write, tmp_path):
    found = describe(str(write("t.csv", TEXT)), str(write("c.yaml", COLUMNS)), tmp_path / "cache")
    assert (found.rows, found.format, found.label_mean) == (80, "csv", 0.5)
    columns = {column.name: column for column in found.columns}
    assert [column.role for column in found.columns] == ["label", "weight", "dense", "categorical", "multi_hot"]
    assert columns["price"].missing == 0.25
    prices = [at / 2 for at in range(80) if at % 4]
    assert columns["price"].detail == f"standard (mean {np.mean(prices):.6g}, deviation {np.std(prices):.6g})"
    assert columns["shop"].distinct == 7
    assert len(columns["shop"].examples) == 3
    assert all(0 <= key < 1000 for key in columns["shop"].examples)
    assert columns["tags"].missing == 0.25
    assert "20 rows with more were cut" in columns["tags"].detail
    assert json.loads(json.dumps(found.as_dict()))["rows"] == 80


def test_detected_columns_are_shown_with_what_is_left_out(write, tmp_path):
    found = describe(str(write("t.csv", TEXT)), None, tmp_path / "cache")
    columns = {column.name: column for column in found.columns}
    assert columns["id"].role == columns["tags"].role == "ignored"
    text = found.as_text()
    for piece in ("80 rows, 0.5000 of them with label 1", "t.csv", "price", "25.0%", "like a row's id"):
        assert piece in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_bad_input_names_the_argument(tmp_path):
    with pytest.raises(BadInput, match=r"PATH: .*no such file"):
        describe(str(tmp_path / "no.csv"), None, tmp_path / "cache")


@pytest.mark.parametrize("count", [0, 1, 1023, 50_000])
def test_distinct_estimate(count):
    sketch = DistinctSketch()
    for _ in range(2):
        for first in range(0, count, 10_000):
            sketch.add(np.arange(first, min(count, first + 10_000)))
    assert sketch.estimate() == pytest.approx(count, rel=0.1 if count > 1023 else 0)


def test_moments_merge_to_the_whole():
    values = np.random.default_rng(0).normal(1e9, 3, 1000)
    moments = Moments()
    for part in np.split(values, [0, 10, 700]):
        moments.add(part)
    assert moments.mean == pytest.approx(values.mean(), rel=1e-15)
    assert moments.deviation == pytest.approx(values.std(), rel=1e-9)
    assert Moments().deviation == 1.0


def test_one_line_says_what_the_columns_were_taken_for(tmp_path):
    path = tmp_path / "rows.csv"
    lines = [f"{n},{n % 2},{n * 0.5},{'abc'[n % 3]}" for n in range(60)]
    path.write_text("\n".join(["id,label,price,shop", *lines]) + "\n")
    dataset = Dataset.open(prepare(str(path), None, tmp_path / "cache"))
    found = columns_line(dataset.metadata)
    assert found.startswith("label label; 1 dense (price); 1 categorical (shop); left out id (")
    assert "different in every row" in found
