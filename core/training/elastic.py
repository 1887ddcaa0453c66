"""A compiled Keras model as tables and look-ups: what the parameter servers store and what a step asks of them.

Embeddings become open tables of rows, the other trainable weights one flat vector in blocks, and float state that
training changes (moving averages) another one, so that one mechanism on the servers carries all three. All that the
user chose in `compile` is read here once; what cannot be honoured is refused before anything starts.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np

from trimtab.core.data.columns import Columns
from trimtab.core.domain.model_spec import (
    DENSE,
    DENSE_BLOCK,
    EMBEDDING,
    STATE,
    InitializerSpec,
    ModelSpec,
    OptimizerSpec,
    TableSpec,
)
from trimtab.core.errors import ModelError
from trimtab.core.training.embedding import Lookups, is_functional, swap_embeddings
from trimtab.core.training.inputs import bind_inputs, sources_of
from trimtab.core.training.losses import compiled_loss
from trimtab.core.training.recording import is_seed, record
from trimtab.core.training.rules import FIELD, optimizer_spec

_OVERRIDABLE = ("train_step", "compute_loss", "compute_metrics")


@dataclass(frozen=True)
class Group:
    """Neighbouring embedding tables of one width, whose rows travel in one array.

    Attributes:
        dim: floats per row.
        lookups: places of its look-ups in `ElasticModel.lookups`.
        tables: places of its tables in `ElasticModel.tables`.
        positions: ids of all its look-ups together.
    """

    dim: int
    lookups: tuple[int, ...]
    tables: tuple[int, ...]
    positions: int


@dataclass(frozen=True)
class Lookup:
    """One call of an embedding layer.

    Attributes:
        table, group: places in `ElasticModel.tables` and `.groups`.
        offset, length: its ids among the group's positions.
        shape: of its ids, batch first.
    """

    table: int
    group: int
    offset: int
    length: int
    shape: tuple[int, ...]


class FlatVariables:
    """Some variables of a model laid end to end in float32 blocks of 256, zeros at the end."""

    def __init__(self, variables: list[Any]) -> None:
        self.variables = variables
        self.shapes = [tuple(int(side) for side in variable.shape) for variable in variables]
        self.sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.floats = sum(self.sizes)
        self.blocks = -(-self.floats // DENSE_BLOCK)
        self.padding = self.blocks * DENSE_BLOCK - self.floats

    def blocks_now(self) -> np.ndarray:
        """The variables' present values, float32 [blocks, 256]."""
        flat = np.zeros(self.blocks * DENSE_BLOCK, np.float32)
        at = 0
        for variable, size in zip(self.variables, self.sizes, strict=True):
            flat[at : at + size] = np.asarray(variable.numpy(), np.float32).ravel()
            at += size
        return flat.reshape(self.blocks, DENSE_BLOCK)


class ElasticModel:
    """A compiled functional model, made elastic for batches of one size.

    Attributes:
        compiled: the user's model (its optimizer and metrics); model: the swapped one that is run.
        tables: embeddings first, by width, then "dense" (if any weight trains), then "state" (if any).
        groups, lookups: what a step looks up, in the order of positions.
        sources, bindings: where inputs come from.
        trainable, state: the flat variables; seeds: places of random generators among the non-trainable variables.
        loss: the compiled loss.

    Raises:
        ModelError: for anything that cannot be trained as its author wrote it.
    """

    def __init__(self, model: Any, columns: Columns, batch_size: int) -> None:
        _check_kind(model)
        self.compiled = model
        self.batch_size = batch_size
        self.columns = columns
        self.loss = compiled_loss(model)
        rule = optimizer_spec(model.optimizer)
        self.lookups_context = Lookups()
        self.model = swap_embeddings(model, self.lookups_context)
        self.sources = sources_of(columns)
        self.bindings = bind_inputs(list(self.model.inputs), columns, self.sources)
        self.recording = record(self.model, self.lookups_context, self.sources, self.bindings, batch_size)
        _check_output(self.recording.output_shape, batch_size)
        frozen = self.model.non_trainable_variables
        changing = [at for at, changes in enumerate(self.recording.changing) if changes]
        self.seeds = tuple(at for at in changing if is_seed(frozen[at]))
        self.state_places = tuple(at for at in changing if not is_seed(frozen[at]))
        self.trainable = FlatVariables(list(self.model.trainable_variables))
        self.state = FlatVariables([frozen[at] for at in self.state_places])
        self.tables = self._tables(rule)
        self.lookups, self.groups = self._lookups()

    def _tables(self, rule: OptimizerSpec) -> tuple[TableSpec, ...]:
        tables: dict[str, TableSpec] = {}
        for place in self.recording.order:
            layer = self.recording.calls[place].layer
            name = _table_name(layer.name)
            tables.setdefault(name, TableSpec(name, layer.dim, EMBEDDING, 0, layer.row_initializer, rule))
        found = list(tables.values())
        for kind, flat, how in ((DENSE, self.trainable, rule), (STATE, self.state, OptimizerSpec(kind="add"))):
            if flat.blocks:
                found.append(TableSpec(kind, DENSE_BLOCK, kind, flat.blocks, InitializerSpec("zeros"), how))
        if not found:
            raise ModelError(FIELD, self.compiled.name, "it has nothing to train")
        return tuple(found)

    def _lookups(self) -> tuple[tuple[Lookup, ...], tuple[Group, ...]]:
        place_of = {table.name: place for place, table in enumerate(self.tables)}
        calls = [self.recording.calls[place] for place in self.recording.order]
        dims = sorted({call.layer.dim for call in calls})
        lookups: list[Lookup] = []
        ends = [0] * len(dims)
        for call in calls:
            group = dims.index(call.layer.dim)
            table = place_of[_table_name(call.layer.name)]
            lookups.append(Lookup(table, group, ends[group], call.ids, call.shape))
            ends[group] += call.ids
        groups = []
        for group, dim in enumerate(dims):
            members = tuple(at for at, lookup in enumerate(lookups) if lookup.group == group)
            tables = tuple(sorted({lookups[at].table for at in members}))
            groups.append(Group(dim, members, tables, ends[group]))
        return tuple(lookups), tuple(groups)

    def initial_blocks(self) -> dict[str, np.ndarray]:
        """First values of the dense and state tables by table name, float32 [blocks, 256]."""
        found = {DENSE: self.trainable, STATE: self.state}
        return {name: flat.blocks_now() for name, flat in found.items() if flat.blocks}

    def fingerprint(self) -> str:
        """Hash of tables and of the flat vectors' layout: equal in every process that loads the same model."""
        layout = {"tables": [asdict(table) for table in self.tables]}
        return _digest([layout, self.trainable.shapes, self.state.shapes])

    def spec(self, name: str, initial_blocks_path: str, metrics: tuple[str, ...] = ()) -> ModelSpec:
        """The model as the parameter servers and the controller see it."""
        layout = _digest([self.trainable.shapes, self.state.shapes])
        return ModelSpec(
            name, self.tables, self.trainable.floats, initial_blocks_path, self.fingerprint(), metrics, layout
        )  # fmt: skip


def _digest(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:32]


def _table_name(layer: str) -> str:
    # "dense" and "state" name the tables of blocks.
    return f"{EMBEDDING}/{layer}" if layer in (DENSE, STATE) else layer


def _check_kind(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ModelError(FIELD, type(model).__name__, "the function must return a compiled functional keras.Model")
    name = f"{model.name} ({type(model).__name__})"
    if isinstance(model, keras.Sequential) and getattr(model, "inputs", None) is None:
        raise ModelError(FIELD, name, "begin the Sequential model with a keras.Input")
    if not is_functional(model):
        raise ModelError(FIELD, name, "is a subclassed model: build it as keras.Model(inputs, outputs)")
    for method in _OVERRIDABLE:
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise ModelError(FIELD, name, f"has its own {method}, which is not used here: put it into loss or layers")
    if getattr(model, "optimizer", None) is None:
        raise ModelError(FIELD, name, "is not compiled: call compile(optimizer, loss) before returning it")
    if len(model.outputs) != 1:
        raise ModelError(FIELD, f"{name} with {len(model.outputs)} outputs", "models with one output are supported")


def _check_output(shape: tuple[int | None, ...], batch_size: int) -> None:
    if shape not in ((batch_size,), (batch_size, 1)):
        shown = ("batch", *shape[1:])
        raise ModelError(FIELD, f"output of shape {shown}", "the output must be one number per row: (batch, 1)")
