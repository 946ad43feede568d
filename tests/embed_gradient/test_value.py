"""The value is fx, bit for bit and in the same memory, for all numbers in x and gx."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.embed_gradient import eager

from ..support.modes import VJP_MODES
from ..support.tensors import DTYPES, address, bits, pairs, random_array

pytestmark = pytest.mark.core

SIGNALLING_NAN = np.uint64(0x7FF4_DEAD_BEEF_0001).view(np.float64)
QUIET_NAN_WITH_PAYLOAD = np.uint64(0xFFF8_0000_1234_5678).view(np.float64)
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, SIGNALLING_NAN, QUIET_NAN_WITH_PAYLOAD, 5e-324, -2e-310, 1.5, 1.8e308]
)


def special_values(dtype):
    if dtype == tf.float64:
        return SPECIAL
    if dtype.is_complex:
        parts = special_values(tf.float64 if dtype == tf.complex128 else tf.float32)
        return np.stack([parts, parts[::-1]], -1).view(dtype.as_numpy_dtype)[:, 0]
    # Every bit pattern of the 16-bit types and a spread for float32, with specials, payloads and denormals.
    count = 2 ** (8 * dtype.size)
    patterns = np.arange(0, count, max(1, count // 65536), dtype=np.uint64)
    return patterns.astype({2: np.uint16, 4: np.uint32}[dtype.size]).view(dtype.as_numpy_dtype)


@pytest.mark.parametrize(("dtype", "mode"), pairs(DTYPES, VJP_MODES, quick=2))
def test_every_bit_of_fx_comes_through(dtype, mode):
    fx = special_values(dtype)
    clean = np.ones(fx.shape, fx.dtype)
    # fx is an argument: as a constant of the graph a complex64 would lose bits in TensorFlow's own encoding.
    value, _ = VJP_MODES[mode](lambda fx, x: cg.embed_gradient(fx, clean, x), [fx, clean], clean)
    np.testing.assert_array_equal(bits(value), bits(fx))


def test_tensors_of_one_shape_and_dtype_take_the_short_way_of_eager_mode():
    x, other_shape, other_dtype = tf.zeros([2, 3]), tf.zeros([3]), tf.zeros([2, 3], tf.float64)
    assert eager.embed_elementwise(x + 1.0, x + 2.0, x) is not None
    assert eager.embed_elementwise(x, other_shape, x) is None
    assert eager.embed_elementwise(x, x, other_shape) is None
    assert eager.embed_elementwise(x, other_dtype, x) is None


LINE, ONES = np.linspace(-1.0, 1.0, len(SPECIAL)), np.ones_like(SPECIAL)
INFINITE = np.array([np.inf, -np.inf, 2.0])


def sevens(*shape):
    return np.full(shape, 7.0)


# fx, gx and x, and the axis; whether fx and gx are manually stopped; and dx for the upstream fx, if it is known.
NUMBERS = {
    "special gx": (LINE, SPECIAL, ONES, (), False, None),
    "special x": (LINE, ONES, SPECIAL, (), True, None),
    # The stop-gradient formula gives nan here, for the value and so for everything behind it.
    "infinite x": (np.array([2.0, 3.0, 5.0]), np.array([0.0, 0.25, -3.0]), INFINITE, (), False, [0.0, 0.75, -15.0]),
    "scalars": (sevens(), sevens(), sevens(), (), False, 49.0),
    "empty": (sevens(0), sevens(0), sevens(0), (), False, sevens(0)),
    "an empty matrix": (sevens(3, 0), sevens(3, 0), sevens(3, 0), (), False, sevens(3, 0)),
    "an empty axis": (sevens(2), sevens(2, 0), sevens(2, 0), -1, False, sevens(2, 0)),
    "a sum over an empty batch": (sevens(0, 3), sevens(0, 3), sevens(3), (), False, np.zeros(3)),
}


@pytest.mark.parametrize(("name", "mode"), pairs(NUMBERS, VJP_MODES, quick=4))
def test_special_infinite_and_no_numbers(name, mode):
    fx, gx, x, axis, stopped, expected = NUMBERS[name]
    function = lambda x: cg.embed_gradient(fx, gx, x, axis, fx_gx_manually_stopped=stopped)  # noqa: E731
    value, (dx,) = VJP_MODES[mode](function, [x], fx)
    np.testing.assert_array_equal(bits(value), bits(fx))
    if expected is not None:
        np.testing.assert_array_equal(dx, expected)


def test_eager_result_shares_the_buffer_of_fx(dtype, rng):
    fx = tf.constant(random_array(rng, [1000], dtype))
    h = cg.embed_gradient(fx, fx, fx)
    assert address(h) == address(fx)


def test_traced_result_shares_the_buffer_of_fx(rng):
    @tf.function
    def run(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            fx = tf.tanh(x)
            h = cg.embed_gradient(fx, 1.0 - fx**2, x)
        return fx, h, tape.gradient(h, x, dy)

    fx, h, dx = run(tf.constant(random_array(rng, [1000])), tf.constant(random_array(rng, [1000])))
    assert address(h) == address(fx)
    assert address(dx) != address(fx)
