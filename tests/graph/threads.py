"""Threads that make their first calls of shared functions at once: threads.py NUMBER.

Each function is W sin(x). Traces, compiled programs and saved models are made while others run.
"""

import concurrent.futures
import sys
import tempfile
import threading

import keras
import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

W = tf.Variable(1.5, dtype=tf.float64)


def plain(x):
    return W * tf.sin(x)


def decorated(x):
    return plain(x), lambda dy, variables: (dy * W * tf.cos(x), [tf.reduce_sum(dy * tf.sin(x))])


class Layer(keras.layers.Layer):
    def call(self, x):
        return plain(x)


def recompute_layer():
    layer = cg.layers.Recompute(Layer(dtype="float64"), dtype="float64")
    layer.build([3])
    return layer


def times_w(sine):
    return lambda x: W * sine(x)


def root():
    """y = sin(x), by y**3 + y = sin(x)**3 + sin(x)."""
    return cg.implicit_root(lambda y, x: y**3 + y - tf.sin(x) ** 3 - tf.sin(x))(lambda x: tf.sin(x))


FUNCTIONS = {
    "decorated": lambda: cg.custom_gradient(decorated),
    "embedded": lambda: times_w(lambda x: cg.embed_gradient(tf.sin(x), tf.cos(x), x)),
    "traced": lambda: tf.function(cg.custom_gradient(decorated)),
    "jit": lambda: tf.function(cg.custom_gradient(decorated), jit_compile=True),
    "recompute_grad": lambda: cg.recompute_grad(lambda x: plain(x)),
    "override_gradients": lambda: cg.override_gradients(lambda x: plain(x), {"Sin": cg.rules.built_in}),
    "scan": lambda: lambda x: cg.scan(lambda carry, x: (carry + plain(x), plain(x)), tf.zeros([], tf.float64), x)[1],
    "numpy_function": lambda: times_w(cg.numpy_function(lambda x: (np.sin(x), np.cos(x)))),
    "implicit_root": lambda: times_w(root()),
    "layers.Recompute": recompute_layer,
}


def save_and_load(function):
    """Each thread saves on its own. The variable of the loaded model is another one."""
    module = tf.Module()
    module.w, module.f = W, tf.function(function, input_signature=[tf.TensorSpec([3], tf.float64)])
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
    return loaded.f, loaded.w


def work(number, functions, ready):
    x = tf.constant([0.1 * number, 1.0, 2.0 - number], tf.float64)
    dy = tf.constant([1.0, 10.0 + number, 100.0], tf.float64)
    expected = [W * tf.sin(x), dy * W * tf.cos(x), tf.reduce_sum(dy * tf.sin(x))]
    for name in [*FUNCTIONS, "saved"] * 2:
        ready.wait()
        if number == 0:
            functions.append(FUNCTIONS.get(name, FUNCTIONS["decorated"])())
        ready.wait()  # All threads make the first call at once.
        function, w = save_and_load(functions[-1]) if name == "saved" else (functions[-1], W)
        for _ in range(2):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            for found, wanted in zip([y, *tape.gradient(y, [x, w], dy)], expected, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12, err_msg=name)
        ready.wait()


def main(threads):
    tf.get_logger().setLevel("ERROR")
    functions, ready = [], threading.Barrier(threads)

    def run(number):
        try:
            work(number, functions, ready)
        except BaseException:
            ready.abort()  # The other threads stop waiting for this one.
            raise

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        print(len(list(pool.map(run, range(threads)))), "threads are right")


main(int(sys.argv[1]))
