"""A tiny in-memory parameter server, batches by hand, and the same model as plain Keras trains it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trimtab.core.data.batches import Batch, aligned
from trimtab.core.data.columns import CategoricalColumn, Columns, DenseColumn

DIM, VOCABULARY = 4, 20
COLUMNS = Columns(
    label="y",
    dense=(DenseColumn("price"), DenseColumn("age")),
    categorical=(
        CategoricalColumn("user"), CategoricalColumn("item"), CategoricalColumn("shop"),
        CategoricalColumn("tags", length=3),
    ),
)  # fmt: skip


def make_batch(size: int, number: int = 0, rows: int | None = None, columns: Columns = COLUMNS) -> Batch:
    """Rows from (number); with `rows` the rest is padding, as core/data pads."""
    real = size if rows is None else rows
    random = np.random.default_rng(number)
    multi = [column.length for column in columns.multi]
    dense, keys, label, weight, *lists = aligned(
        ((size, len(columns.dense)), np.float32), ((size, len(columns.single)), np.int64), ((size,), np.float32),
        ((size,), np.float32), *(((size, length), np.int64) for length in multi),
    )  # fmt: skip
    for array in (keys, *lists):
        array[:real] = random.integers(0, VOCABULARY, array[:real].shape)
    dense[:real] = random.normal(size=dense[:real].shape)
    label[:real] = keys[:real, 0] < VOCABULARY / 2 if keys.shape[1] else random.integers(0, 2, real)
    weight[:real] = random.choice([0.5, 1.0, 2.0], real)
    for array in (dense, keys, label, *lists):
        array[real:] = array[real - 1]
    weight[real:] = 0
    return Batch(
        number, real, dense, keys, {c.name: a for c, a in zip(columns.multi, lists, strict=True)}, label, weight
    )


class TinyPs:
    """Every row of every table in dictionaries; plain gradient descent or Adagrad."""

    def __init__(self, elastic: Any, seed: int = 0) -> None:
        self.elastic, self.seed = elastic, seed
        self.values: dict[tuple[int, int], np.ndarray] = {}
        self.slots: dict[tuple[int, int], np.ndarray] = {}
        blocks = {name: array.ravel() for name, array in elastic.initial_blocks().items()}
        self.dense, self.state = blocks.get("dense", np.zeros(0, np.float32)), blocks.get("state")
        self.dense_slots = np.full_like(self.dense, 0.1)

    def row(self, table: int, key: int) -> np.ndarray:
        if (table, key) not in self.values:
            dim = self.elastic.tables[table].dim
            draw = np.random.default_rng([self.seed, table, key % 2**32])
            self.values[table, key] = draw.uniform(-0.1, 0.1, dim).astype(np.float32)
        return self.values[table, key]

    def names(self, ids: list[np.ndarray]) -> list[list[tuple[int, int]]]:
        """(table, key) of every position."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.elastic.groups]
        for lookup in self.elastic.lookups:
            keys = ids[lookup.group][lookup.offset : lookup.offset + lookup.length]
            assert len(found[lookup.group]) == lookup.offset
            found[lookup.group] += [(lookup.table, int(key)) for key in keys]
        return found

    def pull(self, step: Any, batch: Batch) -> tuple[list[np.ndarray], list[np.ndarray], list[list[tuple[int, int]]]]:
        """Unique rows and the places of all positions in them."""
        rows, places, distinct = [], [], []
        for group, names in zip(self.elastic.groups, self.names(step.ids(batch)), strict=True):
            known = {name: place for place, name in enumerate(dict.fromkeys(names))}
            pulled, places_ = aligned(((len(known), group.dim), np.float32), ((len(names),), np.int32))
            pulled[:] = [self.row(*name) for name in known]
            places_[:] = [known[name] for name in names]
            rows.append(pulled)
            places.append(places_)
            distinct.append(list(known))
        return rows, places, distinct

    def gradients(self, step: Any, batch: Batch) -> tuple[Any, dict[tuple[int, int], np.ndarray]]:
        """The step's result, and its row gradients summed by (table, key)."""
        rows, places, distinct = self.pull(step, batch)
        result = step.train(batch, rows, places, self.dense, self.state)
        found: dict[tuple[int, int], np.ndarray] = {}
        for gradient, at, names in zip(result.row_gradients, places, distinct, strict=True):
            summed = np.zeros((len(names), gradient.shape[1]), np.float32)
            np.add.at(summed, at, gradient)
            found |= dict(zip(names, summed, strict=True))
        return result, found

    def train(self, step: Any, batch: Batch, rate: float) -> float:
        """One Adagrad step; the loss before it."""
        result, gradients = self.gradients(step, batch)
        for name, gradient in gradients.items():
            slot = self.slots.setdefault(name, np.full_like(gradient, 0.1))
            slot += gradient**2
            self.values[name] = self.row(*name) - rate * gradient / np.sqrt(slot)
        self.dense_slots += result.dense_gradient**2
        self.dense = self.dense - rate * result.dense_gradient / np.sqrt(self.dense_slots)
        if self.state is not None:
            self.state = self.state + result.state_delta
        return float(result.loss)

    def scores(self, step: Any, batch: Batch) -> np.ndarray:
        rows, places, _ = self.pull(step, batch)
        return np.asarray(step.score(batch, rows, places, self.dense, self.state))


def check_against_keras(
    keras: Any, make_step: Any, model: Any, batch: Batch, inputs: dict[str, np.ndarray], columns: Columns = COLUMNS
) -> tuple[Any, TinyPs, Any, Any]:
    """One step of `model` against Keras' own training of the same model with ordinary embeddings.

    Keras gets only the real rows. Returns step, server, the step's result and the trained Keras model.
    """
    step, ps = make_step(model, len(batch.label), columns)
    result, gradients = ps.gradients(step, batch)
    plain = plain_twin(keras, model)
    tables = {table.name: place for place, table in enumerate(ps.elastic.tables)}
    embeddings = [layer for layer in plain._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    for layer in embeddings:
        layer.set_weights([np.stack([ps.row(tables[layer.name], key) for key in range(VOCABULARY)])])
    loss = model.loss if model.loss is not None else "binary_crossentropy"
    plain.compile(keras.optimizers.SGD(1.0), loss, jit_compile=False)
    before = [variable.numpy().copy() for variable in plain.trainable_variables]
    real = slice(0, batch.rows)
    given = {name: array[real] for name, array in inputs.items()}
    ours = plain.train_on_batch(given, batch.label[real], sample_weight=batch.weight[real])
    assert result.finite
    assert result.loss == pytest.approx(float(ours), abs=1e-5)
    moved = {
        variable.path: old - variable.numpy()
        for variable, old in zip(plain.trainable_variables, before, strict=True)
    }
    for layer in embeddings:
        expected = moved.pop(layer.embeddings.path)
        mine = np.zeros_like(expected)
        for (table, key), gradient in gradients.items():
            if table == tables[layer.name]:
                mine[key] += gradient
        np.testing.assert_allclose(mine, expected, atol=1e-5)
    flat = np.concatenate([array.ravel() for array in moved.values()])
    np.testing.assert_allclose(result.dense_gradient[: len(flat)], flat, atol=1e-5)
    assert not result.dense_gradient[len(flat) :].any()
    return step, ps, result, plain


def plain_twin(keras: Any, model: Any) -> Any:
    """The same graph with real, small embedding tables; every other layer is copied with its weights."""

    def copied(layer: Any) -> Any:
        config = layer.get_config()
        if isinstance(layer, keras.layers.Embedding):
            config["input_dim"] = VOCABULARY
        return layer.__class__.from_config(config) if isinstance(layer, keras.layers.Layer) else layer

    twin = keras.models.clone_model(
        keras.Model(model.inputs, model.outputs, name=model.name), clone_function=copied, recursive=True
    )
    mine, theirs = (_weights_outside_embeddings(keras, one) for one in (model, twin))
    for variable, copy in zip(mine, theirs, strict=True):
        copy.assign(variable)
    for layer in twin.layers:
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()  # it computes with what it derived from its variables
    return twin


def _weights_outside_embeddings(keras: Any, model: Any) -> list[Any]:
    embeddings = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    left_out = {id(variable) for layer in embeddings for variable in layer.weights}
    return [one for one in model.weights if id(one) not in left_out and "seed_generator" not in one.path]


def bundles(batch: Batch) -> dict[str, np.ndarray]:
    """The inputs of a built-in model."""
    return {"dense": batch.dense, "categorical": batch.keys, **batch.multi}


def by_column(batch: Batch, columns: Columns = COLUMNS) -> dict[str, np.ndarray]:
    """The inputs of a model with one Input per column."""
    found = {column.name: batch.dense[:, place] for place, column in enumerate(columns.dense)}
    found |= {column.name: batch.keys[:, place] for place, column in enumerate(columns.single)}
    return found | batch.multi
