"""The layer Recompute with quantization, forwarded arguments and stateless calls, which only Keras 3 has."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.keras_models import assert_equal

X = np.random.default_rng(0).normal(size=[8, 3]).astype(np.float32)


def plain(layer):
    return layer


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method:UserWarning")
@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_quantized_layers(mode):
    results = []
    for wrap in (plain, cg.layers.Recompute):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input([4]), wrap(keras.layers.Dense(4)), keras.layers.Dense(1)])
        x = np.ones([4, 4], np.float32)
        with tf.GradientTape() as tape:  # Traced before.
            tape.watch(tf.constant(x))
            model(x)
        model.quantize(mode)
        results.append([model(x).numpy()])
        if mode == "float8":
            model.compile("sgd", "mse")
            history = model.fit(x, np.zeros([4, 1]), epochs=3, verbose=0)
            results[-1] += [*map(np.array, history.history["loss"]), *model.get_weights()]
    assert_equal(*results)


def test_arguments_that_keras_forwards():
    class Scaled(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self._register_call_context_args("scale")

        def call(self, x, scale=None):
            return x if scale is None else scale * x

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()

        def call(self, x):
            return self.scaled(x)

    outer, x = Outer(), tf.constant(X)
    outer._register_call_context_args("scale")
    layer = cg.layers.Recompute(outer)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        values = [layer(x, scale=2.0), layer(x, scale=3.0), layer(x), layer(x, scale=tf.constant(5.0))]
    assert [float(tape.gradient(y, x)[0, 0]) for y in values] == [2.0, 3.0, 1.0, 5.0]


def test_a_stateless_call_changes_no_variables():
    layer = cg.layers.Recompute(
        keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1)])
    )
    x = tf.constant(X)
    layer(x)
    before = layer.get_weights()
    trainable = [variable.value for variable in layer.trainable_variables]
    state = [tf.constant(variable.value) for variable in layer.non_trainable_variables]
    _, updated = layer.stateless_call(trainable, state, x, training=True)
    assert_equal(layer.get_weights(), before)
    assert all(np.any(np.not_equal(new, old)) for new, old in zip(updated, state, strict=True))
