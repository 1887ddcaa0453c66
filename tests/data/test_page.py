"""What docs/data.md shows is what happens."""

import re

import pyarrow as pa
import pytest
import yaml

from trimtab.core.data.columns import CategoricalColumn, columns_from_dict
from trimtab.core.data.detect import LABELS, WEIGHTS
from trimtab.core.data.keys import finish_keys
from trimtab.core.data.raw import raw_keys
from trimtab.core.data.sample_rows import BEST_AUC
from trimtab.core.data.text import NULLS


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_columns_file_is_understood(page):
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    columns = columns_from_dict(yaml.safe_load(block))
    assert columns.names == ("bought", "importance", "price", "age", "score", "shop", "city", "device", "tags")
    assert columns.multi[0].length == 8


def test_the_keys_are_as_shown(page):
    rows = re.findall(r"^\| (hex|integer|text|any) \| (?:`(\S+)`|\(empty\)) \| (-?\d+) \|$", page, re.M)
    assert len(rows) == 6
    for kind, text, key in rows:
        keys, missing = raw_keys(pa.array([text]), CategoricalColumn("c", values=kind.replace("any", "text")))
        assert finish_keys(keys, missing, None).tolist() == [int(key)]


def test_names_and_figures_are_those_of_the_code(page):
    for name in (*LABELS, *WEIGHTS, *NULLS[1:]):
        assert f"`{name}`" in page
    assert f"about {BEST_AUC:.2f}" in page
