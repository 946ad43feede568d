"""Repeats a scenario, and prints the bytes that each repetition leaves, and what all leave in the registries."""

import ctypes
import gc
import itertools
import json
import os
import pathlib
import statistics
import sys

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import func_graph, ops

import tf_cg_ops as cg

name, which, repetitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
tf.get_logger().setLevel("ERROR")  # Its advice not to trace that often.
decorator = tf.custom_gradient if which == "tensorflow" else cg.custom_gradient
kept = []


def decorated(x):
    if which == "kilobyte":
        kept.append(bytearray(1024))
    return tf.sin(x) * x, lambda dy: dy * (tf.cos(x) * x + tf.sin(x))


one = decorator(decorated)
x, dy = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])


def run(x):
    return [one(x), cg.embed_gradient(x**2, 2.0 * x, x)]


def differentiate(x, run=run):
    with tf.GradientTape(persistent=name == "persistent") as tape:
        tape.watch(x)
        values = run(x)
    for value in values if name == "persistent" else [values]:
        tape.gradient(value, x)


module = tf.Module()
module.run = tf.function(run, [tf.TensorSpec([2])], autograph=False)
if name == "loads":
    tf.saved_model.save(module, "model")
repeat = {
    "traces": lambda: tf.function(lambda x: differentiate(x), autograph=False)(x),
    "loads": lambda: differentiate(x, tf.saved_model.load("model").run),
}.get(name, lambda: differentiate(x))


def counts():
    graphs = sum(issubclass(type(o), func_graph.FuncGraph) for o in gc.get_objects())
    return len(ops.gradient_registry.list()), graphs, len(context.context().list_function_names())


memory = []
for number in range(11):  # The first round fills caches.
    for _ in range(repetitions // 10):
        repeat()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    memory.append(int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    if number == 0:
        first = counts()
pairs = itertools.combinations(enumerate(memory), 2)
slope = statistics.median((b - a) / (j - i) for (i, a), (j, b) in pairs) / (repetitions // 10)
print(json.dumps([slope, [after - before for before, after in zip(first, counts(), strict=True)]]))
