"""Shape errors of embed_gradient, with their full text: at the call, while tracing, and at run time."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.sources import ROOT
from ..support.tensors import ones

pytestmark = pytest.mark.core

CHECK_SHAPES = "Shapes are aligned from the right, as in NumPy. Check the shapes of fx, gx and x."
FORGOTTEN = "If each element of fx is a function of several elements of x, name their dimensions with axis."
KEEPDIMS = "If fx was reduced with keepdims=True, drop the dimensions of axis from it."
JACOBIAN = "If gx is a Jacobian, with the shape of fx followed by the shape of x, pass axis=None."
PER_EXAMPLE = (
    "Shapes are aligned from the right: if gx is a Jacobian for each example, [batch, outputs, inputs], give x a "
    "dimension of size 1 for the outputs, as in x[:, None, :]."
)
NAME_DIMENSIONS = "Name dimensions of x, or pass None for all of them."

# Shapes of fx, gx and x, and the axis; the shape that fx should have, or None if sizes differ; and the hint.
MISFITS = {
    "no_axis_for_a_square_x": (([3], [3, 3], [3, 3], []), [3, 3], FORGOTTEN),
    "fx_too_small": (([1, 3], [2, 3], [2, 3], []), [2, 3], CHECK_SHAPES),
    "a_scalar_fx_with_more_than_x": (([], [2, 3], [3], None), [2], PER_EXAMPLE),
    "keepdims": (([4, 1], [4, 6], [4, 6], [-1]), [4, 4], KEEPDIMS),
    "jacobian_without_axis": (([3], [3, 3], [3], []), [3, 3], JACOBIAN),
    "sizes_that_differ": (([3], [4], [4], []), None, CHECK_SHAPES),
    "an_x_that_differs": (([3], [3], [4], []), None, CHECK_SHAPES),
    "zero_and_two": (([0], [2], [2], []), None, CHECK_SHAPES),
    "forgotten_axis": (([4], [4, 3], [4, 3], []), None, FORGOTTEN),
    "jacobian_for_each_example": (([5, 2], [5, 2, 3], [5, 3], [-1]), None, PER_EXAMPLE),
}


def of_misfit(shapes, expected, hint):
    """The whole message."""
    fx, gx, x, axis = (str(shape).replace(" ", "") for shape in shapes)
    found = f"got fx of shape {fx}, gx of shape {gx} and x of shape {x}, with axis {axis}. {hint}"
    if expected is None:
        return (
            "embed_gradient: the shapes must broadcast together, with sizes that are equal or 1 once fx and gx are aligned "
            f"with x, {found}"
        )
    expected = str(expected).replace(" ", "")
    return (
        f"embed_gradient: fx must have shape {expected} (the broadcast shape without the dimensions of axis), {found}"
    )


# Errors that the op sees.
SHAPES = {name: (row[0], of_misfit(*row)) for name, row in MISFITS.items()} | {
    "axis_too_large": (
        ([3], [3, 2], [3, 2], 2),
        "embed_gradient: axis must be in [-2, 2) for x of shape [3,2], got 2. " + NAME_DIMENSIONS,
    ),
    "axis_too_small": (
        ([3], [3, 2], [3, 2], [0, -3]),
        "embed_gradient: axis must be in [-2, 2) for x of shape [3,2], got -3. " + NAME_DIMENSIONS,
    ),
    "axis_of_a_scalar": (
        ([3], [3], [], 0),
        "embed_gradient: axis must be empty, because x is a scalar, got 0. " + NAME_DIMENSIONS,
    ),
    "axis_twice": (
        ([3], [3, 2], [3, 2], [1, -1]),
        "embed_gradient: axis must name each dimension of x at most once, got [1,-1], which names dimension 1 of shape "
        "[3,2] twice. Remove one of the two.",
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_do_not_fit_in_eager_mode(case):
    (fx, gx, x, axis), message = SHAPES[case]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        cg.embed_gradient(ones(fx), ones(gx), ones(x), axis)
    assert caught.value.message == str(caught.value) == message  # Nothing of TensorFlow's around it.


@pytest.mark.parametrize("deferred", [False, True], ids=["", "deferred"])
@pytest.mark.parametrize("name", [None, "a/name[Op:x] name: "])
def test_an_eager_error_under_a_tape_is_the_sentence_alone(name, deferred):
    fx, gx, x = ones([1, 3]), ones([2, 3]), ones([2, 3])
    _, message = SHAPES["fx_too_small"]
    with tf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            cg.embed_gradient(fx, (lambda: gx) if deferred else gx, x, name=name)
    assert str(caught.value) == message


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_do_not_fit_while_tracing(case):
    (fx, gx, x, axis), message = SHAPES[case]
    with tf.Graph().as_default(), pytest.raises(ValueError, match=re.escape(message) + r" for '\{\{node") as caught:
        cg.embed_gradient(ones(fx), ones(gx), ones(x), axis)
    assert str(caught.value).startswith(message)


def with_unknown_shapes(function):
    return tf.function(function, input_signature=[tf.TensorSpec(None)] * 3)


def message_at_run_time(case):
    (fx, gx, x, axis), _ = SHAPES[case]

    @with_unknown_shapes
    def run(fx, gx, x):
        return cg.embed_gradient(fx, gx, x, axis)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(ones(fx), ones(gx), ones(x))
    return caught.value.message


AT_RUN_TIME = """
import json
from tests.embed_gradient.test_shape_errors import SHAPES, message_at_run_time

print(json.dumps({case: message_at_run_time(case) for case in SHAPES}))
"""


@pytest.fixture(scope="module")
def messages_at_run_time(tmp_path_factory):
    """The messages in a process in which no pass removes the op from the graph."""
    environment = {"PYTHONPATH": str(ROOT), "TF_CG_OPS_DISABLE_PASSES": "1"}
    result = run_python(AT_RUN_TIME, cwd=tmp_path_factory.mktemp("shapes"), environment=environment)
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_do_not_fit_at_run_time(case, messages_at_run_time):
    """The op compares them if it stays in the graph."""
    assert f"\n{SHAPES[case][1]}\n" in messages_at_run_time[case]


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_do_not_fit_at_run_time_where_a_gradient_is_taken(case):
    """Without a gradient the op is gone; with one, the gradient op compares them."""
    (fx, gx, x, axis), message = SHAPES[case]
    embed = with_unknown_shapes(lambda fx, gx, x: cg.embed_gradient(fx, gx, x, axis))
    np.testing.assert_array_equal(embed(ones(fx), ones(gx), ones(x)), ones(fx))

    @with_unknown_shapes
    def gradient(fx, gx, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = cg.embed_gradient(fx, gx, x, axis)
        return tape.gradient(h, x)

    of_the_gradient = re.sub(
        r"\bfx\b", "fx (or its upstream)", message.replace("embed_gradient", "CustomGradientEmbedGrad")
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        gradient(ones(fx), ones(gx), ones(x))
    assert f"\n{of_the_gradient}\n" in caught.value.message


def test_the_message_names_the_pair_that_is_wrong():
    message = (
        "embed_gradient: axis must be in [-1, 1) for x[1] of shape [2], got 1. Name dimensions of x[1], or pass None for all "
        "of them."
    )
    m = ones([2, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        cg.embed_gradient(ones([2]), [m, m], [m, ones([2])], axis=1)


WRONG_AXES = [
    tf.constant([5]),
    tf.constant([-3]),
    tf.constant([1, -1]),
    # These must not wrap around to a dimension that exists.
    tf.constant([2**32], tf.int64),
    tf.constant([2**32 + 1], tf.uint64),
    tf.constant([2**64 - 1], tf.uint64),
]


@pytest.mark.parametrize("axis", WRONG_AXES, ids=lambda axis: f"{axis.dtype.name}{axis.numpy().tolist()}")
def test_a_wrong_axis_that_is_known_at_run_time_only(axis):
    @tf.function
    def run(x, axis):
        return cg.embed_gradient(tf.reduce_sum(x, 1), x, x, axis)

    message = (
        "embed_gradient: axis must name dimensions of x, each at most once, with values in [-rank, rank), got the axis and "
        f"the shape of x that follow.] [{' '.join(map(str, axis.numpy()))}] [2 3]"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        run(ones([2, 3]), axis)


def test_a_wrong_axis_at_run_time_names_the_pair():
    @tf.function
    def run(m, v, axis):
        return cg.embed_gradient(v, [m, v], [m, v], axis)

    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape("axis must name dimensions of x[1],")):
        run(ones([2, 2]), ones([2]), tf.constant([1]))


@pytest.mark.parametrize(
    ("gx", "x", "axis", "message"),
    [
        (
            [3, 4],
            [3, 1],
            [1],
            "embed_gradient: fx must have the shape of x without the dimensions of axis, or be a scalar "
            "where gx broadcasts to the shape of x, got a scalar with the shapes of gx and x and the axis that follow. "
            "Broadcast x to the shape of gx, or check axis.] [3 4] [3 1] [1]",
        ),
        (
            [3, 4],
            [3, 5],
            [1],
            "embed_gradient: the shapes must broadcast together, with sizes that are equal or 1 in the dimensions "
            "that axis names, got these sizes in gx and x. Reshape gx to the shape of x.] [4] [5]",
        ),
    ],
    ids=["scalar_fx", "events_differ"],
)
def test_an_axis_at_run_time_is_refused_like_a_static_one(gx, x, axis, message):
    fx, gx, x = ones([]), ones(gx), ones(x)
    with pytest.raises(tf.errors.InvalidArgumentError):
        cg.embed_gradient(fx, gx, x, axis)
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        tf.function(cg.embed_gradient)(fx, gx, x, tf.constant(axis))


@pytest.mark.parametrize("upstream", [[5], [4, 2]], ids=str)
def test_an_upstream_of_another_shape_is_refused(upstream):
    x = ones([2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = cg.embed_gradient(x, x, x)
    message = f"embed_gradient: the upstream gradient must have the shape of the value, (2,), got {tuple(upstream)}."
    with pytest.raises(ValueError, match=re.escape(message)):
        tape.gradient(h, x, output_gradients=ones(upstream))
