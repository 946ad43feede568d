"""Higher derivatives, tangents and Jacobians of decorated functions.

Tracing a recursive rule ends. A saved model has one order or the ones that you ask for, and this process has all.
"""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, assert_all_close, by_jacobians, derivative, eager, gradients, traced, vjp
from ..support.tensors import pairs, random_array
from .test_modes import with_rule

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


def tangent(function):
    def times_dy(x):
        with tf.autodiff.ForwardAccumulator(x, tf.constant(DY, x.dtype)) as accumulator:
            y = function(x)
        return tf.nest.map_structure(accumulator.jvp, y)

    return times_dy


def orders(function, x, count):
    """The value and this many derivatives, each multiplied by DY."""
    return [function(x), *(orders(gradient(function), x, count - 1) if count else [])]


def expected_orders(name, count):
    return [d * DY**i for i, d in enumerate(ORDERS[name](X)[: count + 1])]


itself = RUNS["eager"]
# What is around the function, what is around its derivatives, and how many there are.
WHERE = {
    "eager": (itself, itself, 4),
    "traced": (itself, tf.function, 4),
    "jit": (itself, RUNS["jit"], 4),
    "around_traced": (tf.function, itself, 4),
    "recomputed": (cg.recompute_grad, tf.function, 4),
    "while_loop": (
        lambda f: lambda x: tf.while_loop(lambda i, _: i < 1, lambda i, x: (i + 1, f(x)), (0, x))[1],
        tf.function,
        2,
    ),
    "cond": (lambda f: lambda x: tf.cond(x[0] > 0, lambda: f(x), lambda: x), tf.function, 2),
    "map_fn": (lambda f: lambda x: tf.map_fn(f, x), tf.function, 2),
    "nested": (tf.function, tf.function, 2),
}


@pytest.mark.parametrize(("name", "where"), list(zip([*ORDERS] * 3, WHERE, strict=True)))
def test_a_rule_may_call_its_own_function(name, where):
    wrap, run, count = WHERE[where]
    found = run(functools.partial(orders, wrap(recursive()[name]), count=count))(tf.constant(X))
    assert_all_close(found, expected_orders(name, count), rtol=1e-10)


def test_a_saved_rule_has_one_order_or_those_that_are_asked_for(tmp_path):
    model, last, signature = tf.Module(), {}, [tf.TensorSpec([3], tf.float64)]
    for saved_orders, prefix in ((None, ""), (2, "two_"), (3, "three_")):
        functions = recursive(decorator=cg.custom_gradient(saved_orders=saved_orders), more=in_a_loop)
        for name in ORDERS if saved_orders is None else ["sigmoid"]:
            setattr(model, prefix + name, tf.function(functions[name], input_signature=signature))
            last[prefix + name] = saved_orders or 1
    tf.saved_model.save(model, tmp_path)
    loaded, x = tf.saved_model.load(tmp_path), tf.constant(X)
    for key, order in last.items():
        name, function = key.rpartition("_")[2], getattr(loaded, key)
        expected = expected_orders(name, order)
        assert_all_close(orders(function, x, order), expected, rtol=1e-10)
        assert_all_close(tf.function(lambda x, f=function: orders(f, x, 1))(x), expected[:2], rtol=1e-10)
        # The function that the rule of the last order calls.
        inner = {"sin": "cos", "cos": "sin"}.get(name, name)
        with pytest.raises(RuntimeError) as error:
            orders(function, x, order + 1)
        assert str(error.value) == NO_RULE.format(name=inner, order=order + 1)


def in_a_loop(x):
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.identity(y)), (0, x))[1]


def in_a_function(x):
    return tf.function(tf.identity)(x)


@pytest.mark.parametrize(
    ("name", "saved_orders", "traces", "more"),
    [("sigmoid", 3, 7, in_a_loop), ("sigmoid", 3, 7, tf.identity), ("sin", None, 1, in_a_loop)],
)
def test_saved_orders_are_traced_whatever_they_cost(name, more, saved_orders, traces):
    """One rule for each call in a rule, by default of the first order."""
    counts = collections.Counter()
    function = recursive(counts, cg.custom_gradient(saved_orders=saved_orders), more)[name]
    graph = tf.function(function).get_concrete_function(tf.TensorSpec([3])).graph
    assert sum(counts.values()) == traces
    rules = [f for f in graph.as_graph_def().library.function if "custom_gradient_rule_of" in f.signature.name]
    assert len(rules) == traces


def test_a_function_in_the_value_of_another_has_one_order_less():
    """The first derivative is the outer rule's, which reads the value of the inner function."""
    counts = collections.Counter()
    inner = recursive(counts)["sigmoid"]
    outer = cg.custom_gradient(lambda x: (tf.identity(y := inner(x)), lambda dy: dy * y), saved_orders=3)
    tf.function(outer).get_concrete_function(tf.TensorSpec([3]))
    assert counts == {"sigmoid": 3}
    found = tf.function(lambda x: orders(outer, x, 3))(tf.constant(X))
    s, d, dd = sigmoid_orders(X)[:3]
    assert_all_close(found, [s, s * DY, d * DY**2, dd * DY**3], rtol=1e-10)


# All derivatives in this process, which calls rules that were not traced, or traces them now


def batch(function):
    return lambda x: tf.vectorized_map(function, x, fallback_to_while_loop=False)


DERIVATIVES = {
    "gradient of gradient": (lambda f: gradient(gradient(f)), 2),
    "tangent of gradient": (lambda f: tangent(gradient(f)), 2),
    "gradient of tangent": (lambda f: gradient(tangent(f)), 2),
    "tangent of gradient of gradient": (lambda f: tangent(gradient(gradient(f))), 3),
    "third gradient of batch": (lambda f: gradient(gradient(gradient(batch(f)))), 3),
    "second gradient of batch of gradients": (lambda f: gradient(gradient(lambda x: batch(derivative(f))(x) * DY)), 3),
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

    def wave(value, slope):
        rule = lambda x, dy, variables: (dy * w * slope(x), [tf.reduce_sum(dy * x * slope(x))])  # noqa: E731
        return cg.custom_gradient(lambda x: (in_a_function(value(w * x)), functools.partial(rule, x)))

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


# Rules that call no decorated function


def test_three_orders_of_a_rule_with_a_loop_in_a_loop():
    """With the tapes around, TensorFlow differentiates each loop until it accumulates nothing new."""
    by_loop = cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: tf.map_fn(lambda a: a * tf.cos(x), dy[None])[0]))
    function = tf.function(lambda x: tf.map_fn(by_loop, x), input_signature=[tf.TensorSpec([None], tf.float64)])
    for expected in ORDERS["sin"](X)[1:4]:
        function = derivative(function)
        np.testing.assert_allclose(function(tf.constant(X)), expected, rtol=1e-12)


def test_tangents_where_grad_fn_uses_a_tape_of_its_own():
    """In a graph. In eager mode TensorFlow does not let a tape record there, so such a grad_fn gets None from it."""
    from_tape = []

    def rule(x, dy):
        from_tape.append(derivative(tf.sin)(x))
        return 3.0 * dy * from_tape[-1]

    triple_sine = cg.custom_gradient(lambda x: (tf.sin(x), functools.partial(rule, x)))

    def run(x):
        return tangent(triple_sine)(x), tangent(derivative(triple_sine))(x)

    expected = [3 * np.cos(X) * DY, -3 * np.sin(X) * DY]
    np.testing.assert_allclose(tf.function(run)(tf.constant(X)), expected, rtol=1e-12)
    with pytest.raises((TypeError, ValueError)):
        run(tf.constant(X))
    assert from_tape[-1] is None


# Rules of a third of the cube.
RULES = {
    "while": lambda x, dy: tf.while_loop(lambda i, _: i < 1, lambda i, a: (i + 1, a * x), (0, dy * x))[1],
    "map": lambda x, dy: tf.map_fn(lambda a: a[0] * a[1] * a[1], (dy, x), fn_output_signature=tf.float64),
    "python_if": lambda x, dy: dy * x * x if tf.reduce_sum(x) > 0 else dy,
}


@pytest.mark.parametrize("name", RULES)
def test_tangents_of_any_rule_in_eager_mode(name):
    """Its Python code runs unchanged: forward, forward over reverse, and reverse over forward."""
    function, x = cg.custom_gradient(lambda x: (x**3 / 3.0, functools.partial(RULES[name], x))), tf.constant(X)
    np.testing.assert_allclose(tangent(function)(x), DY * X**2)
    np.testing.assert_allclose(tangent(derivative(function))(x), DY * 2.0 * X)
    np.testing.assert_allclose(derivative(tangent(function))(x), DY * 2.0 * X)


def test_a_tangent_through_a_black_box_is_none():
    def by_numpy(x, dy):
        return tf.numpy_function(lambda dy, x: dy * np.cos(x), [dy, x], tf.float64)

    sine = cg.custom_gradient(lambda x: (tf.numpy_function(np.sin, [x], tf.float64), functools.partial(by_numpy, x)))
    assert tangent(sine)(tf.constant(X)) is None


def test_tangents_with_slices_and_with_integer_outputs():
    ids = tf.constant([2, 1])
    lookup = cg.custom_gradient(lambda x: ((tf.gather(x, ids), ids), lambda dy, _: tf.IndexedSlices(3.0 * dy, ids)))
    for run in (tangent(lookup), tf.function(tangent(lookup))):
        found, none = run(tf.constant(X))
        np.testing.assert_allclose(found, 3 * DY[[2, 1]])
        assert none is None


# custom_jvp


def test_a_complex_rule(rng):
    """The transpose conjugates, as TensorFlow's gradients do."""
    square = with_rule(lambda z: z**2, lambda p, t: (None, 2 * p[0] * t[0]))
    z, dy = random_array(rng, [3], tf.complex128), random_array(rng, [3], tf.complex128)
    for run in (eager, traced):
        _, (dz,) = run(square, [z], dy)
        np.testing.assert_allclose(dz, run(tf.square, [z], dy)[1][0], rtol=1e-13)


def test_only_floats_and_complex_numbers_have_a_zero_tangent():
    seen = []
    function = with_rule(lambda x, *_: 2.0 * x, lambda p, t: (seen.append(t[1:]), 2.0 * t[0]))
    constants = 1.5, 2j, np.float32(3.0), np.ones([2], np.complex64), 1, True, "text", None, np.arange(3)
    eager(lambda x: function(x, *constants), [X], DY)
    number, imaginary, single, array, *others = seen[0]
    assert (number, imaginary) == (0.0, 0j)
    assert (single.dtype, single.shape, float(single)) == (tf.float32, [], 0.0)
    assert (array.dtype, array.shape, array.numpy().tolist()) == (tf.complex64, [2], [0j, 0j])
    assert others == [None] * 5


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_gather_keeps_its_gradient_sliced(mode):
    rows = with_rule(lambda x: tf.gather(x, [2, 0]), lambda p, t: (None, 5 * tf.gather(t[0], [2, 0])))
    (dx,) = gradients(mode, rows, [tf.ones([4, 2])], tf.constant([[1.0, 2.0], [10.0, 20.0]]))
    assert isinstance(dx, tf.IndexedSlices)
    expected = [[50.0, 100.0], [0.0, 0.0], [5.0, 10.0], [0.0, 0.0]]
    np.testing.assert_array_equal(tf.convert_to_tensor(dx), expected)


def test_the_rule_runs_only_for_a_derivative():
    calls = []
    function = with_rule(tf.sin, lambda p, t: (calls.append(1), t[0]))
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert not calls
    tape.gradient(y, x)
    assert len(calls) == 1
    tangent(function)(x)
    assert len(calls) == 2


# Rules that differentiate: no tape records while an accumulator computes a tangent, except in a rule


def by_tapes(x, t):
    """The tangent of a sine by two tapes."""
    with tf.GradientTape() as outer:
        outer.watch(dy := tf.zeros_like(x))
        dx = vjp(lambda: tf.sin(x), x, dy)[1]
    return outer.gradient(dx, dy, t)


def sine(rule):
    function = cg.custom_jvp(lambda x: tf.sin(x))
    function.defjvp(lambda primals, tangents: (function(*primals), rule(*primals, *tangents)))
    return function


def by_an_accumulator(x, t):
    with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
        y = sine(by_tapes)(x)
    return accumulator.jvp(y)


WITH_TAPES = {
    "tapes": by_tapes,
    "an accumulator": by_an_accumulator,
    "a jacobian": lambda x, t: by_jacobians(tf.sin, [x], t)[1][0],
}
FORWARD_MODES = {
    "eager": (itself, itself),
    "inside": (itself, tf.function),
    "jit": (itself, RUNS["jit"]),
    "around": (tf.function, itself),
}


@pytest.mark.parametrize(("rule", "mode"), pairs(WITH_TAPES, FORWARD_MODES, quick=2))
def test_a_rule_differentiates(rule, mode):
    around, run = FORWARD_MODES[mode]
    for derivatives in [tangent], [gradient], [tangent, tangent], [gradient, tangent], [tangent, gradient]:
        if (derivatives, mode) != ([tangent, gradient], "around"):  # TensorFlow has none of a tf.function.
            function = around(sine(WITH_TAPES[rule]))
            for differentiate in derivatives:
                function = differentiate(function)
            expected = expected_orders("sin", len(derivatives))[-1]
            np.testing.assert_allclose(run(function)(tf.constant(X)), expected, rtol=1e-12, err_msg=str(derivatives))


@pytest.mark.parametrize(("is_x_watched", "mode"), pairs([True, False], FORWARD_MODES, quick=2))
def test_a_rule_with_tapes_that_calls_a_function_of_a_watched_variable(is_x_watched, mode):
    """The accumulator watches the variable in the rule, too, but needs no tangents there."""
    factor = tf.Variable([2.0, 3.0, 5.0], dtype=tf.float64)
    scaled = cg.custom_jvp(lambda x: tf.sin(x) * factor)

    @scaled.defjvp
    def rule(primals, tangents, variables, variable_tangents):
        (x,), (t,), (factor_tangent,) = primals, tangents, variable_tangents
        dy = tf.sin(x) * factor_tangent
        return scaled(x), dy if t is None else dy + variables[0] * by_tapes(x, t)

    around, run = FORWARD_MODES[mode]
    function = around(scaled)

    def differentiate(x):
        sources = (
            ([x, factor], [tf.constant(DY), tf.ones_like(factor)]) if is_x_watched else (factor, tf.ones_like(factor))
        )
        with tf.autodiff.ForwardAccumulator(*sources) as accumulator:
            y = function(x)
        found = accumulator.jvp(y)
        assert accumulator.jvp(found) is None
        return found

    expected = np.sin(X) + is_x_watched * factor.numpy() * np.cos(X) * DY
    np.testing.assert_allclose(run(differentiate)(tf.constant(X)), expected, rtol=1e-12)
