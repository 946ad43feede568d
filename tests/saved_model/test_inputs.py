"""The inputs that are made for comparing a stripped model with its source."""

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops.saved_model import _inputs


def made(spec, size=5):
    return _inputs.generate({"x": spec}, size)["x"]


@pytest.mark.parametrize(
    "dtype",
    [tf.float16, tf.float64, tf.complex64, tf.int32, tf.uint8, tf.bool, tf.string],
    ids=lambda dtype: dtype.name,
)
def test_generated_inputs_have_the_dtype_and_fill_unknown_dimensions(dtype):
    for shape, expected in (([2, None, 3], [2, 5, 3]), (None, [5]), ([], [])):
        value = made(tf.TensorSpec(shape, dtype))
        assert value.dtype == dtype
        assert value.shape == expected


@pytest.mark.parametrize("dtype", [tf.float64, tf.complex128], ids=lambda dtype: dtype.name)
def test_numbers_are_of_either_sign_in_each_of_their_parts(dtype):
    value = made(tf.TensorSpec([100], dtype)).numpy()
    for part in (value.real, value.imag) if dtype.is_complex else (value,):
        assert 25 < np.sum(part > 0) < 75
        assert 0.5 < np.std(part) < 2.0


def test_generated_inputs_are_deterministic():
    specs = [tf.TensorSpec([4]), {"a": tf.TensorSpec([None], tf.complex64)}, True]
    for one, other in zip(
        tf.nest.flatten(_inputs.generate(specs, 3)), tf.nest.flatten(_inputs.generate(specs, 3)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
