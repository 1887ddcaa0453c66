"""The same rows are the same numbers in every format and from every kind of place."""

import gzip
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.core.data.columns import MISSING_KEY
from trimtab.core.data.dataset import Dataset
from trimtab.core.data.prepare import prepare
from trimtab.core.errors import DataError


def everything(dataset):
    return dataset.read(np.arange(dataset.rows))


def same(one, other):
    for name in ("dense", "keys", "label", "weight"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("extension", [".tsv", ".tsv.gz", ".csv", ".csv.gz", ".tfrecord"])
def test_every_format_gives_the_same_numbers(load, sample_files, extension):
    reference, found = load(sample_files[".parquet"]), load(sample_files[extension])
    order = [reference.columns.single.index(c) for c in reference.columns.single]
    ours = [column.name for column in found.columns.single]
    order = [ours.index(column.name) for column in reference.columns.single]
    a, b = everything(reference), everything(found)
    np.testing.assert_array_equal(a.keys, b.keys[:, order])
    dense = [column.name for column in found.columns.dense]
    np.testing.assert_array_equal(a.dense, b.dense[:, [dense.index(c.name) for c in reference.columns.dense]])
    np.testing.assert_array_equal(a.label, b.label)
    assert (a.keys == MISSING_KEY).mean() > 0.1


def test_directory_glob_and_url_in_sorted_order(load, sample_files, tmp_path):
    lines = sample_files[".tsv"].read_text().splitlines(keepends=True)
    folder = tmp_path / "parts"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.tsv").write_text("".join(lines[1000:2000]))
    (folder / "a.tsv").write_text("".join(lines[:1000]))
    with gzip.open(folder / "sub" / "c.tsv.gz", "wt") as file:
        file.write("".join(lines[2000:]))
    (folder / "_SUCCESS").write_text("")
    (folder / ".a.tsv.crc").write_text("x")
    (folder / "README.md").write_text("about")
    whole = everything(load(sample_files[".tsv"]))
    same(whole, everything(load(folder)))
    same(whole, everything(load(f"file://{folder}")))
    assert load(f"{folder}/*.tsv").rows == 2000
    assert load(f"{folder}/[b].tsv").rows == 1000


def test_memory_url(sample_files, tmp_path):
    fsspec.filesystem("memory").pipe("/rows/one.tsv", sample_files[".tsv"].read_bytes())
    dataset = Dataset.open(prepare("memory://rows/one.tsv", None, tmp_path / "cache"))
    assert dataset.metadata.files == ("memory:///rows/one.tsv",)
    same(everything(dataset), everything(Dataset.open(prepare(str(sample_files[".tsv"]), None, tmp_path / "cache"))))


@pytest.mark.parametrize("extension", [".parquet", ".tsv", ".tsv.gz", ".csv", ".tfrecord"])
def test_a_name_without_extension_is_recognised_by_its_contents(load, sample_files, tmp_path, extension):
    path = tmp_path / "part-00000"
    shutil.copy(sample_files[extension], path)
    same(everything(load(path)), everything(load(sample_files[extension])))
    assert load(path).fingerprint == load(sample_files[extension]).fingerprint


def test_a_directory_of_criteo_days(load, sample_files, tmp_path):
    (tmp_path / "days").mkdir()
    for day in (0, 1):
        shutil.copy(sample_files[".tsv.gz"], tmp_path / "days" / f"day_{day}.gz")
    (tmp_path / "days" / "README.md").write_text("about")
    dataset = load(tmp_path / "days")
    assert (dataset.rows, dataset.metadata.format) == (6000, "criteo")


def test_csv_variants(load, write):
    plain = everything(load(write("a.csv", "label,n,word\n0,1,x\n1,2,y\n")))
    for name, text in {
        "crlf.csv": "label,n,word\r\n0,1,x\r\n1,2,y\r\n",
        "bom.csv": "\ufefflabel,n,word\n0,1,x\n1,2,y\n",
        "tab.tsv": "label\tn\tword\n0\t1\tx\n1\t2\ty\n",
        "semicolon.csv": "label;n;word\n0;1;x\n1;2;y\n",
        "quoted.csv": '"label","n","word"\n"0","1","x"\n1,2,y',
        "blank.csv": "\nlabel,n,word\n\n0,1,x\n1,2,y\n\n",
    }.items():
        same(plain, everything(load(write(name, text))))


def test_files_with_columns_in_another_order(load, write):
    write("d/a.csv", "label,n,m\n0,1,5\n")
    path = write("d/b.csv", "m,label,n\n6,1,2\n").parent
    rows = everything(load(path, "label: label\ndense: [{name: n, transform: none}, {name: m, transform: none}]\n"))
    assert rows.dense.tolist() == [[1, 5], [2, 6]]


def test_parquet_types(load, tmp_path):
    table = pa.table({
        "label": pa.array([True, False]),
        "d": pa.array([1, None], pa.int32()),
        "f": pa.array([0.5, float("nan")], pa.float32()),
        "k": pa.array(["a", "b"]).dictionary_encode(),
        "l": pa.array([[1, 2, 3], None]),
        "x": pa.FixedSizeListArray.from_arrays(pa.array(["p", "q", "r", ""]), 2),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "t.parquet")
    columns = "label: label\ndense: [d, f]\ncategorical: [k]\nmulti_hot: {l: {length: 2}, x: {length: 2}}\n"
    dataset = load(tmp_path / "t.parquet", columns)
    rows = everything(dataset)
    assert rows.label.tolist() == [1, 0]
    np.testing.assert_allclose(rows.dense, [[np.log(2), np.log(1.5)], [0, 0]], rtol=1e-6)
    assert rows.multi["l"].tolist() == [[1, 2], [MISSING_KEY, MISSING_KEY]]
    assert rows.multi["x"][1, 1] == MISSING_KEY
    assert dataset.metadata.cut["l"] == 1


def test_a_parquet_type_without_meaning_is_refused(load, tmp_path):
    pq.write_table(pa.table({"label": [0, 1], "s": [{"a": 1}, {"a": 2}]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="column s has a type that cannot be dense"):
        load(tmp_path / "t.parquet", "label: label\ndense: [s]\n")
    with pytest.raises(DataError, match="column s has a type that cannot be categorical"):
        load(tmp_path / "t.parquet", "label: label\ncategorical: [s]\n")


def test_real_criteo_rows(shared_data: Path, load):
    dataset = load(shared_data / "criteo_sample" / "train.tiny.csv")
    assert dataset.rows == 1999
    assert dataset.columns.label == "Label"
    assert [column.name for column in dataset.columns.dense] == [f"I{n}" for n in range(1, 14)]
    assert [column.name for column in dataset.columns.single] == [f"C{n}" for n in range(1, 27)]
    assert {column.values for column in dataset.columns.single} == {"hex"}
    assert [name for name, _ in dataset.metadata.ignored] == ["Id"]
    assert dataset.label_mean == pytest.approx(0.209, abs=5e-4)
    rows = everything(dataset)
    assert rows.keys[0, :2].tolist() == [0x68FD1E64, 0x80E26C9B]
    assert rows.keys.max() > 2**31
    assert np.isfinite(rows.dense).all()
    cells = dataset.rows * 39
    assert sum(dataset.metadata.missing.values()) / cells == pytest.approx(0.149, abs=1e-3)
