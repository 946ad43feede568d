"""Sums and trains three times, and prints the bits; the argument is the number of threads."""

import sys

import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
tf.config.experimental.enable_op_determinism()
tf.random.set_seed(7)
start = tf.random.normal([257])
x, noise = tf.random.normal([4001, 257]), tf.random.normal([4001])
w = tf.Variable(start)


@cg.custom_gradient
def scaled(h):
    return h * noise, lambda dy: dy * noise


@tf.function
def step():
    with tf.GradientTape() as tape:
        rows = x * w
        h = cg.embed_gradient(tf.reduce_sum(rows, -1), tf.cos(rows), rows, axis=-1)
        h = cg.embed_gradient(h, tf.reduce_mean(x, 0)[None, :] * noise[:, None], w, axis=None)
        loss = tf.reduce_sum(scaled(h))
    w.assign_sub(1e-4 * tape.gradient(loss, w))


digests = set()
operands = [tf.random.normal([2, *shape]) for shape in ((3_000_001,), (3001, 700), (700, 3001))]
for _ in range(3):
    sums = [
        library.custom_gradient_embed_grad(*pair, tf.constant(out, tf.int64), wrt="x")
        for pair, out in zip(operands, ([], [700], [700, 1]), strict=True)
    ]
    w.assign(start)
    step()
    step()
    tf.debugging.assert_all_finite(w, "")
    tf.debugging.assert_none_equal(w, start)
    digests.add("".join(array.numpy().tobytes().hex() for array in (*sums, w)))
print(*digests)
