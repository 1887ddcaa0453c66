"""Models that cannot be trained as written: each is refused in one line that names the part and what to do."""

from __future__ import annotations

import pytest
from training_world import COLUMNS, VOCABULARY

from trimtab.core.errors import ModelError


def embedded(keras, name="user", shape=(), dtype="int64", **options):
    ids = keras.Input(shape, name=name, dtype=dtype)
    return ids, keras.layers.Embedding(VOCABULARY, 4, name="users", **options)(ids)


def finished(keras, inputs, x, units=1, loss="mse", optimizer="sgd"):
    model = keras.Model(inputs, keras.layers.Dense(units)(x), name="mine")
    model.compile(optimizer, loss)
    return model


def with_option(**options):
    return lambda keras: finished(keras, *embedded(keras, **options))


def subclassed(keras):
    class Mine(keras.Model):
        def call(self, inputs):
            return inputs

    model = Mine()
    model.compile("sgd", "mse")
    return model


def own_train_step(keras):
    class Mine(keras.Model):
        def train_step(self, data):
            return {}

    ids, rows = embedded(keras)
    model = Mine(ids, keras.layers.Dense(1)(rows))
    model.compile("sgd", "mse")
    return model


def uncompiled(keras):
    ids, rows = embedded(keras)
    return keras.Model(ids, keras.layers.Dense(1)(rows))


def without_loss(keras):
    model = uncompiled(keras)
    model.compile("sgd")
    return model


def two_outputs(keras):
    ids, rows = embedded(keras)
    model = keras.Model(ids, [keras.layers.Dense(1)(rows), keras.layers.Dense(1)(rows)])
    model.compile("sgd", ["mse", "mse"])
    return model


def frozen(keras):
    ids = keras.Input((), name="user", dtype="int64")
    return finished(keras, ids, keras.layers.Embedding(9, 4, name="users", trainable=False)(ids))


def hidden_embedding(keras):
    class Pooled(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.rows = keras.layers.Embedding(9, 4, name="users")

        def call(self, ids):
            return self.rows(ids)

    ids = keras.Input((), name="user", dtype="int64")
    return finished(keras, ids, Pooled()(ids))


def subclassed_embedding(keras):
    class Special(keras.layers.Embedding):
        pass

    ids = keras.Input((), name="user", dtype="int64")
    return finished(keras, ids, Special(9, 4, name="users")(ids))


def same_name(keras):
    one = keras.Input((), name="id", dtype="int64")
    inner = keras.Model(one, keras.layers.Embedding(9, 4, name="users")(one))
    ids, rows = embedded(keras)
    return finished(keras, ids, keras.layers.Add()([rows, inner(ids)]))


def ids_from_rows(keras):
    ids, rows = embedded(keras)
    again = keras.ops.cast(keras.ops.argmax(rows, axis=-1), "int64")
    return finished(keras, ids, keras.layers.Embedding(9, 4, name="second")(again))


def counting(keras):
    class Counts(keras.layers.Layer):
        def build(self, shape):
            self.seen = self.add_weight(shape=(), dtype="int32", trainable=False, initializer="zeros", name="seen")

        def call(self, x):
            self.seen.assign_add(1)
            return x

    ids, rows = embedded(keras)
    return finished(keras, ids, Counts()(rows))


def global_draw(keras):
    class Noisy(keras.layers.Layer):
        def call(self, x):
            return x + keras.random.normal((4,))

    ids, rows = embedded(keras)
    return finished(keras, ids, Noisy()(rows))


def failing_layer(keras):
    class Broken(keras.layers.Layer):
        def compute_output_shape(self, shape):
            return shape

        def call(self, x):
            raise KeyError("no such thing")

    ids, rows = embedded(keras)
    return finished(keras, ids, Broken()(rows))


def mean_loss(keras):
    return finished(keras, *embedded(keras), loss=lambda labels, output: keras.ops.mean((labels - output) ** 2))


def unreduced(keras):
    return finished(keras, *embedded(keras), loss=keras.losses.MeanSquaredError(reduction=None))


def input_of(*shape, dtype="float32", name="price"):
    def build(keras):
        given = keras.Input(shape, name=name, dtype=dtype)
        return finished(keras, given, keras.layers.Flatten()(keras.ops.cast(given, "float32")))

    return build


def fixed_batch(keras):
    price = keras.Input(batch_shape=(8, 1), name="price")
    return finished(keras, price, price)


def nothing_to_train(keras):
    price = keras.Input((1,), name="price")
    model = keras.Model(price, keras.layers.Rescaling(2.0)(price))
    model.compile("sgd", "mse")
    return model


def rate_function(keras):
    return finished(keras, *embedded(keras), optimizer=keras.optimizers.SGD(lambda: 0.1))


REFUSED = {
    "not a model": (lambda keras: 5, r"'int': the function must return a compiled functional keras.Model"),
    "subclassed": (subclassed, r"\(Mine\)': is a subclassed model"),
    "own train_step": (own_train_step, "has its own train_step"),
    "open Sequential": (lambda keras: keras.Sequential([keras.layers.Dense(1)]), "begin the Sequential model with"),
    "uncompiled": (uncompiled, "is not compiled: call compile"),
    "no loss": (without_loss, "compile it with a loss"),
    "two outputs": (two_outputs, "with 2 outputs': models with one output are supported"),
    "wide output": (lambda keras: finished(keras, *embedded(keras), units=3), r"output of shape \('batch', 3\)"),
    "unknown loss": (lambda keras: finished(keras, *embedded(keras), loss="nonsense"), "loss nonsense"),
    "mean loss": (mean_loss, "must return one value per row"),
    "unreduced loss": (unreduced, "reduction=None': choose one of sum_over_batch_size"),
    "unknown optimizer": (lambda keras: finished(keras, *embedded(keras), optimizer="rmsprop"), "optimizer RMSprop"),
    "rate as a function": (rate_function, "use a number or a LearningRateSchedule"),
    "regularizer": (with_option(embeddings_regularizer="l2"), "embeddings_regularizer of layer 'users'"),
    "constraint": (with_option(embeddings_constraint="non_neg"), "embeddings_constraint of layer 'users'"),
    "lora": (with_option(lora_rank=2), "lora_rank of layer 'users'"),
    "initializer": (with_option(embeddings_initializer="orthogonal"), "embeddings_initializer Orthogonal"),
    "frozen embedding": (frozen, "trainable=False of layer 'users'"),
    "hidden embedding": (hidden_embedding, "layer 'users'': an Embedding inside another layer"),
    "subclassed embedding": (subclassed_embedding, r"layer 'users' \(Special\)': use keras.layers.Embedding"),
    "two of a name": (same_name, "layer 'users'': two Embedding layers have this name"),
    "ids from rows": (ids_from_rows, "ids of an Embedding may not depend on the output of another"),
    "integer state": (counting, "seen' of dtype int32': changes while training"),
    "global random draw": (global_draw, "is no weight of a layer"),
    "failing layer": (failing_layer, r"calling it fails at test_refusals.py:\d+: KeyError: .*no such thing"),
    "unknown input": (input_of(name="prise"), "input 'prise'': an Input is called like a column.*price, age, user"),
    "label as input": (input_of(name="y"), "input 'y'"),
    "float ids": (with_option(dtype="float32"), "input 'user' of dtype float32': it carries 64-bit ids"),
    "wrong dense shape": (input_of(3), r"it is a dense column: give shape=\(\) or shape=\(1,\)"),
    "wrong bundle shape": (input_of(3, name="dense"), r"it is all 2 dense columns: give shape=\(2,\)"),
    "wrong list length": (input_of(2, name="tags", dtype="int64"), r"it is a multi-hot column: give shape=\(3,\)"),
    "fixed batch": (fixed_batch, "leave the batch size open"),
    "nothing to train": (nothing_to_train, "it has nothing to train"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what, keras, make_step):
    build, message = REFUSED[what]
    model = build(keras)
    with pytest.raises(ModelError, match=message) as caught:
        make_step(model, 8, COLUMNS)
    assert caught.value.field == "--model"
    assert "\n" not in str(caught.value)
