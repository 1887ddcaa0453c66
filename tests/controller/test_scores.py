"""AUC and log loss against brute force and scikit-free definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.controller.scores import CLIP, ScoreBook, Scored, auc, log_loss, save
from trimtab.core.errors import WireError
from trimtab.core.wire.messages import BatchScores

row = st.tuples(
    st.sampled_from([0.0, 0.1, 0.1, 0.5, 0.9, 1.0]), st.sampled_from([0.0, 1.0, 0.25]), st.sampled_from([0.5, 1.0, 3.0])
)


def scored(rows: list[tuple[float, float, float]]) -> Scored:
    table = np.array(rows, np.float32).reshape(-1, 3)
    return Scored(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy())


def batch(number: int, rows: list[tuple[float, float, float]]) -> BatchScores:
    one = scored(rows)
    return BatchScores(number, one.scores.tobytes(), one.labels.tobytes(), one.weights.tobytes())


@given(st.lists(row, min_size=1, max_size=12))
def test_auc_is_the_chance_that_a_positive_row_scores_higher(rows: list[tuple[float, float, float]]) -> None:
    rows = [tuple(float(np.float32(value)) for value in one) for one in rows]  # type: ignore[misc]
    above = whole = 0.0
    for score, label, weight in rows:
        for other, its, its_weight in rows:
            pair = weight * label * its_weight * (1 - its)
            whole += pair
            above += pair * (1.0 if score > other else 0.5 if score == other else 0.0)
    if whole == 0:
        assert auc(scored(rows)) is None
    else:
        assert auc(scored(rows)) == pytest.approx(above / whole, abs=1e-12)


@given(st.lists(row, min_size=1, max_size=12))
def test_log_loss_is_the_weighted_mean(rows: list[tuple[float, float, float]]) -> None:
    total = weights = 0.0
    for score, label, weight in rows:
        clipped = min(max(float(np.float32(score)), CLIP), 1 - CLIP)
        total -= weight * (label * np.log(clipped) + (1 - label) * np.log(1 - clipped))
        weights += weight
    assert log_loss(scored(rows)) == pytest.approx(total / weights, rel=1e-9)


def test_known_values() -> None:
    perfect = scored([(0.1, 0, 1), (0.2, 0, 1), (0.8, 1, 1)])
    assert auc(perfect) == 1.0
    assert auc(scored([(0.5, 0, 1), (0.5, 1, 1)])) == 0.5
    assert log_loss(scored([(1.0, 0, 1)])) == pytest.approx(-np.log(CLIP))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(0.5, 1, 1)] * 3,
        [(float("nan"), 0, 1), (0.5, 1, 1)],
        [(0.5, 2, 1), (0.5, 0, 1)],
        [(0.5, 1, 0), (0.5, 0, 0)],
    ],
)  # fmt: skip
def test_what_has_no_auc_is_none_and_never_not_a_number(rows: list[tuple[float, float, float]]) -> None:
    assert auc(scored(rows)) is None


def test_batches_merge_in_order_count_once_and_leave_padding_out(tmp_path: Path) -> None:
    book = ScoreBook()
    book.add(batch(1, [(0.3, 1, 1), (0.3, 1, 0)]))
    book.add(batch(0, [(0.1, 0, 1)]))
    book.add(batch(1, [(0.9, 0, 1)]))
    merged = book.merged()
    assert merged.scores == pytest.approx([0.1, 0.3])
    save(merged, tmp_path / "scores.npz")
    with np.load(tmp_path / "scores.npz", allow_pickle=False) as stored:
        assert sorted(stored) == ["labels", "scores", "weights"]
        assert list(stored["labels"]) == [0.0, 1.0]


def test_arrays_that_do_not_match_are_refused() -> None:
    with pytest.raises(WireError, match="evaluation batch 4"):
        ScoreBook().add(BatchScores(4, b"1234", b"1234", b""))
