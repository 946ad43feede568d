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

# One function for each column of the table, in every mode.
IN_EVERY_MODE = [
    "embed_gradient",
    "plain",
    "custom_vjp",
    "custom_jvp",
    "recompute_grad",
    "override_gradients",
    "grad_pass_through",
    "compat.tfp_math",
    "straight_through",
]

# Pairs at which TensorFlow fails with built-in ops alone; a test below shows it.
LEFT_OUT = [("cond", mode) for mode in ("vectorized_map", "jacobians", "forward_mode")]

# Not with a variable of eager mode in a TensorFlow 1 graph (custom_gradient/test_variables.py has one of that graph), and
# not with a clipped gradient, which is no linear function of the upstream, in modes that suppose that it is. In the last
# pair TensorFlow drops an error of its own, or what it calls next raises it; the last test shows that error.
IMPOSSIBLE = [
    *LEFT_OUT,
    ("with_variable", "tf1"),
    *[("clip_gradient", mode) for mode in ("jacobians", "forward_mode", "forward_mode_eager")],
    ("while_loop", "forward_mode"),
    *[(function, mode) for function in ("scan", "map_fn") for mode in ("jacobians", "forward_mode")],
]


def pairs_to_test():
    """All other functions have XLA and two more modes in turn, since they differ from these within a mode only."""
    modes, others = list(ALL_MODES), [name for name in FUNCTIONS if name not in IN_EVERY_MODE]
    pairs = [(function, mode) for function in IN_EVERY_MODE for mode in modes]
    for i, function in enumerate(others):
        in_turn = {"jit", modes[i % len(modes)], modes[(i + len(modes) // 2) % len(modes)]}
        pairs += [(function, mode) for mode in modes if mode in in_turn and (function, mode) not in IMPOSSIBLE]
    return pairs


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
@pytest.mark.parametrize(("function", "mode"), pairs_to_test())
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
