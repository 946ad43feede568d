"""The shape functions are as exact as the inputs allow, and raise errors as soon as they are certain."""

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


def assert_infers(shapes, expected, **attributes):
    """`shapes`: the shapes of fx, gx and x, separated by semicolons."""
    with tf.Graph().as_default():
        fx, gx, x = map(placeholder, shapes.split(";"))
        h = library.custom_gradient_embed(fx, [gx], [x], **attributes)
        assert describe(h.shape) == expected


def assert_refuses(shapes, match, **attributes):
    with tf.Graph().as_default():
        fx, gx, x = map(placeholder, shapes.split(";"))
        with pytest.raises(ValueError, match=match):
            library.custom_gradient_embed(fx, [gx], [x], **attributes)


def test_the_value_has_the_shape_of_fx():
    for fx in ("?", "[]", "[?]", "[2]", "[2,?]", "[?,?,3]"):
        for attributes in ({}, {"axis": [-1]}, {"all_axes": True}):
            assert_infers(f"{fx};?;?", fx, **attributes)


def test_unknown_dimensions_may_turn_out_right():
    assert_infers("[?];[3];[3]", "[?]")
    assert_infers("[3];[?];[3]", "[3]")
    assert_infers("[3];[3];[?]", "[3]")
    assert_infers("[?];[?,4];[?,4]", "[?]", axis=[1])
    assert_infers("[];[?];[?]", "[]")
    assert_infers("[5];[?,?];[?]", "[5]", all_axes=True)


def test_partial_shapes_that_cannot_fit_are_refused():
    assert_refuses("[4];[3];[?]", "must broadcast together")
    assert_refuses("[?];[?,4];[?,5]", "must broadcast together")
    assert_refuses("[];[?,3];[3]", "fx must have shape")
    assert_refuses("[?];[?,4];[?,4]", "fx must have shape")
    assert_refuses("[3];[2,?];[?]", "fx must have shape")


def test_the_axis_is_checked_as_soon_as_the_rank_of_x_is_known():
    assert_refuses("?;?;[?,?]", r"axis must be in \[-2, 2\)", axis=[2])
    assert_refuses("?;?;[?,?]", "which names dimension 1 of shape", axis=[1, -1])
    assert_infers("?;?;?", "?", axis=[2])


def test_more_products_than_can_be_counted_are_refused_unless_there_may_be_none():
    many = 2**32
    assert_refuses(f"[{many}];[];[{many}]", "the shapes must broadcast to at most", all_axes=True)
    assert_infers(f"[{many}];[];[{many // 2 - 1}]", f"[{many}]", all_axes=True)
    assert_infers(f"[{many},0];[];[{many}]", f"[{many},0]", all_axes=True)
    assert_infers(f"[{many},?];[];[{many}]", f"[{many},?]", all_axes=True)


def assert_gradient_infers(lhs, rhs, shape, expected, wrt="x", **attributes):
    """`shape`: the contents of the shape tensor, which is tf.shape of a placeholder."""
    with tf.Graph().as_default():
        shape = tf.raw_ops.Shape(input=placeholder(shape), out_type=tf.int64)
        out = library.custom_gradient_embed_grad(placeholder(lhs), placeholder(rhs), shape, wrt=wrt, **attributes)
        assert describe(out.shape) == expected


def test_the_gradient_has_the_shape_that_the_tensor_tells():
    for shape in ("?", "[]", "[3]", "[?]", "[?,3]", "[2,3]"):
        for wrt in ("x", "gx", "fx"):
            assert_gradient_infers("?", "?", shape, shape, wrt)


def test_a_shape_tensor_of_known_length_gives_the_rank_and_must_be_a_vector():
    with tf.Graph().as_default():
        operands = [placeholder("?"), placeholder("?")]
        out = library.custom_gradient_embed_grad(*operands, tf.compat.v1.placeholder(tf.int32, [2]), wrt="x")
        assert describe(out.shape) == "[?,?]"
        with pytest.raises(ValueError, match="Shape must be rank 1 but is rank 2"):
            library.custom_gradient_embed_grad(*operands, tf.compat.v1.placeholder(tf.int32, [2, 2]), wrt="x")


@pytest.mark.parametrize(
    "call",
    [
        lambda shape: library.custom_gradient_embed_grad(placeholder("?"), placeholder("?"), shape, wrt="x"),
        lambda shape: library.custom_gradient_check_shape(placeholder("?"), shape, message=""),
    ],
    ids=["embed_grad", "check_shape"],
)
def test_a_shape_tensor_of_more_dimensions_than_there_are_is_refused(call):
    """TensorFlow's optimiser crashes if an output has such a shape."""
    with tf.Graph().as_default():
        assert call(tf.compat.v1.placeholder(tf.int32, [254])).shape.rank == 254
        for shape in (tf.compat.v1.placeholder(tf.int32, [255]), tf.ones([255], tf.int32)):
            with pytest.raises(ValueError, match="shape must have at most 254 dimensions, got 255"):
                call(shape)


@pytest.mark.parametrize(
    ("lhs", "rhs", "shape", "attributes", "match"),
    [
        ("[3]", "[4]", "[3]", {}, "CustomGradientEmbedGrad: the shapes must broadcast together"),
        ("[3]", "[3,3]", "[3,3]", {}, r"CustomGradientEmbedGrad: fx .* must have shape"),
        ("[3,3]", "[3,3]", "[3]", {"wrt": "fx"}, r"CustomGradientEmbedGrad: fx .* must have shape"),
        ("[3]", "[3]", "[3]", {"zero_x": True}, "wrt must be 'fx' or 'gx' if zero_x is true"),
    ],
)
def test_gradient_operands_that_do_not_fit_are_refused(lhs, rhs, shape, attributes, match):
    with pytest.raises(ValueError, match=match):
        assert_gradient_infers(lhs, rhs, shape, shape, **attributes)


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
