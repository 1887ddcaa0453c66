"""Small data in every format, and the shortest way from rows to what a model would see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.core.data.dataset import Dataset
from trimtab.core.data.prepare import prepare
from trimtab.core.data.sample import write_sample

SAMPLE_ROWS = 3000


@pytest.fixture(scope="session")
def sample_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same sample rows in each format, by extension."""
    folder = tmp_path_factory.mktemp("samples")
    found = {}
    for extension in (".parquet", ".tsv", ".tsv.gz", ".csv", ".csv.gz", ".tfrecord"):
        found[extension] = folder / f"s{extension}"
        write_sample(str(found[extension]), SAMPLE_ROWS, 3)
    return found


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Dataset]:
    """load(source, columns=text) converts into a cache of the test's own and opens the result."""

    def convert(source: object, columns: str | None = None) -> Dataset:
        file = None
        if columns is not None:
            file = tmp_path / "columns.yaml"
            file.write_text(columns)
        return Dataset.open(prepare(str(source), None if file is None else str(file), tmp_path / "cache"))

    return convert


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """write(name, text) makes a file below the test's folder."""

    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return make
