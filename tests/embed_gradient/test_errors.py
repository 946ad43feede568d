"""Wrong arguments that embed_gradient refuses in Python: the same exception, with its full text, in every mode."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.tensors import ones

pytestmark = pytest.mark.core

SUPPORTED = "float16, bfloat16, float32, float64, complex64, complex128"
AXIS_KINDS = "must be None, an int, a sequence of ints or an integer Tensor"
IF_STOPPED = "If you mean fx_gx_manually_stopped, pass it by name."
CONVERT = "Convert it before the call."
NO_RETURN = "A function without a return statement returns None."
NAME_THE_DIMENSIONS = "Name the dimensions of x that one element of fx depends on."


V = ones([3])
LISTS = "Pass two lists of the same length, or a single gx with a single x."
ONE_FOR_EACH = "gx must have one entry for each x, got"
NOT_DENSE = "must be a dense Tensor or a value that converts to one, got"
NO_BOOL = "fx_gx_manually_stopped must be True or False, got"
NO_DIMENSIONS = f"axis {AXIS_KINDS}, got"
NOT_DISTINCT = "axis must name dimensions of x, each at most once, with values in [-rank, rank), got axis"

# The arguments, and the message without the name of the function. Python sees these: the same error in every mode.
TYPES = {
    "integer_fx": (
        (tf.constant([1, 2]), 1, 1),
        f"fx must have one of the dtypes {SUPPORTED}, got int32. Cast it, for example with tf.cast(fx, tf.float32).",
    ),
    "integer_x_beside_numbers": (
        (1.0, 1.0, tf.constant([1, 2])),
        f"x must have one of the dtypes {SUPPORTED}, got int32. Cast it, for example with tf.cast(x, tf.float32).",
    ),
    "gx_of_another_dtype": (
        (V, ones([3], tf.float64), V),
        "gx must have the dtype of fx, float32, got float64. Cast one of the two with tf.cast.",
    ),
    "one_x_of_several_of_another_dtype": (
        (V, [V, V], [V, ones([3], tf.float16)]),
        "x[1] must have the dtype of fx, float32, got float16. Cast one of the two with tf.cast.",
    ),
    "complex_array_beside_real_tensors": (
        (1.0, 1j * np.ones(3), V),
        "gx must have the dtype of x, float32, got complex128. Cast one of the two with tf.cast.",
    ),
    "text": ((V, "2 * x", V), f"gx {NOT_DENSE} '2 * x'. {CONVERT}"),
    "none": ((V, [V, None], [V, V]), f"gx[1] {NOT_DENSE} None. {NO_RETURN}"),
    "nothing": ((None, None, None), f"fx {NOT_DENSE} None. {NO_RETURN}"),
    "sparse": ((V, tf.SparseTensor([[0]], [1.0], [3]), V), f"gx {NOT_DENSE} a SparseTensor. {CONVERT}"),
    "ragged_list": (([[1.0], [1.0, 2.0]], 1.0, 1.0), f"fx {NOT_DENSE} [[1.0], [1.0, 2.0]]. {CONVERT}"),
    "thing_with_an_attribute_dtype": (
        (V, types.SimpleNamespace(dtype="nonsense"), V),
        f"gx {NOT_DENSE} a SimpleNamespace. {CONVERT}",
    ),
    "function": (
        (V, abs, V),
        "gx must be a Tensor or a function without arguments, got the function 'abs', which takes arguments. Bind them, as "
        "in lambda: f(x).",
    ),
    "flag_that_is_not_a_bool": (
        (V, V, V, (), 1),
        f"{NO_BOOL} 1. Pass a Python bool.",
    ),
    "flag_that_is_a_tensor": (
        (V, lambda: V, V, (), tf.constant(True)),
        f"{NO_BOOL} a Tensor of dtype bool. Pass a Python bool.",
    ),
    "flag_instead_of_an_axis": ((V, V, V, True), f"axis {AXIS_KINDS}, got True. {IF_STOPPED}"),
    "numpy_bool_axis": ((V, V, V, np.bool_(False)), f"axis {AXIS_KINDS}, got False. {IF_STOPPED}"),
    "bool_tensor_axis": (
        (V, V, V, tf.constant(True)),
        f"axis {AXIS_KINDS}, got a Tensor of dtype bool. {IF_STOPPED}",
    ),
    "bool_in_axis": ((V, V, V, [True]), f"axis {AXIS_KINDS}, got [True]. {IF_STOPPED}"),
    "bool_array_axis": ((V, V, V, np.array(True)), f"axis {AXIS_KINDS}, got array(True). {IF_STOPPED}"),
    "ragged_axis": (
        (V, V, V, tf.ragged.constant([[0]])),
        f"{NO_DIMENSIONS} a RaggedTensor. {NAME_THE_DIMENSIONS}",
    ),
    "float_axis": ((V, V, V, 1.0), f"{NO_DIMENSIONS} 1.0. {NAME_THE_DIMENSIONS}"),
    "float_tensor_axis": (
        (V, V, V, tf.constant([1.0])),
        f"{NO_DIMENSIONS} a Tensor of dtype float32. {NAME_THE_DIMENSIONS}",
    ),
    "text_axis": ((V, V, V, "all"), f"{NO_DIMENSIONS} 'all'. {NAME_THE_DIMENSIONS}"),
    "nested_axis": ((V, V, V, [[0]]), f"{NO_DIMENSIONS} [[0]]. {NAME_THE_DIMENSIONS}"),
}
VALUES = {
    "one_list": ((V, V, [V]), f"{ONE_FOR_EACH} a single value for gx and a list of 1 for x. {LISTS}"),
    "unequal_lists": ((V, (V,), [V, V]), f"{ONE_FOR_EACH} a tuple of 1 for gx and a list of 2 for x. {LISTS}"),
    "empty_lists": (
        (V, (), ()),
        "x must hold at least one Tensor, got an empty tuple. Without an x, use fx itself.",
    ),
    "axis_of_more_than_64_bits": ((V, V, V, [0, 2**63]), f"{NOT_DISTINCT} [0, 9223372036854775808]."),
    "unsigned_axis_of_64_bits": (
        (V, V, V, tf.constant(2**64 - 1, tf.uint64)),
        f"{NOT_DISTINCT} [18446744073709551615].",
    ),
    "matrix_axis": (
        (V, V, V, tf.constant([[0]])),
        "axis must be a scalar or a vector, got a Tensor of shape (1, 1). Flatten it.",
    ),
    "matrix_array_axis": (
        (V, V, V, np.array([[0]])),
        "axis must be a scalar or a vector, got a Tensor of shape (1, 1). Flatten it.",
    ),
}


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("case", [*TYPES, *VALUES])
def test_mistakes_that_python_can_see(case, traced):
    arguments, message = (TYPES | VALUES)[case]
    call = lambda: cg.embed_gradient(*arguments)  # noqa: E731
    with pytest.raises(TypeError if case in TYPES else ValueError) as caught:
        (tf.function(call, autograph=False) if traced else call)()
    assert str(caught.value) == f"embed_gradient: {message}"
