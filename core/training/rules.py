"""Keras optimizers and initializers as plain rules that a parameter server can apply without Keras.

What a server cannot do exactly as Keras does it (momentum, clipping by global norm, ...) is refused by name instead
of being left out quietly: a model that trains here trains as its author wrote it.
"""

from __future__ import annotations

import math
from typing import Any

from trimtab.core.domain.model_spec import InitializerSpec, OptimizerSpec
from trimtab.core.errors import ModelError

FIELD = "--model"
OPTIMIZERS = "SGD without momentum, Adagrad and Adam are supported"
INITIALIZERS = (
    "zeros, ones, constant, random uniform, random normal, truncated normal and the variance scaling ones "
    "(Glorot, He, LeCun) are supported"
)
# Options of every Keras optimizer that need all gradients at once, or a second copy of the weights.
_UNSUPPORTED_OPTIONS = (
    "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "loss_scale_factor",
    "gradient_accumulation_steps",
)  # fmt: skip


def optimizer_spec(optimizer: Any) -> OptimizerSpec:
    """The update rule of a compiled Keras optimizer.

    Raises:
        ModelError: for another optimizer, or an option that the parameter servers do not have.
    """
    import keras

    kind = type(optimizer)
    name = kind.__name__
    if kind not in (keras.optimizers.SGD, keras.optimizers.Adagrad, keras.optimizers.Adam):
        raise ModelError(FIELD, f"optimizer {name}", OPTIMIZERS)
    for option in _UNSUPPORTED_OPTIONS:
        value = getattr(optimizer, option, None)
        if value:
            raise ModelError(FIELD, f"{name}({option}={value})", f"leave {option} out; {OPTIMIZERS}")
    if kind is keras.optimizers.SGD:
        if optimizer.momentum:
            raise ModelError(FIELD, f"SGD(momentum={optimizer.momentum:g})", f"leave momentum out; {OPTIMIZERS}")
        return OptimizerSpec(kind="sgd")
    if kind is keras.optimizers.Adagrad:
        accumulator = float(optimizer.initial_accumulator_value)
        return OptimizerSpec(kind="adagrad", epsilon=float(optimizer.epsilon), initial_accumulator=accumulator)
    if optimizer.amsgrad:
        raise ModelError(FIELD, "Adam(amsgrad=True)", f"leave amsgrad out; {OPTIMIZERS}")
    return OptimizerSpec(
        kind="adam", epsilon=float(optimizer.epsilon), beta_1=float(optimizer.beta_1), beta_2=float(optimizer.beta_2)
    )


def with_learning_rate(optimizer: Any, rate: float) -> Any:
    """A copy of `optimizer` with a constant rate (a schedule cannot be overwritten in place)."""
    config = optimizer.get_config()
    config["learning_rate"] = float(rate)
    return type(optimizer).from_config(config)


def initializer_spec(initializer: Any, dim: int, layer: str) -> InitializerSpec:
    """How the rows of an embedding layer are born.

    The vocabulary is open, so rules that look at the table's shape take fan in = fan out = `dim`. A seed given to the
    initializer is not used: rows follow from the job's seed, the table and the key.

    Raises:
        ModelError: for an initializer that is not a known rule.
    """
    import keras

    known = keras.initializers
    kind = type(initializer)
    if kind is known.Zeros:
        return InitializerSpec("zeros")
    if kind is known.Ones:
        return InitializerSpec("constant", 1.0)
    if kind is known.Constant and isinstance(initializer.value, int | float):
        return InitializerSpec("constant", float(initializer.value))
    if kind is known.RandomUniform:
        return InitializerSpec("uniform", float(initializer.minval), float(initializer.maxval))
    if kind is known.RandomNormal:
        return InitializerSpec("normal", float(initializer.mean), float(initializer.stddev))
    if kind is known.TruncatedNormal:
        return InitializerSpec("truncated_normal", float(initializer.mean), float(initializer.stddev))
    if isinstance(initializer, known.VarianceScaling):
        return _variance_scaling(float(initializer.scale), initializer.distribution, dim)
    name = getattr(initializer, "__name__", kind.__name__)
    raise ModelError(FIELD, f"embeddings_initializer {name} of layer '{layer}'", INITIALIZERS)


def _variance_scaling(scale: float, distribution: str, dim: int) -> InitializerSpec:
    variance = scale / max(1.0, float(dim))
    if distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return InitializerSpec("uniform", -limit, limit)
    if distribution == "untruncated_normal":
        return InitializerSpec("normal", 0.0, math.sqrt(variance))
    # Keras widens the normal by this constant so that its truncation at two deviations keeps the variance.
    return InitializerSpec("truncated_normal", 0.0, math.sqrt(variance) / 0.87962566103423978)
