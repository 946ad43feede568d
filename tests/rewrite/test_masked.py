"""`rules.masked` on the published ways to a nan, beside the same code with a second `tf.where`."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import GRAPH_MODES, MODES, assert_orders, orders_in_a_fresh_process

RULES = {cg.rules.elementwise: cg.rules.masked}
DY = np.array([1.0, -10.0, 0.5, 3.0, 0.0, 2.0])
pytestmark = pytest.mark.filterwarnings("ignore:.*the rule 'masked' does not reach:UserWarning")


def padded_rows(x, safe):
    """The mean of the logarithms of each row, whose padding is zero."""
    rows, count = tf.reshape(x, [-1, 3]), tf.constant([3.0, 2.0], tf.float64)
    there = tf.sequence_mask(count, 3)
    logs = tf.where(there, tf.math.log(safe(rows, there)), 0.0)
    return x * tf.repeat(tf.reduce_sum(logs, 1) / count, 3)


def masked_scores(x, safe):
    """The entropy of a softmax whose masked scores are -inf."""
    rows = tf.where(tf.reshape(x, [-1, 3]) > -5.0, tf.reshape(x, [-1, 3]), -np.inf)
    weights = tf.exp(rows - tf.stop_gradient(tf.reduce_max(rows, 1, keepdims=True)))
    weights /= tf.reduce_sum(weights, 1, keepdims=True)
    entropies = tf.where(weights > 0, weights * tf.math.log(safe(weights, weights > 0)), 0.0)
    return tf.reshape(entropies, [-1])


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


# Conditions, which hold for some of these numbers.
positive, inside, below_100 = (lambda x: x > 0), (lambda x: abs(x) < 1), (lambda x: x < 100)
SIGNS, ENDS, LARGE = (
    [-2.0, 0.0, 0.5, 1.0, 3.0, 2.0],
    [-1.0, 0.0, 0.5, 1.0, 3.0, 0.2],
    [0.2, 1.0, 900.0, 1.0, 800.0, 2.0],
)
# Each with an x at which the plain code has a nan in its first or second derivative. `safe(t, condition)` is the second
# `where`, or `t`. The numbers are issues of TensorFlow, JAX and PyTorch.
EXAMPLES = {
    "log": (where(tf.math.log, positive), SIGNS),  # tensorflow#38349, jax#347
    "log of a selected 1, squared": (
        lambda x, safe: where(tf.math.log, positive)(x, safe) ** 2,
        [-2.0, 0, 0.5, 1, 1, 2],
    ),
    "sqrt": (where(tf.sqrt, positive), SIGNS),  # pytorch#52248
    "division": (  # tensorflow#20355
        lambda x, safe: tf.where(abs(x) > 0, tf.sin(x) / safe(x, abs(x) > 0), 1.0),
        [-2.0, 0.0, 0.5, 1.0, 3.0, 0.0],
    ),
    "x ** 1.5": (where(lambda x: x**1.5, positive), SIGNS),
    "x ** y": (where(lambda x: x ** (x - 0.5), positive), SIGNS),
    "softplus": (where(lambda x: tf.math.log1p(tf.exp(x)), below_100, 1.0), LARGE),
    "inverse of softplus": (where(lambda x: tf.math.log(tf.math.expm1(x)), below_100, 1.0), LARGE),
    "padded batch": (padded_rows, [0.5, 2.0, 3.0, 0.2, 4.0, 0.0]),  # tensorflow#27684
    "atanh": (where(tf.atanh, inside), ENDS),
    "atan2": (angle, [0.0, 0.0, 0.5, 1.0, -1.0, 2.0]),
    "norm": (norm, [0.0, 0.0, 0.0, 1.0, -2.0, 0.5]),
    "masked softmax": (masked_scores, [1.0, -9.0, 2.0, 0.5, 0.2, -7.0]),  # pytorch#156212
    "truncated normal": (truncated_normal, [-40.0, 0.0, 0.5, 50.0, -1.0, 0.2]),
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


@pytest.mark.parametrize("name", [pytest.param("log", marks=pytest.mark.core), *list(EXAMPLES)[1:]])
def test_the_gradient_is_that_of_a_second_where(name):
    function, x = plain(name)
    assert np.isnan(MODES["eager"](function, x, DY)[1:]).any()
    assert np.isfinite(expected(name)).all()
    assert_orders(MODES["eager"](masked(name), x, DY), expected(name))


ROWS = ["atan2", "norm", "masked softmax", "padded batch", "broadcast factor"]
OTHER_MODES = {mode: run for mode, run in {**MODES, **GRAPH_MODES}.items() if mode != "eager"}


def cases():
    """Each mode, with the examples in turn."""
    for i, mode in enumerate(OTHER_MODES):
        # TensorFlow cannot compile the gradient of a loop with tf.repeat, or with a slice in a function that the loop
        # calls. Forward mode calls the function for each element, so it gets few.
        names = [name for name in EXAMPLES if name not in ROWS or not ("xla" in mode or "forward" in mode)]
        yield names[i % len(names)], mode


@pytest.mark.parametrize(("name", "mode"), list(cases()))
def test_in_each_mode(name, mode):
    part = slice(1, 4) if "forward" in mode else slice(None)
    found = OTHER_MODES[mode](masked(name), plain(name)[1][part], DY[part])
    assert_orders(found, [numbers[part] for numbers in expected(name)])


def test_after_a_reload(tmp_path):
    """Several examples, each for its part of x."""
    names, modes = ["log", "x ** y", "atan2", "broadcast factor"], ["eager", "traced", "jit"]

    def function(x):
        return tf.concat([masked(name)(part) for name, part in zip(names, tf.split(x, len(names)), strict=True)], 0)

    x, dy = np.concatenate([plain(name)[1] for name in names]), np.tile(DY, len(names))
    found = orders_in_a_fresh_process({"all": (function, modes)}, x, dy, tmp_path)["all"]
    for mode in modes:
        assert_orders(found[mode], [np.concatenate(parts) for parts in zip(*map(expected, names), strict=True)])
