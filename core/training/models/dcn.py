"""DCN-v2: explicit crosses of bounded degree by low-rank cross layers, then a deep network.

R. Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems",
2020, arXiv:2008.13535. The stacked form, with the cross matrices as products of two thin ones.
"""

from __future__ import annotations

import keras
import keras_rs
from keras import layers

from trimtab.core.data.columns import Columns
from trimtab.core.training.models.features import HIDDEN, Features, stack, together

CROSSES, RANK = 2, 32


def build(columns: Columns, embedding_dim: int) -> keras.Model:
    """The uncompiled model; its output is a logit [B, 1]."""
    features = Features(columns)
    features.require_categorical("dcn")
    start = together([features.dense, *features.embed(embedding_dim)])
    rank = min(RANK, start.shape[-1])
    crossed = start
    for place in range(CROSSES):
        crossed = keras_rs.layers.FeatureCross(projection_dim=rank, name=f"cross_{place}")(start, crossed)
    deep = stack(crossed, HIDDEN, "deep")
    return keras.Model(features.inputs, layers.Dense(1, name="logit")(deep), name="dcn")
