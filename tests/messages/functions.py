"""What the calls in messages.txt use: values, functions and models that are wrong in some way, and ways to differentiate."""

import functools
import types  # noqa: F401 The calls use it.
import unittest.mock

import keras
import numpy as np
import tensorflow as tf
import tf_keras  # noqa: F401 The calls use it.

import tf_cg_ops as cg

from ..support.modes import tape_vjp, with_functions_run_eagerly  # noqa: F401 The calls use them.
from .table import FOLDER

X, Y = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])
INTEGERS, M, NOT_FINITE = tf.constant([1, 2]), tf.ones([2, 3]), tf.constant([np.inf, np.nan])
A64 = np.array([0.5, -1.0, 2.0])
ZEROS, JACOBIAN, BATCH = np.zeros(3), np.zeros((3, 2)), np.zeros((2, 3))
THREE = tf.TensorSpec([3], tf.float32)
TWO_OUTPUTS = [THREE, tf.TensorSpec([], tf.int32)]
W, COUNTER, WEIGHT = (
    tf.Variable(value, name=name) for value, name in (([1.0, 1.0], "w"), ([0.0, 0.0], "counter"), (2.0, "weight"))
)
WEIGHTS = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])
TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [10.0, 20.0]), -1.0)
MODEL = keras.Sequential([keras.Input([2]), keras.layers.Dense(2, activation="tanh")])
A, B = keras.Input([3], name="a"), keras.Input([3], name="b")
RULES = {"Relu": cg.rules.guided}
TFP, CONTRIB = cg.compat.tfp_math.custom_gradient, cg.compat.bayesflow.custom_gradient


def ones(*shape):
    return tf.ones(shape)


def derive(function, *args, dy=None):
    return tape_vjp(function, args or (X,), dy)[1]


def tangents_of(function, *args):
    args = args or (X,)
    with tf.autodiff.ForwardAccumulator(args, args) as accumulator:
        y = function(*args)
    return accumulator.jvp(y)


def at_run_time(function, *args, **options):
    """Calls a function of Tensors whose sizes are not known while tracing."""
    specs = [tf.TensorSpec([None] * arg.shape.rank, arg.dtype) for arg in args]
    return tf.function(function, specs, autograph=False, **options)(*args)


def in_tensorflow_1(function):
    """The gradient in a graph of TensorFlow 1."""
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2])
        tf.gradients(function(x), x)


def double(x):
    return 2.0 * x


def twice(x):
    return tf.concat([2.0 * x, x], 0)


def pair(x):
    return x, x


def chain(x):
    return tf.tanh(tf.tanh(tf.tanh(x)))


def raising(*_):
    raise TypeError("my own")


def of_step(step):
    return 1.0


class Table:
    """Its conversion to a Tensor fails for a reason of its own."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("my own")


class Torch:
    """Doubles its input, as people write it for PyTorch."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2.0 * x

    @staticmethod
    def backward(ctx, dy):
        return 2.0 * dy


# Code that needs values


def by_value(x):
    return x if tf.reduce_all(x > 0.0) else 1.0 * x


def by_range(x):
    return x * len(range(tf.reduce_sum(x)))


def by_array(x):
    return x * tf.constant(x.numpy() > 0.0, x.dtype)


def by_numpy(x):
    return bool(np.any(np.sign(x)))


def layer_of(function):
    layer = keras.layers.Layer(name="inner")
    layer.call = function
    return layer


# Decorated functions


def f(x):
    return x, lambda dy: dy


def single(grad_fn):
    return cg.custom_gradient(lambda x: (2.0 * x, grad_fn))


def answering(answer):
    """A function of x and y whose grad_fn returns `answer(dy)`."""
    return cg.custom_gradient(lambda x, y: (x + y, answer))


def with_variable(answer):
    return derive(cg.custom_gradient(lambda x: (W * x, lambda dy, variables=None: answer(dy))))


def with_argument(value, answer):
    return derive(lambda x: cg.custom_gradient(lambda x, p: (2.0 * x, answer))(x, value))


@cg.custom_gradient
def without_return(x):
    def grad_fn(dy):
        2.0 * dy

    return 2.0 * x, grad_fn


def of_a_graph_that_is_gone():
    kept = []
    tf.function(kept.append)(tf.constant(1.0))
    return cg.custom_gradient(lambda x: (kept[0], lambda dy: dy * x))(X)


def with_reference_variable(x):
    v = tf.compat.v1.get_variable("v", [2], use_resource=False)
    return cg.custom_gradient(lambda x: (v * x, lambda dy: dy))(x)


def forward(x, weights):
    return tf.linalg.matvec(weights, x), (x, weights)


def swapped(dy, residuals):
    return dy * residuals[1]


def bwd(residuals, dy):
    return residuals[1] * dy


def with_rule(rule, function=double):
    decorated = cg.custom_jvp(function)
    decorated.defjvp(rule)
    return decorated


def with_tangent(of):
    return derive(with_rule(lambda primals, tangents: (double(*primals), of(*tangents))))


def with_numpy(dy):
    return tf.constant(dy.numpy())


UNTRACED = {
    "custom_gradient": single(with_numpy),
    "custom_vjp": cg.custom_vjp(lambda x: (2.0 * x, x), lambda x, dy: with_numpy(dy)),
    "grad_pass_through": cg.grad_pass_through(twice),
}


@functools.cache
def untraced():
    """A model with these functions, loaded again."""
    model = tf.Module()
    for name, function in UNTRACED.items():
        setattr(model, name, tf.function(function, input_signature=[tf.TensorSpec([2])]))
    tf.saved_model.save(model, FOLDER / "untraced")
    return tf.saved_model.load(FOLDER / "untraced")


def derive_loaded(name):
    function = getattr(untraced(), name)
    np.testing.assert_array_equal(function(X)[:2], 2.0 * X)
    return derive(function)


# Loops, copies and rules


def in_a_loop(function):
    def loop(x):
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, function(x)), (0, x), maximum_iterations=2)[1]

    return loop


def step(carry, x):
    return carry, x


def in_scan(function):
    return lambda x: cg.scan(lambda carry, _: (function(carry), None), x, length=1)[0]


def overridden(function):
    return cg.override_gradients(lambda x: function(tf.sign(x)), {"Sign": cg.rules.pass_through})


def model(x):
    return tf.nn.relu(x, name="activation") + tf.nn.relu(-x) + tf.sin(x)


def with_activation(rule):
    return derive(cg.override_gradients(model, {lambda op: op.name == "activation": rule}))


def in_block(x):
    with tf.name_scope("block"):
        return tf.sin(x)


called = tf.function(lambda x: tf.sin(x, name="sine"))


def two_blocks(x):
    with tf.name_scope("a"):
        y = in_block(x)
    with tf.name_scope("b"):
        return in_block(y)


SHARED = keras.layers.Dense(3, name="shared")
NAMED = keras.Sequential([keras.Input([3], name="given"), SHARED, keras.layers.Dense(1, name="last")])
TWICE = keras.Sequential([SHARED, SHARED], name="twice")


def splits(x):
    return tf.split(x, 2, name="parts")[0]


def with_braces(op):
    return 1.0


with_braces.__qualname__ = "rule{a}"


def loop_of_tensorflow_1(x):
    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            start = tf.compat.v1.placeholder(tf.float32, [2], name="x")
            tf.compat.v1.while_loop(lambda x: x[0] < 10.0, lambda x: [tf.nn.relu(x) + 1.0], [start], name="loop")
    finally:
        tf.compat.v1.enable_control_flow_v2()
    return tf.graph_util.import_graph_def(graph.as_graph_def(), {"x:0": x}, ["loop/Exit:0"])


# Keras


def ignoring(x, other):
    return 2.0 * x, lambda dy: [3.0 * dy, *[None] * len(tf.nest.flatten(other))]


def tripled(x):
    return 2.0 * x, lambda dy: 3.0 * dy


def config(function, *args):
    x = keras.Input([2])
    return keras.Model(x, cg.custom_gradient(function)(x, *args)).get_config()


def with_jax(call):
    with unittest.mock.patch.object(keras.backend, "backend", return_value="jax"):
        return call()


def remat(value):
    with cg.layers.enable_remat():
        keras.remat(value)


# Solvers


def kepler(y, x):
    return y - 0.3 * tf.sin(y) - x


def steps(x):
    y = x
    for _ in range(20):
        y = x + 0.3 * tf.sin(y)
    return y


def two_steps(x):
    """The iteration y = x / y goes back and forth between 1 and x."""
    y = tf.ones_like(x)
    for _ in range(20):
        y = x / y
    return y


def root(residual, solve=double, x=X, **options):
    return derive(lambda x: tf.nest.flatten(cg.implicit_root(residual, solve, **options)(x))[0], x)


def times_matrix(u):
    return tf.linalg.matvec(tf.constant([[4.0, 1.0], [1.0, 3.0]]), u)


# numpy_function


def in_numpy(x):
    return x, np.ones_like(x)


def returning(answer, output_signature=THREE, **options):
    """A function of two arrays that returns this answer."""

    def simulate(x, y):
        return answer

    return cg.numpy_function(simulate, output_signature, **options)


def with_vjp(answer=(ZEROS, None), gradients=(ZEROS[:2], ZEROS[:2]), output_signature=THREE, **options):
    return returning(answer, output_signature, vjp=lambda residuals, *dy: gradients, **options)


def diverging(*_):
    raise KeyError("the solver has diverged")


# Functions to check


CALLS = []


def one_output_more(x):
    CALLS.append(1)
    return [x] * len(CALLS)


@cg.custom_gradient
def broken(x):
    return tf.sin(x), diverging


@cg.custom_gradient
def too_large(x):
    return tf.sin(x), lambda dy: 1.5 * dy * tf.cos(x)


@cg.custom_gradient
def rectified(x):
    return tf.nn.relu(x), lambda dy: dy


@tf.autograph.experimental.do_not_convert
def checked(x):
    return x if tf.executing_eagerly() else tf.debugging.check_numerics(x / tf.zeros_like(x), "divided")
