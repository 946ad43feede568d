"""Failures of tf.custom_gradient that users reported, each with the link, as tests of what holds here."""

import json

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])


def gradient(function, x=X, traced=False):
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=DY)

    return (tf.function(run) if traced else run)(x)


def test_27492_and_97697_traces_do_not_leak():
    """https://github.com/tensorflow/tensorflow/issues/27492, https://github.com/tensorflow/tensorflow/issues/97697.

    qa/test_leaks.py counts entries, graphs, functions and memory.
    """
    from tensorflow.python.framework import ops

    before = len(ops.gradient_registry.list())
    for n in range(5):
        function = tf.function(cg.custom_gradient(lambda x: (x, lambda dy: 2.0 * dy)))
        function.get_concrete_function(tf.TensorSpec([n]))
    assert len(ops.gradient_registry.list()) == before


def test_31945_43535_and_50170_variables_are_found_by_their_handles():
    """https://github.com/tensorflow/tensorflow/issues/31945, https://github.com/tensorflow/tensorflow/issues/43535,
    https://github.com/tensorflow/tensorflow/issues/50170.
    """
    layers = [tf.keras.layers.Dense(2, kernel_initializer="ones", use_bias=False) for _ in range(2)]

    @cg.custom_gradient
    def function(x):
        y = layers[1](layers[0](x[None]))[0]

        def grad_fn(dy, variables):
            return 3.0 * dy, [float(i + 1) * tf.ones_like(v) for i, v in enumerate(variables)]

        return y, grad_fn

    for traced in (False, True):
        function(X)  # Builds the layers.

        def run():
            with tf.GradientTape() as tape:
                y = tf.cond(X[0] > 0, lambda: function(X), lambda: X)
            return tape.gradient(y, [layer.kernel.value for layer in layers])

        first, second = (tf.function(run) if traced else run)()
        np.testing.assert_array_equal(first, np.ones([2, 2]))
        np.testing.assert_array_equal(second, 2 * np.ones([2, 2]))


def test_34503_and_36168_second_order():
    """https://github.com/tensorflow/tensorflow/issues/34503, https://github.com/tensorflow/tensorflow/issues/36168."""

    @cg.custom_gradient
    def cube(x):
        return x**3, lambda dy: dy * 3.0 * x**2

    def hessian(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = cube(x)
            dx = inner.gradient(y, x, output_gradients=DY)
        return outer.jacobian(dx, x)

    for run in (hessian, tf.function(hessian), tf.function(hessian, jit_compile=True)):
        np.testing.assert_allclose(run(X), np.diag([6.0, 120.0]))


def test_36999_the_same_tensor_twice():
    """https://github.com/tensorflow/tensorflow/issues/36999."""

    @cg.custom_gradient
    def function(a, b):
        return a + b, lambda dy: (2.0 * dy, 30.0 * dy)

    for traced in (False, True):
        np.testing.assert_allclose(gradient(lambda x: function(x, x), traced=traced), 32 * DY)


def test_56692_65839_and_77559_keyword_arguments():
    """https://github.com/tensorflow/tensorflow/issues/56692, https://github.com/tensorflow/tensorflow/issues/65839,
    https://github.com/tensorflow/tensorflow/issues/77559.
    """

    @cg.custom_gradient
    def function(x, scale=1.0):
        return x * scale, lambda dy: (5.0 * dy, None)

    for traced in (False, True):
        np.testing.assert_allclose(gradient(lambda x: function(x=x, scale=2.0), traced=traced), 5 * DY)
        np.testing.assert_allclose(gradient(lambda x: function(x, scale=tf.constant(2.0)), traced=traced), 5 * DY)


def test_26048_wrong_returns_name_function_and_argument():
    """https://github.com/tensorflow/tensorflow/issues/26048; custom_gradient/test_errors.py has all the messages."""

    @cg.custom_gradient
    def function(x):
        return x, lambda dy: (dy, dy)

    for traced in (False, True):
        try:
            gradient(function, traced=traced)
        except ValueError as error:
            message = str(error)
        assert "grad_fn of 'function' returned 2 gradients; expected 1 (one per input: 'x')" in message


def test_a_loop_in_a_saved_model_is_trained_on_in_a_fresh_process(tmp_path):
    """An RNN with a custom gradient, saved, loaded elsewhere and trained, which TensorFlow cannot do today."""

    @cg.custom_gradient
    def spike(v):
        return tf.cast(v > 1.0, v.dtype), lambda dy: dy / (1.0 + 10.0 * tf.abs(v - 1.0)) ** 2

    class Cell(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable([[0.5, 0.2], [0.3, 0.6], [0.1, 0.4]])

        @tf.function(input_signature=[tf.TensorSpec([None, None, 3], tf.float32)])
        def rate(self, inputs):
            """The mean number of spikes of leaky units over time, [batch, 2]."""

            def step(t, v, spikes):
                v = 0.9 * v + inputs[:, t] @ self.w
                fired = spike(v)
                return t + 1, v - fired, spikes + fired

            zeros = tf.zeros([tf.shape(inputs)[0], 2])
            steps = tf.shape(inputs)[1]
            return tf.while_loop(lambda t, *_: t < steps, step, (0, zeros, zeros))[2] / tf.cast(steps, tf.float32)

    tf.saved_model.save(Cell(), tmp_path / "model")
    code = """
import json, sys
import numpy as np
import tensorflow as tf
import tf_cg_ops
model = tf.saved_model.load(sys.argv[1])
inputs = tf.constant(np.random.default_rng(0).uniform(size=[16, 20, 3]), tf.float32)
wanted = tf.constant([0.1, 0.6])
losses = []
for _ in range(60):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model.rate(inputs) - wanted) ** 2)
    losses.append(float(loss))
    model.w.assign_sub(0.3 * tape.gradient(loss, model.w))
print(json.dumps(losses))
"""
    losses = json.loads(run_python(code, tmp_path / "model", cwd=tmp_path).stdout.splitlines()[-1])
    assert losses[-1] < 0.2 * losses[0]
