"""Writes functions of a program, and one that differentiates them, with cloudpickle: pickled_program.py FILE."""

import pathlib
import sys

import cloudpickle
import tensorflow as tf

import tf_cg_ops as cg


@cg.custom_gradient
def function(x):
    """Its rule calls the function itself."""
    return tf.sin(x), lambda dy: dy * (2.0 + function(0.0 * x))


FACTOR = 3.0
vjp = cg.custom_vjp(lambda x: (tf.sin(x), x), lambda x, dy: FACTOR * dy)


@cg.custom_jvp
def jvp(x):
    return tf.sin(x)


@jvp.defjvp
def rule(primals, tangents):
    return tf.sin(*primals), 5.0 * tangents[0]


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @cg.custom_gradient
    def method(self, x):
        return tf.sin(x), lambda dy: self.factor * dy


def gradient(f):
    x = tf.constant([0.3, -2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()


sent = cloudpickle.dumps((gradient, [function, vjp, jvp, Scale(6.0).method]))
pathlib.Path(sys.argv[1]).write_bytes(sent)
