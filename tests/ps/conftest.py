"""The small model that most parameter-server tests use."""

import sys
from pathlib import Path

import numpy as np
import pytest

from trimtab.core.domain.model_spec import InitializerSpec, TableSpec

sys.path.insert(0, str(Path(__file__).parent))
from ps_models import SGD, embedding, spec_of


@pytest.fixture
def model(tmp_path):
    """Two embeddings of one width, one of another, and three dense blocks, all trained by plain SGD."""
    dense = TableSpec("dense", 256, "dense", 3, InitializerSpec(), SGD)
    path = tmp_path / "initial_blocks.npz"
    np.savez(path, dense=np.arange(3 * 256, dtype=np.float32).reshape(3, 256))
    return spec_of(embedding("a"), embedding("b"), embedding("wide", 1), dense, blocks=str(path))
