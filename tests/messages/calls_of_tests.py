"""Wrong calls of the functions that test gradients, and what they say about wrong gradients."""

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .table import Row, eager, options
from .table import X as X32

X = np.array([0.5, -1.0, 2.0])
WEIGHTS = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]])


def f(x):
    return tf.sin(x)


def noisy(x):
    return x * tf.random.uniform([3], dtype=tf.float64)


CALLS = []


def one_output_more(x):
    CALLS.append(1)
    return [x] * len(CALLS)


def check(function=f, args=(X,), **options):
    return eager(lambda: cg.testing.check_gradient(function, args, **options))


def run_eagerly():
    tf.config.run_functions_eagerly(True)
    try:
        cg.testing.check_gradient(f, [X])
    finally:
        tf.config.run_functions_eagerly(False)


def in_a_graph():
    with tf.Graph().as_default():
        cg.testing.check_gradient(f, [X])


def raising(dy):
    raise KeyError("mine")


@cg.custom_gradient
def broken(x):
    return tf.sin(x), raising


@cg.custom_gradient
def too_large(x):
    return tf.sin(x), lambda dy: 1.5 * dy * tf.cos(x)


@tf.autograph.experimental.do_not_convert
def checked(x):
    return x if tf.executing_eagerly() else tf.debugging.check_numerics(x / tf.zeros_like(x), "divided")


CHECK_GRADIENT = {
    **options(
        lambda **values: cg.testing.check_gradient(**{"f": f, "args": [X], **values}),
        f={"None": None, "integers": tf.argmax, "print": print, "random": noisy, "one more": one_output_more},
        args={"an array": X, "two": [X, X], "integers": [np.array([1, 2])], "infinity": [np.array([1.0, np.inf])]},
        kwargs=[3],
        modes=[["eager", "graph"], "eager", []],
        like={"an array": X, "another shape": lambda x: tf.sin(x)[:2]},
        intended_gradient={"an array": X, "another shape": lambda dy, x: dy[:2], "two": lambda dy, x: (dy, None)},
        second_order=["yes"],
        forward_mode=["yes"],
        rtol=["small", None, -1.0, np.inf, np.nan],
        atol=[-1e-9, [1e-3, 1e-3]],
        step=["small", True, 1e-300, -0.1, np.inf, np.nan],
        seed=["zero", -1],
        max_elements=["all", 2.5, 0],
    ),
    "like and intended_gradient": check(like=f, intended_gradient=f),
    "forward_mode and intended_gradient": check(forward_mode=True, intended_gradient=f),
    "forward_mode under XLA": check(forward_mode=True, modes=["xla"]),
    "in a graph": eager(in_a_graph),
    "with functions that run eagerly": eager(run_eagerly),
    "a gradient that raises": check(broken, modes=["eager"], second_order=True),
    "an error in a graph": check(checked, modes=["function"]),
    "sort, vectorized": check(tf.sort, modes=["vectorized"]),
    "weights of float32": check(lambda x: x * WEIGHTS),
    "weights of float32 in a function": check(tf.function(lambda x: x * WEIGHTS, autograph=False)),
    "a conversion to float32": check(lambda x: tf.convert_to_tensor(x, tf.float32)),
    "a wrong gradient": check(too_large, modes=["eager"]),
}


AUDIT = {
    **options(
        lambda **values: cg.testing.audit(**{"f": too_large, "args": [X32], **values}),
        f={"3": 3, "integers": lambda x: tf.argmax(too_large(x))},
        args={"an array": X32, "None": None},
        like={
            "3": 3,
            "None": {"too_large": None},
            "unknown": {"nope": tf.sin},
            "a shape": {"too_large": tf.reduce_sum},
        },
        intended={"a string": "too_large", "unknown": ["nope"]},
        upstream={"two": [X32, X32]},
    ),
    "a wrong gradient": lambda: cg.testing.audit(too_large, [X32]).raise_if_wrong(),
}
GROUPS = {"testing.check_gradient": CHECK_GRADIENT, "testing.audit": AUDIT}
GROUPS = {
    name: {row: call if isinstance(call, Row) else eager(call) for row, call in rows.items()}
    for name, rows in GROUPS.items()
}
