"""Arguments and results that hold tensors, but are no lists or dictionaries: slices, composite tensors, objects."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import pytree

pytestmark = pytest.mark.core

X, Y, DY = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([1.0, 10.0])


def test_ragged_tensors(gradient):
    @cg.custom_gradient
    def function(ragged):
        def grad_fn(dy):
            assert isinstance(dy, tf.RaggedTensor)
            return dy.with_values(30.0 * dy.values)

        return ragged * 2.0, grad_fn

    def run(values):
        return function(tf.RaggedTensor.from_row_lengths(values, [2, 0, 1])).values

    (dx,) = gradient(run, [np.array([1.0, 2.0, 3.0])], np.array([1.0, 10.0, 100.0]))
    np.testing.assert_allclose(dx, [30.0, 300.0, 3000.0])


def test_sparse_tensors(gradient):
    @cg.custom_gradient
    def function(sparse, x):
        def grad_fn(dy):
            return tf.SparseTensor(sparse.indices, 40.0 * tf.gather(dy, [0, 1]), sparse.dense_shape), None

        return tf.sparse.to_dense(sparse)[:2] * x, grad_fn

    def run(values):
        return function(tf.SparseTensor([[0], [1]], values, [3]), Y)

    (dx,) = gradient(run, [X], DY)
    np.testing.assert_allclose(dx, 40 * DY)


def test_indexed_slices_as_a_gradient(gradient):
    @cg.custom_gradient
    def lookup(table, ids):
        return tf.gather(table, ids), lambda dy: (tf.IndexedSlices(2.0 * dy, ids, tf.constant([4])), None)

    (dx,) = gradient(lambda t: lookup(t, tf.constant([3, 1, 3])), [np.arange(4.0)], np.array([1.0, 10.0, 100.0]))
    np.testing.assert_allclose(tf.convert_to_tensor(dx), [0.0, 20.0, 0.0, 202.0])


def table_lookup(table, ids):
    """Twice the gradient of tf.gather, without the rows that were not looked up."""
    return tf.gather(table, ids), lambda dy: (tf.IndexedSlices(2.0 * dy, ids), None)


def traced_around(function):
    return tf.function(lambda: tf.function(function)())


@pytest.mark.parametrize(
    "mode",
    [lambda f: f, tf.function, lambda f: tf.function(f, jit_compile=True), traced_around],
    ids=["eager", "traced", "jit", "nested"],
)
def test_indexed_slices_stay_slices_in_every_mode(mode):
    """The gradient of a table has only the rows that were used, and is not dense."""
    table = tf.Variable(tf.ones([4, 2], tf.float64))
    lookup = cg.custom_gradient(table_lookup)
    kinds = []

    def run():
        with tf.GradientTape() as tape:
            rows = lookup(table, tf.constant([3, 1, 3]))
        gradient = tape.gradient(
            rows, table, output_gradients=tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], tf.float64)
        )
        kinds.append(type(gradient))
        return gradient.values, gradient.indices, gradient.dense_shape

    values, indices, dense_shape = mode(run)()
    assert set(kinds) == {tf.IndexedSlices}
    np.testing.assert_array_equal(values, [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]])
    np.testing.assert_array_equal(indices, [3, 1, 3])
    np.testing.assert_array_equal(dense_shape, [4, 2])


def test_indexed_slices_in_a_loop_a_batch_and_of_unknown_shape():
    """Gradients that TensorFlow makes dense add up."""
    lookup = cg.custom_gradient(table_lookup)
    ids = tf.constant([[3, 1], [3, 3]])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float64)])
    def by_loop(table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            total = tf.reduce_sum(tf.map_fn(lambda i: lookup(table, i) ** 2, ids, fn_output_signature=tf.float64))
        return tf.convert_to_tensor(tape.gradient(total, table))

    @tf.function
    def by_batch(table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            total = tf.reduce_sum(tf.vectorized_map(lambda i: lookup(table, i) ** 2, ids, fallback_to_while_loop=False))
        return tf.convert_to_tensor(tape.gradient(total, table))

    table = tf.constant([0.0, 1.0, 2.0, 3.0], tf.float64)
    for run in (by_loop, by_batch):
        np.testing.assert_allclose(run(table), [0.0, 4.0, 0.0, 36.0])


@pytest.mark.parametrize("jit_compile", [False, True], ids=["", "jit"])
def test_indexed_slices_in_one_branch_of_a_conditional(jit_compile):
    """TensorFlow makes slices of what the other branch has, and their dtypes have to agree."""
    lookup = cg.custom_gradient(table_lookup)

    @tf.function(jit_compile=jit_compile)
    def run(table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            rows = tf.cond(table[0] < 1, lambda: lookup(table, tf.constant([3, 1, 3])), lambda: table[:3])
        return tf.convert_to_tensor(tape.gradient(rows, table, output_gradients=tf.constant([1.0, 10.0, 100.0])))

    np.testing.assert_array_equal(run(tf.constant([0.0, 1.0, 2.0, 3.0])), [0.0, 20.0, 0.0, 202.0])
    np.testing.assert_array_equal(run(tf.constant([1.0, 1.0, 2.0, 3.0])), [1.0, 10.0, 100.0, 0.0])


def test_indexed_slices_as_an_upstream(gradient):
    @cg.custom_gradient
    def function(x):
        return 1.0 * x, lambda dy: 3.0 * tf.convert_to_tensor(dy)

    (dx,) = gradient(lambda x: tf.gather(function(x), [1, 1]), [X], DY)
    np.testing.assert_allclose(tf.convert_to_tensor(dx), [0.0, 33.0])  # A graph follows the answer back to its slices.


def test_structures_that_only_tf_nest_knows(gradient):
    @cg.custom_gradient
    def function(tree):
        return tree["a"] * tree["b"], lambda dy: (3.0 * dy, 5.0 * dy)

    da, db = gradient(lambda a, b: function(types.MappingProxyType({"a": a, "b": b})), [X, Y], DY)
    np.testing.assert_allclose(da, 3 * DY)
    np.testing.assert_allclose(db, 5 * DY)


def test_composites_among_plain_tensors_are_replaced_by_their_components():
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    value = {"a": tf.constant(4.0), "b": [ragged, "text"]}
    found = pytree.tensors_in(value)
    assert [tensor.shape for tensor in found] == [[], [3], [3]]
    doubled = pytree.map_tensors(value, lambda tensors: [tensors[0] * 2, tensors[1] * 2, *tensors[2:]])
    assert doubled["a"] == 8.0
    assert doubled["b"][0].to_list() == [[2.0], [4.0, 6.0]]
    assert doubled["b"][1] == "text"


def test_indexed_slices_as_arguments_and_results(gradient):
    @cg.custom_gradient
    def function(slices):
        def grad_fn(dy):
            return tf.IndexedSlices(6.0 * dy.values, slices.indices)

        return tf.IndexedSlices(2.0 * slices.values, slices.indices), grad_fn

    (dx,) = gradient(lambda x: function(tf.IndexedSlices(x, tf.constant([3, 1]))).values, [X], DY)
    np.testing.assert_allclose(dx, 6 * DY)
