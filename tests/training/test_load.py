"""Loading by name: the same model in every process, and a user's mistakes as one line with his file and line."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from training_world import COLUMNS, make_batch

from trimtab.core.errors import ModelError

GOOD = """
import keras

def make(columns, width=4):
    user = keras.Input((), name="user", dtype="int64")
    rows = keras.layers.Embedding(10**12, width)(user)
    assert columns.label == "y"
    model = keras.Model(user, keras.layers.Dense(1)(keras.layers.Dense(3)(rows)))
    model.compile(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)), "mse")
    return model

def number():
    return 5

def breaks():
    return {}["weights"]

def needs(path):
    return path

VALUE = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Writes a module into the current directory and forgets it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)

    def write(text, name):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for name in set(sys.modules) - known:
        if name.startswith("their_"):
            del sys.modules[name]


def test_a_function_of_the_current_directory_with_a_vocabulary_of_any_size(keras, make_step, here, spec):
    from trimtab.core.training.load import load_model

    name = f"{here(GOOD, 'their_model')}:make"
    step, ps = make_step(load_model(name, COLUMNS, spec))
    assert ps.gradients(step, make_batch(8))[0].finite
    assert step.learning_rate(10) == 0.25
    assert ps.elastic.tables[0].name == "embedding"
    override, _ = make_step(load_model(name, COLUMNS, replace(spec, learning_rate=0.125)))
    assert [override.learning_rate(number) for number in (0, 10)] == [0.125, 0.125]


def test_every_process_gets_the_same_names_and_first_values(keras, make_step, here, spec):
    from trimtab.core.training.elastic import ElasticModel
    from trimtab.core.training.load import load_model

    name = f"{here(GOOD, 'their_model')}:make"
    first, second = (ElasticModel(load_model(name, COLUMNS, spec), COLUMNS, 8) for _ in range(2))
    other = ElasticModel(load_model(name, COLUMNS, replace(spec, seed=4)), COLUMNS, 8)
    assert first.tables == second.tables
    assert first.fingerprint() == second.fingerprint() == other.fingerprint()
    np.testing.assert_array_equal(first.initial_blocks()["dense"], second.initial_blocks()["dense"])
    assert not np.array_equal(first.initial_blocks()["dense"], other.initial_blocks()["dense"])
    built_in = ElasticModel(load_model("dlrm", COLUMNS, spec), COLUMNS, 8)
    wider = ElasticModel(load_model("dlrm", COLUMNS, replace(spec, embedding_dim=5)), COLUMNS, 8)
    assert len({model.fingerprint() for model in (first, built_in, wider)}) == 3


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("number", "returned int: return a compiled functional keras.Model"),
        ("breaks", r"the function fails at their_model.py:\d+: KeyError: 'weights'"),
        ("needs", "parameter 'path' needs a default: only 'columns' is given"),
        ("VALUE", "their_model has no function 'VALUE'; it has breaks, make, needs, number"),
        ("absent", "has no function 'absent'"),
    ],
)
def test_mistakes_in_a_function(function, message, keras, here, spec):
    from trimtab.core.training.load import load_model

    here(GOOD, "their_model")
    with pytest.raises(ModelError, match=message):
        load_model(f"their_model:{function}", COLUMNS, spec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import keras\nx = 1 / 0\n", "importing their_bad fails at their_bad.py:2: ZeroDivisionError"),
        ("import nowhere_to_be_found\n", "importing their_bad fails at their_bad.py:1: ModuleNotFoundError"),
        ("def f(:\n", "importing their_bad fails at their_bad.py:1: SyntaxError"),
    ],
)
def test_mistakes_in_a_module(text, message, keras, here, spec):
    from trimtab.core.training.load import load_model

    here(text, "their_bad")
    with pytest.raises(ModelError, match=message):
        load_model("their_bad:f", COLUMNS, spec)


def test_a_module_that_is_not_there(keras, here, spec, tmp_path):
    from trimtab.core.training.load import load_model

    with pytest.raises(ModelError, match=f"no module 'their_none' in {tmp_path}"):
        load_model("their_none:f", COLUMNS, spec)
    here("", "their_empty")
    with pytest.raises(ModelError, match="no module 'their_empty"):
        load_model("their_empty.inner:f", COLUMNS, spec)
