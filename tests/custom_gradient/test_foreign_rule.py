"""Functions of `tf.custom_gradient` in what this library traces: tapes, recursion, random residuals, loops."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import MODES as ORDERS
from ..support.modes import RUNS, run_in_a_fresh_process

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

    @tf.custom_gradient
    def function(x):
        return tf.identity(
            x
        ), lambda dy: 2.0 * tf.while_loop(lambda i, _: i < 2, step, (0, dy), maximum_iterations=2)[1]

    return function(x)


@tf.custom_gradient
def masked(x):
    mask = tf.cast(tf.random.uniform(x.shape, dtype=x.dtype) > 0.5, x.dtype) + 1.0
    return x * mask, lambda dy: dy * mask


def recomputed(x):
    return tf.recompute_grad(lambda x: tf.sin(x) * x)(x)


# The derivatives as functions of x and of the value.
FUNCTIONS = {
    with_a_tape: lambda x, y: 3 * (1 - np.tanh(x) ** 2),
    recursive: lambda x, y: np.exp(x),
    masked: lambda x, y: y / x,
    with_a_loop: lambda x, y: 2 * np.sin(x) ** 2,
    recomputed: lambda x, y: np.sin(x) + x * np.cos(x),
}
SECOND_ORDER = {
    with_a_tape: lambda x: -6 * np.tanh(x) * (1 - np.tanh(x) ** 2),
    recursive: np.exp,
    with_a_loop: lambda x: 4 * np.sin(x) * np.cos(x),
}


def in_while_loop(f):
    return lambda x: cg.while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, f(x)), (0, x), maximum_iterations=1)[1]


# Functions of this library that trace a function, and do not change it.
AROUND = {
    "recompute_grad": cg.recompute_grad,
    "memory": lambda f: cg.recompute_grad(f, memory="auto"),
    "scan": lambda f: lambda x: cg.scan(lambda x, _: (f(x), None), x, tf.zeros([1]))[0],
    "while_loop": in_while_loop,
    "override_gradients": lambda f: cg.override_gradients(
        lambda x: tf.sign(f(x)) * tf.abs(f(x)), {"Sign": cg.rules.built_in}
    ),
    "nested": lambda f: cg.recompute_grad(lambda x: cg.recompute_grad(f)(tf.identity(x))),
    "implicit_root": lambda f: cg.implicit_root(lambda y, x: y - f(x), f),
    "linear.cg": lambda f: lambda x: cg.linear.cg(lambda v: 2.0 * v, 2.0 * f(x)),
}


def in_a_loop(f):
    return lambda x: tf.while_loop(lambda i, _: i < 1, lambda i, x: (i + 1, f(x)), (0, x), maximum_iterations=1)[1]


MODES = {
    "eager": lambda f, run: run(f),
    "function": lambda f, run: tf.function(lambda: run(f))(),
    "around": lambda f, run: run(tf.function(f)),
    "jit": lambda f, run: tf.function(lambda: run(f), jit_compile=True)(),
    "loop": lambda f, run: tf.function(lambda: run(in_a_loop(f)))(),
    "map_fn": lambda f, run: tf.function(lambda: run(lambda x: tf.map_fn(f, x[None])[0]))(),
}


def value_and_gradient(f):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return y, tape.gradient(y, x, output_gradients=tf.constant(DY))


def cases():
    """All pairs of a function and what is around it, in two modes in turn."""
    for i, (f, around) in enumerate(itertools.product(FUNCTIONS, AROUND)):
        # One that runs the function several times has each time another mask.
        if f is not masked or around not in ("override_gradients", "implicit_root"):
            yield from ((f, around, mode) for mode in (list(MODES) * 2)[i % 6 : i % 6 + 4 : 3])


@pytest.mark.parametrize(("f", "around", "mode"), list(cases()))
def test_the_gradient_is_the_one_of_the_rule(f, around, mode):
    y, dx = MODES[mode](AROUND[around](f), value_and_gradient)
    np.testing.assert_allclose(dx, DY * FUNCTIONS[f](X, y.numpy()), rtol=1e-9)


@pytest.mark.parametrize("mode", RUNS)
@pytest.mark.parametrize(
    ("f", "around"),
    [(with_a_tape, "recompute_grad"), (recursive, "memory"), (with_a_loop, "scan"), (recursive, "nested")],
)
def test_second_derivatives(f, around, mode):
    _, dx, second = ORDERS[mode](AROUND[around](f), X, DY)
    np.testing.assert_allclose(dx, DY * FUNCTIONS[f](X, None), rtol=1e-9)
    np.testing.assert_allclose(second, DY**2 * SECOND_ORDER[f](X), rtol=1e-9)


def test_a_fresh_process_has_the_gradients(tmp_path):
    saved = list(
        zip([f for f in FUNCTIONS if f is not masked], ["recompute_grad", "memory", "scan", "nested"], strict=True)
    )
    model = tf.Module()
    for number, (f, around) in enumerate(saved):
        signature = [tf.TensorSpec([3], tf.float64)]
        setattr(model, f"f{number}", tf.function(AROUND[around](f), input_signature=signature))
    tasks = {f"f{number}": ([X], [DY]) for number in range(len(saved))}
    found = run_in_a_fresh_process(model, tasks, tmp_path)
    for (f, _), name in zip(saved, tasks, strict=True):
        (y,), (dx,), _ = found[name]
        np.testing.assert_allclose(dx, DY * FUNCTIONS[f](X, y), rtol=1e-9)


def test_a_loaded_model_says_which_order_it_lacks(tmp_path):
    model = tf.Module()
    model.f = tf.function(cg.recompute_grad(recursive), input_signature=[tf.TensorSpec([3], tf.float64)])
    tf.saved_model.save(model, tmp_path / "model")
    assert max(gradient.orders for gradient in cg.saved_model.inspect(tmp_path / "model")) == 1
    loaded = tf.saved_model.load(tmp_path / "model").f
    message = (
        r"tf.custom_gradient: the graph does not have the derivative of order 2 of 'recursive'. Compute it in the program "
        r"that traced 'recursive', or decorate it with tf_cg_ops.custom_gradient\(saved_orders=2\)."
    )
    with pytest.raises(RuntimeError, match=message):
        ORDERS["eager"](loaded, X, DY)


def test_a_rule_that_calls_its_function_is_traced_once():
    counts = collections.Counter()

    @tf.custom_gradient
    def function(x):
        def grad_fn(dy):
            counts["rule"] += 1
            return dy * function(x)

        return tf.exp(x), grad_fn

    call = cg.recompute_grad(function)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = call(x)
    assert counts["rule"] == 1
    np.testing.assert_allclose(tape.gradient(y, x, output_gradients=tf.constant(DY)), DY * np.exp(X))
    assert counts["rule"] == 1


@pytest.mark.parametrize("around", ["recompute_grad", "memory", "scan", "while_loop", "implicit_root"])
def test_eager_calls_share_what_they_build_and_not_what_the_rule_reads(around):
    def times(factor):
        return tf.custom_gradient(lambda x: (tf.identity(x), lambda dy: factor * dy))

    for factor in (2.0, 5.0):
        _, dx = value_and_gradient(AROUND[around](times(tf.constant(factor, tf.float64))))
        np.testing.assert_allclose(dx, factor * DY, rtol=1e-9)


def test_a_gradient_function_with_a_gradient_too_many_is_an_error():
    doubled = cg.recompute_grad(tf.custom_gradient(lambda x: (2.0 * x, lambda dy: (dy, dy))))
    with pytest.raises(ValueError, match=r"of '<lambda>' must return one gradient for each .*, 1 in all, got 2"):
        value_and_gradient(doubled)
