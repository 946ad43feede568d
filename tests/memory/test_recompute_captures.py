"""recompute_grad of functions that close over Tensors, which have gradients as in the plain function."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import assert_all_close
from ..support.tensors import pairs

pytestmark = pytest.mark.core

X, W, DY = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0]), tf.constant([1.0, 10.0])


class Module:
    """Reads a Tensor of its own, or of one in a list."""

    def __init__(self, w):
        self.w = w
        self.nested = {"list": [w]}

    def method(self, x):
        return tf.sin(x) * self.nested["list"][0]

    def __call__(self, x):
        return tf.sin(x) * self.w


def closure(w):
    return lambda x: tf.sin(x) * w


def default(w):
    return lambda x, *, w=(w,): tf.sin(x) * w[0]


def inner_function(w):
    def factor():
        return w

    def function(x):
        return (lambda: tf.sin(x) * factor())()

    return function


def of_an_object_in_an_object(w):
    outer = Module(None)
    outer.inner = Module(w)
    return lambda x: outer.inner.method(x)


MAKERS = {
    "closure": closure,
    "default": default,
    "inner_function": inner_function,
    "partial": lambda w: functools.partial(lambda w, x: tf.sin(x) * w, w),
    "method": lambda w: Module(w).method,
    "callable_object": Module,
    "object_in_an_object": of_an_object_in_an_object,
    "tf_function": lambda w: tf.function(closure(w)),
    "decorated": lambda w: cg.recompute_grad(closure(w)),
}


@pytest.mark.parametrize(("name", "mode"), pairs(MAKERS, MODES))
def test_a_tensor_that_the_function_reads_has_the_plain_gradient(name, mode):
    if name == "tf_function" and mode == "eager":
        # A small Tensor of eager mode becomes a constant of the function, with TensorFlow's own gradients, too.
        x, w = tf.ones([200]), tf.fill([200], 3.0)
        upstream = {"output_gradients": None}
    else:
        x, w, upstream = X, W, {"output_gradients": DY}

    def run(wrap, x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = wrap(MAKERS[name](2.0 * w))(x)
        return tape.gradient(y, [x, w], **upstream)

    plain = MODES[mode](lambda x, w: run(lambda f: f, x, w))(x, w)
    recomputed = MODES[mode](lambda x, w: run(cg.recompute_grad, x, w))(x, w)
    assert_all_close(recomputed, plain, rtol=1e-6)


def global_function(x):
    return tf.sin(x) * GLOBAL["w"] * global_helper()


def global_helper():
    return HELPERS[0]


GLOBAL, HELPERS = {"w": tf.constant([3.0, 4.0])}, [tf.constant([5.0, 6.0])]


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_global_tensor_has_a_gradient(mode):
    def run():
        with tf.GradientTape() as tape:
            tape.watch([GLOBAL["w"], HELPERS[0]])
            y = cg.recompute_grad(global_function)(X)
        return tape.gradient(y, [GLOBAL["w"], HELPERS[0]], output_gradients=DY)

    by_global, by_helper = MODES[mode](run)()
    np.testing.assert_allclose(by_global, DY * np.sin(X) * [5.0, 6.0], rtol=1e-6)
    np.testing.assert_allclose(by_helper, DY * np.sin(X) * [3.0, 4.0], rtol=1e-6)


def test_slices_of_a_tensor_that_the_function_reads():
    table = tf.reshape(tf.range(6.0), [3, 2])
    with tf.GradientTape() as tape:
        tape.watch([X, table])
        y = cg.recompute_grad(lambda x: x * tf.gather(table, [1, 1])[0])(X)
    dtable = tf.convert_to_tensor(tape.gradient(y, table, output_gradients=DY))
    np.testing.assert_allclose(dtable, [[0, 0], X * DY, [0, 0]])


def test_integers_that_the_function_reads_stay_constants():
    """So that shapes made of them are known while tracing."""
    shape, shapes = tf.constant([2, 1]), []

    @cg.recompute_grad
    def function(x):
        x = tf.reshape(x, shape)
        shapes.append(x.shape)
        return x * x

    with tf.GradientTape() as tape:
        tape.watch(X)
        y = function(X)
    np.testing.assert_allclose(tape.gradient(y, X, output_gradients=DY[:, None]), 2.0 * X * DY)
    assert shapes == [[2, 1]]
