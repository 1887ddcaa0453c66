"""From `keras.layers.Embedding` to look-ups whose rows live on parameter servers.

A user's layer owns a table of a fixed vocabulary in this process's memory. Here the vocabulary is open and the table
is elsewhere, so the model's graph is run through once more with each embedding layer replaced; every other layer is
kept as the very same object, with its weights and adapted state. The replacement takes what it returns from a
`Lookups` that the model shares with its steps: one gather outside serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.models.functional import Functional  # has no public name; only to tell models apart

from trimtab.core.data.columns import MISSING_KEY
from trimtab.core.domain.model_spec import InitializerSpec
from trimtab.core.errors import ModelError
from trimtab.core.training.faults import user_error
from trimtab.core.training.rules import FIELD, initializer_spec


class Lookups:
    """What the elastic embeddings of one model return while a graph is traced; calls come in the model's own order.

    Attributes:
        answer: called with (layer, ids) for each look-up; None outside of a trace.
    """

    def __init__(self) -> None:
        self.answer: Callable[[ElasticEmbedding, Any], Any] | None = None

    @contextmanager
    def answered_by(self, answer: Callable[[ElasticEmbedding, Any], Any]) -> Iterator[None]:
        """Lets `answer` serve every look-up made inside the `with`."""
        self.answer = answer
        try:
            yield
        finally:
            self.answer = None


class ElasticEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """Stands in for one `keras.layers.Embedding`: same name, same output, no weights, any int64 id.

    Args:
        lookups: shared by all layers of the model.
        dim: floats per row.
        initializer: how a row is born.
        mask_zero: hand on a mask that hides id 0 (as Keras does) and the padding of multi-hot columns.
    """

    def __init__(
        self, lookups: Lookups, dim: int, initializer: InitializerSpec, mask_zero: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        self.lookups = lookups
        self.dim = dim
        self.row_initializer = initializer
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False
        self.built = True

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """The ids' shape and one row."""
        return (*tuple(input_shape), self.dim)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Where a real id stands; None without `mask_zero`."""
        return _real_ids(inputs) if self.mask_zero else None

    def call(self, inputs: Any) -> Any:
        """Rows of `inputs`, float [..., dim]."""
        if self.lookups.answer is None:
            raise RuntimeError(f"the rows of '{self.name}' are on the parameter servers: call it inside a step")
        ids = tf.cast(inputs, tf.int64)
        return tf.cast(self.lookups.answer(self, ids), self.compute_dtype)


@contextmanager
def open_embeddings() -> Iterator[None]:
    """While a user's function runs, embedding layers are open: no table is made, masks know the padding.

    A vocabulary of 10^9 then costs nothing here. Keras writes masks into the model's graph when a layer is called, so
    a later replacement of the layer could not change them any more.
    """
    layer = keras.layers.Embedding
    build, compute_mask = layer.build, layer.compute_mask

    def build_nothing(self: Any, input_shape: Any = None) -> None:
        self.built = True

    def mask_padding_too(self: Any, inputs: Any, mask: Any = None) -> Any:
        return _real_ids(inputs) if self.mask_zero else None

    layer.build, layer.compute_mask = build_nothing, mask_padding_too
    try:
        yield
    finally:
        layer.build, layer.compute_mask = build, compute_mask


def _real_ids(ids: Any) -> Any:
    """Where neither id 0 (as in Keras) nor the padding of a multi-hot column stands."""
    real = keras.ops.not_equal(ids, 0)
    if keras.backend.standardize_dtype(ids.dtype) != "int64":  # cannot hold the padding's key
        return real
    return keras.ops.logical_and(real, keras.ops.not_equal(ids, MISSING_KEY))


def swap_embeddings(model: Any, lookups: Lookups) -> Any:
    """`model` as a new functional model, uncompiled, inputs as a flat list, embeddings elastic, other layers shared.

    Raises:
        ModelError: naming the embedding layer that cannot be elastic, and what to do.
    """
    swapped: dict[int, Any] = {}

    def replace(layer: Any) -> Any:
        if id(layer) not in swapped:
            swapped[id(layer)] = _replacement(layer, lookups, replace)
        return swapped[id(layer)]

    try:
        clone = _rebuilt(model, list(model.inputs), model.outputs[0], replace)
    except ModelError:
        raise
    except Exception as error:  # Keras raises whatever the layer at fault raises
        raise user_error(model.name, error, "rebuilding its graph fails") from error
    names: set[str] = set()
    for layer in clone._flatten_layers():
        if isinstance(layer, keras.layers.Embedding):
            raise ModelError(
                FIELD, f"layer '{layer.name}'", "an Embedding inside another layer cannot be trained: "
                "call it in the functional model itself, or in a functional model within it",
            )  # fmt: skip
        if isinstance(layer, ElasticEmbedding):
            if layer.name in names:
                raise ModelError(FIELD, f"layer '{layer.name}'", "two Embedding layers have this name: rename one")
            names.add(layer.name)
    return clone


def _rebuilt(model: Any, inputs: Any, outputs: Any, replace: Callable[[Any], Any]) -> Any:
    # The plain model in between is uncompiled: clone_model would otherwise serialize the user's loss and metrics.
    plain = keras.Model(inputs, outputs, name=model.name)
    return keras.models.clone_model(plain, clone_function=replace)


def _replacement(layer: Any, lookups: Lookups, replace: Callable[[Any], Any]) -> Any:
    if isinstance(layer, keras.layers.Embedding):
        return _elastic(layer, lookups)
    if isinstance(layer, keras.Model) and _holds_embedding(layer):
        if not is_functional(layer):
            raise ModelError(FIELD, f"model '{layer.name}'", "an inner model with embeddings must be functional")
        if isinstance(layer, keras.Sequential):
            return _rebuilt(layer, layer.inputs[0], layer.outputs[0], replace)
        return _rebuilt(layer, layer.input, layer.output, replace)
    return layer


def is_functional(model: Any) -> bool:
    """Whether all that `model` computes is its graph of layers."""
    graph_calls = (Functional.call, keras.Sequential.call)
    return type(model).call in graph_calls and getattr(model, "inputs", None) is not None


def _holds_embedding(model: Any) -> bool:
    return any(isinstance(inner, keras.layers.Embedding) for inner in model._flatten_layers())


def _elastic(layer: Any, lookups: Lookups) -> ElasticEmbedding:
    shown = f"layer '{layer.name}'"
    if type(layer) is not keras.layers.Embedding:
        raise ModelError(FIELD, f"{shown} ({type(layer).__name__})", "use keras.layers.Embedding and pool its output")
    for option, present in (
        ("embeddings_regularizer", layer.embeddings_regularizer is not None),
        ("embeddings_constraint", layer.embeddings_constraint is not None),
        ("lora_rank", bool(layer.lora_rank)),
        ("quantization", layer.dtype_policy.quantization_mode is not None),
    ):
        if present:
            raise ModelError(FIELD, f"{option} of {shown}", "is not supported for embeddings: leave it out")
    if not layer.trainable:
        raise ModelError(FIELD, f"trainable=False of {shown}", "embeddings are always trained: leave it out")
    return ElasticEmbedding(
        lookups,
        int(layer.output_dim),
        initializer_spec(layer.embeddings_initializer, int(layer.output_dim), layer.name),
        mask_zero=bool(layer.mask_zero),
        name=layer.name,
        dtype=layer.dtype_policy,
    )
