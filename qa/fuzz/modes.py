"""The modes in which TensorFlow runs a function. Each takes arrays, and how much of their shapes is known."""

import tempfile

import numpy as np
import tensorflow as tf


def spec(array, known):
    """`known`: "shape", "rank" or "nothing"."""
    shape = {"shape": array.shape, "rank": [None] * array.ndim, "nothing": None}[known]
    return tf.TensorSpec(shape, array.dtype)


def _arrays(tensors):
    return [None if t is None else t.numpy() for t in tensors]


def eager(run, arrays, specs):
    return _arrays(run(*map(tf.constant, arrays)))


def function(run, arrays, specs, **options):
    return _arrays(tf.function(run, specs, autograph=False, **options)(*map(tf.constant, arrays)))


def xla(run, arrays, specs):
    return function(run, arrays, specs, jit_compile=True)


def vectorized_map(run, arrays, specs):
    """The second member of a batch; the first has other numbers."""
    others = [a * 2 if a.dtype.kind in "fcV" else a for a in map(np.asarray, arrays)]
    batch = [tf.stack([tf.constant(other), tf.constant(a)]) for other, a in zip(others, arrays, strict=True)]
    ranked = [s if s.shape.rank is not None else spec(a, "rank") for s, a in zip(specs, arrays, strict=True)]
    mapped = tf.function(
        lambda *tensors: tf.vectorized_map(lambda each: run(*each), list(tensors), fallback_to_while_loop=False),
        [tf.TensorSpec([None, *s.shape], s.dtype) for s in ranked],
        autograph=False,
    )
    return [t[1].numpy() for t in mapped(*batch)]


def reloaded(run, arrays, specs):
    """Saves the function and runs it from the SavedModel."""
    module = tf.Module()
    module.run = tf.function(run, specs, autograph=False)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        return _arrays(tf.saved_model.load(folder).run(*map(tf.constant, arrays)))


def session(run, arrays, specs):
    with tf.Graph().as_default():
        fed = [tf.compat.v1.placeholder(s.dtype, s.shape) for s in specs]
        fetches = run(*fed)
        with tf.compat.v1.Session() as running:
            running.run(tf.compat.v1.global_variables_initializer())
            fetched = iter(running.run([t for t in fetches if t is not None], dict(zip(fed, arrays, strict=True))))
        return [None if t is None else next(fetched) for t in fetches]


MODES = {mode.__name__: mode for mode in (eager, function, xla, vectorized_map, reloaded, session)}
