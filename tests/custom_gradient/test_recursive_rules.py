"""Recursive rules: the trace ends, and a saved model has three orders."""

import collections
import json

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import derivative
from ..support.processes import run_python
from ..support.sources import ROOT
from ..support.tensors import pairs

X = np.array([0.5, -1.0, 2.0])
DY = np.array([1.0, 10.0, -3.0])


def recursive(counts=None):
    """Functions whose gradient calls the function itself, or one whose gradient calls it again."""
    functions = {}
    counts = collections.Counter() if counts is None else counts

    def define(name, value, derivative):
        def function(x):
            def grad_fn(dy):
                counts[name] += 1
                return dy * derivative(x)

            return value(x), grad_fn

        function.__qualname__ = name  # Messages quote it.
        functions[name] = cg.custom_gradient(function)

    define("sigmoid", tf.sigmoid, lambda x: functions["sigmoid"](x) * (1.0 - functions["sigmoid"](x)))
    define("exp", tf.exp, lambda x: functions["exp"](x))
    define("sin", tf.sin, lambda x: functions["cos"](x))
    define("cos", tf.cos, lambda x: -functions["sin"](x))
    return functions


def sigmoid_orders(x):
    s = 1 / (1 + np.exp(-x))
    d = s * (1 - s)
    return [s, d, d * (1 - 2 * s), d * (1 - 6 * d), d * (1 - 2 * s) * (1 - 12 * d)]


ORDERS = {
    "sigmoid": sigmoid_orders,
    "exp": lambda x: [np.exp(x)] * 5,
    "sin": lambda x: [np.sin(x), np.cos(x), -np.sin(x), -np.cos(x), np.sin(x)],
    "cos": lambda x: [np.cos(x), -np.sin(x), -np.cos(x), np.sin(x), np.cos(x)],
}


def orders(function, x, count):
    """The value and so many derivatives, each multiplied by DY."""
    if count == 0:
        return [function(x)]

    def times_dy(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, output_gradients=tf.constant(DY, x.dtype))

    return [function(x), *orders(times_dy, x, count - 1)]


def expected_orders(name, count):
    return [d * DY**i for i, d in enumerate(ORDERS[name](X)[: count + 1])]


@pytest.mark.parametrize(("name", "jit_compile"), pairs(ORDERS, [False, True]))
def test_a_rule_may_call_its_own_function(name, jit_compile):
    function = recursive()[name]
    found = tf.function(lambda x: orders(function, x, 4), jit_compile=jit_compile)(tf.constant(X))
    for actual, expected in zip(found, expected_orders(name, 4), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize(("name", "traces"), [("sigmoid", 1 + 2 + 4), ("exp", 3), ("sin", 3), ("cos", 3)])
def test_a_value_costs_a_bounded_number_of_traces(name, traces):
    """One rule for each call in a rule, up to the third order."""
    counts = collections.Counter()
    function = recursive(counts)[name]
    graph = tf.function(function).get_concrete_function(tf.TensorSpec([3])).graph
    assert sum(counts.values()) == traces
    rules = [f for f in graph.as_graph_def().library.function if "custom_gradient_rule_of" in f.signature.name]
    assert len(rules) == traces


@pytest.mark.parametrize("around", ["while_loop", "cond", "map_fn", "nested"])
def test_a_recursive_rule_in_control_flow(around):
    function = recursive()["sigmoid"]
    in_control_flow = {
        "while_loop": lambda x: tf.while_loop(lambda i, _: i < 1, lambda i, x: (i + 1, function(x)), (0, x))[1],
        "cond": lambda x: tf.cond(x[0] > 0, lambda: function(x), lambda: x),
        "map_fn": lambda x: tf.map_fn(function, x),
        "nested": tf.function(lambda x: function(x)),
    }[around]
    found = tf.function(lambda x: orders(in_control_flow, x, 2))(tf.constant(X))
    for actual, expected in zip(found, expected_orders("sigmoid", 2), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_a_recursive_rule_in_a_batch():
    function = recursive()["sigmoid"]

    def first(x):
        return tf.vectorized_map(derivative(function), x, fallback_to_while_loop=False)

    dx, ddx = tf.function(lambda x: orders(first, x, 1))(tf.constant(X))
    np.testing.assert_allclose(dx, sigmoid_orders(X)[1], rtol=1e-10)
    np.testing.assert_allclose(ddx, sigmoid_orders(X)[2] * DY, rtol=1e-10)


RELOAD = """
import json, sys
import tensorflow as tf
import tf_cg_ops
from tests.custom_gradient.test_recursive_rules import X, orders

found, x = {}, tf.constant(X)
model = tf.saved_model.load(sys.argv[1])
for name in sys.argv[2:]:
    function = getattr(model, name)
    found[name] = [t.numpy().tolist() for t in orders(function, x, 3)]
    found[name + ", in a function"] = [t.numpy().tolist() for t in tf.function(lambda x: orders(function, x, 3))(x)]
    try:
        orders(function, x, 4)
    except RuntimeError as error:
        found[name + ", fourth"] = str(error)
print(json.dumps(found))
"""


def test_a_saved_recursive_rule_has_three_orders_in_a_fresh_process(tmp_path):
    model = tf.Module()
    for name, function in recursive().items():
        setattr(model, name, tf.function(function, input_signature=[tf.TensorSpec([3], tf.float64)]))
    tf.saved_model.save(model, tmp_path / "model")
    result = run_python(RELOAD, tmp_path / "model", *ORDERS, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    found = json.loads(result.stdout.splitlines()[-1])
    for name in ORDERS:
        for which in (name, f"{name}, in a function"):
            for actual, expected in zip(found[which], expected_orders(name, 3), strict=True):
                np.testing.assert_allclose(actual, expected, rtol=1e-10)
        last = {"sin": "cos", "cos": "sin"}.get(name, name)
        assert found[f"{name}, fourth"] == (
            f"custom_gradient: the graph holds no gradient rule of '{last}' for a derivative of this "
            "order; expected orders up to 3 in a loaded model and in tf.vectorized_map, got a higher one. Compute it in "
            "the program that traced it."
        )


def test_no_exception_of_recursion_is_swallowed():
    """The rule is that of the function, and no excuse for not having one."""
    function = recursive()["exp"]
    graph = tf.function(function).get_concrete_function(tf.TensorSpec([3])).graph
    (op,) = [op for op in graph.get_operations() if op.type == "CustomGradientRule"]
    assert op.get_attr("error") == b""
    nodes = [n for f in graph.as_graph_def().library.function for n in f.node_def if n.op == "CustomGradientRule"]
    errors = sorted(node.attr["error"].s.decode() for node in nodes)
    assert errors[:2] == ["", ""]
    assert len(errors) == 3
    assert "expected orders up to 3" in errors[2]
