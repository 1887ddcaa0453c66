"""A trained model as a plain Keras graph: stock layers only, so that it loads where trimtab is not.

The network is run through once more with each embedding replaced by a look-up from 64-bit keys to rows and an ordinary
`Embedding` over the rows that were trained; the first row is the table's default row, for ids never trained. In front
of it stands what the data's conversion does to dense values, in double precision as there, so that the inputs are one
per column and raw. Nothing of it is approximate: scores equal the product's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from trimtab.core.data.columns import Columns
from trimtab.core.errors import CorruptCopy, ModelError
from trimtab.core.training.elastic import ElasticModel, FlatVariables
from trimtab.core.training.inputs import CATEGORICAL, DENSE, Binding, Source
from trimtab.core.training.rules import FIELD

Rows = Mapping[str, tuple[np.ndarray, np.ndarray]]  # by table: keys [n] ascending, values [n, dim]
Standard = Mapping[str, tuple[float, float, float]]  # by standard column: shift, mean, deviation

_LARGEST = float(np.finfo(np.float32).max)


def set_weights(elastic: ElasticModel, rows: Rows) -> None:
    """Put the trained dense weights and states into the model's variables.

    Raises:
        CorruptCopy: the rows lack blocks that the model needs.
    """
    for name, flat in (("dense", elastic.trainable), ("state", elastic.state)):
        if flat.blocks:
            _assign(name, flat, rows)


def _assign(name: str, flat: FlatVariables, rows: Rows) -> None:
    keys, values = rows[name]
    if keys.tolist() != list(range(flat.blocks)):
        raise CorruptCopy(f"table '{name}' has {len(keys)} blocks of {flat.blocks}")
    vector, at = values.ravel(), 0
    for variable, shape, size in zip(flat.variables, flat.shapes, flat.sizes, strict=True):
        variable.assign(vector[at : at + size].reshape(shape))
        at += size


def plain_model(elastic: ElasticModel, rows: Rows, columns: Columns, standard: Standard) -> Any:
    """The trained model with one raw input per column and the output "score".

    Args:
        elastic: its variables hold the trained weights (`set_weights`).
        rows: of its embedding tables.
        columns: of the job's data; standard: moments of its standard columns.

    Raises:
        ModelError: a part of the model is not made of Keras' own layers, or cannot be exported yet.
    """
    network = _network(elastic, rows)
    inputs = inputs_of(columns, network.name)
    tensors = [keras.Input(shape, name=name, dtype=dtype) for name, _, dtype, shape in inputs]
    prepare = _prepare(columns, standard, elastic.sources, elastic.bindings, _free("prepare", tensors))
    prepared = prepare(tensors)
    output = network(prepared if isinstance(prepared, list) else [prepared])
    if len(output.shape) == 1:
        output = layers.Reshape((1,), name=_free("column", tensors))(output)
    last = "sigmoid" if elastic.loss.from_logits else "linear"
    score = layers.Activation(last, name=_free("score", tensors), dtype="float32")(output)
    return keras.Model({tensor.name: tensor for tensor in tensors}, score, name=f"{network.name}_trained")


def inputs_of(columns: Columns, network: str) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """For each column the input's name, the column's, dtype and shape without the batch.

    An input is called like its column, where Keras allows it: without a slash, and not like the network in the model.
    """
    found: list[tuple[str, str, str, tuple[int, ...]]] = []
    taken = {network}
    for column in columns.dense:
        found.append((_input_name(column.name, taken), column.name, "float64", (1,)))
    for single in columns.single:
        found.append((_input_name(single.name, taken), single.name, "int64", (1,)))
    for multi in columns.multi:
        found.append((_input_name(multi.name, taken), multi.name, "int64", (multi.length,)))
    return found


def _input_name(column: str, taken: set[str]) -> str:
    name = column.replace("/", "_")
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _free(name: str, tensors: list[Any]) -> str:
    """A layer's name that no input has."""
    taken = {tensor.name for tensor in tensors}
    while name in taken:
        name += "_"
    return name


# ---- from raw columns to the network's inputs


def _prepare(
    columns: Columns, standard: Standard, sources: tuple[Source, ...], bindings: tuple[Binding, ...], name: str
) -> Any:
    """A model from raw columns to what the network is fed; a model of its own, so that names cannot meet."""
    tensors = {column: keras.Input(shape, dtype=dtype) for _, column, dtype, shape in inputs_of(columns, name)}
    bundles = {
        DENSE: lambda: _transformed(_beside([tensors[c.name] for c in columns.dense]), columns, standard),
        CATEGORICAL: lambda: _beside([tensors[c.name] for c in columns.single]),
    }
    # A multi-hot column may be called like a bundle; what comes first in `sources` is the bundle.
    arrays = []
    for place, source in enumerate(sources):
        bundle = place < len(sources) - len(columns.multi)
        arrays.append(bundles[source.name]() if bundle else tensors[source.name])
    fed = [binding.cut(arrays[binding.source]) for binding in bindings]
    return keras.Model(list(tensors.values()), fed, name=name)


def _beside(tensors: list[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else ops.concatenate(tensors, axis=1)


def _transformed(raw: Any, columns: Columns, standard: Standard) -> Any:
    """`core/data/convert.py` in Keras: the same clips, logarithms and affine maps, in the same precisions."""
    kinds = [column.transform for column in columns.dense]
    present = ops.isfinite(raw)
    whole = ops.where(present, ops.clip(raw, -_LARGEST, _LARGEST), 0.0)
    parts: dict[str, Callable[[], Any]] = {
        "none": lambda: whole,
        "log1p": lambda: ops.log1p(ops.maximum(whole, 0.0)),
        "standard": lambda: ops.where(present, _standardised(raw, columns, standard), 0.0),
    }
    used = [kind for kind in parts if kind in kinds]
    found = parts[used[0]]()
    for kind in used[1:]:
        chosen = np.array([[one == kind for one in kinds]])
        found = ops.where(chosen, parts[kind](), found)
    return ops.cast(found, "float32")


def _standardised(raw: Any, columns: Columns, standard: Standard) -> Any:
    moments = [standard.get(column.name, (0.0, 0.0, 1.0)) for column in columns.dense]
    shift, mean, deviation = (np.array([[moment[at] for moment in moments]], np.float64) for at in range(3))
    # The cached data set keeps value - shift as float32; what is lost there was not there in training either.
    stored = ops.cast(ops.clip(ops.subtract(raw, shift), -_LARGEST, _LARGEST), "float32")
    return ops.add(ops.multiply(ops.cast(stored, "float64"), 1.0 / deviation), (shift - mean) / deviation)


# ---- the network


def _network(elastic: ElasticModel, rows: Rows) -> Any:
    """The user's graph with stock look-ups and embeddings; other layers are the very same objects."""
    model = elastic.compiled
    places = zip(elastic.recording.order, elastic.lookups, strict=True)
    tables = {elastic.recording.calls[at].layer.name: elastic.tables[lookup.table].name for at, lookup in places}
    names = {layer.name for layer in model._flatten_layers()}
    stock: dict[int, tuple[Any, Any]] = {}

    def embedded(layer: Any, ids: Any) -> Any:
        if id(layer) not in stock:
            stock[id(layer)] = _stock_embedding(layer, names, *rows[tables[layer.name]])
        lookup, embedding = stock[id(layer)]
        return embedding(lookup(ids if ids.dtype == "int64" else ops.cast(ids, "int64")))

    def call(layer: Any, *inputs: Any, **options: Any) -> Any:
        if isinstance(layer, keras.layers.Embedding):
            return embedded(layer, *inputs, **options)
        for kind, instead in _OF_KERAS_RS.items():
            if type(layer).__name__ == kind and type(layer).__module__.startswith("keras_rs."):
                return instead(layer, *inputs, **options)
        return layer(*inputs, **options)

    _check_layers(model)
    plain = keras.Model(list(model.inputs), model.outputs[0], name=model.name)
    network = keras.models.clone_model(plain, clone_function=lambda layer: layer, call_function=call)
    return network


def _stock_embedding(layer: Any, names: set[str], keys: np.ndarray, values: np.ndarray) -> tuple[Any, Any]:
    """The look-up from keys to rows, and the rows: row 0 is the default, key number i has row i + 1."""
    name = f"{layer.name}_rows"
    while name in names:
        name += "_"
    names.add(name)
    if not len(keys):  # no batch had an id: the look-up wants one key all the same
        keys, values = np.zeros(1, np.int64), np.zeros((1, values.shape[1]), np.float32)
    lookup = layers.IntegerLookup(oov_token=_unused(keys), name=name)
    lookup.set_vocabulary(keys)
    embedding = layers.Embedding(len(keys) + 1, values.shape[1], name=layer.name, dtype=layer.dtype_policy)
    embedding.build()
    embedding.set_weights([np.concatenate([np.zeros((1, values.shape[1]), np.float32), values])])
    return lookup, embedding


def _unused(keys: np.ndarray) -> int:
    """A number that is no key: Keras wants one to stand for all unknown ones."""
    token = -1
    known = set(keys[(keys < 0) & (keys >= -len(keys) - 1)].tolist())
    while token in known:
        token -= 1
    return token


def _check_layers(model: Any) -> None:
    """Refuse, by name, what a process with nothing but Keras could not load."""
    for layer in model._flatten_layers(include_self=False):
        shown = f"layer '{layer.name}'"
        home, kind = type(layer).__module__.partition(".")[0], type(layer).__name__
        if isinstance(layer, keras.layers.Embedding):
            if layer not in model.layers:
                raise ModelError(FIELD, shown, "an embedding of an inner model can't be exported yet")
            if layer.mask_zero:
                raise ModelError(FIELD, shown, "an embedding with mask_zero can't be exported yet")
        elif home != "keras" and not (home == "keras_rs" and kind in _OF_KERAS_RS and layer in model.layers):
            if not _inside_of_known(layer, model):
                raise ModelError(FIELD, f"{shown} ({kind})", "only Keras' own layers can be exported yet")
        elif isinstance(layer, keras.layers.Lambda):
            raise ModelError(FIELD, shown, "a Lambda can't be loaded without its code: use Keras' own layers")


def _inside_of_known(layer: Any, model: Any) -> bool:
    known = [one for one in model.layers if type(one).__name__ in _OF_KERAS_RS]
    return any(layer in one._flatten_layers(include_self=False) for one in known)


def _dot_interaction(layer: Any, features: list[Any]) -> Any:
    """keras_rs' DotInteraction in Keras' own operations: all dot products of two features."""
    stacked = ops.stack(features, axis=1)
    products = ops.matmul(stacked, ops.transpose(stacked, (0, 2, 1)))
    count = len(features)
    above = 0 if layer.self_interaction else -1
    if layer.skip_gather:
        return ops.reshape(ops.tril(products, k=above), (-1, count * count))
    kept = [row * count + column for row in range(count) for column in range(row + 1 + above)]
    return ops.take(ops.reshape(products, (-1, count * count)), kept, axis=-1)


def _feature_cross(layer: Any, start: Any, crossed: Any = None) -> Any:
    """keras_rs' FeatureCross: start x Dense(crossed) + crossed, with the layer's own weights."""
    crossed = start if crossed is None else crossed
    output = crossed
    for part, inner in (("down", getattr(layer, "down_proj_dense", None)), ("up", layer.dense)):
        if inner is not None:
            dense = layers.Dense.from_config({**inner.get_config(), "name": f"{layer.name}_{part}"})
            output = dense(output)
            dense.set_weights(inner.get_weights())
    if layer.diag_scale:
        output = ops.add(output, ops.multiply(layer.diag_scale, crossed))
    return ops.add(ops.multiply(start, output), crossed)


_OF_KERAS_RS: dict[str, Callable[..., Any]] = {"DotInteraction": _dot_interaction, "FeatureCross": _feature_cross}
