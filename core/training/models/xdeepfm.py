"""xDeepFM: vector-wise crosses of growing order (a compressed interaction network) beside a deep and a linear part.

J. Lian et al., "xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems", 2018,
arXiv:1803.05170.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from trimtab.core.data.columns import Columns
from trimtab.core.training.models.features import HIDDEN, Features, stack, together

MAPS = (8, 8)  # feature maps of each layer of the interaction network


def build(columns: Columns, embedding_dim: int) -> keras.Model:
    """The uncompiled model; its output is a logit [B, 1]."""
    features = Features(columns)
    features.require_categorical("xdeepfm")
    linear = features.embed(1, "linear", "zeros")
    if features.dense is not None:
        linear.append(layers.Dense(1, use_bias=False, name="linear_dense")(features.dense))
    embedded = features.embed(embedding_dim)
    fields = ops.stack(embedded, axis=2)  # [B, dim, fields]: crosses are taken for each component by itself
    maps, pooled = fields, []
    for order, units in enumerate(MAPS, start=2):
        maps = _crossed(fields, maps, units, f"cross_{order}")
        pooled.append(ops.sum(maps, axis=1))
    deep = stack(together([features.dense, *embedded]), HIDDEN, "deep")
    parts = [
        layers.Dense(1, use_bias=False, name="cross_logit")(together(pooled)),
        layers.Dense(1, name="deep_logit")(deep),
    ]
    return keras.Model(features.inputs, layers.Add()([*linear, *parts]), name="xdeepfm")


def _crossed(fields: Any, maps: Any, units: int, name: str) -> Any:
    """Weighted sums of all products of a field and a map, [B, dim, units]."""
    dim, pairs = fields.shape[1], fields.shape[2] * maps.shape[2]
    products = ops.reshape(fields[:, :, :, None] * maps[:, :, None, :], (-1, dim, pairs))
    return layers.Dense(units, use_bias=False, name=name)(products)
