"""recompute_grad of Keras layers with state: five steps of training are those without it."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

MODES = {
    "eager": lambda run: run,
    "traced": functools.partial(tf.function, autograph=False),
    "jit": functools.partial(tf.function, autograph=False, jit_compile=True),
}


class SelfAttention(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(2, 4, dropout=0.3, seed=3)

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x, training=None):
        return self.attention(x, x, training=training)


LAYERS = {
    "dropout": (lambda: keras.layers.Dropout(0.5, seed=1), [8, 16]),
    "gaussian_noise": (lambda: keras.layers.GaussianNoise(0.5, seed=1), [8, 16]),
    "batch_normalization": (lambda: keras.layers.BatchNormalization(), [8, 16]),
    "layer_normalization": (lambda: keras.layers.LayerNormalization(), [8, 16]),
    "attention": (SelfAttention, [2, 5, 8]),
    "gru": (lambda: keras.layers.GRU(4, dropout=0.3, recurrent_dropout=0.2, return_sequences=True, seed=1), [2, 5, 8]),
    "lstm": (lambda: keras.layers.LSTM(4, dropout=0.3, seed=1), [2, 5, 8]),
    "convolution": (
        lambda: keras.Sequential(
            [
                keras.layers.Conv2D(4, 3, use_bias=False),
                keras.layers.BatchNormalization(),
                keras.layers.SpatialDropout2D(0.3, seed=1),
            ]
        ),
        [2, 8, 8, 3],
    ),
    "tf_keras_batch_normalization": (lambda: tf_keras.layers.BatchNormalization(), [8, 16]),
    "tf_keras_lstm": (lambda: tf_keras.layers.LSTM(4), [2, 5, 8]),
    "tf_keras_dense": (lambda: tf_keras.layers.Dense(4, activation="swish"), [8, 16]),
}
XLA_DIFFERS = {"tf_keras_lstm"}  # XLA does not know the length of its list.


def train(make, shape, wrap, mode):
    """Values, gradients and weights of five steps."""
    keras.utils.set_random_seed(1)
    tf_keras.utils.set_random_seed(1)  # Once a test has set it, the initializers of tf_keras draw from it.
    layer = make()
    layer.build(tuple(shape))
    function = wrap(lambda x: layer(x, training=True))
    x = tf.constant(np.random.default_rng(0).normal(size=shape), tf.float32)
    weights = [getattr(variable, "value", variable) for variable in layer.trainable_variables]
    weights = [w if isinstance(w, tf.Variable) else v for w, v in zip(weights, layer.trainable_variables, strict=True)]

    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            upstream = tf.sin(y) + 1.5
            loss = tf.reduce_sum(y * tf.stop_gradient(upstream))
        gradients = tape.gradient(loss, [x, *weights])
        for weight, gradient in zip(weights, gradients[1:], strict=True):
            weight.assign_sub(0.01 * gradient)
        return [y, *gradients]

    run = MODES[mode](step)
    results = [tensor for _ in range(5) for tensor in run()]
    return [np.array(tensor) for tensor in [*results, *layer.variables]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LAYERS)
def test_training_is_that_of_the_layer(name, mode):
    if mode == "jit" and name in XLA_DIFFERS:
        pytest.skip("XLA does not differentiate this layer without recomputation either")
    make, shape = LAYERS[name]
    plain, recomputed = (train(make, shape, wrap, mode) for wrap in (lambda f: f, cg.recompute_grad))
    for found, expected in zip(recomputed, plain, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
