"""Every public function in every mode of TensorFlow: value, first and second order against numbers by hand.

Tests that pass here fill the table in docs/modes.md.
"""

import numpy as np
import pytest

from ..support import functions
from ..support.functions import CASES, EMBED_CASES, READY_MADE
from ..support.modes import GRAPH_MODES, MODES, assert_orders
from ..support.processes import run_python

pytestmark = pytest.mark.core

X, DY = np.array([0.7, -1.3, 1.1]), np.array([1.0, 10.0, -3.0])

FUNCTIONS = {**EMBED_CASES, **CASES, **READY_MADE}
ALL_MODES = {**MODES, **GRAPH_MODES}

# Pairs at which TensorFlow fails with built-in ops alone; a test below shows it.
LEFT_OUT = [
    ("cond", "vectorized_map"),
    *[(function, mode) for function in ("cond", "scan", "map_fn") for mode in ("jacobians", "forward_mode")],
]

# A variable of eager mode is none of a TensorFlow 1 graph; custom_gradient/test_variables.py has one that is.
OTHER_GRAPH = ("with_variable", "tf1")

# Here an error of TensorFlow's own is dropped, or raised by what it calls next; the last test shows that error.
LUCK = ("while_loop", "forward_mode")

# A clipped gradient is no linear function of the upstream, and these two suppose that it is.
NOT_LINEAR = [("clip_gradient", mode) for mode in ("jacobians", "forward_mode", "forward_mode_eager")]

PAIRS = [(f, r) for f in FUNCTIONS for r in ALL_MODES if (f, r) not in (*LEFT_OUT, OTHER_GRAPH, LUCK, *NOT_LINEAR)]


def by_hand(case):
    value, dx, second = case.by_hand(X, DY)
    if second is None:  # By central differences of the first order, of which the formula is above.
        step = 1e-6
        differences = [
            np.sum(DY * (case.by_hand(X + s, DY)[1] - case.by_hand(X - s, DY)[1])) for s in step * np.eye(len(X))
        ]
        second = np.array(differences) / (2 * step)
    return value, dx, second


@pytest.mark.mode_table(feature="function", mode="mode")
@pytest.mark.parametrize(("function", "mode"), PAIRS)
def test_orders_are_those_by_hand(function, mode):
    actual = ALL_MODES[mode](FUNCTIONS[function].function, X, DY)
    expected = by_hand(FUNCTIONS[function])
    if function == "scan":
        # The inner derivatives of the rule are again by the rule; only first order is derived there.
        actual, expected = actual[:2], expected[:2]
    assert_orders(actual, expected)


@pytest.mark.mode_table(feature="function", mode="mode", outcome="left out")
@pytest.mark.parametrize(("function", "mode"), LEFT_OUT)
def test_pairs_left_out_fail_with_built_in_ops_too(function, mode, monkeypatch):
    monkeypatch.setattr(functions, "square", lambda x: 10.0 * x**2)
    with pytest.raises((ValueError, TypeError)):
        ALL_MODES[mode](FUNCTIONS[function].function, X, DY)


DROPPED = """
import tensorflow as tf
from tensorflow.python.ops import array_ops

ones_like, errors = array_ops.ones_like, []

def noting(tensor, *args, **kwargs):
    try:
        return ones_like(tensor, *args, **kwargs)
    except TypeError as error:
        errors.append(f"{tensor.dtype.name}: {error}")
        raise

array_ops.ones_like = noting

@tf.function
def run(x, t):
    with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, x**2), (0, x), maximum_iterations=2)[1]
        dx = tape.gradient(y, x)
    return accumulator.jvp(dx)

try:
    assert run(tf.constant([2.0]), tf.ones([1])).numpy() == [48.0]
except Exception as error:
    assert "returned a result with an exception set" in str(error), error
print(errors[0])
"""


@pytest.mark.mode_table(feature="while_loop", mode="forward_mode", outcome="left out")
def test_an_error_that_tensorflow_drops_in_forward_mode_over_the_gradient_of_a_loop(tmp_path):
    """With built-in ops: either the number is right, or the error comes up as a SystemError of what is called next."""
    assert "variant: `dtype`" in run_python(DROPPED, cwd=tmp_path).stdout
