"""Training of layers with and without recomputation, for both Kerases."""

import functools

import numpy as np
import tensorflow as tf

MODES = {
    "eager": lambda step: step,
    "traced": functools.partial(tf.function, autograph=False),
    "jit": functools.partial(tf.function, autograph=False, jit_compile=True),
}


def variables_of(layer):
    """The trainable variables as those of TensorFlow."""
    return [v if isinstance(v, tf.Variable) else v.value for v in layer.trainable_variables]


def value_and_gradients(layer, x, *args, **kwargs):
    """The first output, and the gradients of the input and the weights below an upstream that is not uniform."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nest.flatten(layer(x, *args, **kwargs))[0]
        upstream = tf.stop_gradient(tf.cast(tf.sin(3.0 * tf.cast(y, tf.float32)) + 1.5, y.dtype))
    gradients = tape.gradient(y, [x, *variables_of(layer)], output_gradients=upstream)
    return [tf.convert_to_tensor(tensor).numpy() for tensor in (y, *gradients)]


def train(layer, x, mode="eager", steps=5):
    """The values and gradients of each step, the losses, and the variables after them."""
    x = tf.constant(x)
    layer(x)
    weights = variables_of(getattr(layer, "layer", layer))

    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            upstream = tf.stop_gradient(tf.cast(tf.sin(3.0 * tf.cast(y, tf.float32)) + 1.5, y.dtype))
            losses = list(layer.losses)
            loss = tf.reduce_sum(tf.cast(y * upstream, tf.float32)) + sum(losses, 0.0)
        gradients = tape.gradient(loss, [x, *weights])
        for weight, gradient in zip(weights, gradients[1:], strict=True):
            weight.assign_sub(0.01 * tf.cast(gradient, weight.dtype))
        return [y, *losses, *map(tf.convert_to_tensor, gradients)]

    run = MODES[mode](step)
    results = [tensor for _ in range(steps) for tensor in run()]
    variables = getattr(layer, "layer", layer).variables
    return [tf.convert_to_tensor(tensor).numpy() for tensor in [*results, *variables]]


def assert_equal(found, expected, rtol=1e-4, atol=1e-5):
    assert len(found) == len(expected)
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == wanted.dtype
        np.testing.assert_allclose(actual.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol)
