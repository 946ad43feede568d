"""`needed` and `materialize_grads` of custom_vjp beyond test_modes.py, and what calls leave behind or cost."""

import concurrent.futures
import gc
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import tf_internal

from ..support.modes import RUNS, tape_vjp, vjp
from .test_modes import with_rule

X, Y = tf.constant([0.5, -1.0, 2.0], tf.float64), tf.constant([3.0, 4.0, 5.0], tf.float64)
DY = tf.constant([1.0, 10.0, 100.0], tf.float64)


def product(backward):
    return cg.custom_vjp(lambda x, y: (tf.sin(x) * y, (x, y)), backward)


def test_an_inner_tape_needs_what_an_outer_one_watches():
    log = []

    def backward(residuals, dy, needed):
        log.append(needed)
        return None, dy * tf.sin(residuals[0])

    with tf.GradientTape() as outer:
        outer.watch(X)
        by_y = vjp(lambda: product(backward)(X, Y), Y, DY)[1]
    np.testing.assert_allclose(by_y, DY * tf.sin(X))
    assert log == [(True, True)]
    np.testing.assert_allclose(outer.gradient(by_y, X, output_gradients=DY), DY * DY * tf.cos(X))


@pytest.mark.parametrize("tape", ["around", "inside"])
def test_a_graph_does_not_run_unused_gradients(tape):
    """Counted by a Python function without side effects, in the gradient of one of two arguments.

    TensorFlow runs the whole gradient of a tf.function for a tape around it.
    """
    calls = []

    def count(x):
        calls.append(1)
        return x

    def backward(residuals, dy, needed):
        x, y = residuals
        expensive = tf.ensure_shape(tf.numpy_function(count, [dy * tf.sin(x)], tf.float64, stateful=False), [3])
        return dy * tf.cos(x) * y, expensive

    function = tf.function(product(backward))
    for watched, number in (([X], int(tape == "around")), ([X, Y], 1)):
        calls.clear()
        run = RUNS["eager" if tape == "around" else "traced"](lambda: vjp(lambda: function(X, Y), watched, DY)[1])  # noqa: B023
        np.testing.assert_allclose(run()[0], DY * tf.cos(X) * Y)
        assert len(calls) == number


class Pair:
    """Sine, cosine and an integer, with a backward pass that notes which upstream gradients are None."""

    def __init__(self, before=lambda: None):
        self.seen, self.before = [], before
        value = lambda x: ({"a": tf.sin(x), "b": [tf.cos(x), tf.argmax(x)]}, x)  # noqa: E731
        self.function = cg.custom_vjp(value, self.backward, materialize_grads=False)

    def __call__(self, x):
        return tf.nest.flatten(self.function(x))

    def backward(self, x, by_sine, by_cosine, by_integer):
        self.before()
        self.seen.append([dy is None for dy in (by_sine, by_cosine, by_integer)])
        dx = tf.zeros_like(x)
        if by_sine is not None:
            dx += by_sine * tf.cos(x)
        return dx if by_cosine is None else dx - by_cosine * tf.sin(x)


BY_HAND = [DY * tf.cos(X), -DY * tf.sin(X)]


def recorded(compute):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        value = compute(X)
    return tape, value


@pytest.mark.parametrize("mode", RUNS)
def test_zeros_as_the_upstream_gradient_are_not_none(mode):
    pair = Pair()

    def run(x):
        upstreams = [DY, tf.zeros([3], tf.float64)], [DY, tf.zeros_like(X)], [DY, None]
        return [tape_vjp(lambda x: pair(x)[:2], [x], upstream)[1][0] for upstream in upstreams]

    np.testing.assert_allclose(RUNS[mode](run)(X), [BY_HAND[0]] * 3, rtol=1e-12)
    assert pair.seen[-3:] == [[False, False, True], [False, False, True], [False, True, True]]
    # For a tape around a function, all are zeros.
    _, (dx,) = tape_vjp(lambda x: tf.function(pair)(x)[1], [X], DY)
    np.testing.assert_allclose(dx, BY_HAND[1], rtol=1e-14)
    assert pair.seen[-1] == [False, False, True]


def test_a_persistent_tape_tells_each_gradient_its_own():
    pair = Pair()
    tape, value = recorded(pair)
    for used in ([0], [1], [0, 1], [0]):
        gradient = tape.gradient([value[i] for i in used], X, output_gradients=[DY] * len(used))
        np.testing.assert_allclose(gradient, sum(BY_HAND[i] for i in used), rtol=1e-14)
    assert [seen[:2] for seen in pair.seen] == [[False, True], [True, False], [False, False], [False, True]]


def test_threads_share_a_persistent_tape():
    pair = Pair(threading.Barrier(2, timeout=30).wait)  # Both marks are set before either backward pass goes on.
    tape, values = recorded(pair)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            found = [threads.submit(tape.gradient, values[i], X, output_gradients=DY) for i in (0, 1)]
            for gradient, expected in zip(found, BY_HAND, strict=True):
                np.testing.assert_allclose(gradient.result(), expected, rtol=1e-14)


def test_a_gradient_that_failed_leaves_no_mark():
    pair, fails = Pair(), [True]

    def grad_fn(dy):
        if fails:
            raise RuntimeError("not this time")
        return dy

    def compute(x):
        sine, cosine, _ = pair(x)
        return cosine, sine + cg.custom_gradient(lambda x: (tf.identity(x), grad_fn))(cosine)

    tape, (cosine, total) = recorded(compute)
    with pytest.raises(RuntimeError, match="not this time"):
        tape.gradient(total, X, output_gradients=DY)
    fails.clear()
    np.testing.assert_allclose(tape.gradient(cosine, X, output_gradients=DY), BY_HAND[1], rtol=1e-14)
    assert pair.seen == [[True, False, True]]


WEIGHT = tf.Variable(Y)
EAGER = {
    "custom_gradient, structures": lambda x: cg.custom_gradient(
        lambda x, k: ([x["x"] * x["x"], k], lambda dy, _: {"x": 2.0 * x["x"] * dy})
    )({"x": x}, k=1)[0],
    "custom_gradient, variables": cg.custom_gradient(
        lambda x: (x * WEIGHT * x / WEIGHT, lambda dy, variables: (2.0 * x * dy, [None]))
    ),
    "custom_vjp, needed": cg.custom_vjp(lambda x: (x * x, x), lambda x, dy, needed: 2.0 * x * dy),
    "custom_vjp, unused outputs": lambda x: cg.custom_vjp(
        lambda x: ((x * x, x), x), lambda x, dy, _: 2.0 * x * dy, materialize_grads=False
    )(x)[0],
    "custom_jvp": with_rule(lambda x: x * x, lambda p, t: (None, 2.0 * p[0] * t[0])),
    "grad_pass_through": lambda x: cg.grad_pass_through(tf.round)(x * x),
    "recompute_grad": cg.recompute_grad(lambda x: x * x),
    "embed_gradient": lambda x: cg.embed_gradient(x * x, 2.0 * x, x),
    "embed_gradient, gx later": lambda x: cg.embed_gradient(x * x, lambda: 2.0 * x, x),
}


@pytest.mark.core
@pytest.mark.parametrize("name", EAGER)
def test_eager_calls_leave_nothing_to_the_garbage_collector(name):
    """Tensors in a cycle of references would live until it runs."""

    def run():
        return vjp(lambda: EAGER[name](X), X, DY)[1]

    np.testing.assert_allclose(run(), 2.0 * X * DY)
    gc.freeze()  # What was there before is not looked at, which takes long in a large process.
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        run()
        run()
        num_objects = gc.collect()
        assert [found for found in gc.garbage if isinstance(found, tf_internal.EagerTensor)] == []
        # The graph that recompute_grad traces is a cycle, without Tensors of the program.
        assert num_objects == 0 or name == "recompute_grad"
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


def test_xla_does_not_merge_the_matrix_products_of_a_recomputation():
    """Two in the forward pass, two in the recomputation, and two for the gradient by x; without it, four in all."""
    w = tf.random.stateless_normal([16, 16], [1, 2])

    def count(wrap):
        function = wrap(lambda x: tf.sin(tf.matmul(tf.sin(tf.matmul(x, w)), w)))

        def loop(x):
            body = lambda i, x: (i + 1, function(x))  # noqa: E731
            return tf.while_loop(lambda i, _: i < 3, body, (0, x), maximum_iterations=3)[1]

        run = tf.function(lambda x: tape_vjp(loop, [x], None), jit_compile=True)
        return run.experimental_get_compiler_ir(tf.ones([16, 16]))(stage="optimized_hlo").count(" dot(")

    assert (count(lambda f: f), count(cg.recompute_grad)) == (4, 6)
