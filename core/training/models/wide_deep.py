"""Wide & Deep: a linear model over ids and numbers, and beside it a deep one over their embeddings.

H.-T. Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016, arXiv:1606.07792. The paper's hand-made
crosses of columns are left to the data.
"""

from __future__ import annotations

import keras
from keras import layers

from trimtab.core.data.columns import Columns
from trimtab.core.training.models.features import HIDDEN, Features, stack, together


def build(columns: Columns, embedding_dim: int) -> keras.Model:
    """The uncompiled model; its output is a logit [B, 1]."""
    features = Features(columns)
    features.require_categorical("wide_deep")
    wide = features.embed(1, "wide", "zeros")
    if features.dense is not None:
        wide.append(layers.Dense(1, use_bias=False, name="wide_dense")(features.dense))
    deep = stack(together([features.dense, *features.embed(embedding_dim)]), HIDDEN, "deep")
    logit = layers.Add()([*wide, layers.Dense(1, name="deep_logit")(deep)])
    return keras.Model(features.inputs, logit, name="wide_deep")
