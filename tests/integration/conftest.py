"""Real jobs: real processes, real sockets, small data."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROWS = 12_000

sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def sample(tmp_path_factory):
    """A small Criteo-shaped file."""
    from trimtab.core.data.sample import write_sample

    path = tmp_path_factory.mktemp("data") / "sample.parquet"
    write_sample(str(path), ROWS, seed=5)
    return path


@pytest.fixture(autouse=True)
def user_code(monkeypatch):
    """The audit model is importable here and in every process of the job."""
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("TRIMTAB_HISTORY", "none")  # tests about the history say so
