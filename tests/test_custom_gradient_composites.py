"""Arguments and results of a decorated function that hold tensors in other ways than lists and dictionaries do."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

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


def test_indexed_slices_as_an_upstream(gradient):
    @cg.custom_gradient
    def function(x):
        return 1.0 * x, lambda dy: 3.0 * tf.convert_to_tensor(dy)

    (dx,) = gradient(lambda x: tf.gather(function(x), [1, 1]), [X], DY)
    np.testing.assert_allclose(dx, [0.0, 33.0])


def test_structures_that_only_tf_nest_knows(gradient):
    @cg.custom_gradient
    def function(tree):
        return tree["a"] * tree["b"], lambda dy: (3.0 * dy, 5.0 * dy)

    da, db = gradient(lambda a, b: function(types.MappingProxyType({"a": a, "b": b})), [X, Y], DY)
    np.testing.assert_allclose(da, 3 * DY)
    np.testing.assert_allclose(db, 5 * DY)


def test_indexed_slices_as_arguments_and_results(gradient):
    @cg.custom_gradient
    def function(slices):
        def grad_fn(dy):
            return tf.IndexedSlices(6.0 * dy.values, slices.indices)

        return tf.IndexedSlices(2.0 * slices.values, slices.indices), grad_fn

    (dx,) = gradient(lambda x: function(tf.IndexedSlices(x, tf.constant([3, 1]))).values, [X], DY)
    np.testing.assert_allclose(dx, 6 * DY)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_keras_tensors_are_refused(library):
    """tf_keras would build a model of the ops inside, without the gradient."""
    placeholder = pytest.importorskip(library).Input([2])
    message = (
        r"^custom_gradient: '<lambda>' was called on a functional model under construction; expected a value for 'x', "
        r"got a KerasTensor. Call it inside the call\(\) of a keras.layers.Layer of your own.$"
    )
    with pytest.raises(TypeError, match=message):
        cg.custom_gradient(lambda x: (2.0 * x, lambda dy: dy))(placeholder)
