"""The functions that the SavedModel of a version holds, each with its numbers in NumPy.

Files of released versions hold these functions: change none, add others.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

X = np.array([[-2.0, -0.5, 0.5], [0.25, 1.5, -1.0]])
W = np.array([1.5, -0.5, 2.0])


@dataclasses.dataclass
class Case:
    """A function of one Tensor, and its derivatives.

    `value(x)`; `gradient(x, dy)`; `second(x, dy, v)`, the derivative of `sum(v * gradient(x, dy))` by x; and
    `of_variable(x, dy)`, the gradient of the model's variable.
    """

    function: Callable[..., Any]
    value: Callable[[Any], Any]
    gradient: Callable[[Any, Any], Any]
    second: Callable[[Any, Any, Any], Any]
    of_variable: Callable[[Any, Any], Any] = lambda x, dy: np.zeros_like(W)
    shape: tuple[int | None, ...] = X.shape
    xla: bool = True  # Whether XLA can differentiate it.
    error: str = ""  # Part of what the file says instead of a gradient.


CASES: dict[str, Case] = {}
w = tf.Variable(W)


def case(value, gradient, second, **options):
    """Adds a function to the file under its name."""

    def decorate(function):
        CASES[function.__name__] = Case(function, value, gradient, second, **options)
        return function

    return decorate


def pointwise(value, derivative, second, **options):
    """The same for a function of single numbers."""
    return case(value, lambda x, dy: dy * derivative(x), lambda x, dy, v: dy * v * second(x), **options)


def repeated(step, derivative, second, times, **options):
    """The same for a function that is called several times in a row."""

    def derivatives(x):
        y, first, of_first = x, np.ones_like(x), np.zeros_like(x)
        for _ in range(times):
            of_first = second(y) * first**2 + derivative(y) * of_first
            y, first = step(y), derivative(y) * first
        return y, first, of_first

    return pointwise(*(lambda x, i=i: derivatives(x)[i] for i in range(3)), **options)


def zero(x):
    return np.zeros_like(x)


def rows(x):
    return x.sum(-1)


# embed_gradient


@pointwise(np.sign, lambda x: 1 / (1 + x**2), zero)
def embed_gradient(x):
    return cg.embed_gradient(tf.sign(x), 1 / (1 + x**2), x)


@case(rows, lambda x, dy: dy[:, None] * np.sin(x), lambda x, dy, v: zero(x))
def embed_axis(x):
    return cg.embed_gradient(tf.reduce_sum(x, 1), tf.sin(x), x, axis=-1)


@case(np.sum, lambda x, dy: dy * np.cos(x), lambda x, dy, v: zero(x))
def embed_all_axes(x):
    return cg.embed_gradient(tf.reduce_sum(x), tf.cos(x), x, axis=None)


@case(rows, lambda x, dy: dy[:, None] * np.sin(x), lambda x, dy, v: zero(x), xla=False)
def embed_computed_axis(x):
    return cg.embed_gradient(tf.reduce_sum(x, -1), tf.sin(x), x, axis=tf.size(tf.shape(x)) - 1)


@pointwise(lambda x: x**3, lambda x: 3 * x**2 + np.sin(x), lambda x: 6 * x + 2 * np.cos(x))
def embed_unstopped(x):
    return cg.embed_gradient(x**3, tf.sin(x), x, fx_gx_manually_stopped=True)


# The gradient in the file: of the formula fx + gx * (x - stop(x)), each derivative of gx counts once more than the last.
@pointwise(lambda x: 3 * x**2 + np.sin(x), lambda x: 6 * x + 2 * np.cos(x), lambda x: 6 - 3 * np.sin(x))
def gradient_of_unstopped(x):
    return tf.gradients(embed_unstopped(x), x)[0]


# The same of a sum over rows and columns, whose op has the attributes of the sum.
@case(
    lambda x: np.sin(x) * np.arange(1.0, 3.0)[:, None],
    lambda x, dy: zero(x),
    lambda x, dy, v: zero(x),
)
def gradient_along_axis(x):
    y = cg.embed_gradient(tf.reduce_sum(x, 1), tf.sin(x), x, axis=-1)
    return tf.gradients(y, x, tf.constant([1.0, 2.0], tf.float64))[0]


@case(lambda x: np.cos(x), lambda x, dy: zero(x), lambda x, dy, v: zero(x))
def gradient_along_all_axes(x):
    return tf.gradients(cg.embed_gradient(tf.reduce_sum(x), tf.cos(x), x, axis=None), x)[0]


@pointwise(lambda x: x**2, lambda x: np.sin(x) + np.cos(x) * np.exp(x), lambda x: np.cos(x) * np.exp(x))
def embed_list(x):
    return cg.embed_gradient(x**2, [tf.sin(x), tf.cos(x)], [x, tf.exp(x)])


@pointwise(np.sign, np.cos, zero)
def embed_function(x):
    return cg.embed_gradient(tf.sign(x), lambda: tf.cos(x), x)


@pointwise(lambda x: -3 * x**2, lambda x: x + 2, zero)
def embed_complex(x):
    z, one = tf.complex(x, 2 * x), tf.ones_like(x)
    return tf.math.real(cg.embed_gradient(z**2, tf.complex(x, -one), z))


@case(rows, lambda x, dy: np.repeat((dy * np.cos(x.sum(-1)))[:, None], 3, -1), lambda x, dy, v: zero(x))
def bayesflow(x):
    sums = tf.reduce_sum(x, -1)
    return cg.compat.bayesflow.custom_gradient(sums, tf.cos(sums), x, axis=-1)


@pointwise(lambda x: x**3, lambda x: 3 * x**2 + np.sin(x), lambda x: 6 * x + 2 * np.cos(x))
def bayesflow_unstopped(x):
    return cg.compat.bayesflow.custom_gradient(x**3, tf.sin(x), x, fx_gx_manually_stopped=True)


@pointwise(lambda x: x**3, np.sin, zero)
def tfp_math(x):
    return cg.compat.tfp_math.custom_gradient(x**3, tf.sin(x), x)


# custom_gradient, custom_vjp, custom_jvp


@cg.custom_gradient
def _cosine(y):
    return tf.cos(y), lambda dy: -2 * dy * tf.sin(y)


@cg.custom_gradient
def _nested(y):
    return 0.5 * y + 1, lambda dy: dy * _cosine(y)


def nested_in_numpy(y):
    return 0.5 * y + 1


def second_of_nested(y):
    return -2 * np.sin(y)


@pointwise(nested_in_numpy, np.cos, second_of_nested)
def custom_gradient(x):
    return _nested(x)


@repeated(nested_in_numpy, np.cos, second_of_nested, 3, xla=False)
def custom_gradient_in_a_loop(x):
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, _nested(y)), (0, x))[1]


@pointwise(nested_in_numpy, np.cos, second_of_nested, xla=False)
def custom_gradient_in_a_conditional(x):
    return tf.cond(tf.reduce_sum(x) > -100, lambda: _nested(x), lambda: x)


@pointwise(nested_in_numpy, np.cos, second_of_nested, shape=(None, 3))
def custom_gradient_of_unknown_shape(x):
    return _nested(x)


@cg.custom_gradient
def _with_variable(x, *, options):
    def grad_fn(dy, variables):
        # One gradient for x, and one for what stands in the options.
        return (2 * dy * variables[0] * x, {"factor": 3 * dy, "text": None}), [tf.reduce_sum(5 * dy * x, 0)]

    return x * w * options["factor"], grad_fn


# By x as itself and as the factor.
@case(
    lambda x: x**2 * W,
    lambda x, dy: 2 * dy * W * x + 3 * dy,
    lambda x, dy, v: 2 * dy * v * W,
    of_variable=lambda x, dy: (5 * dy * x).sum(0),
)
def custom_gradient_with_variable(x):
    return _with_variable(x, options={"factor": x, "text": "none"})


@cg.custom_gradient
def _swapped(x):
    return tf.gather(x, [1, 0]), lambda dy: tf.IndexedSlices(3 * dy, tf.constant([1, 0]), tf.constant([2, 3]))


@case(lambda x: x[::-1], lambda x, dy: 3 * dy[::-1], lambda x, dy, v: zero(x))
def custom_gradient_of_slices(x):
    return _swapped(x)


@cg.custom_gradient
def _untraceable(x):
    return x**2, lambda dy: dy.numpy()


@pointwise(np.square, zero, zero, error="the gradient of '_untraceable' is not there")
def custom_gradient_that_cannot_be_traced(x):
    return _untraceable(x)


def _forward(x, factor):
    return tf.sin(x) * factor, (x, tf.cos(x))


_two_passes = cg.custom_vjp(
    _forward, lambda residuals, dy, factor: dy * residuals[0] * residuals[1] * factor, nondiff_argnames=["factor"]
)


@pointwise(lambda x: 2 * np.sin(x), lambda x: 2 * x * np.cos(x), lambda x: 2 * np.cos(x) - 2 * x * np.sin(x))
def custom_vjp(x):
    return _two_passes(x, factor=2.0)


@cg.custom_jvp
def _by_tangent(x):
    return tf.tanh(x)


@_by_tangent.defjvp
def _tangent(primals, tangents):
    return _by_tangent(*primals), tf.sin(primals[0]) * tangents[0]


@pointwise(np.tanh, np.sin, np.cos)
def custom_jvp(x):
    return _by_tangent(x)


@pointwise(np.round, np.ones_like, zero)
def grad_pass_through(x):
    return cg.grad_pass_through(tf.round)(x)


# Recomputation and loops


def _block(x):
    return tf.sin(cg.checkpoint_name(tf.sin(x), "kept")) * w


def first_of_block(x):
    return np.cos(np.sin(x)) * np.cos(x) * W


@case(
    lambda x: np.sin(np.sin(x)) * W,
    lambda x, dy: dy * first_of_block(x),
    lambda x, dy, v: dy * v * W * (-np.sin(np.sin(x)) * np.cos(x) ** 2 - np.cos(np.sin(x)) * np.sin(x)),
    of_variable=lambda x, dy: (dy * np.sin(np.sin(x))).sum(0),
)
def recompute_grad(x):
    return cg.recompute_grad(_block, keep=["kept"])(x)


@repeated(lambda y: np.sin(y) + 0.5, np.cos, lambda y: -np.sin(y), 5, xla=False)
def scan(x):
    return cg.scan(lambda y, half: (tf.sin(y) + half, None), x, tf.fill([5], tf.constant(0.5, tf.float64)))[0]


@repeated(lambda y: np.sin(y) + 0.5, np.cos, lambda y: -np.sin(y), 4, xla=False)
def while_loop(x):
    return cg.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, tf.sin(y) + 0.5), (0, x), maximum_iterations=6)[1]


# Other gradients for what is there


@pointwise(lambda x: 3 * np.maximum(x, 0), lambda x: 3 * np.sin(x), lambda x: 3 * np.cos(x))
def override_gradients(x):
    rules = {"Relu": lambda op, dy: dy * tf.sin(op.inputs[0])}
    return cg.override_gradients(lambda x: 3 * tf.nn.relu(x), rules)(x)


def logistic(x):
    return 1 / (1 + np.exp(-x))


@pointwise(
    lambda x: 10 * np.sign(x),
    lambda x: 1 + 2 * (np.abs(x) <= 1) + 3 * 2 * logistic(2 * x) * logistic(-2 * x) + 4 / (1 + 2 * np.abs(x)) ** 2,
    lambda x: (
        3 * 4 * logistic(2 * x) * logistic(-2 * x) * (logistic(-2 * x) - logistic(2 * x))
        - 4 * 4 * np.sign(x) / (1 + 2 * np.abs(x)) ** 3
    ),
)
def straight_through(x):
    return (
        cg.straight_through(tf.sign)(x)
        + 2 * cg.straight_through(tf.sign, "hard_tanh")(x)
        + 3 * cg.straight_through(tf.sign, "sigmoid", slope=2.0)(x)
        + 4 * cg.straight_through(tf.sign, "fast_sigmoid", slope=2.0)(x)
    )


def shrunk(dy, limit):
    return dy * np.minimum(1, limit / np.linalg.norm(dy))


@case(
    lambda x: 6 * x,
    lambda x, dy: np.clip(dy, -2, 2) + shrunk(2 * dy, 1.5) + shrunk(3 * dy, 2.5),
    lambda x, dy, v: zero(x),
)
def clip_gradient(x):
    [together] = cg.clip_gradient([x], global_norm=2.5)
    return cg.clip_gradient(x, value=2.0) + 2 * cg.clip_gradient(x, norm=1.5) + 3 * together


# Each product has the gradients 0.25 and -3 of its factors.
@case(lambda x: x**2, lambda x, dy: -2.75 * x * dy, lambda x, dy, v: -1.5 * dy * v)
def scale_and_reverse_gradient(x):
    return cg.scale_gradient(x, 0.25) * cg.reverse_gradient(x, 3.0)


@case(lambda x: x, lambda x, dy: dy, lambda x, dy, v: zero(x), xla=False)
def watch_gradient(x):
    return cg.watch_gradient(x, "watched", check_numerics=True)


def root(x):
    y = zero(x)
    for _ in range(30):
        y = y - (y**3 + y - x) / (3 * y**2 + 1)
    return y


def _newton(x):
    y = tf.zeros_like(x)
    for _ in range(30):
        y -= (y**3 + y - x) / (3 * y**2 + 1)
    return y


@pointwise(root, lambda x: 1 / (3 * root(x) ** 2 + 1), lambda x: -6 * root(x) / (3 * root(x) ** 2 + 1) ** 3)
def implicit_root(x):
    return cg.implicit_root(lambda y, x: y**3 + y - x, _newton)(x)


def model():
    """A model with all functions and the variable."""
    module = tf.Module()
    module.w = w
    for name, each in CASES.items():
        spec = tf.TensorSpec(each.shape, tf.float64)
        setattr(module, name, tf.function(each.function, input_signature=[spec], autograph=False))
    return module


# Of the graphs of TensorFlow 1


@pointwise(
    lambda x: nested_in_numpy(x) + x**3,
    lambda x: np.cos(x) + 3 * x**2 + np.sin(x),
    lambda x: second_of_nested(x) + 6 * x + 2 * np.cos(x),
)
def graph(x):
    return _nested(x) + embed_unstopped(x)
