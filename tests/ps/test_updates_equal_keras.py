"""Each update rule equals Keras 3's optimizer, step by step, on a small dense case."""

import numpy as np
import pytest

from trimtab.core.domain.model_spec import InitializerSpec, OptimizerSpec, TableSpec
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.layout import newborn_rows
from trimtab.core.ps.table import RowTable, VshardRows

CASES = {
    "sgd": (OptimizerSpec("sgd"), lambda keras: keras.optimizers.SGD(0.1)),
    "adagrad": (OptimizerSpec("adagrad", 1e-7, 0.1), lambda keras: keras.optimizers.Adagrad(0.1)),
    "adam": (OptimizerSpec("adam", 1e-7), lambda keras: keras.optimizers.Adam(0.1)),
}


@pytest.mark.parametrize("kind", CASES)
def test_twenty_steps_on_a_dense_block(kind):
    import keras

    spec, make = CASES[kind]
    generator = np.random.default_rng(3)
    start = generator.standard_normal((1, 256)).astype(np.float32)
    table = RowTable((TableSpec("dense", 256, "dense", 1, InitializerSpec(), spec),), 1, 16 << 20)
    home = int(vshards("dense", np.zeros(1, np.int64))[0])
    table.replace(home, VshardRows((np.zeros(1, np.int64),), (newborn_rows(table.tables[0], start),)))
    found = table.find(np.zeros(1, np.int64), np.ones(1, np.uint32))
    variable, optimizer = keras.Variable(start), make(keras)
    out = np.zeros(256, np.float32)
    for _ in range(20):
        gradient = (generator.standard_normal((1, 256)) * 10.0 ** generator.integers(-6, 2)).astype(np.float32)
        table.update(found, gradient.reshape(-1), 0.1)
        optimizer.apply_gradients([(gradient, variable)])
        table.read(found, False, out)
        np.testing.assert_allclose(out, variable.numpy().reshape(-1), rtol=2e-6, atol=2e-7)


def test_adam_is_lazy_and_its_counter_moves_with_the_row():
    """A row that is in every second batch is as far as one that saw only these batches."""
    spec = OptimizerSpec("adam", 1e-7)
    tables = (TableSpec("t", 4, "embedding", 0, InitializerSpec(), spec),)
    one, other = (RowTable(tables, 1, 16 << 20) for _ in range(2))
    keys = np.array([1, 2], np.int64)
    gradient = np.ones(4, np.float32)
    for step in range(6):
        both = step % 2 == 0
        mine = keys if both else keys[:1]
        found = one.bear(one.find(mine, np.array([len(mine)], np.uint32)))
        one.update(found, np.tile(gradient, len(mine)), 0.1)
        if both:
            found = other.bear(other.find(keys[1:], np.ones(1, np.uint32)))
            other.update(found, gradient, 0.1)
        if step == 3:  # the row moves: slots and counter go with it
            home = int(vshards("t", keys[1:])[0])
            one.replace(home, one.extract(home))
    values = [np.zeros(4, np.float32) for _ in range(2)]
    for table, out in zip((one, other), values, strict=True):
        table.read(table.find(keys[1:], np.ones(1, np.uint32)), False, out)
    assert (values[0] == values[1]).all()


def test_add_sums_deltas():
    table = RowTable((TableSpec("state", 256, "state", 1, InitializerSpec(), OptimizerSpec("add")),), 1, 16 << 20)
    found = table.bear(table.find(np.zeros(1, np.int64), np.ones(1, np.uint32)))
    for _ in range(3):
        table.update(found, np.full(256, 0.5, np.float32), 123.0)
    out = np.zeros(256, np.float32)
    table.read(found, False, out)
    assert (out == 1.5).all()
