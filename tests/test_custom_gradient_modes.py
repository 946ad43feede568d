"""Decorated functions in every mode and after a reload: first and second order against numbers derived by hand."""

import json

import numpy as np
import pytest
import tensorflow as tf

from .support.functions import CASES
from .support.modes import MODES, assert_orders, eager_orders
from .support.processes import run_python

X, DY = np.array([0.7, -1.3, 1.1]), np.array([1.0, 10.0, -3.0])


def by_hand(case):
    value, dx, second = CASES[case].by_hand(X, DY)
    if second is None:  # By central differences of the first order, of which the formula is above.
        step = 1e-6
        shifts = step * np.eye(len(X))
        differences = [
            np.sum(DY * (CASES[case].by_hand(X + s, DY)[1] - CASES[case].by_hand(X - s, DY)[1])) for s in shifts
        ]
        second = np.array(differences) / (2 * step)
    return value, dx, second


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_orders_are_those_by_hand(case, mode):
    actual = MODES[mode](CASES[case].function, X, DY)
    expected = by_hand(case)
    if case == "scan":
        # The inner derivatives of the rule are again by the rule; only first order is derived above.
        actual, expected = actual[:2], expected[:2]
    assert_orders(actual, expected)


RELOAD = """
import json, sys
import numpy as np
import tensorflow as tf
import tf_cg_ops

path, again, x, dy = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:5])
model = tf.saved_model.load(path)
if again:
    tf.saved_model.save(model, again)
    model = tf.saved_model.load(again)
x, dy = tf.constant(x, tf.float64), tf.constant(dy, tf.float64)
found = {}
for name in sys.argv[5:]:
    function = getattr(model, name)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = function(x)
        dx = inner.gradient(value, x, output_gradients=dy)
        weighted = tf.reduce_sum(dx * dy)
    second = outer.gradient(weighted, x, unconnected_gradients="zero")
    found[name] = [t.numpy().tolist() for t in (value, dx, second)]
print(json.dumps(found))
"""


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_orders_after_a_reload_in_a_fresh_process(again, tmp_path):
    model = tf.Module()
    for name, case in CASES.items():
        setattr(model, name, tf.function(case.function, input_signature=[tf.TensorSpec([3], tf.float64)]))
    tf.saved_model.save(model, tmp_path / "model")
    result = run_python(
        RELOAD,
        tmp_path / "model",
        tmp_path / "again" if again else "",
        json.dumps(X.tolist()),
        json.dumps(DY.tolist()),
        *CASES,
        cwd=tmp_path,
    )
    found = json.loads(result.stdout.splitlines()[-1])
    for name in CASES:
        # Exactly what it was before; and that is what the tests above compare with the numbers by hand.
        assert_orders(found[name], eager_orders(CASES[name].function, X, DY))


def jacobians(function, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        value = function(x)
    pfor = tape.jacobian(value, x)
    loop = tape.jacobian(value, x, experimental_use_pfor=False)
    return pfor, loop


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("case", ["plain", "keywords", "nested", "recompute_grad", "custom_vjp"])
def test_jacobians_are_diagonal_and_equal_to_a_loop(case, traced):
    def run(x):
        return jacobians(CASES[case].function, x)

    pfor, loop = (tf.function(run) if traced else run)(tf.constant(X))
    np.testing.assert_allclose(pfor, np.diag(CASES[case].by_hand(X, np.ones(3))[1]), rtol=1e-12)
    np.testing.assert_allclose(loop, pfor)


@pytest.mark.parametrize("where", ["eager", "inside", "around"])
@pytest.mark.parametrize("case", ["plain", "keywords", "nested", "custom_vjp", "cond"])
def test_forward_mode_takes_the_gradient_rule(case, where):
    """The tangent is the rule's: for elementwise functions gx * t."""
    tangent = tf.constant(DY)
    function = tf.function(CASES[case].function) if where == "around" else CASES[case].function

    def run(x):
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            value = function(x)
        return accumulator.jvp(value)

    actual = (tf.function(run) if where == "inside" else run)(tf.constant(X))
    np.testing.assert_allclose(actual, CASES[case].by_hand(X, DY)[1], rtol=1e-12)


def test_forward_over_reverse():
    def run(x):
        with tf.autodiff.ForwardAccumulator(x, tf.constant(DY)) as accumulator:
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = CASES["plain"].function(x)
            dx = tape.gradient(value, x)
        return accumulator.jvp(dx)

    np.testing.assert_allclose(run(tf.constant(X)), 20 * DY)
    np.testing.assert_allclose(tf.function(run)(tf.constant(X)), 20 * DY)
