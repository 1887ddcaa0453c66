"""DeepFM: a factorization machine and a deep network over the same embeddings.

H. Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017, arXiv:1703.04247. The
sum over all pairs of dot products is taken in linear time, after S. Rendle, "Factorization Machines", 2010.
"""

from __future__ import annotations

import keras
from keras import layers, ops

from trimtab.core.data.columns import Columns
from trimtab.core.training.models.features import HIDDEN, Features, stack, together


def build(columns: Columns, embedding_dim: int) -> keras.Model:
    """The uncompiled model; its output is a logit [B, 1]."""
    features = Features(columns)
    features.require_categorical("deepfm")
    first_order = features.embed(1, "first", "zeros")
    if features.dense is not None:
        first_order.append(layers.Dense(1, use_bias=False, name="first_dense")(features.dense))
    embedded = features.embed(embedding_dim)
    factors = ops.stack(embedded, axis=1)
    total = ops.sum(factors, axis=1)
    pairs = 0.5 * ops.sum(total * total - ops.sum(factors * factors, axis=1), axis=1, keepdims=True)
    deep = stack(together([features.dense, *embedded]), HIDDEN, "deep")
    logit = layers.Add()([*first_order, pairs, layers.Dense(1, name="deep_logit")(deep)])
    return keras.Model(features.inputs, logit, name="deepfm")
