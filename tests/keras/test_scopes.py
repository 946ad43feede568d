"""`grad_fn` runs in the Keras scopes of the forward pass, wherever you compute the gradient."""

import importlib
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.keras import keras_internal

X = np.array([[1.0, 2.0]], np.float32)
DY = np.array([[1.0, 10.0]], np.float32)


def layers_of(library, seen):
    """A layer whose gradient reads a variable that was passed, and one around it that computes the gradient."""

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

    class Outer(library.layers.Layer):
        def __init__(self, inner, **kwargs):
            super().__init__(**kwargs)
            self.inner = inner

        def call(self, x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = self.inner(x)
            dy = tf.cast(DY, y.dtype)
            return tape.gradient(y, x, output_gradients=dy)

    return Inner, Outer


MODES = pytest.mark.parametrize("run", [lambda f: f, tf.function], ids=["eager", "traced"])


@MODES
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_variable_that_was_passed_is_read_as_the_function_reads_it(library, policy, run):
    seen = []
    layer = layers_of(library, seen)[0](dtype=policy)
    layer.build([1, 2])
    dtype = tf.as_dtype(layer.compute_dtype)

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        assert y.dtype == dtype
        return tape.gradient(y, x, output_gradients=tf.cast(DY, dtype))

    np.testing.assert_array_equal(run(gradient)(tf.constant(X)), 3 * DY)
    assert seen
    assert set(seen) == {dtype}


@MODES
@pytest.mark.parametrize(("outer", "inner"), [("mixed_float16", "float32"), ("float32", "mixed_float16")])
def test_the_scope_is_that_of_the_call_and_not_of_the_gradient(library, outer, inner, run):
    seen = []
    inner_type, outer_type = layers_of(library, seen)
    layer = outer_type(inner_type(dtype=inner), dtype=outer)
    np.testing.assert_array_equal(tf.cast(run(layer)(tf.constant(X)), tf.float32), 3 * DY)
    assert set(seen) == {tf.as_dtype(layer.inner.compute_dtype)}


def test_the_scope_around_the_gradient_is_there_again_after_an_exception():
    keras = importlib.import_module("keras")
    from keras.src import backend  # Only a test may look inside.

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


def test_scopes_are_those_of_the_thread():
    from keras.src import backend

    found = []
    with backend.AutocastScope("float16"):
        thread = threading.Thread(target=lambda: found.append(keras_internal.current_scopes()))
        thread.start()
        thread.join()
        assert keras_internal.current_scopes()[0].dtype == "float16"
    assert found == [None]
