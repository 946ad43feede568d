"""Sliced gradients stay slices where they can, and a rule gets them as a Tensor that acts like the dense gradient.

Below a `tf.gather` of a large table a dense gradient costs the whole table.
"""

import copy
import functools
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS as MODES
from ..support.modes import vjp

mode = pytest.mark.parametrize("mode", MODES)

TABLE = np.random.default_rng(7).normal(size=[6, 2]).astype(np.float32)
PICKS = np.array([4, 1, 4])  # One row twice: its gradients are summed up.
DY = np.array([[1.0, -2.0], [10.0, 20.0], [-100.0, 200.0]], np.float32)
ROWS = TABLE[PICKS]


def gradient(function, mode, table=TABLE, dy=DY, picks=PICKS):
    """The gradient of `tf.gather(function(table), picks)` for the table; without picks, of the function itself."""

    def run(table):
        rows = lambda: function(table) if picks is None else tf.gather(function(table), picks)  # noqa: E731
        return vjp(rows, table, tf.convert_to_tensor(dy))[1]

    return MODES[mode](run)(tf.convert_to_tensor(table))


def gradients_of(functions, mode):
    """The same for several functions, which are compiled together."""
    return MODES[mode](lambda table: [gradient(function, "eager", table) for function in functions])(tf.constant(TABLE))


def with_rule(rule):
    return cg.custom_gradient(lambda x: (tf.identity(x), rule))


def dense(values, shape=TABLE.shape):
    summed = np.zeros(shape, values.dtype)
    np.add.at(summed, PICKS, values)
    return summed


def assert_slices(found, values):
    assert isinstance(found, tf.IndexedSlices)
    assert found.values.shape[0] == len(PICKS)
    assert found.dense_shape.numpy().tolist() == list(TABLE.shape)
    np.testing.assert_allclose(tf.convert_to_tensor(found), dense(values), rtol=1e-5)


def assert_dense(found, expected, tolerance=1e-5, err_msg=""):
    np.testing.assert_allclose(tf.convert_to_tensor(found), expected, rtol=tolerance, atol=tolerance, err_msg=err_msg)


# Functions that keep slices

FACTOR = tf.Variable(0.25)

READY_MADE = {
    "grad_pass_through": (cg.grad_pass_through(tf.round), DY),
    "reverse_gradient": (lambda x: cg.reverse_gradient(x, 3.0), -3 * DY),
    "scale_gradient, a variable": (lambda x: cg.scale_gradient(x, FACTOR), 0.25 * DY),
    "scale_gradient, by column": (lambda x: cg.scale_gradient(x, [2.0, 5.0]), DY * [2.0, 5.0]),
    "embed_gradient": (lambda x: cg.embed_gradient(tf.sin(x), tf.cos(x), x), DY * np.cos(ROWS)),
    "embed_gradient, a function": (lambda x: cg.embed_gradient(tf.sin(x), lambda: tf.cos(x), x), DY * np.cos(ROWS)),
    "straight_through": (cg.straight_through(tf.sign), DY),
    "straight_through, hard_tanh": (cg.straight_through(tf.sign, "hard_tanh", slope=2.0), DY * (2.0 * abs(ROWS) <= 1)),
    # Operators and results of rules
    "-dy": (with_rule(lambda dy: -dy), -DY),
    "dy * 2": (with_rule(lambda dy: dy * 2), 2 * DY),
    "dy / 4.0": (with_rule(lambda dy: dy / 4.0), DY / 4),
    "by a Tensor": (with_rule(lambda dy: dy * tf.constant(3.0)), 3 * DY),
    "the values": (with_rule(lambda dy: tf.IndexedSlices(5.0 * dy.values, dy.indices, dy.dense_shape)), 5 * DY),
}


@pytest.mark.parametrize("name", READY_MADE)
def test_products_with_numbers_are_slices_that_are_never_summed(name, monkeypatch):
    function, values = READY_MADE[name]
    traced = tf.function(lambda table: gradient(function, "eager", table)).get_concrete_function(tf.constant(TABLE))
    nodes = tf.compat.v1.graph_util.extract_sub_graph(
        traced.graph.as_graph_def(), [output.op.name for output in traced.graph.outputs]
    ).node
    assert "UnsortedSegmentSum" not in [node.op for node in nodes]
    assert_slices(traced(tf.constant(TABLE)), values.astype(np.float32))
    with monkeypatch.context() as patch:
        patch.setattr(tf.math, "unsorted_segment_sum", None)
        found = gradient(function, "eager")
    assert_slices(found, values.astype(np.float32))


def test_products_with_numbers_are_slices_under_xla():
    functions, values = zip(*READY_MADE.values(), strict=True)
    for found, expected in zip(gradients_of(functions, "jit"), values, strict=True):
        assert_slices(found, expected.astype(np.float32))


def asserted(dy):
    with tf.control_dependencies([tf.debugging.assert_greater(tf.reduce_max(dy), 0.0)]):
        return 2.0 * dy


KEPT_IN_GRAPHS = {
    "tf.identity": (tf.identity, DY),
    "tf.multiply": (lambda dy: tf.multiply(2.0, dy), 2 * DY),
    "a Tensor on the left": (lambda dy: tf.constant(3.0) * dy, 3 * DY),
    "after an assertion": (asserted, 2 * DY),
}


@pytest.mark.parametrize("name", KEPT_IN_GRAPHS)
def test_linear_functions_of_tensorflow_are_slices_in_graphs(name):
    rule, values = KEPT_IN_GRAPHS[name]
    assert_slices(gradient(with_rule(rule), "traced"), values)
    assert_dense(gradient(with_rule(rule), "eager"), dense(values))


# Functions of more than a row

both = cg.custom_gradient(lambda x: ((tf.identity(x), 2.0 * x), lambda da, db: 3.0 * da + 5.0 * db))
SQUARE = cg.custom_gradient(lambda x: (x**2, lambda dy: 2.0 * x * dy))
DENSE = {
    "by axis": (
        lambda x: tf.tile(cg.embed_gradient(tf.reduce_sum(x, -1), 2.0 * tf.ones_like(x), x, -1)[:, None], [1, 2]),
        2.0 * np.repeat(dense(DY).sum(1, keepdims=True), 2, 1),
    ),
    "several x": (
        lambda x: cg.embed_gradient(2.0 * x, [2.0 * tf.ones_like(x), x], [x, 3.0 * x]),
        dense(2.0 * DY + 3.0 * DY * ROWS),
    ),
    "a derivative of one's own": (
        cg.straight_through(tf.sign, derivative=lambda x: tf.ones_like(x) * tf.reduce_sum(x)),
        dense(DY) * TABLE.sum(),
    ),
    "clip_gradient": (lambda x: cg.clip_gradient(x, value=5.0), np.clip(dense(DY), -5.0, 5.0)),
    "one of two results": (lambda x: both(x)[0], 3.0 * dense(DY)),
    "recompute_grad": (cg.recompute_grad(lambda x: x**2), 2.0 * TABLE * dense(DY)),
    "a batch": (lambda x: tf.vectorized_map(SQUARE, x), 2.0 * TABLE * dense(DY)),
}


@mode
def test_functions_of_more_than_a_row_have_dense_gradients(mode):
    functions, values = zip(*DENSE.values(), strict=True)
    for name, found, expected in zip(DENSE, gradients_of(functions, mode), values, strict=True):
        assert_dense(found, expected, err_msg=name)


# Any function of the upstream gradient, whose result is broadcast to the shape of the table


def gradient_of_sum(function, t):
    return vjp(lambda: function(t), t)[1]


def added_in_place(t):
    t += 1.0
    t *= t
    return t


FUNCTIONS = {
    # TensorFlow computes these row by row for slices
    "clip_by_norm": lambda t: tf.clip_by_norm(t, 1.0),
    "add_n": lambda t: tf.add_n([t, t]),
    "cast": lambda t: tf.cast(tf.cast(t, tf.float64) ** 2, tf.float32),
    # One of each kind
    "where": lambda t: tf.where(t > 1.0, t, 0.0),
    "matmul": lambda t: tf.matmul(t, t, transpose_a=True)[:1],
    "while_loop": lambda t: tf.while_loop(lambda i, _: i < 2, lambda i, t: (i + 1, t / 3.0), [0, t])[1],
    "cond": lambda t: tf.cond(tf.norm(t) > 1.0, lambda: t / tf.norm(t), lambda: t),
    "another rule": lambda t: SQUARE(t),
    "a tape": lambda t: gradient_of_sum(lambda x: x**3, t),
    "keras.ops.norm": keras.ops.norm,
    # Operators and methods
    "==": lambda t: tf.cast(t == 200.0, tf.float32),
    "dy * table": lambda t: t * TABLE,
    "dy / table": lambda t: t / TABLE,
    "+=": added_in_place,
    "[]": lambda t: t[1],
    "shape[0]": lambda t: tf.fill([], float(t.shape[0])),
}


T = tf.constant(dense(DY))


def unhashable(t):
    with pytest.raises(TypeError, match="Tensor is unhashable"):
        hash(t)
    return np.float32(1.0)


IN_EAGER_MODE = {
    "np.asarray": lambda t: np.asarray(t) ** 2,
    "np.multiply": lambda t: np.asarray(np.multiply(TABLE, t)),
    "iteration": lambda t: sum(row**2 for row in t),
    "bool and numbers": lambda t: np.float32(bool(t[1, 0] == 10.0) + float(t[1, 0]) + int(t[1, 1])),
    "text": lambda t: np.float32([str(t), repr(t), f"{t}"] == [str(T), repr(T), f"{T}"]),
    "hash": unhashable,
    "copies": lambda t: copy.copy(t) ** 2 + copy.deepcopy(t),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)) ** 2,
    "set_shape": lambda t: (t.set_shape([6, None]), t**2)[1],
    "assign": lambda t: tf.Variable(TABLE).assign_add(t),
    "py_function": lambda t: tf.py_function(lambda t: t**2, [t], tf.float32),
    "print": lambda t: (tf.print(t, output_stream="file:///dev/null"), t**2)[1],
}


def assert_same_as_dense(functions, mode):
    def with_function(function):
        def rule(dy):
            assert isinstance(dy, tf.Tensor)
            assert (dy.shape, dy.dtype) == (TABLE.shape, tf.float32)
            return tf.broadcast_to(function(dy), TABLE.shape)

        return with_rule(rule)

    gradients = gradients_of([with_function(function) for function in functions.values()], mode)
    for (name, function), found in zip(functions.items(), gradients, strict=True):
        assert_dense(found, np.broadcast_to(function(T), TABLE.shape), 1e-4, name)


@mode
def test_a_function_computes_with_the_dense_gradient(mode):
    assert_same_as_dense(FUNCTIONS, mode)


@pytest.mark.parametrize("name", IN_EAGER_MODE)
def test_python_and_numpy_read_the_dense_gradient(name):
    assert_same_as_dense({name: IN_EAGER_MODE[name]}, "eager")


@mode
def test_slices_without_a_shape_are_dense_for_a_rule(mode):
    @tf.custom_gradient
    def picked(x):
        return tf.gather(x, PICKS), lambda dy: tf.IndexedSlices(dy, tf.constant(PICKS))

    found = gradient(lambda x: picked(with_rule(lambda dy: tf.clip_by_norm(dy, 1.0))(x)), mode, picks=None)
    assert_dense(found, dense(DY) / np.linalg.norm(dense(DY)))


def test_a_kept_upstream_is_read_after_the_gradient():
    kept = []
    gradient(with_rule(lambda dy: kept.append(dy) or dy), "eager")
    with pytest.raises(TypeError, match="a bytes-like object is required"):
        memoryview(kept[0])
    np.testing.assert_allclose(kept[0], dense(DY))
    np.testing.assert_allclose(tf.function(lambda: kept[0] ** 2)(), dense(DY) ** 2)


@mode
def test_the_second_derivative_through_slices(mode):
    def run(table):
        return vjp(lambda: tf.convert_to_tensor(gradient(SQUARE, "eager", table)), table, tf.constant(TABLE))[1]

    assert_dense(MODES[mode](run)(tf.constant(TABLE)), 2 * dense(DY) * TABLE)


# Slices that a rule makes, and slices as arguments

# Twice the gradient of tf.gather, without the rows that were not looked up.
lookup = cg.custom_gradient(
    lambda table, ids: (tf.gather(table, ids), lambda dy: (tf.IndexedSlices(2.0 * dy, ids), None))
)


@mode
def test_the_slices_of_a_rule_stay_slices(mode):
    """For a variable, and for a tape around a function."""
    table = tf.Variable(tf.ones([6, 2]))
    call = MODES["eager" if mode == "eager" else "traced"](lambda: lookup(table, tf.constant(PICKS)))
    assert_slices(MODES[mode](lambda: vjp(call, table, tf.constant(DY))[1])(), 2 * DY)


def test_slices_in_a_loop_a_batch_and_of_unknown_shape():
    """Gradients that TensorFlow makes dense add up."""
    ids = tf.constant([[3, 1], [3, 3]])

    def total(table, over):
        return tf.reduce_sum(over(lambda i: lookup(table, i) ** 2, ids))

    loop = functools.partial(tf.map_fn, fn_output_signature=tf.float64)
    batch = functools.partial(tf.vectorized_map, fallback_to_while_loop=False)
    table = tf.constant([0.0, 1.0, 2.0, 3.0], tf.float64)
    for over, shape in ((loop, None), (batch, [4])):

        def run(table, over=over):
            return tf.convert_to_tensor(gradient_of_sum(lambda table: total(table, over), table))

        spec = tf.TensorSpec(shape, tf.float64)
        np.testing.assert_allclose(tf.function(run).get_concrete_function(spec)(table), [0.0, 4.0, 0.0, 36.0])


@pytest.mark.parametrize("jit_compile", [False, True], ids=["", "jit"])
def test_slices_in_one_branch_of_a_conditional(jit_compile):
    """TensorFlow converts the result of the other branch to slices, and their dtypes have to agree."""

    def rows(table):
        return tf.cond(table[0] < 1, lambda: lookup(table, tf.constant([3, 1, 3])), lambda: table[:3])

    @tf.function(jit_compile=jit_compile)
    def run(table):
        return tf.convert_to_tensor(vjp(lambda: rows(table), table, tf.constant([1.0, 10.0, 100.0]))[1])

    np.testing.assert_array_equal(run(tf.constant([0.0, 1.0, 2.0, 3.0])), [0.0, 20.0, 0.0, 202.0])
    np.testing.assert_array_equal(run(tf.constant([1.0, 1.0, 2.0, 3.0])), [1.0, 10.0, 100.0, 0.0])
