"""XLA, in addition to the modes `jit` and `jit_unknown_shape`, which test all shapes and dtypes."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library

from ..support.tensors import DTYPES, assert_gradient_close, pairs, random_array


def jit(function):
    return tf.function(function, jit_compile=True, autograph=False)


@pytest.mark.parametrize(("dtype", "wrt"), pairs(DTYPES, ["fx", "gx", "x"]))
def test_the_kernel_equals_that_of_the_cpu(dtype, wrt, rng):
    """Sums over two dimensions and broadcasts one, to each of the three operands."""
    shapes = {"fx": [3, 4, 2, 5], "gx": [3, 4, 2, 5], "x": [4, 1, 1]}
    lhs, rhs = (tf.constant(random_array(rng, shape, dtype)) for role, shape in shapes.items() if role != wrt)

    def run(lhs, rhs):
        return library.custom_gradient_embed_grad(lhs, rhs, tf.constant(shapes[wrt], tf.int64), wrt=wrt)

    expected = run(lhs, rhs)
    wide = np.complex128 if dtype.is_complex else np.float64
    assert_gradient_close(jit(run)(lhs, rhs), expected.numpy().astype(wide), dtype, scale=30.0)


def check_shape(x, shape, message="f: {expected}, not {got}."):
    return library.custom_gradient_check_shape(x, shape, message=message)


def embed_grad(x, y, shape, wrt="x"):
    return library.custom_gradient_embed_grad(x, y, shape, wrt=wrt)


def gradient_by_x(x, shape):
    return embed_grad(x, x, shape)


TOO_MANY = "shape must have at most 254 dimensions, got 255. Pass the result of tf.shape"
# Calls with a Tensor of three numbers, one of seven and the int64 3, and what is refused.
MISFITS = {
    "shapes": (lambda x, y, n: library.custom_gradient_embed(x, [y], [x]), "embed_gradient: "),
    "axis": (lambda x, y, n: library.custom_gradient_embed(x, [x], [x], axis=[7]), "axis must be in [-1, 1)"),
    "gradient": (lambda x, y, n: embed_grad(x, y, tf.shape(x)), "CustomGradientEmbedGrad: "),
    "gradient_shape": (lambda x, y, n: embed_grad(x, x, tf.shape(y)), "CustomGradientEmbedGrad: "),
    "checked_shape": (lambda x, y, n: check_shape(x, tf.shape(y)), "f: [7], not [3]."),
    "a negative shape to check": (
        lambda x, y, n: check_shape(x, tf.constant([-1], tf.int64)),
        "Expected shape dimensions to be non-negative, got -1",
    ),
    "a shape to check that overflows": (lambda x, y, n: check_shape(x, tf.constant([2**62, 4], tf.int64)), "overflow"),
    "a scalar shape to check": (
        lambda x, y, n: check_shape(x, n),
        "CustomGradientCheckShape: shape must be a vector, got a tensor of rank 0",
    ),
    # More dimensions than a tensor can have; TensorFlow would end the process.
    **{
        f"a shape of 255 {way.__name__}": (
            lambda x, y, n, way=way: way(x, tf.zeros([255 + 0 * n], tf.int64)),
            TOO_MANY,
        )
        for way in (check_shape, gradient_by_x)
    },
}


@pytest.mark.parametrize("case", MISFITS)
def test_shapes_that_do_not_fit_when_xla_compiles(case):
    """They are unknown while tracing, so the XLA kernel must refuse them."""
    function, message = MISFITS[case]
    specs = [tf.TensorSpec(None), tf.TensorSpec(None), tf.TensorSpec(None, tf.int64)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        tf.function(function, specs, jit_compile=True)(tf.ones([3]), tf.ones([7]), tf.constant(3, tf.int64))


def test_a_shape_that_depends_on_numbers_is_refused():
    @jit
    def run(x, n):
        return library.custom_gradient_embed_grad(x, x, n[None], wrt="x")

    np.testing.assert_array_equal(run(tf.ones([3]), tf.constant(3)), tf.ones([3]))  # XLA compiles again for each n.
    with pytest.raises(tf.errors.InvalidArgumentError, match="CustomGradientEmbedGrad: "):
        run(tf.ones([3]), tf.constant(7))


def test_sizes_that_xla_knows_by_a_bound_only(rng):
    """Results of tf.boolean_mask, elementwise and summed."""

    @tf.function(jit_compile=True)
    def run(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            chosen = tf.boolean_mask(x, x > 0)
            h = cg.embed_gradient(chosen**2, 10.0 * chosen, chosen)
            g = cg.embed_gradient(chosen * w, 7.0 * chosen, w)
            total = tf.reduce_sum(h * chosen) + tf.reduce_sum(g)
        return total, tape.gradient(total, [x, w])

    x = tf.constant([1.0, -2.0, 3.0, -4.0, 5.0])
    total, (dx, dw) = run(x, tf.constant(2.0))
    np.testing.assert_allclose(total, 1 + 27 + 125 + 18.0, rtol=1e-6)
    # From the embedded derivatives: h contributes 10 x times its upstream x, and the product with `chosen` contributes h.
    np.testing.assert_allclose(dx, [11.0, 0.0, 99.0, 0.0, 275.0], rtol=1e-6)
    np.testing.assert_allclose(dw, 7 * 9.0, rtol=1e-6)


def test_more_products_than_can_be_counted_are_an_error_unless_there_are_none():
    """As a TensorFlow shape they would abort the process. XLA reads the shapes of operands that it makes itself."""

    @jit
    def run(fx_shape, x_shape, out_shape):
        fx, x = tf.zeros(fx_shape, tf.half), tf.zeros(x_shape, tf.half)
        return library.custom_gradient_embed_grad(fx, x, out_shape, wrt="gx", all_axes=True)

    shapes = [tf.constant(shape, tf.int64) for shape in ([2**32], [2**32], [1, 1])]
    with pytest.raises(tf.errors.InvalidArgumentError, match="the shapes must broadcast to at most"):
        run(*shapes)
    # TensorFlow multiplies its sizes from the left.
    none = run(*(tf.constant(shape, tf.int64) for shape in ([2**40], [2**40, 0], [1, 1, 1])))
    np.testing.assert_array_equal(none, np.zeros([1, 1, 1]))
