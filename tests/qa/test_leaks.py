"""Nothing is left behind by traces, loads, eager calls and tapes: no registry entry, no graph, no function, no memory.

`python -m qa.leaks` does the same many more times.
"""

import gc
import json

import pytest
import tensorflow as tf
from tensorflow.python.framework import ops  # Only a test may look inside.

import tf_cg_ops as cg
from qa import leaks

from ..support.processes import run_python

# Caches of TensorFlow fill up for longer than so few repetitions take; a whole run has the tolerance that it states.
REPETITIONS = {"traces": 200, "loads": 100, "eager": 4000, "persistent": 4000}
FILLING_UP = {"traces": 8000, "loads": 16_000, "eager": 100, "persistent": 100}


def bytes_and_counts(name, which):
    found = leaks.row(name, which, leaks.measure_alone(name, which, REPETITIONS[name]))
    return found["bytes each"], [found[count] for count in leaks.COUNTS]


@pytest.mark.parametrize(
    "name", ["traces", "eager", *(pytest.param(name, marks=pytest.mark.slow) for name in ("loads", "persistent"))]
)
def test_nothing_is_left_behind(name):
    memory, counts = bytes_and_counts(name, "ours")
    assert counts == [0, 0, 0]
    assert memory < FILLING_UP[name]


@pytest.mark.slow
def test_a_kilobyte_that_is_left_behind_each_time_is_seen():
    memory, _ = bytes_and_counts("eager", "injected")
    assert memory > 1000 > FILLING_UP["eager"]


def test_a_run_fails_for_what_tensorflow_does_not_leave():
    built_in = {"scenario": "eager", "bytes each": 5.0} | dict.fromkeys(leaks.COUNTS, 0)
    assert not leaks.is_leak(built_in | {"bytes each": 36.0}, built_in)
    assert leaks.is_leak(built_in | {"bytes each": 38.0}, built_in)
    assert leaks.is_leak(built_in | {"graphs": 1}, built_in)


def test_the_slope_is_that_of_most_samples():
    jump = [(float(i), 2.0 * i + (100.0 if i > 2 else 0.0)) for i in range(20)]
    assert leaks.slope(jump) == pytest.approx(2.0, abs=0.5)


THEIRS = """
import gc, json
import tensorflow as tf
from qa import leaks

@tf.custom_gradient
def function(x):
    return tf.sin(x), lambda dy: 2.0 * dy * tf.cos(x)

def trace():
    with tf.GradientTape() as tape:
        x = tf.constant([1.0, 2.0])
        tape.watch(x)
        y = tf.function(lambda x: function(x))(x)
    tape.gradient(y, x)

before = leaks.counts()
for _ in range(50):
    trace()
gc.collect()
print(json.dumps([after - b for after, b in zip(leaks.counts(), before)]))
"""


def test_tf_custom_gradient_leaves_an_entry_for_each(tmp_path):
    """So that the counts are seen to count."""
    result = run_python(THEIRS, cwd=tmp_path, environment={"PYTHONPATH": str(leaks.ROOT)})
    registry_entries, graphs, _ = json.loads(result.stdout.splitlines()[-1])
    assert registry_entries == 50
    assert graphs >= 50


def test_eager_calls_leave_no_registry_entry():
    function = cg.custom_gradient(lambda x: (x, lambda dy: dy))
    before = len(ops.gradient_registry.list())
    for _ in range(100):
        function(tf.constant(1.0))
    gc.collect()
    assert len(ops.gradient_registry.list()) == before
