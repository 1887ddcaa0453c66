"""The sample generator: the same bytes for the same seed, Criteo's shape, and a signal that can be learnt."""

import gzip
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from trimtab.core.data.sample import EXTENSIONS, write_sample
from trimtab.core.data.sample_rows import BEST_AUC, VOCABULARY, AucCounter, best_auc, sample_chunks, sample_rows
from trimtab.core.errors import BadInput

GOLDEN_LINE = (
    "0\t11\t-1\t\t0\t180\t2\t0\t2\t26\t\t3\t\t11\tcc0d53cd\t7790947c\t4dfa2d7f\td70d97d9\t3dbe93c7"
    "\t4dea9663\t5e0824a9\tde814a18\t0c927ba4\t9c015838\t020e761a\t0632fcd7\te50700e2\tc9187b85\t93d1838b\t2dda3487\t07bd7"
    "db0\t809d5bb9\t\tf16e1d04\t75de9f7a\tfd92d29e\t48ab1158\t4036c880\t4d79e747\t45a3f80c"
)


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_the_same_seed_gives_the_same_bytes(tmp_path, extension):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_sample(str(tmp_path / f"{name}{extension}"), 500, seed)
    a, b, c = ((tmp_path / f"{name}{extension}").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert len(list(tmp_path.iterdir())) == 3


def test_rows_do_not_depend_on_how_many_are_made_at_once():
    whole, part = sample_rows(5, 0, 300), sample_rows(5, 100, 50)
    for name in ("label", "dense", "dense_missing", "keys", "keys_missing", "probability"):
        np.testing.assert_array_equal(getattr(whole, name)[100:150], getattr(part, name))


def test_golden_first_row(tmp_path):
    write_sample(str(tmp_path / "s.tsv"), 3, 0)
    assert (tmp_path / "s.tsv").read_text().splitlines()[0] == GOLDEN_LINE


def test_text_is_criteo_s(tmp_path):
    write_sample(str(tmp_path / "s.tsv.gz"), 200, 4)
    lines = gzip.decompress((tmp_path / "s.tsv.gz").read_bytes()).decode().splitlines()
    rows = sample_rows(4, 0, 200)
    assert len(lines) == 200
    for at, line in enumerate(lines):
        fields = line.split("\t")
        assert len(fields) == 40
        assert fields[0] == str(rows.label[at])
        for column in range(13):
            expected = "" if rows.dense_missing[at, column] else str(rows.dense[at, column])
            assert fields[1 + column] == expected
        for column in range(26):
            expected = "" if rows.keys_missing[at, column] else f"{rows.keys[at, column]:08x}"
            assert fields[14 + column] == expected


@pytest.fixture(scope="module")
def many():
    return list(sample_chunks(9, 131_072))


def test_shape_of_the_data(many):
    label = np.concatenate([chunk.label for chunk in many])
    assert label.mean() == pytest.approx(0.25, abs=0.02)
    gaps = sum(chunk.dense_missing.sum() + chunk.keys_missing.sum() for chunk in many) / (len(label) * 39)
    assert gaps == pytest.approx(0.15, abs=0.02)
    dense = np.concatenate([chunk.dense for chunk in many])
    assert dense[:, 1].min() == -2
    assert 0.02 < (dense[:, 1] < 0).mean() < 0.2
    assert (np.delete(dense, 1, axis=1) >= 0).all()
    keys = np.concatenate([chunk.keys for chunk in many])
    assert keys.min() >= 0
    assert 2**31 < keys.max() < 2**32
    distinct = [len(np.unique(keys[:, at])) for at in range(26)]
    assert all(count <= size for count, size in zip(distinct, VOCABULARY, strict=True))
    assert sum(count <= 30 for count in distinct) >= 5
    assert sum(count > 10_000 for count in distinct) >= 5
    _, counts = np.unique(keys[:, 2], return_counts=True)
    assert counts.max() > 100 * np.median(counts)  # a few ids are seen everywhere


def test_the_best_auc_is_what_is_documented(many):
    counter = AucCounter()
    for chunk in many:
        counter.add(chunk.probability, chunk.label)
    assert counter.value() == pytest.approx(BEST_AUC, abs=0.01)


def test_auc_counter_equals_counting_pairs():
    rows = sample_rows(2, 0, 400)
    positive, negative = rows.probability[rows.label == 1], rows.probability[rows.label == 0]
    pairs = (positive[:, None] > negative).mean() + (positive[:, None] == negative).mean() / 2
    assert best_auc(2, 400) == pytest.approx(pairs, abs=2e-4)
    assert AucCounter().value() is None


def test_the_signal_can_be_learnt(many):
    """A plain logistic regression with a weight per id, one pass: a floor for any real model."""
    train, test = many
    weights = np.zeros(2**18 + 14)
    squares = np.full(len(weights), 0.1)
    places = [
        14 + ((chunk.keys + np.arange(26) * 0x9E3779B1) % 2**18) * ~chunk.keys_missing for chunk in many
    ]  # missing: one place for all, harmless
    dense = [np.log1p(np.maximum(chunk.dense, 0)) * ~chunk.dense_missing / 3 for chunk in many]
    for first in range(0, len(train.label), 256):
        at = slice(first, first + 256)
        logit = dense[0][at] @ weights[:13] + weights[places[0][at]].sum(axis=1) + weights[13]
        error = 1 / (1 + np.exp(-logit)) - train.label[at]
        gradient = np.zeros(len(weights))
        gradient[:13] = dense[0][at].T @ error
        gradient[13] = error.sum()
        np.add.at(gradient, places[0][at].ravel(), np.repeat(error, 26))
        squares += gradient**2
        weights -= 0.05 * gradient / np.sqrt(squares)
    score = dense[1] @ weights[:13] + weights[places[1]].sum(axis=1) + weights[13]
    counter = AucCounter()
    counter.add(1 / (1 + np.exp(-score)), test.label)
    assert counter.value() > 0.70
    assert counter.value() < BEST_AUC + 0.01


def test_parquet_tells_its_best_auc(tmp_path):
    write_sample(str(tmp_path / "s.parquet"), 1000, 6)
    note = json.loads(pq.read_metadata(tmp_path / "s.parquet").metadata[b"trimtab.sample"])
    assert note == {"rows": 1000, "seed": 6, "best_auc": best_auc(6, 1000)}


def test_progress(tmp_path):
    told = []
    write_sample(str(tmp_path / "s.csv"), 10, 0, lambda message, share: told.append(share))
    assert told == [1.0]


@pytest.mark.parametrize(
    ("name", "rows", "seed", "message"),
    [
        ("s.json", 5, 0, "--out: .*end it in .parquet"),
        ("s", 5, 0, "--out: "),
        ("s.csv", 0, 0, "--rows: 0: give a whole number of at least 1"),
        ("s.csv", True, 0, "--rows: "),
        ("s.csv", 5, -1, "--seed: -1"),
        ("there.csv", 5, 0, "--out: .*exists already"),
        ("no/s.csv", 5, 0, "--out: .*does not exist; make it first"),
    ],
)
def test_bad_arguments(tmp_path, name, rows, seed, message):
    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(BadInput, match=message):
        write_sample(str(tmp_path / name), rows, seed)
    assert (tmp_path / "there.csv").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_an_interrupted_sample_leaves_nothing(tmp_path):
    def interrupt(message, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sample(str(tmp_path / "s.csv"), 10, 0, interrupt)
    assert list(tmp_path.iterdir()) == []
