"""The stop-gradient formulas of the upstream functions, written down again: right where all numbers are finite."""

import tensorflow as tf


def embed_formula(fx, gx, x, fx_gx_manually_stopped=False):
    """`fx + gx * (x - stop(x))` for operands of one shape, as `embed_gradient` promises with an empty axis."""
    stop = tf.identity if fx_gx_manually_stopped else tf.stop_gradient
    return stop(fx) + stop(gx) * (x - tf.stop_gradient(x))


def contrib_formula(fx, gx, x, axis=(), fx_gx_manually_stopped=False):
    """The formula of `tf.contrib.bayesflow.custom_grad.custom_gradient` of TensorFlow 1.6."""
    stop = tf.identity if fx_gx_manually_stopped else tf.stop_gradient
    sum_x = tf.reduce_sum(x, axis)
    return (sum_x - tf.stop_gradient(sum_x)) * stop(gx) + stop(fx)


def tfp_formula(fx, gx, x, fx_gx_manually_stopped=False):
    """The formula of `tfp.math.custom_gradient` of TensorFlow Probability 0.25; `gx` and `x` are lists."""
    stop = tf.identity if fx_gx_manually_stopped else tf.stop_gradient
    terms = [tf.reduce_sum(stop(g) * (t - tf.stop_gradient(t))) for g, t in zip(gx, x, strict=True)]
    return stop(fx) + sum(terms) / tf.cast(tf.size(fx), terms[0].dtype)
