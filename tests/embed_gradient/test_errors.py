"""Wrong arguments that embed_gradient refuses in Python: the same exception, with its full text, in every mode."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.tensors import ones

pytestmark = pytest.mark.core

SUPPORTED = "float16, bfloat16, float32, float64, complex64, complex128"
AXIS_KINDS = "expected None, an int, a sequence of ints or an integer Tensor"
IF_STOPPED = "If it was meant for fx_gx_manually_stopped, pass it as that keyword."
NAME_THE_DIMENSIONS = "Name the event dimensions of x: those that one element of fx depends on."


V = ones([3])

# Errors that Python can see: the same exception in every mode.
AT_THE_CALL = {
    "one_list": (
        lambda: cg.embed_gradient(V, V, [V]),
        ValueError,
        "embed_gradient: gx and x do not pair up; expected one gx for each x, got a single value for gx and a list of 1 "
        "for x. Pass two lists of the same length, or a single gx with a single x.",
    ),
    "unequal_lists": (
        lambda: cg.embed_gradient(V, (V,), [V, V]),
        ValueError,
        "embed_gradient: gx and x do not pair up; expected one gx for each x, got a tuple of 1 for gx and a list of 2 "
        "for x. Pass two lists of the same length, or a single gx with a single x.",
    ),
    "empty_lists": (
        lambda: cg.embed_gradient(V, (), ()),
        ValueError,
        "embed_gradient: x is an empty tuple. Pass at least one x, or return fx itself where there is nothing to embed.",
    ),
    "integer_fx": (
        lambda: cg.embed_gradient(tf.constant([1, 2]), 1, 1),
        TypeError,
        f"embed_gradient: the dtype of fx has no gradient; expected one of {SUPPORTED}, got int32. Cast it, for example "
        "with tf.cast(fx, tf.float32).",
    ),
    "integer_x_beside_numbers": (
        lambda: cg.embed_gradient(1.0, 1.0, tf.constant([1, 2])),
        TypeError,
        f"embed_gradient: the dtype of x has no gradient; expected one of {SUPPORTED}, got int32. Cast it, for example "
        "with tf.cast(x, tf.float32).",
    ),
    "gx_of_another_dtype": (
        lambda: cg.embed_gradient(V, ones([3], tf.float64), V),
        TypeError,
        "embed_gradient: the dtypes differ; expected float32 for all arguments, which fx has, got float64 for gx. Cast "
        "one of the two with tf.cast.",
    ),
    "one_x_of_several_of_another_dtype": (
        lambda: cg.embed_gradient(V, [V, V], [V, ones([3], tf.float16)]),
        TypeError,
        "embed_gradient: the dtypes differ; expected float32 for all arguments, which fx has, got float16 for x[1]. "
        "Cast one of the two with tf.cast.",
    ),
    "complex_array_beside_real_tensors": (
        lambda: cg.embed_gradient(1.0, 1j * np.ones(3), V),
        TypeError,
        "embed_gradient: the dtypes differ; expected float32 for all arguments, which x has, got complex128 for gx. "
        "Cast one of the two with tf.cast.",
    ),
    "text": (
        lambda: cg.embed_gradient(V, "2 * x", V),
        TypeError,
        "embed_gradient: gx is not a dense tensor; expected a Tensor or a value that converts to one, got "
        "'2 * x'. Convert it before the call.",
    ),
    "none": (
        lambda: cg.embed_gradient(V, [V, None], [V, V]),
        TypeError,
        "embed_gradient: gx[1] is not a dense tensor; expected a Tensor or a value that converts to one, got "
        "None. Convert it before the call.",
    ),
    "function": (
        lambda: cg.embed_gradient(V, abs, V),
        TypeError,
        "embed_gradient: gx is a function that takes arguments; expected a Tensor or a function without arguments, got "
        "<built-in function abs>. Bind them, as in lambda: f(x).",
    ),
    "sparse": (
        lambda: cg.embed_gradient(V, tf.SparseTensor([[0]], [1.0], [3]), V),
        TypeError,
        "embed_gradient: gx is not a dense tensor; expected a Tensor or a value that converts to one, got a "
        "SparseTensor. Convert it before the call.",
    ),
    "flag_that_is_no_bool": (
        lambda: cg.embed_gradient(V, V, V, fx_gx_manually_stopped=1),
        TypeError,
        "embed_gradient: fx_gx_manually_stopped is not a bool; expected True or False, got 1. It decides how the graph is "
        "built: pass a Python bool.",
    ),
    "flag_that_is_a_tensor": (
        lambda: cg.embed_gradient(V, V, V, fx_gx_manually_stopped=tf.constant(True)),
        TypeError,
        "embed_gradient: fx_gx_manually_stopped is not a bool; expected True or False, got a Tensor of dtype bool. It "
        "decides how the graph is built: pass a Python bool.",
    ),
    "flag_in_the_place_of_axis": (
        lambda: cg.embed_gradient(V, V, V, True),
        TypeError,
        f"embed_gradient: axis is a bool; {AXIS_KINDS}, got True. {IF_STOPPED}",
    ),
    "numpy_bool_axis": (
        lambda: cg.embed_gradient(V, V, V, np.bool_(False)),
        TypeError,
        f"embed_gradient: axis is a bool; {AXIS_KINDS}, got False. {IF_STOPPED}",
    ),
    "bool_tensor_axis": (
        lambda: cg.embed_gradient(V, V, V, tf.constant(True)),
        TypeError,
        f"embed_gradient: axis is a bool; {AXIS_KINDS}, got a Tensor of dtype bool. {IF_STOPPED}",
    ),
    "bool_in_axis": (
        lambda: cg.embed_gradient(V, V, V, [True]),
        TypeError,
        f"embed_gradient: axis is a bool; {AXIS_KINDS}, got [True]. {IF_STOPPED}",
    ),
    "bool_array_axis": (
        lambda: cg.embed_gradient(V, V, V, np.array(True)),
        TypeError,
        f"embed_gradient: axis is a bool; {AXIS_KINDS}, got array(True). {IF_STOPPED}",
    ),
    "ragged_axis": (
        lambda: cg.embed_gradient(V, V, V, tf.ragged.constant([[0]])),
        TypeError,
        f"embed_gradient: axis does not name dimensions; {AXIS_KINDS}, got a RaggedTensor. {NAME_THE_DIMENSIONS}",
    ),
    "axis_of_more_than_64_bits": (
        lambda: cg.embed_gradient(V, V, V, [0, 2**63]),
        ValueError,
        "embed_gradient: axis does not name dimensions of x; expected distinct values in [-rank, rank) of x, got axis "
        "[0, 9223372036854775808]. Name each event dimension once.",
    ),
    "unsigned_axis_of_64_bits": (
        lambda: cg.embed_gradient(V, V, V, tf.constant(2**64 - 1, tf.uint64)),
        ValueError,
        "embed_gradient: axis does not name dimensions of x; expected distinct values in [-rank, rank) of x, got axis "
        "[18446744073709551615]. Name each event dimension once.",
    ),
    "nothing": (
        lambda: cg.embed_gradient(None, None, None),
        TypeError,
        "embed_gradient: fx is not a dense tensor; expected a Tensor or a value that converts to one, got "
        "None. Convert it before the call.",
    ),
    "ragged_list": (
        lambda: cg.embed_gradient([[1.0], [1.0, 2.0]], 1.0, 1.0),
        TypeError,
        "embed_gradient: fx is not a dense tensor; expected a Tensor or a value that converts to one, got "
        "[[1.0], [1.0, 2.0]]. Convert it before the call.",
    ),
    "thing_with_an_attribute_dtype": (
        lambda: cg.embed_gradient(V, types.SimpleNamespace(dtype="nonsense"), V),
        TypeError,
        "embed_gradient: gx is not a dense tensor; expected a Tensor or a value that converts to one, got a "
        "SimpleNamespace. Convert it before the call.",
    ),
    "float_axis": (
        lambda: cg.embed_gradient(V, V, V, 1.0),
        TypeError,
        f"embed_gradient: axis does not name dimensions; {AXIS_KINDS}, got 1.0. {NAME_THE_DIMENSIONS}",
    ),
    "float_tensor_axis": (
        lambda: cg.embed_gradient(V, V, V, tf.constant([1.0])),
        TypeError,
        f"embed_gradient: axis does not name dimensions; {AXIS_KINDS}, got a Tensor of dtype float32. "
        f"{NAME_THE_DIMENSIONS}",
    ),
    "text_axis": (
        lambda: cg.embed_gradient(V, V, V, "all"),
        TypeError,
        f"embed_gradient: axis does not name dimensions; {AXIS_KINDS}, got 'all'. {NAME_THE_DIMENSIONS}",
    ),
    "nested_axis": (
        lambda: cg.embed_gradient(V, V, V, [[0]]),
        TypeError,
        f"embed_gradient: axis does not name dimensions; {AXIS_KINDS}, got [[0]]. {NAME_THE_DIMENSIONS}",
    ),
    "matrix_axis": (
        lambda: cg.embed_gradient(V, V, V, tf.constant([[0]])),
        ValueError,
        "embed_gradient: axis has too many dimensions; expected a scalar or a vector, got a Tensor of shape (1, 1). "
        "Flatten it.",
    ),
    "matrix_array_axis": (
        lambda: cg.embed_gradient(V, V, V, np.array([[0]])),
        ValueError,
        "embed_gradient: axis has too many dimensions; expected a scalar or a vector, got a Tensor of shape (1, 1). "
        "Flatten it.",
    ),
}


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("case", AT_THE_CALL)
def test_mistakes_that_python_can_see(case, traced):
    call, exception, message = AT_THE_CALL[case]
    with pytest.raises(exception) as caught:
        (tf.function(call, autograph=False) if traced else call)()
    assert str(caught.value) == message
