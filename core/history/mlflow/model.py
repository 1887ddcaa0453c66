"""An exported Keras model in the layout that MLflow's Keras flavour loads.

MLflow's own way needs the model in memory, and with it TensorFlow and gigabytes in the process that records. What it
writes is a small text beside the file, so we write the same text from the signature that the export left, and link the
file itself. A test loads the result with `mlflow.keras` and `mlflow.pyfunc`, which would tell if the layout changed.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.core.errors import BadInput

if TYPE_CHECKING:
    from mlflow.types import Schema

MODEL_FILE = "model.keras"
_LIBRARIES = ("keras", "tensorflow", "tensorflow-cpu", "numpy")
_REMEDY = 'give "inputs" and "outputs", each name → {"dtype", "shape"}, or a list of {"name", "dtype", "shape"}'


def describe_model(folder: Path, exported: Path, signature: Mapping[str, object], run: str, name: str) -> None:
    """Fill `folder` with an MLflow model: its description, and links to what lies in `exported`.

    Args:
        folder: empty.
        exported: the directory with `model.keras`; whatever else lies in it goes under `exported/`.
        signature: see `History.log_model`.
        run: MLflow's run id. name: of the model among the run's artifacts.

    Raises:
        BadInput: no model there, or a signature that cannot be read.
    """
    from mlflow import pyfunc
    from mlflow.models import Model, ModelSignature

    if not (exported / MODEL_FILE).is_file():
        raise BadInput("directory", str(exported), f"there is no {MODEL_FILE} in it; export the model first")
    described = Model(artifact_path=name, run_id=run)
    described.signature = ModelSignature(
        inputs=_schema("inputs", signature.get("inputs")), outputs=_schema("outputs", signature.get("outputs"))
    )
    data = folder / "data"
    data.mkdir()
    (data / "model.keras").symlink_to((exported / MODEL_FILE).absolute())
    (data / "keras_module.txt").write_text("keras", encoding="utf-8")
    for other in sorted(exported.iterdir()):
        if other.name != MODEL_FILE:
            (folder / "exported").mkdir(exist_ok=True)
            (folder / "exported" / other.name).symlink_to(other.absolute())
    described.add_flavor(
        "keras", data="data", keras_version=_version("keras"), keras_backend="tensorflow", save_exported_model=False
    )
    pyfunc.add_to_model(described, loader_module="mlflow.keras", conda_env="conda.yaml", python_env="python_env.yaml")
    described.model_size_bytes = (exported / MODEL_FILE).stat().st_size
    _write_environment(folder)
    described.save(os.fspath(folder / "MLmodel"))


def _write_environment(folder: Path) -> None:
    """What a server of the model has to install: the libraries as they are here."""
    import yaml

    pins = [f"{name}=={_version(name)}" for name in _LIBRARIES if _version(name)]
    needs = ["mlflow", *pins]
    python = platform.python_version()
    (folder / "requirements.txt").write_text("\n".join(needs) + "\n", encoding="utf-8")
    python_env = {"python": python, "build_dependencies": ["pip"], "dependencies": ["-r requirements.txt"]}
    conda_env = {"name": "mlflow-env", "channels": ["conda-forge"],
                 "dependencies": [f"python={python}", "pip", {"pip": needs}]}  # fmt: skip
    for name, content in (("python_env.yaml", python_env), ("conda.yaml", conda_env)):
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def _schema(side: str, given: object) -> Schema:
    import numpy as np
    from mlflow.types import ColSpec, Schema, TensorSpec

    specs: list[ColSpec | TensorSpec] = []
    for name, one in _entries(side, given):
        try:
            shape = tuple(-1 if length is None else int(length) for length in one["shape"])
            kind = np.dtype("str" if one["dtype"] in ("string", "str") else one["dtype"])
        except (KeyError, TypeError, ValueError):
            raise BadInput(f"signature.{side}", name, _REMEDY) from None
        specs.append(TensorSpec(kind, shape, name or None))
    return Schema(specs)


def _entries(side: str, given: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(given, Mapping):
        pairs: list[tuple[object, object]] = list(given.items())
    elif isinstance(given, Sequence) and not isinstance(given, str):
        pairs = [(one.get("name", "") if isinstance(one, Mapping) else "", one) for one in given]
    else:
        raise BadInput(f"signature.{side}", given, _REMEDY)
    if not pairs:
        raise BadInput(f"signature.{side}", given, _REMEDY)
    for name, one in pairs:
        if not isinstance(one, Mapping):
            raise BadInput(f"signature.{side}", one, _REMEDY)
        yield str(name), one


def _version(name: str) -> str:
    """The installed version of a distribution, "" when it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
