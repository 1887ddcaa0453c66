"""The built-in models: five published click-through models, ready for any columns.

Each module builds an uncompiled functional model from ordinary Keras and keras-rs layers and nothing of trimtab's
training, so that it can be read, copied and changed as a start of one's own. They are compiled alike, here.
"""

from __future__ import annotations

import importlib
from typing import Any

from trimtab.core.data.columns import Columns

LEARNING_RATE = 0.1  # Adagrad's; embeddings see a row rarely, so far above Keras' default of 0.001


def build_built_in(name: str, columns: Columns, embedding_dim: int) -> Any:
    """The built-in model `name`, compiled with Adagrad and the binary cross-entropy of its logit."""
    import keras

    model = importlib.import_module(f"{__name__}.{name}").build(columns, embedding_dim)
    model.compile(
        optimizer=keras.optimizers.Adagrad(learning_rate=LEARNING_RATE),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
    )
    return model
