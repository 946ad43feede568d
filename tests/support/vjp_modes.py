"""The modes in which TensorFlow runs a function: each gives a value and a vector-Jacobian product as NumPy arrays."""

import numpy as np
import tensorflow as tf


def tape_vjp(function, args, dy):
    """The value of `function(*args)` and its gradients for the upstream `dy`; None where there is no path."""
    with tf.GradientTape() as tape:
        for arg in args:
            tape.watch(arg)
        value = function(*args)
    return value, tape.gradient(value, args, output_gradients=dy)


def to_numpy(structure):
    return tf.nest.map_structure(
        lambda t: None if t is None else np.asarray(tf.convert_to_tensor(t).numpy()), structure
    )


def eager(function, args, dy):
    return to_numpy(tape_vjp(function, [tf.constant(a) for a in args], tf.constant(dy)))


def traced(function, args, dy):
    @tf.function
    def run(args, dy):
        return tape_vjp(function, args, dy)

    return to_numpy(run([tf.constant(a) for a in args], tf.constant(dy)))


def _traced_with(make_spec, function, args, dy, jit_compile=False):
    tensors = [tf.constant(a) for a in [*args, dy]]

    @tf.function(input_signature=[make_spec(t) for t in tensors], jit_compile=jit_compile)
    def run(*tensors):
        return tape_vjp(function, list(tensors[:-1]), tensors[-1])

    return to_numpy(run(*tensors))


def traced_unknown_dims(function, args, dy):
    """Only ranks are known while tracing."""
    return _traced_with(lambda t: tf.TensorSpec([None] * t.shape.rank, t.dtype), function, args, dy)


def traced_unknown_rank(function, args, dy):
    return _traced_with(lambda t: tf.TensorSpec(None, t.dtype), function, args, dy)


def jit(function, args, dy):
    @tf.function(jit_compile=True)
    def run(args, dy):
        return tape_vjp(function, args, dy)

    return to_numpy(run([tf.constant(a) for a in args], tf.constant(dy)))


def jit_unknown_dims(function, args, dy):
    """Only ranks are known while tracing; XLA compiles for the sizes that come."""
    return _traced_with(lambda t: tf.TensorSpec([None] * t.shape.rank, t.dtype), function, args, dy, jit_compile=True)


def tf1_session(function, args, dy):
    """A TensorFlow 1 graph with placeholders of unknown shape, tf.gradients, and a session."""
    with tf.Graph().as_default():
        placeholders = [tf.compat.v1.placeholder(tf.as_dtype(a.dtype)) for a in [*args, dy]]
        value = function(*placeholders[:-1])
        gradients = tf.gradients(value, placeholders[:-1], grad_ys=placeholders[-1])
        fetches = {"value": value} | {str(i): g for i, g in enumerate(gradients) if g is not None}
        with tf.compat.v1.Session() as session:
            fetched = session.run(fetches, dict(zip(placeholders, [*args, dy], strict=True)))
    return fetched["value"], [fetched.get(str(i)) for i in range(len(args))]


VJP_MODES = {
    "eager": eager,
    "traced": traced,
    "traced_unknown_dims": traced_unknown_dims,
    "traced_unknown_rank": traced_unknown_rank,
    "jit": jit,
    "jit_unknown_dims": jit_unknown_dims,
    "tf1_session": tf1_session,
}
