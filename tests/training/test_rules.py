"""Optimizers and initializers as rules: the supported ones exactly, every other one refused by name."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trimtab.core.domain.model_spec import InitializerSpec, OptimizerSpec
from trimtab.core.errors import ModelError

DIM = 12
INITIALIZERS = {
    "zeros": ("zeros", {}, 0.0, 0.0),
    "ones": ("constant", {}, 1.0, 0.0),
    "Constant": ("constant", {"value": 0.5}, 0.5, 0.0),
    "uniform": ("uniform", {}, -0.05, 0.05),
    "RandomUniform": ("uniform", {"minval": -1.0, "maxval": 2.0}, -1.0, 2.0),
    "RandomNormal": ("normal", {"mean": 1.0, "stddev": 2.0}, 1.0, 2.0),
    "TruncatedNormal": ("truncated_normal", {"stddev": 0.25}, 0.0, 0.25),
    "GlorotUniform": ("uniform", {}, -math.sqrt(3 / DIM), math.sqrt(3 / DIM)),
    "HeUniform": ("uniform", {}, -math.sqrt(6 / DIM), math.sqrt(6 / DIM)),
    "GlorotNormal": ("truncated_normal", {}, 0.0, math.sqrt(1 / DIM) / 0.87962566103423978),
    "VarianceScaling": ("normal", {"distribution": "untruncated_normal"}, 0.0, math.sqrt(1 / DIM)),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers(name, keras):
    from trimtab.core.training.rules import initializer_spec

    kind, options, a, b = INITIALIZERS[name]
    found = initializer_spec(keras.initializers.get({"class_name": name, "config": options}), DIM, "layer")
    assert found.kind == kind
    assert (found.a, found.b) == pytest.approx((a, b))


def test_scaled_initializers_have_the_spread_that_keras_gives_a_square_table(keras):
    from trimtab.core.training.rules import initializer_spec

    for name in ("GlorotUniform", "HeNormal", "LecunUniform"):
        theirs = keras.initializers.get({"class_name": name, "config": {"seed": 1}})
        found = initializer_spec(theirs, 200, "layer")
        drawn = np.asarray(theirs((200, 200)))
        spread = found.b / math.sqrt(3) if found.kind == "uniform" else found.b * 0.87962566103423978
        assert drawn.std() == pytest.approx(spread, rel=0.02)


def test_other_initializers_are_refused(keras):
    from trimtab.core.training.rules import initializer_spec

    for one in (keras.initializers.Orthogonal(), lambda shape, dtype: None):
        with pytest.raises(ModelError, match=r"embeddings_initializer \S+ of layer 'users'.*zeros, ones"):
            initializer_spec(one, DIM, "users")


def test_optimizers(keras):
    from trimtab.core.training.rules import optimizer_spec

    known = keras.optimizers
    assert optimizer_spec(known.SGD(0.1)) == OptimizerSpec(kind="sgd")
    expected = OptimizerSpec(kind="adagrad", epsilon=1e-5, initial_accumulator=0.25)
    assert optimizer_spec(known.Adagrad(initial_accumulator_value=0.25, epsilon=1e-5)) == expected
    expected = OptimizerSpec(kind="adam", epsilon=1e-8, beta_1=0.8, beta_2=0.99)
    assert optimizer_spec(known.Adam(beta_1=0.8, beta_2=0.99, epsilon=1e-8)) == expected
    assert InitializerSpec() == InitializerSpec("zeros")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"momentum": 0.9}), ("Adam", {"amsgrad": True}), ("Adam", {"weight_decay": 0.1}),
        ("SGD", {"clipnorm": 1.0}), ("SGD", {"clipvalue": 1.0}), ("SGD", {"global_clipnorm": 1.0}),
        ("Adagrad", {"use_ema": True}), ("Adam", {"loss_scale_factor": 8.0}),
        ("SGD", {"gradient_accumulation_steps": 2}), ("AdamW", {}), ("RMSprop", {}), ("Ftrl", {}),
    ],
)  # fmt: skip
def test_what_the_servers_cannot_do_is_refused_by_name(name, options, keras):
    from trimtab.core.training.rules import optimizer_spec

    with pytest.raises(ModelError, match="SGD without momentum, Adagrad and Adam are supported") as caught:
        optimizer_spec(getattr(keras.optimizers, name)(**options))
    assert all(option in str(caught.value) for option in (name, *options))


def test_a_learning_rate_overrides_number_and_schedule_and_nothing_else(keras):
    from trimtab.core.training.rules import with_learning_rate

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    for rate in (0.1, schedule):
        changed = with_learning_rate(keras.optimizers.Adam(rate, beta_1=0.5), 0.25)
        assert float(changed.learning_rate.numpy()) == 0.25
        assert changed.beta_1 == 0.5
