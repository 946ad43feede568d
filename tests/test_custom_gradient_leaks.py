"""Nothing global is left behind by a trace: no registry entry, no graph, no function, no memory."""

import gc
import json

import tensorflow as tf
from tensorflow.python.framework import ops  # Only a test may look inside.

import tf_cg_ops as cg

from .support.processes import run_python

TRACES = """
import gc, json, sys
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import func_graph, ops
import tf_cg_ops as cg

make = {"ours": cg.custom_gradient, "theirs": tf.custom_gradient}[sys.argv[1]]
traces = int(sys.argv[2])

@make
def function(x):
    return tf.sin(x), lambda dy: 2.0 * dy * tf.cos(x)

def trace():
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.function(lambda x: function(x))(x)
    tape.gradient(y, x)

def memory():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

def count():
    gc.collect()
    graphs = sum(isinstance(o, func_graph.FuncGraph) for o in gc.get_objects())
    return [len(ops.gradient_registry.list()), graphs, len(context.context().list_function_names()), memory()]

for _ in range(100):  # Caches fill up.
    trace()
before = count()
for _ in range(traces):
    trace()
print(json.dumps([after - b for after, b in zip(count(), before)]))
"""


def leaks(which, traces, tmp_path):
    result = run_python(TRACES, which, traces, cwd=tmp_path)
    return json.loads(result.stdout.splitlines()[-1])


def test_a_thousand_traces_leave_nothing(tmp_path):
    registry_entries, graphs, functions, memory = leaks("ours", 1000, tmp_path)
    assert registry_entries == 0
    assert graphs == 0
    assert functions == 0
    assert memory < 20e6  # A graph of such a trace takes about 100 kB.


def test_tf_custom_gradient_leaves_an_entry_for_each(tmp_path):
    """So that the test above can fail."""
    registry_entries, graphs, _, _ = leaks("theirs", 50, tmp_path)
    assert registry_entries == 50
    assert graphs >= 50


def test_eager_calls_leave_nothing():
    function = cg.custom_gradient(lambda x: (x, lambda dy: dy))
    before = len(ops.gradient_registry.list())
    for _ in range(100):
        function(tf.constant(1.0))
    gc.collect()
    assert len(ops.gradient_registry.list()) == before
