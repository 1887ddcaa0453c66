"""A model whose loss is not a number for rows whose `x` is negative."""

import keras


def build():
    x, c = keras.Input((1,), name="x"), keras.Input((), dtype="int64", name="c")
    rows = keras.layers.Embedding(10, 4, name="rows")(c)
    both = keras.layers.Concatenate()([keras.ops.log(x), rows])
    hidden = keras.layers.BatchNormalization(name="norm")(keras.layers.Dense(8, name="hidden")(both))
    model = keras.Model([x, c], keras.layers.Dense(1, name="logit")(hidden))
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    return model
