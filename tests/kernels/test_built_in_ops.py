"""The gradient op composed of built-in ops computes what the op itself computes."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops._src.core import library
from tf_cg_ops._src.ops import composed

from ..embed_gradient.test_shape_table import ROWS
from ..support import reference
from ..support.tensors import DTYPES, assert_gradient_close, pairs, random_array

ROLES = ("fx", "gx", "x")


def attributes_of(row, wrt, **more):
    axis = [] if row.axis is None else np.ravel(row.axis).astype(int).tolist()
    return {"wrt": wrt, "axis": axis, "all_axes": row.axis is None, **more}


def operands_of(row, wrt, rng, dtype):
    arrays = {role: random_array(rng, getattr(row, role), dtype) for role in ROLES}
    given = [tf.constant(arrays[role]) for role in ROLES if role != wrt]
    return given, getattr(row, wrt)


def run_eagerly(function, lhs, rhs, shape):
    return function(lhs, rhs, tf.constant(shape, tf.int64))


def run_traced(function, lhs, rhs, shape):
    shape = tf.constant(shape, tf.int64)
    return tf.function(function, autograph=False).get_concrete_function(lhs, rhs, shape)(lhs, rhs, shape)


def run_with_unknown_ranks(function, lhs, rhs, shape):
    specs = [tf.TensorSpec(None, lhs.dtype)] * 2 + [tf.TensorSpec([None], tf.int32)]
    return tf.function(function, input_signature=specs, autograph=False)(lhs, rhs, tf.constant(shape, tf.int32))


def run_in_a_session(function, lhs, rhs, shape):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = [tf.constant(array) for array in (lhs.numpy(), rhs.numpy())]
        return session.run(function(*given, tf.constant(shape, tf.int64)))


def run_under_xla(function, lhs, rhs, shape):
    """As a stripped model has it: a call of a function of unknown ranks, with the shape of what a variable is part of."""
    zero = tf.Variable(0.0, trainable=False)
    specs = [tf.TensorSpec(None, lhs.dtype)] * 2 + [tf.TensorSpec([None], tf.int64)]
    called = tf.function(function, input_signature=specs, autograph=False)

    def call(lhs, rhs, like):
        return called(lhs, rhs, tf.shape(like + zero, tf.int64))

    specs = [tf.TensorSpec(None, tensor.dtype) for tensor in (lhs, rhs, zero)]
    return tf.function(call, input_signature=specs, autograph=False, jit_compile=True)(lhs, rhs, tf.zeros(shape))


MODES = {f.__name__: f for f in (run_eagerly, run_traced, run_with_unknown_ranks, run_in_a_session, run_under_xla)}


@pytest.mark.parametrize(("row", "mode"), pairs(ROWS, MODES, quick=2))
def test_every_layout_gives_what_the_op_gives(row, mode, rng):
    # XLA compiles for each operand anew.
    for wrt in ROLES[ROWS.index(row) % 3 :][:1] if mode == "run_under_xla" else ROLES:
        attributes = attributes_of(row, wrt)
        (lhs, rhs), shape = operands_of(row, wrt, rng, tf.float64)
        expected = library.custom_gradient_embed_grad(lhs, rhs, tf.constant(shape, tf.int64), **attributes)
        actual = MODES[mode](functools.partial(composed.embed_grad, **attributes), lhs, rhs, shape)
        assert actual.shape == shape
        np.testing.assert_allclose(actual, expected, rtol=1e-13)


@pytest.mark.parametrize(("row", "dtype"), pairs(ROWS, DTYPES))
def test_every_dtype_gives_the_vector_jacobian_product(row, dtype, rng):
    (dy, gx), shape = operands_of(row, "x", rng, dtype)
    actual = composed.embed_grad(dy, gx, tf.constant(shape, tf.int32), **attributes_of(row, "x"))
    assert actual.dtype == dtype
    assert_gradient_close(actual, reference.vjp(dy.numpy(), gx.numpy(), shape, row.axis), dtype, scale=10.0)


@pytest.mark.parametrize("wrt", ["fx", "gx"])
def test_zero_x_gives_zero_for_every_value_of_the_operands(wrt, dtype):
    operand = tf.cast(tf.constant([np.inf, np.nan, 1.0]), dtype)
    zeros = composed.embed_grad(operand, operand, tf.constant([3]), wrt=wrt, zero_x=True)
    np.testing.assert_array_equal(zeros, np.zeros(3))
    assert zeros.dtype == dtype


@pytest.mark.parametrize("wrt", ROLES)
def test_empty_and_broadcast_dimensions(wrt, rng):
    """x of [m], and gx a Jacobian of [n, m]; where a size is 1, it broadcasts against 3."""
    for n, m in itertools.product([0, 1, 3], repeat=2):
        shapes = {"fx": [n], "gx": [n, 1], "x": [m]}
        lhs, rhs = (tf.constant(random_array(rng, shapes[role])) for role in ROLES if role != wrt)
        shape = tf.constant(shapes[wrt], tf.int64)
        expected = library.custom_gradient_embed_grad(lhs, rhs, shape, wrt=wrt, all_axes=True)
        np.testing.assert_allclose(composed.embed_grad(lhs, rhs, shape, wrt, all_axes=True), expected, rtol=1e-14)


@pytest.mark.parametrize("run", [run_eagerly, run_with_unknown_ranks])
def test_shapes_that_do_not_broadcast_are_an_error(run):
    for rhs, shape in [(tf.ones([4]), [3]), (tf.ones([3]), [4])]:
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(lambda *given: composed.embed_grad(*given, wrt="x"), tf.ones([3]), rhs, shape)
