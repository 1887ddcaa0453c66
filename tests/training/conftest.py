"""TensorFlow is imported once for all tests of this room, by the first that asks for `keras`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.core.data.columns import Columns
from trimtab.core.domain.job import JobSpec

sys.path.insert(0, str(Path(__file__).parent))
from training_world import COLUMNS, DIM, TinyPs


@pytest.fixture(scope="session")
def keras() -> Any:
    """Keras on TensorFlow, as workers have it."""
    from trimtab.core.training.runtime import configure_tensorflow

    configure_tensorflow(1)
    import keras

    return keras


@pytest.fixture(scope="session")
def make_step(keras: Any) -> Callable[..., tuple[Any, TinyPs]]:
    """A step and its tiny server from a compiled model."""
    from trimtab.core.training.elastic import ElasticModel
    from trimtab.core.training.step import TrainStep

    def make(model: Any, size: int = 8, columns: Columns = COLUMNS, seed: int = 0) -> tuple[Any, TinyPs]:
        elastic = ElasticModel(model, columns, size)
        return TrainStep(elastic, size, seed), TinyPs(elastic)

    return make


@pytest.fixture
def spec() -> JobSpec:
    return JobSpec(data="rows", batch_size=8, embedding_dim=DIM, seed=3)
