"""DLRM: a bottom network for the numbers, dot products between all features, a top network.

M. Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019,
arXiv:1906.00091.
"""

from __future__ import annotations

from typing import Any

import keras
import keras_rs
from keras import layers

from trimtab.core.data.columns import Columns
from trimtab.core.training.models.features import Features, stack, together

BOTTOM, TOP = 64, 64


def build(columns: Columns, embedding_dim: int) -> keras.Model:
    """The uncompiled model; its output is a logit [B, 1]."""
    features = Features(columns)
    features.require_categorical("dlrm")
    embedded = features.embed(embedding_dim)
    bottom = None if features.dense is None else stack(features.dense, (BOTTOM, embedding_dim), "bottom")
    crossing = embedded if bottom is None else [*embedded, bottom]
    # The full matrix of products costs less than picking its lower half, and Dense ignores the zeros.
    crossed: Any = keras_rs.layers.DotInteraction(self_interaction=False, skip_gather=True)(crossing)
    top = stack(together([bottom, crossed]), (TOP,), "top")
    return keras.Model(features.inputs, layers.Dense(1, name="logit")(top), name="dlrm")
