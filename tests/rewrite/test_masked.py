"""`rules.masked` on the published ways to a nan, beside the same code with a second `tf.where`."""

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import GRAPH_MODES, MODES, assert_orders, orders_in_a_fresh_process
from ..support.tensors import pairs

RULES = {cg.rules.elementwise: cg.rules.masked}
DY = np.array([1.0, -10.0, 0.5, 3.0, 0.0, 2.0])
INF = np.inf


def padded_rows(x, safe):
    """The mean of the logarithms of each row, whose padding is zero."""
    rows, count = tf.reshape(x, [-1, 3]), tf.constant([3.0, 2.0], tf.float64)
    there = tf.sequence_mask(count, 3)
    logs = tf.where(there, tf.math.log(safe(rows, there)), 0.0)
    return x * tf.repeat(tf.reduce_sum(logs, 1) / count, 3)


def masked_scores(x, safe):
    """The entropy of a softmax whose masked scores are -inf."""
    rows = tf.where(tf.reshape(x, [-1, 3]) > -5.0, tf.reshape(x, [-1, 3]), -INF)
    weights = tf.exp(rows - tf.stop_gradient(tf.reduce_max(rows, 1, keepdims=True)))
    weights /= tf.reduce_sum(weights, 1, keepdims=True)
    entropies = tf.where(weights > 0, weights * tf.math.log(safe(weights, weights > 0)), 0.0)
    return tf.reshape(entropies, [-1])


def masked_row(x, safe):
    """The logarithm of a sum of exponentials; all of a row can be masked."""
    rows = tf.reshape(x, [-1, 3])
    sums = tf.reduce_sum(tf.exp(rows + tf.where(rows > -5.0, tf.constant(0.0, x.dtype), -INF)), 1)
    return x * tf.repeat(tf.where(sums > 0, tf.math.log(safe(sums, sums > 0)), 0.0), 3)


def norm(x, safe):
    squares = tf.reduce_sum(tf.reshape(x, [-1, 3]) ** 2, 1)
    return x * tf.repeat(tf.where(squares > 0, tf.sqrt(safe(squares, squares > 0)), 0.0), 3)


def angle(x, safe):
    pairs = tf.reshape(x, [-1, 2])
    radius = tf.abs(pairs[:, 0]) + tf.abs(pairs[:, 1])
    angles = tf.where(radius > 0, tf.atan2(safe(pairs[:, 0], radius > 0), safe(pairs[:, 1], radius > 0)), 0.0)
    return x * tf.repeat(angles, 2)


def truncated_normal(x, safe):
    """The logarithm of the mass between -1 and 1, of which nothing is left in the tails."""
    mass = 0.5 * (tf.math.erf(x + 1) - tf.math.erf(x - 1))
    return tf.where(mass > 0, tf.math.log(safe(mass, mass > 0)), -((x - 1) ** 2))


def scaled_by_row(x, safe):
    """A factor for each row, so that the gradient of the factor is a sum over what was broadcast."""
    rows = tf.reshape(x, [-1, 3])
    return tf.reshape(tf.where(rows < 100, tf.exp(safe(rows, rows < 100)) * rows[:, :1], 0.0), [-1])


def no_nan_product(x, safe):
    there = x > 0
    return tf.math.multiply_no_nan(tf.math.log(safe(x, there)), tf.cast(there, x.dtype))


def where(function, condition, otherwise=0.0):
    return lambda x, safe: tf.where(condition(x), function(safe(x, condition(x))), otherwise)


# Each with an x at which the plain code has a nan in its first or second derivative. `safe(t, condition)` is the second `where`, or `t`.
EXAMPLES = {
    # https://github.com/tensorflow/tensorflow/issues/38349, https://github.com/jax-ml/jax/issues/347
    "log": (where(tf.math.log, lambda x: x > 0), [-2.0, 0.0, 0.5, 1.0, 3.0, 2.0]),
    "log of a selected 1, squared": (
        lambda x, safe: tf.where(x > 0, tf.math.log(safe(x, x > 0)), 0.0) ** 2,
        [-2.0, 0.0, 0.5, 1.0, 1.0, 2.0],
    ),
    # https://github.com/pytorch/pytorch/issues/52248
    "sqrt": (where(tf.sqrt, lambda x: x > 0), [-2.0, 0.0, 0.5, 1.0, 3.0, 2.0]),
    "rsqrt": (where(tf.math.rsqrt, lambda x: x > 0), [-2.0, 0.0, 0.5, 1.0, 3.0, 2.0]),
    # https://github.com/tensorflow/tensorflow/issues/20355
    "division": (
        lambda x, safe: tf.where(abs(x) > 0, tf.sin(x) / safe(x, abs(x) > 0), 1.0),
        [-2.0, 0.0, 0.5, 1.0, 3.0, 0.0],
    ),
    "x ** 1.5": (where(lambda x: x**1.5, lambda x: x > 0), [-2.0, 0.0, 0.5, 1.0, 3.0, 2.0]),
    "x ** y": (where(lambda x: x ** (x - 0.5), lambda x: x > 0), [-2.0, 0.0, 0.5, 1.0, 3.0, 2.0]),
    "softplus": (
        where(lambda x: tf.math.log1p(tf.exp(x)), lambda x: x < 100, 1.0),
        [-2.0, 0.0, 900.0, 1.0, 800.0, 2.0],
    ),
    "inverse of softplus": (
        where(lambda x: tf.math.log(tf.math.expm1(x)), lambda x: x < 100, 1.0),
        [0.2, 1.0, 900.0, 1.0, 800.0, 2.0],
    ),
    # https://github.com/tensorflow/tensorflow/issues/27684
    "padded batch": (padded_rows, [0.5, 2.0, 3.0, 0.2, 4.0, 0.0]),
    "atanh": (where(tf.atanh, lambda x: abs(x) < 1), [-1.0, 0.0, 0.5, 1.0, 3.0, 0.2]),
    "atan2": (angle, [0.0, 0.0, 0.5, 1.0, -1.0, 2.0]),
    "norm": (norm, [0.0, 0.0, 0.0, 1.0, -2.0, 0.5]),
    # https://github.com/pytorch/pytorch/issues/156212
    "masked softmax": (masked_scores, [1.0, -9.0, 2.0, 0.5, 0.2, -7.0]),
    "masked row": (masked_row, [-9.0, -8.0, -7.0, 0.5, 0.2, -7.0]),
    "truncated normal": (truncated_normal, [-40.0, 0.0, 0.5, 50.0, -1.0, 0.2]),
    "acos": (where(tf.acos, lambda x: abs(x) < 1), [-1.0, 0.0, 0.5, 1.0, 3.0, 0.2]),
    "broadcast factor": (scaled_by_row, [0.5, 900.0, 1.0, 0.2, 1.0, 800.0]),
    "multiply_no_nan": (no_nan_product, [0.0, 0.0, 0.5, 1.0, 3.0, 2.0]),
}


def plain(name):
    example, x = EXAMPLES[name]
    return (lambda x: example(x, lambda t, condition: t)), np.array(x)


def masked(name):
    return cg.override_gradients(plain(name)[0], RULES)


@functools.cache
def expected(name):
    example, x = EXAMPLES[name]
    safe = lambda t, condition: tf.where(condition, t, tf.constant(0.5, t.dtype))  # noqa: E731
    return MODES["eager"](lambda x: example(x, safe), np.array(x), DY)


@pytest.fixture(autouse=True)
def _unreached():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*the rule 'masked' does not reach", UserWarning)
        yield


QUICK = ("log", "broadcast factor")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.core] if name in QUICK else []) for name in EXAMPLES]
)
def test_the_gradient_is_that_of_a_second_where(name):
    function, x = plain(name)
    assert np.isnan(MODES["eager"](function, x, DY)[1:]).any()
    assert np.isfinite(expected(name)).all()
    assert_orders(MODES["eager"](masked(name), x, DY), expected(name))


# TensorFlow cannot compile the gradient of a loop with tf.repeat, or with a slice in a function that the loop calls.
ROWS = ["atan2", "norm", "masked softmax", "masked row", "padded batch", "broadcast factor"]
OTHER_MODES = {mode: run for mode, run in {**MODES, **GRAPH_MODES}.items() if mode != "eager"}
CASES = [
    case
    for case in pairs(EXAMPLES, OTHER_MODES)
    if case.values[0] not in ROWS or "loop_under_xla" not in case.values[1]
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_in_each_mode(name, mode):
    assert_orders(OTHER_MODES[mode](masked(name), plain(name)[1], DY), expected(name))


def test_after_a_reload(tmp_path):
    """Several examples, each for its part of x."""
    names, modes = ["log", "x ** y", "atan2", "broadcast factor"], ["eager", "traced", "jit"]

    def function(x):
        return tf.concat([masked(name)(part) for name, part in zip(names, tf.split(x, len(names)), strict=True)], 0)

    x, dy = np.concatenate([plain(name)[1] for name in names]), np.tile(DY, len(names))
    found = orders_in_a_fresh_process({"all": (function, modes)}, x, dy, tmp_path)["all"]
    for mode in modes:
        assert_orders(found[mode], [np.concatenate(parts) for parts in zip(*map(expected, names), strict=True)])
