"""A function with custom gradients in a loop, in a conditional, and around a recomputation."""

import tensorflow as tf

import tf_cg_ops as cg


@cg.custom_gradient
def square(x):
    return x * x, lambda dy: 2.0 * x * dy


@cg.recompute_grad
def cube(x):
    return square(x) * x


def model(x):
    """A number for each row of x."""
    x = tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, square(x)), [0, x])[1]
    x = tf.cond(tf.reduce_sum(x) > 0.0, lambda: cube(x), lambda: x)
    others = list(range(1, x.shape.rank))
    return cg.embed_gradient(tf.reduce_sum(x, others), 2.0 * x, x, axis=others)
