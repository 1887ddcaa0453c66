"""The columns file: what is understood, and that nothing else passes silently."""

import json

import pytest

from trimtab.core.data.columns import CategoricalColumn, Columns, DenseColumn, columns_from_dict, read_columns
from trimtab.core.errors import BadInput

WHOLE = Columns(
    "y",
    "w",
    (DenseColumn("a"), DenseColumn("b", "standard")),
    (CategoricalColumn("c", 50), CategoricalColumn("d", values="hex"), CategoricalColumn("t", None, 8)),
)
YAML = """
label: y
weight: w
dense: [a, {name: b, transform: standard}]
categorical:
  c: {buckets: 50}
  d: {values: hex}
multi_hot:
  t: {length: 8}
"""


def test_yaml_and_json_say_the_same(write):
    tree = {
        "label": "y", "weight": "w", "dense": ["a", {"name": "b", "transform": "standard"}],
        "categorical": [{"name": "c", "buckets": 50}, {"name": "d", "values": "hex"}],
        "multi_hot": [{"name": "t", "length": 8}],
    }  # fmt: skip
    assert read_columns(str(write("c.yaml", YAML))) == WHOLE
    assert read_columns(str(write("c.json", json.dumps(tree)))) == WHOLE


def test_the_dictionary_form_comes_back():
    assert columns_from_dict(json.loads(json.dumps(WHOLE.as_dict()))) == WHOLE
    assert [column.name for column in WHOLE.single] == ["c", "d"]
    assert [column.name for column in WHOLE.multi] == ["t"]
    assert WHOLE.names == ("y", "w", "a", "b", "c", "d", "t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "give a mapping"),
        ("- a", "give a mapping"),
        ("dense: [a]", "'label': is missing"),
        ("label: y", "name at least one feature"),
        ("label: 3\ndense: [a]", "3: label takes a column's name"),
        ("label: y\ndens: [a]", "'dens': the columns file has no such entry; did you mean 'dense'"),
        ("label: y\ndense: a", "dense takes a list"),
        ("label: y\ndense: [3]", "an entry of dense is a column's name"),
        ("label: y\ndense: [a, a]", "'a': is named twice"),
        ("label: y\ndense: [y]", "'y': is named twice"),
        ("label: y\ndense: {a: , a: }", "'a': is named twice"),
        ("label: y\nlabel: z\ndense: [a]", "'label': is named twice"),
        ("label: y\ndense: [{name: a, transform: log}]", "'log': transform of 'a': choose log1p, standard, none"),
        ("label: y\ndense: [{name: a, transfrom: none}]", "'transfrom': .*did you mean 'transform'"),
        ("label: y\ndense: {a: none}", "settings of 'a' are a mapping"),
        ("label: y\ncategorical: [{name: c, buckets: 0}]", "buckets of 'c' is a whole number from 1"),
        ("label: y\ncategorical: [{name: c, buckets: true}]", "buckets of 'c' is a whole number"),
        ("label: y\ncategorical: [{name: c, length: 3}]", "'length': an entry of categorical has no such entry"),
        ("label: y\ncategorical: [{name: c, values: hexa}]", "'hexa': values of 'c': choose"),
        ("label: y\nmulti_hot: [t]", "'t': multi_hot needs the number of ids"),
        ("label: y\nmulti_hot: [{name: t, length: 1}]", "length of 't' is a whole number from 2"),
        ("label: [y\ndense", "line 2 is neither valid YAML nor JSON|line 3 is neither"),
    ],
)
def test_what_is_not_understood_is_refused(write, text, message):
    with pytest.raises(BadInput, match=message) as caught:
        read_columns(str(write("c.yaml", text)))
    assert str(caught.value).startswith("--columns: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        read_columns(str(tmp_path / "no.yaml"))


def test_a_column_that_the_data_has_not(load, write):
    path = write("t.csv", "clicked,price,shop\n0,1,a\n1,2,b\n")
    with pytest.raises(BadInput, match=r"--columns: 'prise': .*no such column; did you mean 'price'"):
        load(path, "label: clicked\ndense: [prise]\n")
    with pytest.raises(BadInput, match=r"--columns: 'zzz': .*choose among clicked, price, shop"):
        load(path, "label: clicked\ndense: [zzz]\n")
