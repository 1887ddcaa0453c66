"""The user's loss on batches of a fixed size, of which the last of an epoch is padded.

Every step has the same static shape, so a short batch is filled up with rows of weight 0. Keras' mean divides by all
rows, padding included; to stay the mean over the real ones, the weights are scaled by batch size / real rows first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trimtab.core.errors import ModelError
from trimtab.core.training.faults import first_line
from trimtab.core.training.rules import FIELD

_PER_BATCH = ("sum_over_batch_size", "mean")  # Keras divides by the batch's rows
_AS_WEIGHTED = ("sum", "mean_with_sample_weight")  # weight 0 is enough to leave a row out


class _FunctionLoss(keras.losses.Loss):  # type: ignore[misc]
    """A plain function of (labels, predictions) as a loss object, as Keras' compile wraps it."""

    def __init__(self, function: Any) -> None:
        super().__init__(name=getattr(function, "__name__", "loss"))
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """One loss per row."""
        return self.function(y_true, y_pred)


@dataclass(frozen=True)
class WeightedLoss:
    """A compiled loss for one output.

    Attributes:
        loss: the Keras loss object; factor: the compiled loss weight.
        scales_weights: whether weights need the factor batch size / real rows.
        from_logits: whether the model's output needs a sigmoid to be a probability.
    """

    loss: Any
    factor: float
    scales_weights: bool
    from_logits: bool

    def __call__(self, labels: Any, output: Any, weights: Any) -> Any:
        """Scalar loss of labels [B] and weights [B] against an output of [B] or [B, 1]."""
        value = tf.cast(self.loss(tf.reshape(labels, tf.shape(output)), output, weights), tf.float32)
        return value if self.factor == 1.0 else value * self.factor


def compiled_loss(model: Any) -> WeightedLoss:
    """The loss of a compiled model with one output.

    Raises:
        ModelError: when there is none, there are several, or it cannot be split by rows.
    """
    found = _only(getattr(model, "loss", None))
    if found is None:
        raise ModelError(FIELD, model.name, "compile it with a loss")
    if isinstance(found, str) and found.lower() in ("crossentropy", "ce"):
        found = "binary_crossentropy"  # what Keras makes of it for one number per row
    try:
        loss = keras.losses.get(found)
    except ValueError as error:
        raise ModelError(FIELD, f"loss {found}", first_line(error)) from error
    if not isinstance(loss, keras.losses.Loss):
        loss = _FunctionLoss(loss)
    if loss.reduction not in (*_PER_BATCH, *_AS_WEIGHTED):
        allowed = ", ".join((*_PER_BATCH, *_AS_WEIGHTED))
        raise ModelError(FIELD, f"loss with reduction={loss.reduction}", f"choose one of {allowed}")
    return WeightedLoss(
        loss=loss,
        factor=_loss_weight(model),
        scales_weights=loss.reduction in _PER_BATCH,
        from_logits=bool(getattr(loss, "from_logits", False)),
    )


def check_per_row(loss: WeightedLoss, labels: Any, output: Any) -> None:
    """Refuses a loss that mixes rows: padding could not be left out of it. Called while a graph is traced.

    Raises:
        ModelError: naming the loss.
    """
    values = loss.loss.call(tf.reshape(labels, tf.shape(output)), output)
    rows = output.shape[0]
    if tuple(values.shape) not in ((rows,), (rows, 1)):
        raise ModelError(
            FIELD, f"loss '{loss.loss.name}' giving shape {tuple(values.shape)} for {rows} rows",
            "a loss function must return one value per row, not their mean or sum",
        )  # fmt: skip


def _only(loss: Any) -> Any:
    """The one loss in whatever structure compile() was given."""
    if isinstance(loss, dict):
        loss = list(loss.values())
    if isinstance(loss, list | tuple):
        if len(loss) > 1:
            raise ModelError(FIELD, f"{len(loss)} losses", "models with one output and one loss are supported")
        return _only(loss[0]) if loss else None
    return loss


def _loss_weight(model: Any) -> float:
    # compile() keeps the weights nowhere else; absent means 1.
    weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
    if weights is None:
        return 1.0
    if isinstance(weights, dict):
        weights = list(weights.values())
    return float(weights[0] if isinstance(weights, list | tuple) else weights)
