"""What is taken for what when no columns file says so."""

import datetime

import pyarrow as pa
import pytest

from trimtab.core.data.columns import CategoricalColumn, DenseColumn
from trimtab.core.data.detect import detect
from trimtab.core.errors import BadInput


def roles(**columns):
    found = detect(pa.table(columns))
    return found.columns, dict(found.ignored)


ROWS = 60
LABEL = [0, 1] * (ROWS // 2)


@pytest.mark.parametrize("name", ["label", "Label", "click", "CLICKED", "target", "y"])
def test_usual_names_of_the_label(name):
    columns, _ = roles(x=[1.5] * ROWS, **{name: LABEL})
    assert columns.label == name


def test_no_label_names_what_there_is():
    with pytest.raises(BadInput, match=r"'a, b': none looks like the label"):
        roles(a=[1], b=[2])


def test_no_feature():
    with pytest.raises(BadInput, match="no column looks like a feature"):
        roles(label=LABEL)


def test_kinds_of_columns():
    columns, ignored = roles(
        label=LABEL,
        weight=[1.0] * ROWS,
        fraction=[0.5, 1.5] * (ROWS // 2),
        signed=[-0.5, 1.5] * (ROWS // 2),
        count=[3, 4] * (ROWS // 2),
        shop_id=[3, 4] * (ROWS // 2),
        big=[2**40, 2**41] * (ROWS // 2),
        word=["a", "b"] * (ROWS // 2),
        digits=["1", "2"] * (ROWS // 2),
        hexes=["0a1b2c3d", "ffffffff"] * (ROWS // 2),
        flag=[True, False] * (ROWS // 2),
        row_number=list(range(ROWS)),
        unique_text=[f"u{at}" for at in range(ROWS)],
        nothing=pa.nulls(ROWS),
        tags=[[1, 2]] * ROWS,
        piped=["a|b"] * ROWS,
        day=[datetime.date(2020, 1, 1)] * ROWS,
    )
    assert columns.weight == "weight"
    assert columns.dense == (
        DenseColumn("fraction"), DenseColumn("signed", "standard"), DenseColumn("count"), DenseColumn("digits"),
    )  # fmt: skip
    assert columns.categorical == (
        CategoricalColumn("shop_id", values="integer"),
        CategoricalColumn("big", values="integer"),
        CategoricalColumn("word", values="text"),
        CategoricalColumn("hexes", values="hex"),
        CategoricalColumn("flag", values="integer"),
    )
    assert set(ignored) == {"row_number", "unique_text", "nothing", "tags", "piped", "day"}
    assert "different in every row" in ignored["row_number"]
    assert "multi_hot" in ignored["tags"]


def test_a_column_unique_per_row_is_used_where_it_is_named(load, write):
    text = "label,Id,x\n" + "".join(f"{at % 2},{at},1\n" for at in range(60))
    path = write("t.csv", text)
    assert [column.name for column in load(path).columns.categorical] == []
    named = load(path, "label: label\ncategorical: [Id]\n")
    assert [column.name for column in named.columns.categorical] == ["Id"]


def test_criteo_names_decide_by_themselves():
    columns, _ = roles(Label=LABEL, I1=list(range(ROWS)), I2=pa.nulls(ROWS), C1=["12345678"] * ROWS, C2=pa.nulls(ROWS))
    assert [column.name for column in columns.dense] == ["I1", "I2"]
    assert columns.categorical[0].values == "hex"  # eight decimal digits, yet an id of Criteo's
    assert [column.name for column in columns.categorical] == ["C1", "C2"]
