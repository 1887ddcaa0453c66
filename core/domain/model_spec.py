"""A model as the parameter servers and the controller see it: tables, no TensorFlow.

The probe process of `training` loads the user's Keras model and returns this plain description; from it a parameter
server knows how to make, update and copy every row. Dense parameters are a table too: fixed blocks of 256 floats,
keyed by block number, so that one mechanism (vshards, applied sets, moves, copies) carries everything.
"""

from __future__ import annotations

from dataclasses import dataclass

VSHARDS = 512
DENSE_BLOCK = 256  # floats per dense block; frozen in docs/formats.md

EMBEDDING, DENSE, STATE = "embedding", "dense", "state"


@dataclass(frozen=True)
class InitializerSpec:
    """How a row that was never pushed looks; computed from (seed, table, key), so every PS agrees on it.

    Attributes:
        kind: zeros | constant | uniform | normal | truncated_normal.
        a: constant's value, uniform's low, normal's mean.
        b: uniform's high, normal's standard deviation (before truncation at two of them).
    """

    kind: str = "zeros"
    a: float = 0.0
    b: float = 0.0


@dataclass(frozen=True)
class OptimizerSpec:
    """The update rule of one table. The learning rate is not here: it travels with each push.

    Attributes:
        kind: sgd | adagrad | adam | add ("add" sums deltas: BatchNormalization's moving averages).
        epsilon: added under Adagrad's root, beside Adam's root, as in Keras 3.
        initial_accumulator: Adagrad's first slot value.
        beta_1, beta_2: Adam's decay rates.
    """

    kind: str = "adagrad"
    epsilon: float = 1e-7
    initial_accumulator: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.999


@dataclass(frozen=True)
class TableSpec:
    """One table of rows that share a width and an update rule.

    Attributes:
        name: unique in the model; the hash of a row's vshard starts from it, so it must not change between runs.
        dim: floats per row (the embedding's width; 256 for dense blocks).
        kind: embedding | dense | state.
        rows: number of blocks of a dense or state table; 0 for embeddings, whose keys are open-ended.
        initializer: of rows that no copy brought.
        optimizer: the update rule.
    """

    name: str
    dim: int
    kind: str
    rows: int
    initializer: InitializerSpec
    optimizer: OptimizerSpec


@dataclass(frozen=True)
class ModelSpec:
    """A model's tables in wire order, and what a person wants to know of it.

    Attributes:
        name: the built-in's name, or MODULE:FUNCTION.
        tables: in wire order: a table's id is its place. Tables of one (dim, optimizer) stand together.
        dense_parameters: trainable floats outside embeddings.
        initial_blocks: path of the .npz with the first values of dense and state tables (array name = table name,
            shape [rows, 256]), written by the probe.
        fingerprint: hash of the model's structure: a copy of another structure is refused.
        metrics: names of the user's compiled metrics, evaluated at the end.
        layout: hash of the shapes of all dense parameters and averages, in their order: what a block's floats are.
            "": described before this was kept.
    """

    name: str
    tables: tuple[TableSpec, ...]
    dense_parameters: int
    initial_blocks: str
    fingerprint: str
    metrics: tuple[str, ...] = ()
    layout: str = ""
