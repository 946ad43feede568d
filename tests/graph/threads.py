"""Threads that make their first calls of shared functions at once, and print what they found: threads.py NUMBER.

Each function is W sin(x). Traces, compiled programs and saved models are made while others run.
"""

import concurrent.futures
import json
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


def with_numpy_function():
    function = cg.numpy_function(lambda x: (np.sin(x), np.cos(x)))
    return lambda x: W * function(x)


def with_root():
    # y = sin(x), by y**3 + y = sin(x)**3 + sin(x).
    function = cg.implicit_root(lambda y, x: y**3 + y - tf.sin(x) ** 3 - tf.sin(x))(lambda x: tf.sin(x))
    return lambda x: W * function(x)


FUNCTIONS = {
    "decorated": lambda: cg.custom_gradient(decorated),
    "embedded": lambda: lambda x: W * cg.embed_gradient(tf.sin(x), tf.cos(x), x),
    "traced": lambda: tf.function(cg.custom_gradient(decorated)),
    "jit": lambda: tf.function(cg.custom_gradient(decorated), jit_compile=True),
    "recompute_grad": lambda: cg.recompute_grad(lambda x: plain(x)),
    "override_gradients": lambda: cg.override_gradients(lambda x: plain(x), {"Sin": cg.rules.built_in}),
    "scan": lambda: lambda x: cg.scan(lambda carry, x: (carry + plain(x), plain(x)), tf.zeros([], tf.float64), x)[1],
    "numpy_function": with_numpy_function,
    "implicit_root": with_root,
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
    results = []
    x = tf.constant([0.1 * number, 1.0, 2.0 - number], tf.float64)
    dy = tf.constant([1.0, 10.0 + number, 100.0], tf.float64)
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
            found = [t.numpy().tolist() for t in [y, *map(tf.convert_to_tensor, tape.gradient(y, [x, w], dy))]]
            results.append([name, x.numpy().tolist(), dy.numpy().tolist(), *found])
        ready.wait()
    return results


def main(threads):
    tf.get_logger().setLevel("ERROR")
    functions, ready = [], threading.Barrier(threads)

    def run(number):
        try:
            return work(number, functions, ready)
        except BaseException:
            ready.abort()  # The other threads stop waiting for this one.
            raise

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        print(json.dumps([result for results in pool.map(run, range(threads)) for result in results]))


main(int(sys.argv[1]))
