"""`grad_fn` runs in the Keras scopes of the forward pass, wherever you compute the gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src import backend  # Only a test may look inside.

import tf_cg_ops as cg
from tf_cg_ops._src.keras import keras_internal

X = np.array([[1.0, 2.0]], np.float32)
DY = np.array([[1.0, 10.0]], np.float32)


@pytest.mark.parametrize(("outer", "inner"), [(None, "mixed_float16"), ("mixed_float16", "float32")])
def test_a_variable_that_was_passed_is_read_as_the_function_reads_it(library, outer, inner):
    """In the layer that calls the function, and not as the layer around the gradient would read it."""
    seen = []

    @cg.custom_gradient
    def scaled(x, w):
        def grad_fn(dy):
            read = tf.convert_to_tensor(w)
            seen.append(read.dtype)
            return 3.0 * dy * read, None

        return x * w, grad_fn

    class Inner(library.layers.Layer):
        def build(self, input_shape):
            self.w = self.add_weight(shape=(), initializer="ones", name="w")

        def call(self, x):
            return scaled(x, self.w)

    layer = Inner(dtype=inner)
    layer.build([1, 2])

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        assert y.dtype == tf.as_dtype(layer.compute_dtype)
        return tape.gradient(y, x, output_gradients=tf.cast(DY, y.dtype))

    class Outer(library.layers.Layer):
        def call(self, x):
            return gradient(x)

    function = Outer(dtype=outer) if outer else gradient
    for run in (function, tf.function(function)):
        np.testing.assert_array_equal(tf.cast(run(tf.constant(X)), tf.float32), 3 * DY)
    assert set(seen) == {tf.as_dtype(layer.compute_dtype)}


def test_the_scope_around_the_gradient_is_there_again_after_an_exception():
    @cg.custom_gradient
    def fails(x):
        def grad_fn(dy):
            raise RuntimeError("in grad_fn")

        return tf.identity(x), grad_fn

    x = tf.constant(X)
    with tf.GradientTape() as tape, backend.AutocastScope("float16"):
        tape.watch(x)
        y = fails(x)
    before = keras_internal.current_scopes()
    with pytest.raises(RuntimeError, match="in grad_fn"):
        tape.gradient(y, x)
    assert keras_internal.current_scopes() == before
    with backend.AutocastScope("bfloat16") as _, keras.StatelessScope():
        assert keras_internal.current_scopes() is not None
    assert keras_internal.current_scopes() == before
