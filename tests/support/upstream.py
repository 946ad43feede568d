"""For tests that run with this library's decorators, and with TensorFlow's."""

import pytest
import tensorflow as tf

import tf_cg_ops as cg

OURS_AND_THEIRS = pytest.mark.parametrize("api", [cg, tf], ids=["ours", "tensorflow"])
MODES = pytest.mark.parametrize("run", [lambda f: f, tf.function], ids=["eager", "traced"])

X = tf.constant([1.0, 2.0, 3.0])
DY = tf.constant([1.0, 10.0, 100.0])


def vjp(function, *args, dy=None, variables=()):
    with tf.GradientTape() as tape:
        tape.watch(args)
        y = function(*args)
    return tape.gradient(y, [*args, *variables], output_gradients=dy)


def as_list(tensor):
    return tf.convert_to_tensor(tensor).numpy().tolist()
