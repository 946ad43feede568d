"""Every error of embed_gradient with its full text, at the call, while tracing, and at run time."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops import _library

SUPPORTED = "float16, bfloat16, float32, float64, complex64, complex128"
AXIS_KINDS = "expected None, an int, a sequence of ints or an integer Tensor"
IF_STOPPED = "If it was meant for fx_gx_manually_stopped, pass it as that keyword."
CHECK_SHAPES = "Shapes are aligned from the right, as in NumPy: check those of fx, gx and x."
JACOBIAN = "If gx is a Jacobian, of the shape of fx followed by that of x, pass axis=None."
PER_EXAMPLE = (
    "Shapes are aligned from the right: if gx is a Jacobian for each example, [batch, outputs, inputs], give x a "
    "dimension of size 1 for the outputs, as in x[:, None, :]."
)
NAME_THE_DIMENSIONS = "Name the dimensions of x that are the domain of one function."


def ones(shape, dtype=tf.float32):
    return tf.ones(shape, dtype)


V = ones([3])

# What Python can see: the same exception in every mode.
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
        "embed_gradient: x is empty; expected at least one x, got an empty tuple. Return fx itself where nothing is "
        "embedded.",
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
        "embed_gradient: gx is not a dense tensor; expected a Tensor or what converts to one of dtype float32, got "
        "'2 * x'. Convert it before the call.",
    ),
    "none": (
        lambda: cg.embed_gradient(V, [V, None], [V, V]),
        TypeError,
        "embed_gradient: gx[1] is not a dense tensor; expected a Tensor or what converts to one of dtype float32, got "
        "None. Convert it before the call.",
    ),
    "function": (
        lambda: cg.embed_gradient(V, abs, V),
        TypeError,
        "embed_gradient: gx is not a dense tensor; expected a Tensor or what converts to one of dtype float32, got "
        "<built-in function abs>. Pass the value of the function, and not the function itself.",
    ),
    "keras_tensor": (
        lambda: cg.embed_gradient(keras.KerasTensor([3]), V, V),
        TypeError,
        "embed_gradient: fx is not a dense tensor; expected a Tensor or what converts to one of dtype float32, got a "
        "KerasTensor of dtype float32. It is the placeholder of a functional model: call embed_gradient inside the "
        "call() of a keras.layers.Layer of your own.",
    ),
    "sparse": (
        lambda: cg.embed_gradient(V, tf.SparseTensor([[0]], [1.0], [3]), V),
        TypeError,
        "embed_gradient: gx is not a dense tensor; expected a Tensor or what converts to one of dtype float32, got a "
        "SparseTensor of dtype float32. Convert it before the call.",
    ),
    "flag_that_is_no_bool": (
        lambda: cg.embed_gradient(V, V, V, fx_gx_manually_stopped=1),
        TypeError,
        "embed_gradient: fx_gx_manually_stopped decides how the graph is built; expected True or False, got 1. Pass a "
        "Python bool.",
    ),
    "flag_that_is_a_tensor": (
        lambda: cg.embed_gradient(V, V, V, fx_gx_manually_stopped=tf.constant(True)),
        TypeError,
        "embed_gradient: fx_gx_manually_stopped decides how the graph is built; expected True or False, got a Tensor "
        "of dtype bool. Pass a Python bool.",
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
        f"embed_gradient: axis does not name dimensions; {AXIS_KINDS}, got [True]. {NAME_THE_DIMENSIONS}",
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


# What the op sees: shapes of fx, gx, x and the axis.
SHAPES = {
    "no_axis_for_a_square_x": (
        ([3], [3, 3], [3, 3], ()),
        "embed_gradient: fx has the wrong shape; expected [3,3] (the broadcast shape without the dimensions of axis), "
        "got fx of shape [3], gx of shape [3,3] and x of shape [3,3], with axis []. If each element of fx is a function "
        "of several elements of x, name their dimensions with axis.",
    ),
    "fx_too_small": (
        ([1, 3], [2, 3], [2, 3], ()),
        "embed_gradient: fx has the wrong shape; expected [2,3] (the broadcast shape without the dimensions of axis), "
        "got fx of shape [1,3], gx of shape [2,3] and x of shape [2,3], with axis []. " + CHECK_SHAPES,
    ),
    "a_scalar_fx_with_more_than_x": (
        ([], [2, 3], [3], None),
        "embed_gradient: fx has the wrong shape; expected [2] (the broadcast shape without the dimensions of axis), "
        "got fx of shape [], gx of shape [2,3] and x of shape [3], with axis None. " + PER_EXAMPLE,
    ),
    "sizes_that_differ": (
        ([3], [4], [4], ()),
        "embed_gradient: the shapes do not broadcast together; expected sizes that are equal or 1 once fx and gx are "
        "aligned with x, got fx of shape [3], gx of shape [4] and x of shape [4], with axis []. " + CHECK_SHAPES,
    ),
    "zero_and_two": (
        ([0], [2], [2], ()),
        "embed_gradient: the shapes do not broadcast together; expected sizes that are equal or 1 once fx and gx are "
        "aligned with x, got fx of shape [0], gx of shape [2] and x of shape [2], with axis []. " + CHECK_SHAPES,
    ),
    "forgotten_axis": (
        ([4], [4, 3], [4, 3], ()),
        "embed_gradient: the shapes do not broadcast together; expected sizes that are equal or 1 once fx and gx are "
        "aligned with x, got fx of shape [4], gx of shape [4,3] and x of shape [4,3], with axis []. If each element of "
        "fx is a function of several elements of x, name their dimensions with axis.",
    ),
    "keepdims": (
        ([4, 1], [4, 6], [4, 6], -1),
        "embed_gradient: fx has the wrong shape; expected [4,4] (the broadcast shape without the dimensions of axis), "
        "got fx of shape [4,1], gx of shape [4,6] and x of shape [4,6], with axis [-1]. If fx was reduced with "
        "keepdims=True, drop the dimensions of axis from it.",
    ),
    "jacobian_without_axis": (
        ([3], [3, 3], [3], ()),
        "embed_gradient: fx has the wrong shape; expected [3,3] (the broadcast shape without the dimensions of axis), "
        "got fx of shape [3], gx of shape [3,3] and x of shape [3], with axis []. " + JACOBIAN,
    ),
    "jacobian_for_each_example": (
        ([5, 2], [5, 2, 3], [5, 3], -1),
        "embed_gradient: the shapes do not broadcast together; expected sizes that are equal or 1 once fx and gx are "
        "aligned with x, got fx of shape [5,2], gx of shape [5,2,3] and x of shape [5,3], with axis [-1]. "
        + PER_EXAMPLE,
    ),
    "axis_too_large": (
        ([3], [3, 2], [3, 2], 2),
        "embed_gradient: axis names no dimension of x; expected a value in [-2, 2) for x of shape [3,2], got 2. Name "
        "dimensions of x, or pass None for all of them.",
    ),
    "axis_too_small": (
        ([3], [3, 2], [3, 2], [0, -3]),
        "embed_gradient: axis names no dimension of x; expected a value in [-2, 2) for x of shape [3,2], got -3. Name "
        "dimensions of x, or pass None for all of them.",
    ),
    "axis_of_a_scalar": (
        ([3], [3], [], 0),
        "embed_gradient: axis names no dimension of x; expected no axis, since x is a scalar, got 0. Name dimensions of "
        "x, or pass None for all of them.",
    ),
    "axis_twice": (
        ([3], [3, 2], [3, 2], [1, -1]),
        "embed_gradient: axis names dimension 1 of x twice; expected each dimension of shape [3,2] at most once, got "
        "[1,-1]. Remove one of the two.",
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_do_not_fit_in_eager_mode(case):
    (fx, gx, x, axis), message = SHAPES[case]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        cg.embed_gradient(ones(fx), ones(gx), ones(x), axis)
    # TensorFlow puts the op's node in front and its name behind.
    assert re.sub(r"^\{\{.*?\}\} | \[Op:.*$", "", caught.value.message) == message


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_do_not_fit_while_tracing(case):
    (fx, gx, x, axis), message = SHAPES[case]
    with tf.Graph().as_default(), pytest.raises(ValueError, match=re.escape(message) + r" for '\{\{node") as caught:
        cg.embed_gradient(ones(fx), ones(gx), ones(x), axis)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_do_not_fit_at_run_time(case):
    (fx, gx, x, axis), message = SHAPES[case]

    @tf.function(input_signature=[tf.TensorSpec(None)] * 3)
    def run(fx, gx, x):
        return cg.embed_gradient(fx, gx, x, axis)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(ones(fx), ones(gx), ones(x))
    assert f"\n{message}\n" in caught.value.message


def test_the_message_names_the_pair_that_is_wrong():
    message = (
        "embed_gradient: axis names no dimension of x[1]; expected a value in [-1, 1) for x[1] of shape [2], got 1. Name "
        "dimensions of x[1], or pass None for all of them."
    )
    m = ones([2, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        cg.embed_gradient(ones([2]), [m, m], [m, ones([2])], axis=1)


@pytest.mark.parametrize("axis", [[5], [-3], [1, 1], [1, -1]], ids=str)
def test_a_wrong_axis_that_is_known_at_run_time_only(axis):
    @tf.function
    def run(x, axis):
        return cg.embed_gradient(tf.reduce_sum(x, 1), x, x, axis)

    message = (
        "embed_gradient: axis does not name dimensions of x; expected distinct values in [-rank, rank) of x, got the "
        f"axis and the shape of x that follow. Name each dimension of the domain once.] [{' '.join(map(str, axis))}] "
        "[2 3]"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        run(ones([2, 3]), tf.constant(axis))


# On raw op calls.
RAW = {
    "two_ways_to_say_the_axis": (
        lambda: _library.custom_gradient_embed(V, [V], [V], axis=[0], all_axes=True),
        "embed_gradient: all_axes leaves no choice of axis; expected an empty axis beside it, got [0]. Set only one of "
        "the two attributes.",
    ),
    "shape_of_rank_0": (
        lambda: _library.custom_gradient_embed_grad(V, V, tf.constant(3), wrt="x"),
        "CustomGradientEmbedGrad: shape is not a vector; expected a tensor of rank 1, got one of rank 0. Pass tf.shape of "
        "the operand that wrt names.",
    ),
    "negative_shape": (
        lambda: _library.custom_gradient_embed_grad(V, V, tf.constant([-3]), wrt="x"),
        "Dimension -3 must be >= 0",
    ),
    "shape_that_overflows": (
        lambda: _library.custom_gradient_embed_grad(V, V, tf.constant([2**62, 4], tf.int64), wrt="x"),
        "Shape [4611686018427387904,4] would have more than 2**63 - 1 elements",
    ),
    "shape_of_too_high_a_rank": (
        lambda: _library.custom_gradient_embed_grad(V, V, tf.ones([300], tf.int64), wrt="x"),
        "Too many dimensions",
    ),
    "operands_that_do_not_fit": (
        lambda: _library.custom_gradient_embed_grad(V, ones([4]), tf.constant([3]), wrt="x"),
        "CustomGradientEmbedGrad: the shapes do not broadcast together; expected sizes that are equal or 1 once fx and "
        "gx are aligned with x, got fx of shape [3], gx of shape [4] and x of shape [3], with axis []. " + CHECK_SHAPES,
    ),
    "huge_empty_operands": (
        lambda: _library.custom_gradient_embed_grad(
            ones([0, 2**40, 1]), ones([0, 1, 2**40]), tf.constant([], tf.int64), wrt="x"
        ),
        "CustomGradientEmbedGrad: fx has the wrong shape; expected [0,1099511627776,1099511627776] (the broadcast shape "
        "without the dimensions of axis), got fx of shape [0,1099511627776,1], gx of shape [0,1,1099511627776] and x of "
        "shape [], with axis []. " + JACOBIAN,
    ),
    "unknown_operand": (
        lambda: _library.custom_gradient_embed_grad(V, V, tf.constant([3]), wrt="y"),
        'Value for attr \'wrt\' of "y" is not in the list of allowed values: "fx", "gx", "x"',
    ),
    "no_pair": (
        lambda: _library.custom_gradient_embed(V, [], []),
        "Value for attr 'N' of 0 must be at least minimum 1",
    ),
    "unequal_lists": (
        lambda: _library.custom_gradient_embed(V, [V], []),
        "NodeDef expected inputs 'float, float, float' do not match 2 inputs specified",
    ),
    "integers": (
        lambda: _library.custom_gradient_embed(tf.constant([1]), [tf.constant([1])], [tf.constant([1])]),
        "Value for attr 'T' of int32 is not in the list of allowed values: half, bfloat16, float, double, complex64, "
        "complex128",
    ),
}


@pytest.mark.parametrize("case", RAW)
def test_raw_calls_of_the_ops(case):
    call, message = RAW[case]
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        call()


def test_a_result_that_does_not_fit_in_memory_is_an_error():
    with pytest.raises(tf.errors.ResourceExhaustedError, match="OOM when allocating tensor"):
        _library.custom_gradient_embed_grad(ones([]), ones([]), tf.constant([2**60], tf.int64), wrt="x")


def test_huge_empty_operands_that_fit_are_no_error():
    """The product of the joint shape's sizes overflows 64 bits, but there is nothing to multiply."""
    out = _library.custom_gradient_embed_grad(
        ones([0, 2**40]), ones([0, 2**40, 2**20]), tf.constant([2**20], tf.int64), wrt="x", all_axes=True
    )
    np.testing.assert_array_equal(out, np.zeros(2**20))
