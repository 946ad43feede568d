"""Prints what tf.debugging.enable_check_numerics makes of infinite and undefined operands."""

import json

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

tf.debugging.enable_check_numerics()
fine, infinite, undefined = (tf.constant(n) for n in ([1.0, 2.0], [1.0, np.inf], [np.nan, 1.0]))
dy = tf.constant([10.0, 3.0])


@cg.custom_gradient
def rule(fx, gx, x):
    return fx + 0.0, lambda dy: (None, None, dy * gx)


def differentiate(function, gx, x, with_gradient=True):
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(fine, gx, x)
    gradient = tape.gradient(value, x, output_gradients=dy) if with_gradient else value
    return value, gradient


def attempt(run, *arguments):
    try:
        return [t.numpy().tolist() for t in run(*arguments)]
    except tf.errors.InvalidArgumentError as error:
        return str(error)


found = []
for run in (differentiate, tf.function(differentiate)):
    for function in (cg.embed_gradient, rule):
        found.append(
            [
                attempt(run, function, fine, fine),
                attempt(run, function, fine, infinite),
                attempt(run, function, undefined, fine, False),
                attempt(run, function, undefined, fine),
            ]
        )
print(json.dumps(found))
