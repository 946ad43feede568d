"""The private names of Keras 3 and tf_keras that the package uses exist, and do what the package needs."""

import re

import keras
import pytest
import tensorflow as tf
import tf_keras

from tf_cg_ops._src.keras import keras_internal

from ..support.sources import source_files

both = pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
X = tf.ones([1, 2])


def test_private_names_of_keras_are_in_one_module():
    names = r"keras\.src|\b_(keras_mask|keras_history|flatten_layers|clear_losses|is_default|call_context_args)\b"
    for path in source_files("tf_cg_ops/**/*.py"):
        assert path.name == "keras_internal.py" or not re.search(names, path.read_text()), path


def probe(library, seen):
    """A layer inside another one, which notes what `seen` returns in its call."""

    class Inner(library.layers.Layer):
        def call(self, x, training=None):
            self.add_loss(tf.reduce_sum(x))
            noted.append(seen(self))
            return x

    class Outer(library.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = Inner()

        def call(self, x, training=None):
            return self.inner(x)

    noted = []
    return Outer, noted


def test_a_stateless_scope_is_noticed():
    assert not keras_internal.is_stateless()
    with keras.StatelessScope():
        assert keras_internal.is_stateless()


@both
def test_layers_inside_and_their_losses(library):
    layer = probe(library, lambda _: None)[0]()
    layer(X)
    assert keras_internal.is_layer(layer)
    assert keras_internal.layers_in(layer) == [layer, layer.inner]
    losses = [float(loss) for losses in keras_internal.losses_in(layer).values() for loss in losses]
    assert losses == [2.0]
    keras_internal.clear_losses(layer)
    assert not any(keras_internal.losses_in(layer).values())


def test_the_outermost_layer_that_is_called():
    outer, noted = probe(keras, lambda _: keras_internal.entry_layer())
    layer = outer()
    layer(X)
    assert noted[-1] is layer  # Before it, the first call builds the layers.
    assert keras_internal.entry_layer() is None


@both
def test_masks_of_a_layer(library):
    y = library.layers.Masking()(tf.constant([[[1.0], [0.0]]]))
    assert keras_internal.mask_of(y).numpy().tolist() == [[True, False]]
    keras_internal.set_mask(y, tf.constant([[False, False]]))
    seen = []

    class Reader(library.layers.Layer):
        def call(self, x, mask=None):
            seen.append(mask.numpy().tolist())
            return x

    reader = Reader()
    reader.supports_masking = True
    reader(y)
    assert seen == [[[False, False]]]
    assert keras_internal.mask_of(X) is None


@both
def test_arguments_are_forwarded_through_a_wrapper(library):
    class Inner(library.layers.Layer):
        def call(self, x, training=None):
            return x * (2.0 if training else 3.0)

    class Wrapper(library.layers.Layer):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            keras_internal.forward_arguments(self, inner)

        def call(self, x, **kwargs):
            return self.inner(x)

    wrapper = Wrapper(Inner())
    assert [float(wrapper(X, training=training)[0, 0]) for training in (True, False)] == [2.0, 3.0]


def test_the_build_that_keras_3_gives_a_layer():
    assert keras_internal.has_default_build(probe(keras, lambda _: None)[0]())
    assert not keras_internal.has_default_build(keras.layers.Dense(1))


def test_inputs_of_keras_3_are_told_from_other_keras_tensors():
    x = keras.Input([2])
    found = [
        keras_internal.is_input(tensor, keras.layers.InputLayer) for tensor in (x, 2.0 * x, keras.KerasTensor([2]))
    ]
    assert found == [True, False, False]


def test_tf_keras_takes_the_mask_of_the_call_of_a_marked_layer():
    class Layer(tf_keras.layers.Layer):
        def call(self, x):
            keras_internal.set_mask(y := tf.identity(x), tf.constant([True]))
            return y

        def compute_mask(self, inputs, mask=None):
            raise AssertionError

    keras_internal.has_mask_of_call(Layer)
    assert keras_internal.mask_of(Layer()(X)).numpy().tolist() == [True]


def test_keras_3_recomputes_by_a_function_of_the_backend():
    assert callable(keras_internal.core_of_tensorflow_backend().remat)
