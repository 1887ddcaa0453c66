"""AUC and log loss over the merged scores of all held-out rows: exact, in one place, without TensorFlow.

Workers send raw scores rather than figures, because AUC does not add up from parts. Each evaluation batch counts once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trimtab.core.errors import WireError
from trimtab.core.wire.messages import BatchScores

CLIP = 1e-7  # log loss is computed with scores at least so far from 0 and 1, as Keras does
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """All held-out rows: scores, labels and weights, float32 of one length, in batch order."""

    scores: npt.NDArray[np.float32]
    labels: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]


class ScoreBook:
    """Collects the scores of evaluation batches; the first report of a number counts."""

    def __init__(self) -> None:
        self._batches: dict[int, Scored] = {}

    def add(self, entry: BatchScores) -> None:
        """Keep one batch's scores.

        Raises:
            WireError: the three arrays are not equally long float32 arrays.
        """
        if len({len(entry.scores), len(entry.labels), len(entry.weights)}) != 1 or len(entry.scores) % 4:
            raise WireError(f"scores of evaluation batch {entry.number}: the arrays do not match")
        parts = (np.frombuffer(data, dtype="<f4") for data in (entry.scores, entry.labels, entry.weights))
        self._batches.setdefault(entry.number, Scored(*parts))

    def merged(self) -> Scored:
        """All of it, by batch number; rows of weight 0 (padding) are left out."""
        empty = np.empty(0, np.float32)
        ordered = [self._batches[number] for number in sorted(self._batches)]
        scores = np.concatenate([empty, *(entry.scores for entry in ordered)])
        labels = np.concatenate([empty, *(entry.labels for entry in ordered)])
        weights = np.concatenate([empty, *(entry.weights for entry in ordered)])
        real = weights != 0
        return Scored(scores[real], labels[real], weights[real])


def auc(rows: Scored) -> float | None:
    """Area under the ROC curve: the chance that a positive row scores above a negative one, ties counting half.

    Labels between 0 and 1 count as that much of a positive row. None when a class is missing, a score is not finite, or
    a label is outside 0 .. 1.
    """
    if not _sound(rows):
        return None
    order = np.argsort(rows.scores, kind="stable")
    scores = rows.scores[order]
    weights, labels = rows.weights[order].astype(np.float64), rows.labels[order].astype(np.float64)
    starts = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])  # runs of equal scores
    positive: Floats = np.add.reduceat(weights * labels, starts)
    negative: Floats = np.add.reduceat(weights * (1.0 - labels), starts)
    whole = positive.sum() * negative.sum()
    if whole <= 0:
        return None
    below = np.cumsum(negative) - negative
    return float(np.sum(positive * (below + negative / 2.0)) / whole)


def log_loss(rows: Scored) -> float | None:
    """Weighted mean of the binary cross-entropy; None where `auc` would find the rows unsound."""
    if not _sound(rows):
        return None
    scores = np.clip(rows.scores.astype(np.float64), CLIP, 1.0 - CLIP)
    labels, weights = rows.labels.astype(np.float64), rows.weights.astype(np.float64)
    losses = -(labels * np.log(scores) + (1.0 - labels) * np.log1p(-scores))
    return float(np.sum(losses * weights) / weights.sum())


def save(rows: Scored, path: Path) -> None:
    """Write the rows as `.npz` (scores, labels, weights), for a worker to compute the model's own metrics."""
    np.savez(path, scores=rows.scores, labels=rows.labels, weights=rows.weights)


def _sound(rows: Scored) -> bool:
    """Whether figures can be computed at all."""
    if not len(rows.scores) or rows.weights.astype(np.float64).sum() <= 0:
        return False
    finite = all(bool(np.isfinite(values).all()) for values in (rows.scores, rows.labels, rows.weights))
    return finite and bool(((rows.labels >= 0) & (rows.labels <= 1)).all())
