"""The shape functions are as exact as the inputs allow, and raise errors as soon as they are certain."""

import re

import pytest
import tensorflow as tf

from tf_cg_ops._src.core import library

pytestmark = pytest.mark.core


def placeholder(shape):
    """A placeholder of a shape such as "[2,?]"; "?" is an unknown rank."""
    if shape == "?":
        return tf.compat.v1.placeholder(tf.float32)
    sizes = [None if s == "?" else int(s) for s in shape.strip("[]").split(",") if s]
    return tf.compat.v1.placeholder(tf.float32, sizes)


def describe(shape):
    if shape.rank is None:
        return "?"
    return "[" + ",".join("?" if size is None else str(size) for size in shape.as_list()) + "]"


def embed(shapes, **attributes):
    """`shapes`: the shapes of fx, gx and x, separated by semicolons."""
    fx, gx, x = map(placeholder, shapes.split(";"))
    return library.custom_gradient_embed(fx, [gx], [x], **attributes)


def embed_grad(shapes, wrt="x", **attributes):
    """The shapes of the operands, and the contents of the shape tensor, which is tf.shape of a placeholder."""
    lhs, rhs, shape = map(placeholder, shapes.split(";"))
    shape = tf.raw_ops.Shape(input=shape, out_type=tf.int64)
    return library.custom_gradient_embed_grad(lhs, rhs, shape, wrt=wrt, **attributes)


MANY = 2**32
FITS, PRODUCTS = "fx must have shape", "the shapes must broadcast to at most"
# The op, the shapes, the attributes, and what is inferred, or the error.
ROWS = [
    # The value has the shape of fx.
    *(
        (embed, f"{fx};?;?", attributes, fx)
        for fx in ("?", "[]", "[?]", "[2]", "[2,?]", "[?,?,3]")
        for attributes in ({}, {"axis": [-1]}, {"all_axes": True})
    ),
    # Unknown dimensions may turn out right.
    (embed, "[?];[3];[3]", {}, "[?]"),
    (embed, "[3];[?];[3]", {}, "[3]"),
    (embed, "[3];[3];[?]", {}, "[3]"),
    (embed, "[?];[?,4];[?,4]", {"axis": [1]}, "[?]"),
    (embed, "[];[?];[?]", {}, "[]"),
    (embed, "[5];[?,?];[?]", {"all_axes": True}, "[5]"),
    # Partial shapes that cannot fit are refused.
    (embed, "[4];[3];[?]", {}, ValueError("must broadcast together")),
    (embed, "[?];[?,4];[?,5]", {}, ValueError("must broadcast together")),
    (embed, "[];[?,3];[3]", {}, ValueError(FITS)),
    (embed, "[?];[?,4];[?,4]", {}, ValueError(FITS)),
    (embed, "[3];[2,?];[?]", {}, ValueError(FITS)),
    # The axis is checked as soon as the rank of x is known.
    (embed, "?;?;[?,?]", {"axis": [2]}, ValueError("axis must be in [-2, 2)")),
    (embed, "?;?;[?,?]", {"axis": [1, -1]}, ValueError("which names dimension 1 of shape")),
    (embed, "?;?;?", {"axis": [2]}, "?"),
    # More products than can be counted are refused, unless there may be none.
    (embed, f"[{MANY}];[];[{MANY}]", {"all_axes": True}, ValueError(PRODUCTS)),
    (embed, f"[{MANY}];[];[{MANY // 2 - 1}]", {"all_axes": True}, f"[{MANY}]"),
    (embed, f"[{MANY},0];[];[{MANY}]", {"all_axes": True}, f"[{MANY},0]"),
    (embed, f"[{MANY},?];[];[{MANY}]", {"all_axes": True}, f"[{MANY},?]"),
    # The gradient has the shape that the tensor tells.
    *(
        (embed_grad, f"?;?;{shape}", {"wrt": wrt}, shape)
        for shape in ("?", "[]", "[3]", "[?]", "[?,3]", "[2,3]")
        for wrt in ("x", "gx", "fx")
    ),
    (embed_grad, "[3];[4];[3]", {}, ValueError("CustomGradientEmbedGrad: the shapes must broadcast together")),
    (embed_grad, "[3];[3,3];[3,3]", {}, ValueError("must have shape")),
    (embed_grad, "[3,3];[3,3];[3]", {"wrt": "fx"}, ValueError("must have shape")),
    (embed_grad, "[3];[3];[3]", {"zero_x": True}, ValueError("wrt must be 'fx' or 'gx' if zero_x is true")),
]


@pytest.mark.parametrize(("op", "shapes", "attributes", "expected"), ROWS)
def test_shapes_are_inferred_or_refused(op, shapes, attributes, expected):
    with tf.Graph().as_default():
        if isinstance(expected, ValueError):
            with pytest.raises(ValueError, match=re.escape(str(expected))):
                op(shapes, **attributes)
        else:
            assert describe(op(shapes, **attributes).shape) == expected


def gradient_of_a_shape(shape):
    return library.custom_gradient_embed_grad(placeholder("?"), placeholder("?"), shape, wrt="x")


def checked_shape(shape):
    return library.custom_gradient_check_shape(placeholder("?"), shape, message="")


@pytest.mark.parametrize("call", [gradient_of_a_shape, checked_shape])
def test_a_shape_tensor_gives_the_rank_and_must_be_a_vector_of_no_more_dimensions_than_there_are(call):
    """TensorFlow's optimiser crashes if an output has 255 dimensions."""
    with tf.Graph().as_default():
        for rank in (2, 254):
            assert call(tf.compat.v1.placeholder(tf.int32, [rank])).shape.rank == rank
        for shape in (tf.compat.v1.placeholder(tf.int32, [255]), tf.ones([255], tf.int32)):
            with pytest.raises(ValueError, match="shape must have at most 254 dimensions, got 255"):
                call(shape)
        with pytest.raises(ValueError, match="Shape must be rank 1 but is rank 2"):
            call(tf.compat.v1.placeholder(tf.int32, [2, 2]))


def test_second_order_gradients_keep_static_shapes():
    @tf.function
    def run(x, y):
        assert x.shape.as_list() == [None, 3]
        with tf.GradientTape() as outer:
            outer.watch([x, y])
            with tf.GradientTape() as inner:
                inner.watch([x, y])
                h = library.custom_gradient_embed(y, [x], [x], axis=[-1], fx_gx_manually_stopped=True)
                loss = tf.reduce_sum(h**2)
            dx = inner.gradient(loss, x)
            assert dx.shape.as_list() == [None, 3]
        return outer.gradient(dx, [x, y])

    concrete = run.get_concrete_function(tf.TensorSpec([None, 3]), tf.TensorSpec([None]))
    assert [t.shape.as_list() for t in concrete.outputs] == [[None, 3], [None]]
