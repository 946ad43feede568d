"""custom_vjp, recompute_grad and grad_pass_through beyond what custom_gradient/test_modes.py shows."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import tf_internal

pytestmark = pytest.mark.core

X, DY = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])


def forward(kind, x, y, mode="a", *, scale):
    return scale * x * y, {"x": x, "y": y}


def backward(residuals, dy, kind, mode, scale):
    assert (kind, mode) in (("first", "a"), ("first", "b"))
    return 10.0 * scale * residuals["y"] * dy, (100.0 if mode == "a" else 1000.0) * residuals["x"] * dy


@pytest.mark.parametrize(("mode", "factor"), [("a", 100.0), ("b", 1000.0)])
def test_custom_vjp_passes_residuals_and_nondifferentiable_arguments(mode, factor, gradient):
    function = cg.custom_vjp(forward, backward, nondiff_argnames=("kind", "mode", "scale"))
    arguments = {} if mode == "a" else {"mode": mode}  # The default is passed on, too.
    dx, dy = gradient(lambda x, y: function("first", x, y, **arguments, scale=2.0), [X, 3.0 * X], DY)
    np.testing.assert_allclose(dx, 20 * 3 * X * DY)
    np.testing.assert_allclose(dy, factor * X * DY)


def test_xla_does_not_merge_the_matrix_products_of_a_recomputation():
    """Two in the forward pass, two in the recomputation, and two for the gradient by x; without it, four in all."""
    w = tf.random.stateless_normal([16, 16], [1, 2])

    def body(x):
        return tf.sin(tf.matmul(tf.sin(tf.matmul(x, w)), w))

    def count(wrap):
        function = wrap(body)

        @tf.function(jit_compile=True)
        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                body = lambda i, x: (i + 1, function(x))  # noqa: E731
                value = tf.reduce_sum(tf.while_loop(lambda i, x: i < 3, body, (0, x), maximum_iterations=3)[1])
            return value, tape.gradient(value, x)

        program = run.experimental_get_compiler_ir(tf.ones([16, 16]))(stage="optimized_hlo")
        return program.count(" dot(")

    assert (count(lambda f: f), count(cg.recompute_grad)) == (4, 6)


@cg.custom_jvp
def squared(x):
    return x * x


squared.defjvp(lambda primals, tangents: (primals[0] ** 2, 2.0 * primals[0] * tangents[0]))
WEIGHT = tf.Variable([3.0, 4.0])
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
    "custom_jvp": squared,
    "grad_pass_through": lambda x: cg.grad_pass_through(tf.round)(x * x),
    "recompute_grad": cg.recompute_grad(lambda x: x * x),
    "embed_gradient": lambda x: cg.embed_gradient(x * x, 2.0 * x, x),
    "embed_gradient, gx later": lambda x: cg.embed_gradient(x * x, lambda: 2.0 * x, x),
}


@pytest.mark.parametrize("name", EAGER)
def test_eager_calls_leave_nothing_to_the_garbage_collector(name):
    """Tensors in a cycle of references would live until it runs."""

    def run():
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = EAGER[name](X)
        return tape.gradient(y, X, DY)

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


def test_grad_pass_through_of_a_bound_method(gradient):
    """The usual use: an assignment that has a gradient."""
    z = tf.Variable([0.0, 0.0])
    (dx,) = gradient(cg.grad_pass_through(z.assign), [X], DY)
    np.testing.assert_allclose(dx, DY)
    np.testing.assert_allclose(z, X)
