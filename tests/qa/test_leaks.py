"""Traces, loads, eager calls and tapes leave nothing behind: no registry entry, graph, function or memory."""

import json

import pytest

from ..support.processes import run_python

# How often each is repeated, and how many bytes each repetition can leave. TensorFlow's caches are still filling up
# after so few repetitions. A graph with its functions takes about 100 kB, an eager tensor with its record about 1 kB.
SCENARIOS = {"traces": (100, 8000), "loads": (100, 16_000), "eager": (2000, 100), "persistent": (4000, 100)}

# Growth is the median of the slopes between all pairs of samples (Theil and Sen), so a cache that fills up at once does
# not count.
MEASURE = """
import ctypes, gc, itertools, json, os, pathlib, statistics, sys
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
    first = first if number else counts()
pairs = itertools.combinations(enumerate(memory), 2)
slope = statistics.median((b - a) / (j - i) for (i, a), (j, b) in pairs) / (repetitions // 10)
print(json.dumps([slope, [after - before for before, after in zip(first, counts())]]))
"""


def left_behind(name, which, tmp_path, times=None):
    """The bytes left by each repetition, and the registry entries, graphs and functions left by all."""
    times = times or SCENARIOS[name][0]
    return json.loads(run_python(MEASURE, name, which, times, cwd=tmp_path).stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "name", ["traces", "eager", *(pytest.param(name, marks=pytest.mark.slow) for name in ("loads", "persistent"))]
)
def test_nothing_is_left_behind(name, tmp_path):
    memory, counts = left_behind(name, "ours", tmp_path)
    assert counts == [0, 0, 0]
    assert memory < SCENARIOS[name][1]


@pytest.mark.slow
def test_a_kilobyte_that_is_left_behind_each_time_is_seen(tmp_path):
    assert left_behind("eager", "kilobyte", tmp_path)[0] > 1000


def test_tf_custom_gradient_leaves_an_entry_for_each(tmp_path):
    """Shows that the counts work."""
    _, (registry_entries, graphs, _) = left_behind("traces", "tensorflow", tmp_path, times=20)
    assert registry_entries >= 20
    assert graphs >= 20
