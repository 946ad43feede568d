"""Decorated functions in every mode and after a reload: first and second order against numbers derived by hand."""

import json

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.functions import CASES, WEIGHT
from ..support.modes import assert_orders, derivative, eager_orders
from ..support.processes import run_python
from ..support.sources import ROOT

pytestmark = pytest.mark.core

X, DY = np.array([0.7, -1.3, 1.1]), np.array([1.0, 10.0, -3.0])


RELOAD = """
import json, sys
import numpy as np
import tensorflow as tf
import tf_cg_ops
from tests.support.modes import first_and_second_order as orders

path, again, x, dy = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:5])
model = tf.saved_model.load(path)
if again:
    tf.saved_model.save(model, again)
    model = tf.saved_model.load(again)
x, dy = tf.constant(x, tf.float64), tf.constant(dy, tf.float64)

def jacobian(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return tape.jacobian(value, x)

def tangent(function, x, dy):
    with tf.autodiff.ForwardAccumulator(x, dy) as accumulator:
        value = function(x)
    return accumulator.jvp(value)

def loop(function, x):
    return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, function(x)), (0, x), maximum_iterations=2)[1]

def numbers(structure):
    return tf.nest.map_structure(lambda t: t.numpy().tolist(), structure)

found = {}
for name in sys.argv[5:]:
    f = getattr(model, name)
    found[name] = {
        "tapes around": numbers(orders(f, x, dy)),
        "traced": numbers(tf.function(lambda x, dy: orders(f, x, dy))(x, dy)),
        "in a loop": numbers(orders(lambda x: loop(f, x), x, dy)),
    }
    if name not in ("while_loop", "cond", "scan", "map_fn"):
        # XLA compiles no second derivative of a loop or a conditional that was loaded, with built-in ops alone either.
        found[name]["jit"] = numbers(tf.function(lambda x, dy: orders(f, x, dy), jit_compile=True)(x, dy))
    if name in ("plain", "with_variable", "keywords", "nested", "custom_vjp", "custom_jvp", "recompute_grad"):
        found[name]["jacobian"] = numbers(jacobian(f, x))
        found[name]["tangent"] = numbers(tangent(f, x, dy))
with tf.GradientTape() as tape:
    value = model.with_variable(x)
found["by variable"] = numbers(tape.gradient(value, model.weight, output_gradients=dy))
print(json.dumps(found))
"""


def in_a_loop(function, x):
    return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, function(x)), (0, x), maximum_iterations=2)[1]


@pytest.mark.mode_table(feature="custom_gradient", mode="reloaded")
@pytest.mark.mode_table(feature="custom_vjp", mode="reloaded")
@pytest.mark.mode_table(feature="custom_jvp", mode="reloaded")
@pytest.mark.mode_table(feature="recompute_grad", mode="reloaded")
@pytest.mark.mode_table(feature="grad_pass_through", mode="reloaded")
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_orders_after_a_reload_in_a_fresh_process(again, tmp_path):
    model = tf.Module()
    model.weight = WEIGHT
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
        environment={"PYTHONPATH": str(ROOT)},
    )
    found = json.loads(result.stdout.splitlines()[-1])
    for name, case in CASES.items():
        # Exactly what it was before; and that is what the tests above compare with the numbers by hand.
        before = eager_orders(case.function, X, DY)
        for mode in {"tapes around", "traced", "jit"} & set(found[name]):
            assert_orders(found[name][mode], before)
        assert "jit" in found[name] or name in ("while_loop", "cond", "scan", "map_fn")
        assert_orders(found[name]["in a loop"], eager_orders(lambda x, f=case.function: in_a_loop(f, x), X, DY))
        if "jacobian" in found[name]:
            diagonal = case.by_hand(X, np.ones(3))[1]
            np.testing.assert_allclose(found[name]["jacobian"], np.diag(diagonal), rtol=1e-12)
            np.testing.assert_allclose(found[name]["tangent"], diagonal * DY, rtol=1e-12)
    np.testing.assert_allclose(found["by variable"], 100 * X * DY)


@cg.custom_gradient
def sine(x):
    """Its true gradient, so that every order is that of the sine."""
    return tf.sin(x), lambda dy: dy * tf.cos(x)


@tf.function
def cosine(x):
    return tf.cos(x)


@cg.custom_gradient
def sine_by_function(x):
    return tf.sin(x), lambda dy: dy * cosine(x)


@cg.custom_gradient
def sine_by_loop(x):
    def grad_fn(dy):
        return dy * tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, tf.cos(x)), (0, x), maximum_iterations=1)[1]

    return tf.sin(x), grad_fn


@cg.custom_gradient
def squared_sine(x):
    return tf.sin(x) ** 2, lambda dy: dy * 2.0 * tf.sin(x) * tf.cos(x)


HIGHER = {
    "sine": (sine, [np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin]),
    "function": (sine_by_function, [np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin]),
    "loop": (sine_by_loop, [np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin]),
    "product": (
        squared_sine,
        [
            lambda x: np.sin(2 * x),
            lambda x: 2 * np.cos(2 * x),
            lambda x: -4 * np.sin(2 * x),
            lambda x: -8 * np.cos(2 * x),
        ],
    ),
}


@pytest.mark.parametrize("mode", ["eager", "inside", "around", "jit", "recomputed"])
@pytest.mark.parametrize("case", HIGHER)
def test_four_orders_by_nested_tapes(case, mode):
    function, expected = HIGHER[case]
    function = {"around": tf.function(function), "recomputed": cg.recompute_grad(function)}.get(mode, function)
    for order, by_hand_of_order in enumerate(expected):
        if case == "loop" and order == 3:
            break  # TensorFlow's own derivatives of a loop grow with every order.
        function = derivative(function)
        run = function
        if mode in ("inside", "jit", "recomputed"):
            run = tf.function(function, jit_compile=mode == "jit")
        np.testing.assert_allclose(run(tf.constant(X)), by_hand_of_order(X), rtol=1e-10)


def test_three_orders_of_a_rule_with_a_loop_in_a_loop():
    """With the tapes around, TensorFlow differentiates each loop until it accumulates nothing new."""

    @cg.custom_gradient
    def by_loop(x):
        return tf.sin(x), lambda dy: tf.map_fn(lambda a: a * tf.cos(x), dy[None])[0]

    function = tf.function(lambda x: tf.map_fn(by_loop, x), input_signature=[tf.TensorSpec([None], tf.float64)])
    for expected in (np.cos(X), -np.sin(X), -np.cos(X)):
        function = derivative(function)
        np.testing.assert_allclose(function(tf.constant(X)), expected, rtol=1e-12)


def test_tangents_where_grad_fn_uses_a_tape_of_its_own():
    """In a graph: in eager mode TensorFlow lets no tape record there, and such a grad_fn gets None from its tape."""
    from_tape = []

    @cg.custom_gradient
    def triple_sine(x):
        def grad_fn(dy):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.sin(x)
            from_tape.append(tape.gradient(y, x))
            return 3.0 * dy * from_tape[-1]

        return tf.sin(x), grad_fn

    def run(x, t):
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = triple_sine(x)
            dx = tape.gradient(y, x)
        return accumulator.jvp(y), accumulator.jvp(dx)

    tangent, second = tf.function(run)(tf.constant(X), tf.constant(DY))
    np.testing.assert_allclose(tangent, 3 * np.cos(X) * DY, rtol=1e-12)
    np.testing.assert_allclose(second, -3 * np.sin(X) * DY, rtol=1e-12)
    with pytest.raises((TypeError, ValueError)):
        run(tf.constant(X), tf.constant(DY))
    assert from_tape[-1] is None


RULES = {
    "while": lambda x, dy: tf.while_loop(lambda i, _: i < 1, lambda i, a: (i + 1, a * x), (0, dy * x))[1],
    "cond": lambda x, dy: tf.cond(x[0] > 0, lambda: dy * x * x, lambda: dy),
    "map": lambda x, dy: tf.map_fn(lambda a: a[0] * a[1] * a[1], (dy, x), fn_output_signature=tf.float64),
    "function": lambda x, dy: tf.function(lambda: dy * x * x)(),
    "python_if": lambda x, dy: dy * x * x if tf.reduce_sum(x) > 0 else dy,
    "python_for": lambda x, dy: tf.stack([a * b * b for a, b in zip(dy, x, strict=True)]),
}


@pytest.mark.parametrize("name", RULES)
def test_tangents_of_any_rule_in_eager_mode(name):
    """Its Python code runs as it is; forward, forward over reverse, and reverse over forward."""
    rule = RULES[name]
    function = cg.custom_gradient(lambda x: (x**3 / 3.0, lambda dy: rule(x, dy)))
    x, t = tf.constant([1.0, 2.0], tf.float64), tf.constant([1.0, 10.0], tf.float64)

    def gradient(function, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    def tangent(function, x):
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            y = function(x)
        return accumulator.jvp(y)

    np.testing.assert_allclose(tangent(function, x), [1.0, 40.0])
    np.testing.assert_allclose(tangent(lambda x: gradient(function, x), x), [2.0, 40.0])
    np.testing.assert_allclose(gradient(lambda x: tangent(function, x), x), [2.0, 40.0])


def test_a_tangent_through_a_black_box_is_none():
    @cg.custom_gradient
    def sine(x):
        def grad_fn(dy):
            return tf.numpy_function(lambda dy, x: dy * np.cos(x), [dy, x], tf.float64)

        return tf.numpy_function(np.sin, [x], tf.float64), grad_fn

    with tf.autodiff.ForwardAccumulator(tf.constant(X), tf.constant(DY)) as accumulator:
        y = sine(tf.constant(X))
    assert accumulator.jvp(y) is None


def test_tangents_with_slices_and_with_integer_outputs():
    @cg.custom_gradient
    def lookup(table):
        rows = tf.gather(table, [2, 1])
        return (rows, tf.constant([2, 1])), lambda dy, _: tf.IndexedSlices(3.0 * dy, tf.constant([2, 1]))

    def run(x, t):
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            rows, ids = lookup(x)
        return accumulator.jvp(rows), accumulator.jvp(ids)

    for mode in (run, tf.function(run)):
        tangent, none = mode(tf.constant(X), tf.constant(DY))
        np.testing.assert_allclose(tangent, 3 * DY[[2, 1]])
        assert none is None


def jacobians(function, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        value = function(x)
    pfor = tape.jacobian(value, x)
    loop = tape.jacobian(value, x, experimental_use_pfor=False)
    return pfor, loop


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("case", ["plain", "keywords", "nested", "recompute_grad", "custom_vjp", "custom_jvp"])
def test_jacobians_are_diagonal_and_equal_to_a_loop(case, traced):
    def run(x):
        return jacobians(CASES[case].function, x)

    pfor, loop = (tf.function(run) if traced else run)(tf.constant(X))
    np.testing.assert_allclose(pfor, np.diag(CASES[case].by_hand(X, np.ones(3))[1]), rtol=1e-12)
    np.testing.assert_allclose(loop, pfor)


@pytest.mark.parametrize("where", ["eager", "inside", "around"])
@pytest.mark.parametrize("case", ["plain", "keywords", "nested", "custom_vjp", "custom_jvp", "cond"])
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
