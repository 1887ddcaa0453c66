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
    fields = ops.stack(embedded, axis=1)  # [B, fields, dim]: crosses are taken for each component by itself
    maps, pooled = fields, []
    for order, units in enumerate(MAPS, start=2):
        if order < len(MAPS) + 1:
            maps = _crossed(fields, maps, units, f"cross_{order}")
            pooled.append(ops.sum(maps, axis=2))
        else:
            pooled.append(_pooled(fields, maps, units, f"cross_{order}"))
    deep = stack(together([features.dense, *embedded]), HIDDEN, "deep")
    parts = [
        layers.Dense(1, use_bias=False, name="cross_logit")(together(pooled)),
        layers.Dense(1, name="deep_logit")(deep),
    ]
    return keras.Model(features.inputs, layers.Add()([*linear, *parts]), name="xdeepfm")


def _crossed(fields: Any, maps: Any, units: int, name: str) -> Any:
    """Weighted sums of all products of a field and a map, [B, units, dim].

    The weights meet the fields first: the products of all pairs would be some hundred floats per component.
    """
    dim, width = fields.shape[2], maps.shape[1]
    weighted = layers.Dense(units * width, use_bias=False, name=name)(ops.transpose(fields, (0, 2, 1)))
    weighted = ops.reshape(weighted, (-1, dim, units, width))
    crossed = ops.sum(weighted * ops.transpose(maps, (0, 2, 1))[:, :, None, :], axis=3)
    return ops.transpose(crossed, (0, 2, 1))


def _pooled(fields: Any, maps: Any, units: int, name: str) -> Any:
    """The same sums added up over the components, [B, units], for the last layer, whose maps nobody else needs.

    The sum over components and the weighted sum over pairs may change places, and the former leaves little to weigh.
    """
    products = ops.matmul(fields, ops.transpose(maps, (0, 2, 1)))
    return layers.Dense(units, use_bias=False, name=name)(layers.Flatten()(products))
