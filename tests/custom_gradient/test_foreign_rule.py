"""Rules of `tf.custom_gradient` in what this library traces: with tapes, recursion, random residuals and loops.

tests/same has plain ones, in every wrapper and mode.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import ALL_MODES, eager, run_in_a_fresh_process

X = np.array([0.4, -1.3, 2.1])
DY = np.array([1.0, 10.0, -3.0])


@tf.custom_gradient
def with_a_tape(x):
    def grad_fn(dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x)
        return 3.0 * tape.gradient(y, x, output_gradients=dy)

    return tf.tanh(x), grad_fn


@tf.custom_gradient
def recursive(x):
    return tf.exp(x), lambda dy: dy * recursive(x)


def with_a_loop(x):
    """The rule reads a Tensor of the function, and has another function of `tf.custom_gradient` in a loop."""
    scale = tf.sin(x)

    def step(i, dy):
        return i + 1, scale * (dy + recursive(dy) - tf.exp(dy))

    def grad_fn(dy):
        return 2.0 * tf.while_loop(lambda i, _: i < 2, step, (0, dy), maximum_iterations=2)[1]

    return tf.custom_gradient(lambda x: (tf.identity(x), grad_fn))(x)


@tf.custom_gradient
def masked(x):
    mask = tf.cast(tf.random.uniform(x.shape, dtype=x.dtype) > 0.5, x.dtype) + 1.0
    return x * mask, lambda dy: dy * mask


def recomputed(x):
    return tf.recompute_grad(lambda x: tf.sin(x) * x)(x)


# The first derivative as a function of x and of the value, and the second one as a function of x.
FUNCTIONS = {
    with_a_tape: (lambda x, y: 3 * (1 - np.tanh(x) ** 2), lambda x: -6 * np.tanh(x) * (1 - np.tanh(x) ** 2)),
    recursive: (lambda x, y: np.exp(x), np.exp),
    masked: (lambda x, y: y / x, None),
    with_a_loop: (lambda x, y: 2 * np.sin(x) ** 2, lambda x: 4 * np.sin(x) * np.cos(x)),
    recomputed: (lambda x, y: np.sin(x) + x * np.cos(x), None),
}


def loop_of_one_step(while_loop, f):
    return lambda x: while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, f(x)), (0, x), maximum_iterations=1)[1]


# Functions of this library that trace a function, and do not change it.
AROUND = {
    "recompute_grad": cg.recompute_grad,
    "memory": lambda f: cg.recompute_grad(f, memory="auto"),
    "scan": lambda f: lambda x: cg.scan(lambda x, _: (f(x), None), x, tf.zeros([1]))[0],
    "while_loop": functools.partial(loop_of_one_step, cg.while_loop),
    "override_gradients": lambda f: cg.override_gradients(
        lambda x: tf.sign(f(x)) * tf.abs(f(x)), {"Sign": cg.rules.built_in}
    ),
    "nested": lambda f: cg.recompute_grad(lambda x: cg.recompute_grad(f)(tf.identity(x))),
    "implicit_root": lambda f: cg.implicit_root(lambda y, x: y - f(x), f),
}

MODES = ("eager", "traced", "around_traced", "jit", "while_loop", "map_fn")


def cases():
    """Each function with what is around it, and in the modes, in turn."""
    for i, f in enumerate(FUNCTIONS):
        for j in range(3):
            around = list(AROUND)[(3 * i + j) % len(AROUND)]
            # One that runs the function several times has each time another mask.
            if f is not masked or around not in ("override_gradients", "implicit_root"):
                yield f, around, MODES[(i + 2 * j) % len(MODES)]


@pytest.mark.parametrize(("f", "around", "mode"), list(cases()))
def test_the_gradient_is_the_one_of_the_rule(f, around, mode):
    y, (dx,) = ALL_MODES[mode].vjp(AROUND[around](f), [X], DY)
    np.testing.assert_allclose(dx, DY * FUNCTIONS[f][0](X, y), rtol=1e-9)


@pytest.mark.parametrize(
    ("f", "around", "mode"),
    [
        (with_a_tape, "recompute_grad", "eager"),
        (recursive, "memory", "traced"),
        (with_a_loop, "scan", "jit"),
        (recursive, "nested", "eager"),
    ],
)
def test_second_derivatives(f, around, mode):
    _, dx, second = ALL_MODES[mode].orders(AROUND[around](f), X, DY)
    np.testing.assert_allclose(dx, DY * FUNCTIONS[f][0](X, None), rtol=1e-9)
    np.testing.assert_allclose(second, DY**2 * FUNCTIONS[f][1](X), rtol=1e-9)


def test_a_fresh_process_has_the_gradients_and_says_which_order_it_lacks(tmp_path):
    places = zip([f for f in FUNCTIONS if f is not masked], ["recompute_grad", "memory", "scan", "nested"], strict=True)
    model, saved = tf.Module(), {f"f{number}": place for number, place in enumerate(places)}
    for name, (f, around) in saved.items():
        setattr(model, name, tf.function(AROUND[around](f), input_signature=[tf.TensorSpec([3], tf.float64)]))
    found = run_in_a_fresh_process(model, dict.fromkeys(saved, ([X], [DY])), tmp_path)
    for name, (f, _) in saved.items():
        (y,), (dx,), _ = found[name]
        np.testing.assert_allclose(dx, DY * FUNCTIONS[f][0](X, y), rtol=1e-9)
    assert {gradient.orders for gradient in cg.saved_model.inspect(tmp_path / "model")} == {0, 1, None}
    message = (
        r"tf.custom_gradient: the graph does not have the derivative of order 2 of 'recursive'. Compute it in the program "
        r"that traced 'recursive', or decorate it with tf_cg_ops.custom_gradient\(saved_orders=2\)."
    )
    with pytest.raises(RuntimeError, match=message):
        ALL_MODES["eager"].orders(tf.saved_model.load(tmp_path / "model").f1, X, DY)


def test_a_rule_that_calls_its_function_is_traced_once():
    calls = []

    def rule(x, dy):
        calls.append(1)
        return dy * function(x)

    function = tf.custom_gradient(lambda x: (tf.exp(x), lambda dy: rule(x, dy)))
    _, (dx,) = eager(cg.recompute_grad(function), [X], DY)
    np.testing.assert_allclose(dx, DY * np.exp(X))
    assert len(calls) == 1


@pytest.mark.parametrize("around", ["recompute_grad", "memory", "scan", "while_loop", "implicit_root"])
def test_eager_calls_share_what_they_build_and_not_what_the_rule_reads(around):
    def times(factor):
        return tf.custom_gradient(lambda x: (tf.identity(x), lambda dy: factor * dy))

    for factor in (2.0, 5.0):
        _, (dx,) = eager(AROUND[around](times(tf.constant(factor, tf.float64))), [X], DY)
        np.testing.assert_allclose(dx, factor * DY, rtol=1e-9)


def test_a_gradient_function_with_a_gradient_too_many_is_an_error():
    doubled = cg.recompute_grad(tf.custom_gradient(lambda x: (2.0 * x, lambda dy: (dy, dy))))
    with pytest.raises(ValueError, match=r"of '<lambda>' must return one gradient for each .*, 1 in all, got 2"):
        eager(doubled, [X], DY)
