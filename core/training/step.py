"""One training step as one TensorFlow function: no variables, no copies, nothing decided at run time.

Measured on the DLRM of the benchmarks, these choices brought the step from 4.5 to 2 CPU milliseconds: static shapes, a
concrete function, inputs that share NumPy's memory, one gather for all embeddings of a width, weights cut from one
flat tensor (`stateless_call`, no assignments), gradients taken with respect to the gathered rows and the flat weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from trimtab.core.domain.model_spec import DENSE_BLOCK
from trimtab.core.errors import ModelError
from trimtab.core.training.direct import direct_ids
from trimtab.core.training.elastic import ElasticModel, FlatVariables
from trimtab.core.training.faults import user_error
from trimtab.core.training.inputs import Source
from trimtab.core.training.losses import check_per_row
from trimtab.core.training.rules import FIELD
from trimtab.core.training.runtime import as_tensor, configure_tensorflow, flat_call

if TYPE_CHECKING:
    from trimtab.core.data.batches import Batch


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step gives; the arrays are views of TensorFlow's results and stay valid as long as they are held.

    Attributes:
        loss: mean over the real rows, regularizers included.
        finite: whether loss and every gradient are.
        row_gradients: per group float32 [positions, dim], one per position (not summed over equal rows).
        dense_gradient: float32 [256 * blocks]; empty for a model without such weights.
        state_delta: new minus old state, float32 [256 * blocks], or None.
    """

    loss: float
    finite: bool
    row_gradients: list[np.ndarray]
    dense_gradient: np.ndarray
    state_delta: np.ndarray | None


class TrainStep:
    """The traced functions of one elastic model. Made once per process; not for several threads at a time.

    Args:
        model: made for the same batch size.
        batch_size: rows of every batch, padding included.
        seed: of the job; with the batch number it fixes every random draw.
        threads: for TensorFlow, if it does not run yet.

    Raises:
        ModelError: when the step cannot be traced, with the reason of the layer or loss at fault.
    """

    def __init__(self, model: ElasticModel, batch_size: int, seed: int, threads: int = 1) -> None:
        configure_tensorflow(threads)
        if batch_size != model.batch_size:
            raise ValueError(f"model was made for batches of {model.batch_size} rows, not {batch_size}")
        self.model = model
        self.batch_size = batch_size
        self.seed = seed
        self._direct = direct_ids(model.recording, model.sources, batch_size)
        self._fed = [source for source, used in zip(model.sources, model.recording.used, strict=True) if used]
        self._frozen = [variable.numpy() for variable in model.model.non_trainable_variables]
        self._train = self._traced(self._train_graph, training=True)
        self._rate = _learning_rate(model.compiled.optimizer)

    # ---- what a worker calls

    def ids(self, batch: Batch) -> list[np.ndarray]:
        """Per group the ids to look up, int64 [positions]: look-up after look-up, each row-major."""
        if self._direct is not None:
            return self._direct.of(batch)
        if not self.model.groups:
            return []
        return [np.asarray(ids) for ids in self.model.recording.ids(*self._arrays(batch, self.model.sources))]

    def train(
        self,
        batch: Batch,
        rows: list[np.ndarray],
        places: list[np.ndarray],
        dense: np.ndarray,
        state: np.ndarray | None = None,
    ) -> StepResult:
        """One forward and backward pass.

        Args:
            batch: its number fixes the random draws.
            rows: per group the pulled rows, float32 [n, dim].
            places: per group, for each position its row in `rows`, int32 [positions].
            dense, state: float32 [256 * blocks] (None or empty where the model has none).
        """
        weights = batch.weight
        if self.model.loss.scales_weights and batch.rows != self.batch_size:
            weights = weights * np.float32(self.batch_size / batch.rows)
        tensors = self._arrays(batch, self._fed)
        tensors += [as_tensor(tf, batch.label), as_tensor(tf, weights)]
        if self.model.seeds:
            tensors.append(tf.constant(self._draw_seeds(batch.number)))
        tensors += self._tables(rows, places, dense, state)
        results = [np.asarray(result) for result in self._train(*tensors)]
        loss, check = results[0].tolist()
        groups = len(self.model.groups)
        has_dense = bool(self.model.trainable.blocks)
        return StepResult(
            loss=loss,
            finite=math.isfinite(check),
            row_gradients=results[1 : 1 + groups],
            dense_gradient=results[1 + groups] if has_dense else np.zeros(0, np.float32),
            state_delta=results[-1] if self.model.state.blocks else None,
        )

    def score(
        self,
        batch: Batch,
        rows: list[np.ndarray],
        places: list[np.ndarray],
        dense: np.ndarray,
        state: np.ndarray | None = None,
    ) -> np.ndarray:
        """One number per row of `batch`, float32 [batch_size].

        It is a probability if the loss works on logits (by a sigmoid here), else the model's output as it is.
        """
        tensors = self._arrays(batch, self.model.sources) + self._tables(rows, places, dense, state)
        return np.asarray(self._score(*tensors)[0])

    def learning_rate(self, number: int) -> float:
        """The compiled rate, or schedule, for a batch number."""
        return self._rate(number)

    def metrics(self, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict[str, float]:
        """The user's compiled metrics over merged scores [n]; those that are not one finite number are left out."""
        values = {name: np.asarray(value) for name, value in self._computed(scores, labels, weights).items()}
        return {name: float(value) for name, value in values.items() if value.shape == () and np.isfinite(value)}

    def metric_names(self, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> list[str]:
        """Names of the compiled metrics, which Keras only knows once it has seen some scores.

        Raises:
            ModelError: when they cannot be computed.
        """
        try:
            return list(self._computed(scores, labels, weights))
        except Exception as error:  # a user's metric may raise anything
            raise user_error(self.model.compiled.name, error, "its metrics fail") from error

    def _computed(self, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
        output = scores.astype(np.float32)
        if self.model.loss.from_logits:  # metrics see what the model gives, as in Keras
            inside = np.clip(output.astype(np.float64), 1e-7, 1 - 1e-7)
            output = np.log(inside / (1 - inside)).astype(np.float32)
        shape = (-1,) if len(self.model.recording.output_shape) == 1 else (-1, 1)
        compiled = self.model.compiled
        compiled.reset_metrics()
        arrays = [tf.constant(array) for array in (labels.reshape(shape), output.reshape(shape), weights)]
        found = compiled.compute_metrics(None, *arrays)
        compiled.reset_metrics()
        return {name: value for name, value in found.items() if name != "loss"}

    # ---- the graphs

    @cached_property
    def _score(self) -> Callable[..., list[Any]]:
        """Traced when first asked for: most workers of a job never evaluate."""
        return self._traced(self._score_graph, training=False)

    def _traced(self, graph: Callable[..., Any], training: bool) -> Callable[..., list[Any]]:
        model, spec = self.model, tf.TensorSpec
        # Only the training step leaves out inputs that it was seen not to use: a layer may use one when not training.
        fed = self._fed if training else model.sources
        signature = [spec([self.batch_size, source.width], source.dtype) for source in fed]
        if training:
            signature += [spec([self.batch_size]), spec([self.batch_size])]
            if model.seeds:
                signature.append(spec([len(model.seeds), 2], tf.int64))
        signature += [spec([None, group.dim]) for group in model.groups]
        signature += [spec([group.positions], tf.int32) for group in model.groups]
        signature += [spec([flat.blocks * DENSE_BLOCK]) for flat in (model.trainable, model.state) if flat.blocks]
        try:
            concrete = tf.function(graph, input_signature=signature, autograph=False).get_concrete_function()
        except ModelError:
            raise
        except Exception as error:  # a user's layer or loss may raise anything
            what = "training step" if training else "evaluation"
            raise user_error(model.compiled.name, error, f"its {what} fails") from error
        return flat_call(concrete)

    def _train_graph(self, *tensors: Any) -> list[Any]:
        model = self.model
        todo = list(tensors)
        fed = [todo.pop(0) for _ in self._fed]
        labels, weights = todo.pop(0), todo.pop(0)
        seeds = todo.pop(0) if model.seeds else None
        rows, places, dense, state = self._unpacked(todo)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            gathered = [tf.gather(*pair) for pair in zip(rows, places, strict=True)]
            tape.watch([*gathered, *dense])
            output, after, losses = self._run(self._completed(fed), gathered, dense, state, seeds, training=True)
            check_per_row(model.loss, labels, output)
            loss = model.loss(labels, output, weights)
            if losses:
                loss = tf.add_n([loss, *(tf.reduce_sum(tf.cast(one, tf.float32)) for one in losses)])
        gradients = tape.gradient(loss, [*gathered, *dense], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        results = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if model.state.blocks:
            new = [after[place] for place in model.state_places]
            parts = [tf.reshape(tf.cast(one, tf.float32), [-1]) for one in new]
            results.append(tf.concat([*parts, tf.zeros([model.state.padding])], 0) - _unpadded(state[0], model.state))
        # One sum per result instead of a mask of all its floats: not finite if any of them is not.
        check = tf.add_n([loss, *(tf.reduce_sum(result) for result in results)])
        return [tf.stack([loss, check]), *results]

    def _score_graph(self, *tensors: Any) -> list[Any]:
        todo = list(tensors)
        sources = [todo.pop(0) for _ in self.model.sources]
        rows, places, dense, state = self._unpacked(todo)
        gathered = [tf.gather(*pair) for pair in zip(rows, places, strict=True)]
        output, _, _ = self._run(sources, gathered, dense, state, None, training=False)
        scores = tf.reshape(tf.cast(output, tf.float32), [-1])
        return [tf.sigmoid(scores) if self.model.loss.from_logits else scores]

    def _completed(self, fed: list[Any]) -> list[Any]:
        """All sources, zeros for those that the step was seen not to use."""
        given = iter(fed)
        return [
            next(given) if used else tf.zeros([self.batch_size, source.width], source.dtype)
            for source, used in zip(self.model.sources, self.model.recording.used, strict=True)
        ]

    def _run(
        self, sources: list[Any], gathered: list[Any], dense: list[Any], state: list[Any], seeds: Any, training: bool
    ) -> tuple[Any, list[Any], list[Any]]:
        """The model's output, its non-trainable variables afterwards and its extra losses."""
        model = self.model
        weights = _cut(dense[0], model.trainable) if dense else []
        frozen = [tf.constant(value) for value in self._frozen]
        for place, value in zip(model.state_places, _cut(state[0], model.state) if state else [], strict=True):
            frozen[place] = value
        for at, place in enumerate(model.seeds if seeds is not None else ()):
            frozen[place] = tf.cast(seeds[at], frozen[place].dtype)
        inputs = [binding.cut(sources[binding.source]) for binding in model.bindings]
        looked_up = self._looked_up(gathered)
        calls = iter(range(len(looked_up)))

        def answer(layer: Any, ids: Any) -> Any:
            call = next(calls)
            if model.recording.calls[call].layer is not layer:
                raise ModelError(FIELD, f"layer '{layer.name}'", "is not called in the same order every time")
            return looked_up[call]

        with model.lookups_context.answered_by(answer):
            output, after, losses = model.model.stateless_call(
                weights, frozen, inputs, training=training, return_losses=True
            )
        return output, after, losses

    def _looked_up(self, gathered: list[Any]) -> dict[int, Any]:
        """For each call of an embedding its rows [*ids' shape, dim], by place of the call."""
        model = self.model
        found: dict[int, Any] = {}
        for tensor, group in zip(gathered, model.groups, strict=True):
            members = [model.lookups[at] for at in group.lookups]
            parts = tf.split(tensor, [lookup.length for lookup in members])
            for at, lookup, part in zip(group.lookups, members, parts, strict=True):
                found[model.recording.order[at]] = tf.reshape(part, [*lookup.shape, group.dim])
        return found

    def _unpacked(self, todo: list[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        model, groups = self.model, len(self.model.groups)
        rows, places, flat = todo[:groups], todo[groups : 2 * groups], todo[2 * groups :]
        dense = [flat.pop(0)] if model.trainable.blocks else []
        return rows, places, dense, flat

    # ---- feeding them

    def _arrays(self, batch: Batch, sources: Sequence[Source]) -> list[Any]:
        return [as_tensor(tf, source.of(batch)) for source in sources]

    def _tables(
        self, rows: list[np.ndarray], places: list[np.ndarray], dense: np.ndarray, state: np.ndarray | None
    ) -> list[Any]:
        flat = [array for array in (dense, state) if array is not None and array.size]
        return [as_tensor(tf, array) for array in (*rows, *places, *flat)]

    def _draw_seeds(self, number: int) -> np.ndarray:
        count = 2 * len(self.model.seeds)
        return np.random.SeedSequence((self.seed, number)).generate_state(count).astype(np.int64).reshape(-1, 2)


def _cut(vector: Any, flat: FlatVariables) -> list[Any]:
    """The variables' tensors from their flat vector."""
    sizes = [*flat.sizes, flat.padding] if flat.padding else flat.sizes
    parts = tf.split(vector, sizes)
    return [
        tf.cast(tf.reshape(part, shape), variable.dtype)
        for part, shape, variable in zip(parts, flat.shapes, flat.variables, strict=False)
    ]


def _unpadded(vector: Any, flat: FlatVariables) -> Any:
    """`vector` with zeros where no variable lies, so that a delta leaves the padding as it is."""
    return tf.concat([vector[: flat.floats], tf.zeros([flat.padding])], 0) if flat.padding else vector


def _learning_rate(optimizer: Any) -> Callable[[int], float]:
    rate = optimizer._learning_rate  # the property would evaluate a schedule at the optimizer's own count
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return lambda number: float(rate(number))
    if callable(rate) and not hasattr(rate, "numpy"):
        raise ModelError(FIELD, "learning_rate given as a function", "use a number or a LearningRateSchedule")
    constant = float(rate.numpy())
    return lambda number: constant
