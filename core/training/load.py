"""A model by its name: one of the built-in ones, or a function of the user's.

Probe and worker processes call the same `load_model`, which first resets Keras' name counters and every random
generator: the same function then gives the same layer names and first values in each process of a job. A user's
function may do anything, so whatever it raises comes back as one line that names his file and line.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from trimtab.core.data.columns import Columns
from trimtab.core.domain.job import BUILT_IN_MODELS, JobSpec
from trimtab.core.errors import ModelError
from trimtab.core.training.embedding import open_embeddings
from trimtab.core.training.faults import user_error
from trimtab.core.training.models import build_built_in
from trimtab.core.training.rules import FIELD, with_learning_rate


def load_model(name: str, columns: Columns, spec: JobSpec) -> Any:
    """The compiled Keras model called `name`.

    Args:
        name: a built-in's name, or MODULE:FUNCTION; MODULE is also looked for in the current directory. FUNCTION is
            called without arguments, or with `columns` if it has a parameter of that name.
        columns: of the job's data.
        spec: its seed fixes initial values, `learning_rate` overrides the compiled one.

    Raises:
        ModelError: when there is no such model, or the function fails or returns something else.
    """
    keras.utils.clear_session()
    keras.utils.set_random_seed(spec.seed % 2**32)
    if name in BUILT_IN_MODELS:
        with open_embeddings():
            model = build_built_in(name, columns, spec.embedding_dim)
    else:
        model = _from_user(name, columns)
    if not isinstance(model, keras.Model):
        raise ModelError(FIELD, name, f"returned {type(model).__name__}: return a compiled functional keras.Model")
    if spec.learning_rate is not None and getattr(model, "optimizer", None) is not None:
        model.optimizer = with_learning_rate(model.optimizer, spec.learning_rate)
    return model


def _from_user(name: str, columns: Columns) -> Any:
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with open_embeddings():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ModelError(FIELD, name, f"no module '{error.name}' in {here} or among the installed ones") from error
        raise user_error(name, error, f"importing {module_name} fails") from error
    except Exception as error:
        raise user_error(name, error, f"importing {module_name} fails") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        found = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        raise ModelError(FIELD, name, f"{module_name} has no function '{function_name}'; it has {', '.join(found)}")
    arguments = _arguments(name, function, columns)
    try:
        with open_embeddings():
            return function(**arguments)
    except ModelError:
        raise
    except Exception as error:
        raise user_error(name, error, "the function fails") from error


def _arguments(name: str, function: Callable[..., Any], columns: Columns) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable that has no signature to read
        return {}
    for key, parameter in parameters.items():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD,
        )  # fmt: skip
        if key != "columns" and not optional:
            raise ModelError(FIELD, name, f"parameter '{key}' needs a default: only 'columns' is given, if asked for")
    return {"columns": columns} if "columns" in parameters else {}
