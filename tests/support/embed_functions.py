"""Functions with embedded gradients, as in functions.py: each maps [n] to [n], with its numbers by hand."""

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .functions import Case


def stopped(x):
    """gx is stopped: there is no second order."""
    return cg.embed_gradient(tf.sin(x), 10.0 * x, x)


def unstopped(x):
    """The derivatives of sin(x) + 10 x (x - stop(x)): those of sin(x), and 10 x, and twice 10 at second order."""
    return cg.embed_gradient(tf.sin(x), 10.0 * x, x, fx_gx_manually_stopped=True)


def along_an_axis(x):
    pairs = tf.stack([x, 2.0 * x], 1)
    return cg.embed_gradient(tf.reduce_sum(pairs**2, 1), 3.0 * pairs, pairs, axis=-1)


def two_inputs(x):
    return cg.embed_gradient(tf.sin(x), [3.0 * x, tf.reduce_max(x)], [x, 2.0 * x])


def bayesflow(x):
    return cg.compat.bayesflow.custom_gradient(x**2, 5.0 * x, x)


def tfp_math(x):
    return cg.compat.tfp_math.custom_gradient(x**2, [5.0 * x, x], [x, 3.0 * x])


EMBED_CASES = {
    "embed_gradient": Case(stopped, lambda x, dy: (np.sin(x), 10 * x * dy, 0 * x)),
    "embed_gradient, unstopped": Case(
        unstopped, lambda x, dy: (np.sin(x), dy * (np.cos(x) + 10 * x), dy**2 * (20 - np.sin(x)))
    ),
    "embed_gradient, axis": Case(along_an_axis, lambda x, dy: (5 * x**2, 15 * x * dy, 0 * x)),
    "embed_gradient, lists": Case(two_inputs, lambda x, dy: (np.sin(x), dy * (3 * x + 2 * np.max(x)), 0 * x)),
    "compat.bayesflow": Case(bayesflow, lambda x, dy: (x**2, 5 * x * dy, 0 * x)),
    "compat.tfp_math": Case(tfp_math, lambda x, dy: (x**2, 8 * x * dy, 0 * x)),
}
