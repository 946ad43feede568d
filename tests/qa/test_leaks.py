"""Traces, loads, eager calls and tapes leave nothing behind: no registry entry, graph, function or memory."""

import json
import pathlib
import re

import pytest

from ..support.processes import run_python

# How often each is repeated, and how many bytes each repetition can leave. TensorFlow's caches are still filling up
# after so few repetitions. A graph with its functions takes about 100 kB, an eager tensor with its record about 1 kB.
SCENARIOS = {"traces": (100, 8000), "loads": (100, 16_000), "eager": (2000, 100), "persistent": (4000, 100)}

# Growth is the median of the slopes between all pairs of samples (Theil and Sen), so a cache that fills up at once does
# not count.
MEASURE = pathlib.Path(__file__).with_name("repeated_calls.py").read_text()


def left_behind(name, which, tmp_path, times=None):
    """The bytes left by each repetition, and the registry entries, graphs and functions left by all."""
    times = times or SCENARIOS[name][0]
    no_buffers_of_onednn = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    result = run_python(MEASURE, name, which, times, cwd=tmp_path, environment=no_buffers_of_onednn)
    return json.loads(result.stdout.splitlines()[-1])


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


# TensorFlow's own caches hold the first 1024 types.
TYPES = """
import gc
import weakref
import tensorflow as tf
import tf_cg_ops as cg

x, types = tf.ones([2]), []
called = [cg.custom_gradient(lambda x, options: (x, lambda dy: (dy, None))), cg.recompute_grad(lambda x, options: x)]
for number in range(1100):
    options = type("Options", (), {})()
    types.append(weakref.ref(type(options)))
    for function in called if number > 1080 else called[:1]:
        function(x, options)
del options
gc.collect()
assert not any(kept() for kept in types[-20:])
"""


def test_the_types_of_arguments_are_collected(tmp_path):
    run_python(TYPES, cwd=tmp_path)


NAMES = """
import warnings
import tensorflow as tf
from tensorflow.python.framework import ops
import tf_cg_ops as cg
from tf_cg_ops._src.core import when_saved

def traced(number, is_python):
    @cg.custom_gradient
    def untraceable(x):
        def grad_fn(dy):
            raise ValueError(number)
        return x, grad_fn

    def of_python(x):
        return x, x

    of_python.__qualname__ = f"python{number}"
    module = tf.Module()
    module.call = tf.function(cg.numpy_function(of_python) if is_python else untraceable, [tf.TensorSpec([2])])
    module.call.get_concrete_function()
    return module

def trace(numbers):
    for number in numbers:
        traced(number, False), traced(number, True)
    return len(ops.gradient_registry.list())

when_saved._MOST = 100
many = trace(range(101))
assert trace(range(101, 120)) == many
for number in 0, 1000:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tf.saved_model.save(traced(number, False), "model")
    print(*(w.message for w in caught))
    try:
        tf.saved_model.save(traced(number, True), "refused")
    except ValueError as error:
        print(error)
"""


def test_texts_of_what_a_file_cannot_hold_end_their_registry_entries(tmp_path):
    told = [
        r"will not have this gradient\. custom_gradient: the gradient of 'untraceable' .* ValueError: 0\.",
        "numpy_function: 'python0' is Python code, which a saved function cannot contain",
        r"will not have this gradient\. TensorFlow could not trace it\.",
        "A function in this graph is Python code, which a saved function cannot contain",
    ]
    lines = run_python(NAMES, cwd=tmp_path).stdout.splitlines()
    assert [bool(re.search(*pair)) for pair in zip(told, lines, strict=True)] == [True] * 4
