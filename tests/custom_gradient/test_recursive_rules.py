"""Recursive rules: tracing ends; a saved model has one order or those asked for, and this process has all."""

import collections
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import derivative, vjp
from ..support.processes import run_python
from ..support.sources import ROOT
from ..support.tensors import pairs

X = np.array([0.5, -1.0, 2.0])
DY = np.array([1.0, 10.0, -3.0])


NO_RULE = (
    "custom_gradient: the graph does not have the derivative of order {order} of '{name}'. Compute it in the program "
    "that traced '{name}', or save it: custom_gradient(..., saved_orders={order})."
)


def recursive(counts=None, decorator=cg.custom_gradient, more=tf.identity):
    """Functions whose gradient calls the function itself, or one whose gradient calls it again.

    Their values take `more` ops, which do not change them.
    """
    functions = {}
    counts = collections.Counter() if counts is None else counts

    def define(name, value, derivative):
        def function(x):
            def grad_fn(dy):
                counts[name] += 1
                return dy * derivative(x)

            return more(value(x)), grad_fn

        function.__qualname__ = name  # Messages quote it.
        functions[name] = decorator(function)

    define("sigmoid", tf.sigmoid, lambda x: functions["sigmoid"](x) * (1.0 - functions["sigmoid"](x)))
    define("sin", tf.sin, lambda x: functions["cos"](x))
    define("cos", tf.cos, lambda x: -functions["sin"](x))
    return functions


def sigmoid_orders(x):
    s = 1 / (1 + np.exp(-x))
    d = s * (1 - s)
    return [s, d, d * (1 - 2 * s), d * (1 - 6 * d), d * (1 - 2 * s) * (1 - 12 * d)]


ORDERS = {
    "sigmoid": sigmoid_orders,
    "sin": lambda x: [np.sin(x), np.cos(x), -np.sin(x), -np.cos(x), np.sin(x)],
    "cos": lambda x: [np.cos(x), -np.sin(x), -np.cos(x), np.sin(x), np.cos(x)],
}


def gradient(function):
    return lambda x: vjp(lambda: function(x), x, tf.constant(DY, x.dtype))[1]


def orders(function, x, count):
    """The value and this many derivatives, each multiplied by DY."""
    return [function(x), *(orders(gradient(function), x, count - 1) if count else [])]


def expected_orders(name, count):
    return [d * DY**i for i, d in enumerate(ORDERS[name](X)[: count + 1])]


WHERE = {
    "directly": lambda f, x: f(x),
    "under XLA": lambda f, x: f(x),
    "while_loop": lambda f, x: tf.while_loop(lambda i, _: i < 1, lambda i, x: (i + 1, f(x)), (0, x))[1],
    "cond": lambda f, x: tf.cond(x[0] > 0, lambda: f(x), lambda: x),
    "map_fn": tf.map_fn,
    "nested": lambda f, x: tf.function(lambda x: f(x))(x),
}


@pytest.mark.parametrize(("name", "where"), pairs(ORDERS, WHERE, quick=2))
def test_a_rule_may_call_its_own_function(name, where):
    function, count = recursive()[name], 4 if where in ("directly", "under XLA") else 2
    run = tf.function(lambda x: orders(lambda x: WHERE[where](function, x), x, count), jit_compile=where == "under XLA")
    for actual, expected in zip(run(tf.constant(X)), expected_orders(name, count), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_a_saved_rule_has_one_order_or_those_that_are_asked_for_in_a_fresh_process(tmp_path):
    functions = {name: (function, name, 1) for name, function in recursive().items()}
    for orders_, name in ((None, "plain"), (2, "two"), (3, "three")):
        decorator = cg.custom_gradient(saved_orders=orders_)
        functions[name] = recursive(decorator=decorator, more=in_a_loop)["sigmoid"], "sigmoid", orders_ or 1
    model, signature = tf.Module(), [tf.TensorSpec([3], tf.float64)]
    for name, (function, _, _) in functions.items():
        setattr(model, name, tf.function(function, input_signature=signature))
    tf.saved_model.save(model, tmp_path / "model")
    program = pathlib.Path(__file__).with_name("reload_recursive.py").read_text()
    result = run_python(program, tmp_path / "model", *functions, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    found = json.loads(result.stdout.splitlines()[-1])
    for name, (_, formula, last) in functions.items():
        expected = expected_orders(formula, last)
        for order in range(1, last + 1):
            np.testing.assert_allclose(found[name][str(order)], expected[order], rtol=1e-10)
        np.testing.assert_allclose(found[name]["traced"], expected[1], rtol=1e-10)
        inner = {"sin": "cos", "cos": "sin"}.get(
            formula, formula
        )  # The function that the rule of the last order calls.
        assert found[name][str(last + 1)] == NO_RULE.format(name=inner, order=last + 1)


def in_a_loop(x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.identity(y)), (0, x))[1]


def in_a_function(x):
    return tf.function(tf.identity)(x)


@pytest.mark.parametrize(
    ("name", "saved_orders", "traces"),
    [("sigmoid", 3, 7), ("sigmoid", None, 1), ("sin", None, 1)],
)
@pytest.mark.parametrize("more", [tf.identity, in_a_loop])
def test_saved_orders_are_traced_whatever_they_cost(name, more, saved_orders, traces):
    """One rule for each call in a rule, by default of the first order."""
    counts = collections.Counter()
    function = recursive(counts, cg.custom_gradient(saved_orders=saved_orders), more)[name]
    graph = tf.function(function).get_concrete_function(tf.TensorSpec([3])).graph
    assert sum(counts.values()) == traces
    rules = [f for f in graph.as_graph_def().library.function if "custom_gradient_rule_of" in f.signature.name]
    assert len(rules) == traces


@pytest.mark.parametrize(("saved_orders", "traces"), [(1, {"outer": 1}), (3, {"outer": 1, "sigmoid": 3})])
def test_a_function_in_the_value_of_another_has_one_order_less(saved_orders, traces):
    """The first derivative is the outer rule's, which reads the value of the inner function."""
    counts = collections.Counter()
    inner = recursive(counts)["sigmoid"]

    def outer(x):
        y = inner(x)

        def grad_fn(dy):
            counts["outer"] += 1
            return dy * y

        return tf.identity(y), grad_fn

    outer = cg.custom_gradient(outer, saved_orders=saved_orders)
    tf.function(outer).get_concrete_function(tf.TensorSpec([3]))
    assert counts == traces
    found = tf.function(lambda x: orders(outer, x, 3))(tf.constant(X))
    s, d, dd = sigmoid_orders(X)[:3]
    for actual, expected in zip(found, [s, s * DY, d * DY**2, dd * DY**3], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


# All derivatives in this process, which calls rules that were not traced, or traces them now


def jacobian_diagonal(function):
    def diagonal(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tf.linalg.diag_part(tape.jacobian(y, x)) * DY

    return diagonal


def tangent(function):
    def times_dy(x):
        with tf.autodiff.ForwardAccumulator(x, tf.constant(DY, x.dtype)) as accumulator:
            y = function(x)
        return accumulator.jvp(y)

    return times_dy


def batch(function):
    return lambda x: tf.vectorized_map(function, x, fallback_to_while_loop=False)


DERIVATIVES = {
    "gradient of gradient": (lambda f: gradient(gradient(f)), 2),
    "jacobian of jacobian": (lambda f: jacobian_diagonal(jacobian_diagonal(f)), 2),
    "tangent of gradient": (lambda f: tangent(gradient(f)), 2),
    "gradient of tangent": (lambda f: gradient(tangent(f)), 2),
    "tangent of gradient of gradient": (lambda f: tangent(gradient(gradient(f))), 3),
    "third gradient of batch": (lambda f: gradient(gradient(gradient(batch(f)))), 3),
    "second gradient of batch of gradients": (
        lambda f: gradient(gradient(lambda x: batch(derivative(f))(x) * DY)),
        3,
    ),
}


@pytest.mark.parametrize(("case", "mode"), pairs(DERIVATIVES, ["eager", "traced"]))
def test_this_process_has_derivatives_without_traced_rules(case, mode):
    differentiate, order = DERIVATIVES[case]
    # TensorFlow does not support loops in forward mode in a graph, or in a batch that two tapes watch.
    more = in_a_function if "tangent" in case or "batch" in case else in_a_loop
    for name in ("sin", "sigmoid"):
        found = differentiate(recursive(more=more)[name])
        if mode == "traced":
            found = tf.function(found)
        np.testing.assert_allclose(found(tf.constant(X)), expected_orders(name, order)[-1], rtol=1e-10)


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("around", [batch, tangent])
def test_derivatives_without_traced_rules_reach_variables(around, mode):
    w = tf.Variable(1.5, dtype=tf.float64)

    def wave(value, derivative):
        def function(x):
            def grad_fn(dy, variables):
                return dy * w * derivative(x), [tf.reduce_sum(dy * x * derivative(x)) for _ in variables]

            return in_a_function(value(w * x)), grad_fn

        return cg.custom_gradient(function)

    sin, cos = wave(tf.sin, lambda x: cos(x)), wave(tf.cos, lambda x: -sin(x))

    def both(x):
        once = gradient(around(sin)) if around is batch else around(sin)
        return vjp(lambda: once(x), [x, w], tf.constant(DY))[1]

    dx, dw = (tf.function(both) if mode == "traced" else both)(tf.constant(X))
    np.testing.assert_allclose(dx, -(1.5**2) * np.sin(1.5 * X) * DY**2, rtol=1e-10)
    np.testing.assert_allclose(dw, np.sum((np.cos(1.5 * X) - 1.5 * X * np.sin(1.5 * X)) * DY**2), rtol=1e-10)


def test_forward_mode_traces_a_rule_whose_gradient_function_uses_tapes():
    """Forward mode stops tapes, so if it was called now, the function would silently return None."""

    def function(x):
        return in_a_function(tf.sin(x)), lambda dy: dy * derivative(tf.sin)(x)

    inner = cg.custom_gradient(function)
    outer = cg.custom_gradient(lambda x: (-tf.cos(x), lambda dy: dy * inner(x)))
    found = tf.function(tangent(gradient(outer)))(tf.constant(X))
    np.testing.assert_allclose(found, np.cos(X) * DY**2, rtol=1e-10)


def test_a_function_without_saved_orders_does_not_advise_them():
    inner = cg.recompute_grad(lambda x: tf.sin(x))
    outer = cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: dy * inner(x)), saved_orders=1)
    definition = tf.function(outer).get_concrete_function(tf.TensorSpec([3])).graph.as_graph_def()
    nodes = [node for f in definition.library.function for node in f.node_def if node.op == "CustomGradientRule"]
    assert [node.attr["error"].s.decode() for node in nodes] == [
        "recompute_grad: the graph does not have the derivative of order 2 of '<lambda>'. Compute it in the program that "
        "traced '<lambda>'."
    ]
