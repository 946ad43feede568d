"""Runs every kernel, the graph passes and the gradients without Python several times, for LeakSanitizer."""

import shutil
import tempfile

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg
from qa.sanitize.graphs import loaded, model, save, square
from tf_cg_ops._src.core import library

tf1 = tf.compat.v1
X = np.linspace(-1.0, 1.0, 3 * 40 * 64, dtype=np.float32).reshape(3, 40, 64)


def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = model(x)
    return h, tape.gradient(h, x, output_gradients=tf.range(3.0))


def in_a_session(folder):
    """The passes on a session's graph, and the gradient of a saved function, computed in C++."""
    with tf.Graph().as_default(), tf1.Session() as session:
        session.run(gradient(tf.constant(X)))
        x, dx = loaded(session, folder)
        # y = (x ** 2) ** 3 + 1.
        np.testing.assert_array_equal(session.run(dx, {x: [1.0, 2.0, 3.0]}), [6.0, 192.0, 1458.0])


def refused():
    """Calls that fail: their messages must be freed."""
    for shape in ([4], [2, 2]):
        try:
            library.custom_gradient_embed_grad(tf.ones([3]), tf.ones([3]), tf.constant(shape), wrt="x")
        except tf.errors.InvalidArgumentError:
            continue
        raise AssertionError("nothing was refused")


traced = tf.function(gradient, autograph=False)
compiled = tf.function(lambda x: square(x) + cg.embed_gradient(x, x, x), autograph=False, jit_compile=True)
for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128):
    x = tf.cast(X, dtype)
    for shape in ([3, 40, 64], [3, 40, 1], [1, 40, 64], [1, 1, 1]):
        library.custom_gradient_embed_grad(x, x, tf.constant(shape), wrt="x")
folder = tempfile.mkdtemp()
save(folder)
for _ in range(3):
    gradient(tf.constant(X))
    traced(tf.constant(X))
    compiled(tf.constant(X))
    in_a_session(folder)
    refused()
shutil.rmtree(folder)
