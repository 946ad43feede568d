"""How close a gradient must be to the float64 reference: one table."""

import numpy as np
import tensorflow as tf

# The relative tolerance for one product or a sum that is kept in a wider type: a few units in the last place.
GRADIENT_RTOL = {
    tf.float16: 2e-3,
    tf.bfloat16: 2e-2,
    tf.float32: 1e-6,
    tf.float64: 1e-13,
    tf.complex64: 1e-6,
    tf.complex128: 1e-13,
}


def assert_gradient_close(actual, expected, dtype, scale=1.0):
    """`scale`: the size of the largest terms, where they may cancel."""
    actual = np.asarray(actual.numpy() if tf.is_tensor(actual) else actual)
    assert actual.shape == np.shape(expected)
    wide = actual.astype(np.complex128 if dtype.is_complex else np.float64)
    rtol = GRADIENT_RTOL[dtype]
    np.testing.assert_allclose(wide, expected, rtol=rtol, atol=rtol * scale)
