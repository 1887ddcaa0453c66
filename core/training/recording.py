"""One dry run of a model, from which everything about its look-ups and its state is learned.

The model is traced once with embeddings that write down their ids and answer zeros. That gives every look-up in the
order of the calls (nested models and shared layers included), a function that computes only the ids (TensorFlow
prunes the rest), and which non-trainable variables a training call changes. Nothing is guessed from the layers' types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trimtab.core.errors import ModelError
from trimtab.core.training.embedding import ElasticEmbedding, Lookups
from trimtab.core.training.faults import user_error
from trimtab.core.training.graph import only_moves, reached
from trimtab.core.training.inputs import Binding, Source
from trimtab.core.training.rules import FIELD

SEED_STATE = "seed_generator_state"  # keras.random.SeedGenerator's variable


@dataclass(frozen=True)
class RecordedCall:
    """One look-up as traced: the layer and the shape of its ids, batch first and complete."""

    layer: ElasticEmbedding
    shape: tuple[int, ...]

    @property
    def ids(self) -> int:
        """How many ids it looks up."""
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class Recording:
    """What a dry run found.

    Attributes:
        calls: look-ups in call order.
        order: places in `calls`, sorted by (dim, first call of the layer): the order of positions.
        ids: concrete function from the sources to the ids of each dim, flat int64, in `order`.
        only_moves: whether the ids are mere copies of input columns.
        used: for each source, whether the model computes with it beyond looking up its ids.
        changing: for each non-trainable variable, whether a training call changes it.
        output_shape: of the model's output.
    """

    calls: tuple[RecordedCall, ...]
    order: tuple[int, ...]
    ids: Any
    only_moves: bool
    used: tuple[bool, ...]
    changing: tuple[bool, ...]
    output_shape: tuple[int | None, ...]


def record(
    model: Any, lookups: Lookups, sources: tuple[Source, ...], bindings: tuple[Binding, ...], batch_size: int
) -> Recording:
    """Traces `model` (functional, swapped) on batches of `batch_size`.

    Raises:
        ModelError: when the model cannot be traced, or keeps state where it cannot be served.
    """
    calls: list[RecordedCall] = []
    recorded: list[Any] = []
    rows: list[Any] = []
    notes: dict[str, Any] = {}
    frozen = [variable.numpy() for variable in model.non_trainable_variables]

    def answer(layer: ElasticEmbedding, ids: Any) -> Any:
        if ids.shape.rank is None or not ids.shape.is_fully_defined():
            raise ModelError(FIELD, f"ids of layer '{layer.name}'", "their shape must not depend on their values")
        calls.append(RecordedCall(layer, tuple(ids.shape)))
        recorded.append(tf.reshape(ids, [-1]))
        rows.append(tf.zeros((*ids.shape, layer.dim)) * tf.ones(()))
        return rows[-1]

    def dry_run(*arrays: Any) -> list[Any]:
        constants = [tf.constant(value) for value in frozen]
        with lookups.answered_by(answer):
            output, after, losses = model.stateless_call(
                [tf.zeros(variable.shape, variable.dtype) for variable in model.trainable_variables], constants,
                [binding.cut(arrays[binding.source]) for binding in bindings], training=True, return_losses=True,
            )  # fmt: skip
        needed = reached([output, *(loss for loss in losses if tf.is_tensor(loss))])
        notes["used"] = tuple(array.op.name in needed for array in arrays)
        notes["changing"] = tuple(new is not old for new, old in zip(after, constants, strict=True))
        notes["output"] = tuple(output.shape)
        notes["order"] = _order(calls)
        dims = sorted({call.layer.dim for call in calls})
        return [
            tf.concat([recorded[place] for place in notes["order"] if calls[place].layer.dim == dim], 0)
            for dim in dims
        ]  # fmt: skip

    signature = [tf.TensorSpec([batch_size, source.width], source.dtype) for source in sources]
    try:
        concrete = tf.function(dry_run, input_signature=signature, autograph=False).get_concrete_function()
    except ModelError:
        raise
    except Exception as error:  # a user's layer may raise anything
        raise user_error(model.name, error, "calling it fails") from error
    _check_variables(concrete, model, notes["changing"])
    if calls and {row.op.name for row in rows} & reached(recorded):
        raise ModelError(FIELD, model.name, "ids of an Embedding may not depend on the output of another one")
    return Recording(
        tuple(calls), notes["order"], concrete, all(only_moves(one) for one in recorded), notes["used"],
        notes["changing"], notes["output"],
    )  # fmt: skip


def is_seed(variable: Any) -> bool:
    """Whether a variable is the state of a random generator."""
    return variable.name == SEED_STATE and tuple(variable.shape) == (2,)


def _order(calls: list[RecordedCall]) -> tuple[int, ...]:
    first: dict[str, int] = {}
    for place, call in enumerate(calls):
        first.setdefault(call.layer.name, place)
    return tuple(sorted(range(len(calls)), key=lambda at: (calls[at].layer.dim, first[calls[at].layer.name], at)))


def _check_variables(concrete: Any, model: Any, changing: tuple[bool, ...]) -> None:
    for variable in concrete.variables:
        raise ModelError(
            FIELD, f"variable '{variable.name}'", "is no weight of a layer of the model, so it cannot be trained or "
            "moved: make it a layer's weight (random draws: give them a keras.random.SeedGenerator of the layer)",
        )  # fmt: skip
    for variable, changes in zip(model.non_trainable_variables, changing, strict=True):
        if changes and not is_seed(variable) and not keras.backend.is_float_dtype(variable.dtype):
            raise ModelError(
                FIELD, f"state '{variable.path}' of dtype {variable.dtype}", "changes while training; only float "
                "state can be kept",
            )  # fmt: skip
