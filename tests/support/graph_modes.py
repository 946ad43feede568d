"""More modes for the value, the first and the second order of a function: transformations of graphs by TensorFlow.

Each has the signature of the functions in modes.py.
"""

import numpy as np
import tensorflow as tf

from .modes import first_and_second_order, traced_orders


def _wrapped(wrap):
    """Traced, with the function inside of something."""
    return lambda function, x, dy: traced_orders(lambda x: wrap(function, x), x, dy)


def while_loop(function, x):
    return tf.while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, function(x)), (0, x), maximum_iterations=1)[1]


def cond(function, x):
    return tf.cond(tf.reduce_max(x) > 0, lambda: function(x), lambda: 1000.0 * x)


def switch_case(function, x):
    return tf.switch_case(tf.size(x) // tf.size(x), [lambda: 1000.0 * x, lambda: function(x), lambda: -x])


def scan(function, x):
    return tf.scan(lambda _, element: function(element), x[None], initializer=tf.zeros_like(x))[0]


def map_fn(function, x):
    return tf.map_fn(function, x[None])[0]


def nested_functions(function, x):
    return tf.function(tf.function(function))(x)


def autograph(function, x):
    @tf.function(autograph=True)
    def run(x):
        y = x
        for i in tf.range(2):
            y = function(x) if i == tf.constant(1) else 1000.0 * x
        return y

    return run(x)


def vectorized_map(function, x):
    batch = tf.stack([2.0 * x, x])
    return tf.vectorized_map(function, batch, fallback_to_while_loop=False)[1]


def while_loop_under_xla(function, x, dy):
    run = tf.function(
        lambda x, dy: first_and_second_order(lambda x: while_loop(function, x), x, dy),
        jit_compile=True,
        autograph=False,
    )
    return [t.numpy() for t in run(tf.constant(x), tf.constant(dy))]


def jacobians(function, x, dy):
    """By tape.jacobian: the vector-Jacobian products of the whole Jacobian and of that of the first order."""

    @tf.function
    def run(x, dy):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = function(x)
            dx = tf.linalg.matvec(inner.jacobian(value, x), dy, transpose_a=True)
        second = outer.jacobian(dx, x, unconnected_gradients="zero")
        return value, dx, tf.linalg.matvec(second, dy, transpose_a=True)

    return [t.numpy() for t in run(tf.constant(x), tf.constant(dy))]


def forward_mode(function, x, dy):
    """By ForwardAccumulator, for each direction: tangents of the value and of the first order (forward over reverse)."""
    x, dy = tf.constant(x), tf.constant(dy)

    @tf.function
    def along(direction):
        with tf.autodiff.ForwardAccumulator(x, direction) as accumulator:
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = function(x)
            dx = tape.gradient(value, x, output_gradients=dy)
        tangents = [accumulator.jvp(t, unconnected_gradients="zero") for t in (value, dx)]
        return value, *tangents

    columns = [along(direction) for direction in tf.unstack(tf.eye(x.shape[0], dtype=x.dtype))]
    value = columns[0][0].numpy()
    jacobian, jacobian_of_dx = (np.stack([column[i].numpy() for column in columns], axis=1) for i in (1, 2))
    return value, dy.numpy() @ jacobian, dy.numpy() @ jacobian_of_dx


def forward_mode_eager(function, x, dy):
    tf.config.run_functions_eagerly(True)
    try:
        return forward_mode(function, x, dy)
    finally:
        tf.config.run_functions_eagerly(False)


def dataset_map(function, x, dy):
    """The pipeline computes value and gradients."""
    dataset = tf.data.Dataset.from_tensors((x, dy)).map(lambda x, dy: tuple(first_and_second_order(function, x, dy)))
    return [t.numpy() for t in next(iter(dataset))]


GRAPH_MODES = {
    "nested_functions": _wrapped(nested_functions),
    "while_loop": _wrapped(while_loop),
    "while_loop_under_xla": while_loop_under_xla,
    "cond": _wrapped(cond),
    "switch_case": _wrapped(switch_case),
    "scan": _wrapped(scan),
    "map_fn": _wrapped(map_fn),
    "autograph": _wrapped(autograph),
    "vectorized_map": _wrapped(vectorized_map),
    "jacobians": jacobians,
    "forward_mode": forward_mode,
    "forward_mode_eager": forward_mode_eager,
    "dataset_map": dataset_map,
}
