"""Functions to differentiate without Python, with the numbers to expect in NumPy; functions that fail; and functions for
which TensorFlow's own C++ gradients get in the way.

All are float64 and map one or two vectors to one or two. Each output has a different upstream.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

import tf_cg_ops as cg

from .functions import calling_function, outer


def calling(function):
    return tf.function(lambda x: function(x), autograph=False)


def in_functions(function, depth):
    """The function at the end of a chain of calls, for a vector of float64."""
    for _ in range(depth):
        function = calling(function)
        function.get_concrete_function(tf.TensorSpec([3], tf.float64))  # Otherwise Python would nest too many traces.
    return function


def registered_ops():
    """Every OpDef that this process knows, with its documentation, by name."""
    buffer = pywrap_tf_session.TF_GetAllOpList()
    ops = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(buffer))
    return {op.name: op for op in ops.op}


X, X2 = np.array([0.5, -1.0, 2.0]), np.array([3.0, 0.25, -2.0])
DY, DY2 = np.array([1.0, 10.0, 100.0]), np.array([-2.0, 0.5, 7.0])
WEIGHT = np.array([2.0, -3.0, 0.5])


@dataclass
class Case:
    """`by_hand` gives the outputs and then the gradients, one for each input."""

    function: Any
    by_hand: Any
    num_inputs: int = 1
    x: Any = None
    known_shape: bool = True

    def inputs(self):
        return [X if self.x is None else self.x, X2][: self.num_inputs]

    def save(self):
        spec = tf.TensorSpec([3] if self.known_shape else [None], tf.float64)

        def named_outputs(*inputs):
            outputs = tf.nest.flatten(self.function(*inputs))
            return {f"y{i}": tf.identity(y) for i, y in enumerate(outputs)}

        return tf.function(named_outputs, input_signature=[spec] * self.num_inputs, autograph=False)


def f64(value):
    return tf.constant(value, tf.float64)


@cg.custom_gradient
def spike(x):
    return tf.sign(x), lambda dy: 4.0 * dy * x


@cg.custom_gradient
def gathering(x):
    """Its value comes from an operation that only has a gradient in Python."""
    return tf.sign(tf.gather(x, [0, 1, 2])), lambda dy: 4.0 * dy * x


@cg.custom_gradient
def log1pexp(x):
    return tf.math.log(1.0 + tf.exp(x)), lambda dy: dy * (1.0 - 1.0 / (1.0 + tf.exp(x)))


@cg.custom_gradient
def several(x, z):
    def grad_fn(dy, _, dy2):
        return 3.0 * dy * z + dy2, None

    return (x * z, tf.size(x), x - z), grad_fn


@cg.custom_gradient
def one_of_several(x):
    return (x * 2.0, tf.size(x), x * 3.0), lambda a, b, c: 100.0 * a + 5.0 * c


@cg.custom_gradient
def slices(x):
    return x + 1.0, lambda dy: tf.IndexedSlices(7.0 * dy, tf.constant([1, 1, 2]), tf.constant([3]))


class Variables(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(f64(WEIGHT))
        self.others = [tf.Variable(f64(0.25))]


MODULE = Variables()


@cg.custom_gradient
def reading_variable(x):
    """A tensor that only grad_fn reads."""
    return tf.square(x), lambda dy: dy * MODULE.w * x


@cg.custom_gradient
def with_variable(x):
    def grad_fn(dy, variables):
        return 10.0 * dy * x * variables[0], [dy]

    return MODULE.w * x, grad_fn


residual = cg.custom_vjp(lambda x: (x**2, (x, tf.cos(x))), lambda residuals, dy: dy * residuals[0] * residuals[1])


@cg.custom_jvp
def with_tangent(x):
    return x**2


@with_tangent.defjvp
def cosine_tangent(primals, tangents):
    return with_tangent(*primals), tangents[0] * tf.cos(primals[0])


@cg.custom_gradient
def wrong_shape(x):
    return x * 1.0, lambda dy: tf.reshape(dy, [-1])[:2]


@cg.custom_gradient
def untraceable(x):
    return x * 1.0, lambda dy: dy.numpy()


@cg.custom_gradient
def plain(x):
    """Its gradient is a single operation."""
    return tf.sign(x), lambda dy: 4.0 * dy


def embed(fx, gx, x, **keywords):
    return cg.embed_gradient(fx, gx, x, **keywords)


def live_and_stopped(x):
    """An input of a value with a custom gradient is also used directly."""
    h = tf.square(x)
    return embed(h * x, f64([5.0, 7.0, 11.0]), x) * h


def checked(x):
    """Assertions and prints next to a custom gradient do not make it fail."""
    tf.debugging.assert_positive(tf.square(x))
    tf.print("x:", x)
    return spike(x)


def loop(function):
    return lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, function(y)), (0, x))[1]


def in_functions_of_two_depths(function):
    """The path that is read first is the longer one."""
    called = in_functions(function, 10)
    longer = in_functions(called, 56)
    return lambda x: longer(x) + called(x)


def derivative(function):
    """The value is a gradient, which is differentiated once more; its upstream depends on x too."""

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = function(x)
        return tape.gradient(h, x, output_gradients=f64(WEIGHT) * x)

    return run


def derivative_by_gx(x):
    """The value is x - stop(x): zero, with a derivative that is not zero."""
    gx = x**2
    with tf.GradientTape() as tape:
        tape.watch(gx)
        h = embed(x**3, gx, x, fx_gx_manually_stopped=True)
    return tape.gradient(h, gx, output_gradients=f64(WEIGHT) * x)


JACOBIAN = np.arange(1.0, 10.0).reshape(3, 3)
BIG = np.array([-1e3, 0.0, 1e3])
SIGMOID = np.array([0.0, 0.5, 1.0])

CASES = {
    "embed": Case(lambda x: embed(x**2, f64([5.0, 7.0, 11.0]), x), lambda: (X**2, DY * [5.0, 7.0, 11.0])),
    "embed_pairs": Case(
        lambda x, z: embed(x * z, [f64([2.0, 3.0, 4.0]), z], [x, z]),
        lambda: (X * X2, DY * [2.0, 3.0, 4.0], DY * X2),
        num_inputs=2,
    ),
    "embed_axis": Case(
        lambda x: embed(tf.reduce_sum(x) * tf.ones([3], tf.float64), f64(JACOBIAN), tf.stack([x, x, x]), axis=-1),
        lambda: (np.full(3, 1.5), DY @ JACOBIAN),
    ),
    "embed_jacobian": Case(
        lambda x: embed(tf.sign(x), f64(JACOBIAN), x, axis=None), lambda: (np.sign(X), DY @ JACOBIAN)
    ),
    "embed_broadcast": Case(
        lambda x: tf.reduce_sum(embed(tf.stack([x, x]), f64([[3.0], [4.0]]), x[None, :]), 0),
        lambda: (2 * X, 7.0 * DY),
    ),
    "embed_stopped_by_hand": Case(
        lambda x: embed(x**3, x, x**2, fx_gx_manually_stopped=True),
        lambda: (X**3, DY * (3 * X**2 + X * 2 * X)),
    ),
    "embed_unknown_shape": Case(lambda x: embed(x**2, x**3, x), lambda: (X**2, DY * X**3), known_shape=False),
    "embed_live_and_stopped": Case(live_and_stopped, lambda: (X**5, DY * (X**2 * [5.0, 7.0, 11.0] + X**3 * 2 * X))),
    "embed_derivative": Case(
        derivative(lambda x: embed(tf.sin(x), x**2, x)), lambda: (WEIGHT * X**3, DY * WEIGHT * X**2)
    ),
    "embed_derivative_by_gx": Case(derivative_by_gx, lambda: (np.zeros(3), DY * WEIGHT * X)),
    "rule_derivative": Case(derivative(spike), lambda: (4.0 * WEIGHT * X**2, 8.0 * DY * WEIGHT * X)),
    "rule_beside_assert_and_print": Case(checked, lambda: (np.sign(X), 4 * DY * X)),
    "rule": Case(lambda x: spike(x), lambda: (np.sign(X), 4 * DY * X)),
    "rule_several": Case(
        lambda x, z: several(x, z)[::2],
        lambda: (X * X2, X - X2, 3 * DY * X2 + DY2, np.zeros(3)),
        num_inputs=2,
    ),
    "rule_one_of_several": Case(lambda x: one_of_several(x)[2], lambda: (3 * X, 5 * DY)),
    "rule_nested": Case(lambda x: outer(x), lambda: (np.exp(X), DY * np.sin(X))),
    "rule_calling_function": Case(lambda x: calling_function(x), lambda: (np.cos(X), DY * 2 * X**2)),
    "rule_slices": Case(lambda x: slices(x), lambda: (X + 1, np.array([0.0, 77.0, 700.0]))),
    "vjp": Case(lambda x: residual(x), lambda: (X**2, DY * X * np.cos(X))),
    "jvp": Case(lambda x: with_tangent(x), lambda: (X**2, DY * np.cos(X))),
    "recompute": Case(
        lambda x: cg.recompute_grad(lambda z: tf.sin(z) * z)(x),
        lambda: (np.sin(X) * X, DY * (np.cos(X) * X + np.sin(X))),
    ),
    "pass_through": Case(lambda x: cg.grad_pass_through(tf.sign)(x), lambda: (np.sign(X), DY)),
    "unrolled": Case(
        lambda x: tf.function(lambda y: 2.0 * tf.function(spike)(3.0 * spike(y)))(x),
        lambda: (2 * np.sign(X), 2 * DY * 4 * 3 * np.sign(X) * 3 * 4 * X),
    ),
    "built_in_before_and_after": Case(
        lambda x: tf.sin(plain(x**2)) * x,
        lambda: (
            np.sin(np.sign(X**2)) * X,
            DY * (np.sin(np.sign(X**2)) + X * np.cos(np.sign(X**2)) * 4 * 2 * X),
        ),
    ),
}

LOST = "tf_cg_ops: TensorFlow cannot differentiate loops and conditionals without Python, and function "
RULE_SHAPE = (
    "custom_gradient: grad_fn of 'wrong_shape' returned a gradient of the wrong shape for 'x'; expected [3], got [2]."
)

# Each with what the message must contain.
FAILURES = {
    "untraceable": (
        Case(lambda x: untraceable(x), None),
        "custom_gradient: the gradient of 'untraceable' is not in this file, because TensorFlow could not trace grad_fn: "
        "AttributeError: 'SymbolicTensor' object has no attribute 'numpy'. Correct grad_fn, or compute it with TensorFlow "
        "operations.",
    ),
    "while_loop": (Case(loop(plain), None), LOST),
    "embed_in_while_loop": (Case(loop(lambda y: embed(tf.sign(y), f64(4.0), y)), None), LOST),
    "cond": (Case(lambda x: tf.cond(x[0] > 0.0, lambda: plain(x), lambda: x), None), LOST),
    "loop_in_many_nested_functions": (Case(in_functions(loop(plain), 66), None), LOST),
    "loop_in_functions_of_two_depths": (Case(in_functions_of_two_depths(loop(plain)), None), LOST),
    "wrong_shape": (Case(lambda x: wrong_shape(x), None, known_shape=False), RULE_SHAPE),
}

NO_GRADIENT = "No gradient defined for op: "
# TensorFlow's C++ only has gradients of float32 variables, and cannot add them up.
OF_VARIABLES = (
    "does not match declared output type|Value for attr 'T' of resource|Trying to read variable with wrong dtype|"
    r"Expects arg\[\d+\] to be float but double"
)
# TensorFlow sends zeros back through everything that computed a value, and runs a function again to differentiate it.
# Each case has a pattern of the error, or the wrong gradient that comes out.
LIMITS = {
    "embed_where_the_value_overflows": (
        Case(
            lambda x: embed(tf.math.log(1.0 + tf.exp(x)), tf.sigmoid(x), x),
            lambda: (np.array([0.0, np.log(2.0), np.inf]), DY * SIGMOID),
            x=BIG,
        ),
        DY * [0.0, 0.5, np.nan],
    ),
    "rule_where_the_value_overflows": (
        Case(lambda x: log1pexp(x), lambda: (np.array([0.0, np.log(2.0), np.inf]), DY * SIGMOID), x=BIG),
        DY * [0.0, 0.5, np.nan],
    ),
    "value_without_a_gradient_in_cpp": (Case(lambda x: gathering(x), None), NO_GRADIENT + "GatherV2"),
    "variable_read_by_a_rule": (Case(lambda x: reading_variable(x), None), OF_VARIABLES),
    "variable_of_a_rule": (Case(lambda x: with_variable(x), None), OF_VARIABLES),
    "assigned": (Case(lambda x: (MODULE.others[0].assign(x[0]), plain(x))[1], None), OF_VARIABLES),
    "cond_beside": (
        Case(lambda x: plain(x) * tf.cond(x[0] > 0.0, lambda: x, lambda: 2.0 * x), None),
        "does not have value",
    ),
}
# Its gradient belongs to other random numbers.
RANDOM = Case(lambda x: plain(x) * tf.random.uniform([3], dtype=tf.float64), None)
# TensorFlow fails by itself here, so the text must not be ours.
BUILT_IN_FAILURES = {"built_in_loop": Case(loop(lambda y: tf.sin(y) * 2.0), None)}
