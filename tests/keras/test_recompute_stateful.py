"""Recompute of layers that keep a state between calls: the wrapper builds, runs and resets them as they are alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from ..support.keras_models import KERASES, MODES, assert_equal, layers_of, value_and_gradients, variables_of
from ..support.tensors import pairs

STEPS = np.random.default_rng(1).normal(size=[2, 5, 3]).astype(np.float32)

STATEFUL = {
    "lstm": lambda k: k.layers.LSTM(4, stateful=True),
    "gru": lambda k: k.layers.GRU(4, stateful=True, return_sequences=True),
    "simple rnn": lambda k: k.layers.SimpleRNN(4, stateful=True),
    "bidirectional": lambda k: k.layers.Bidirectional(k.layers.LSTM(4, stateful=True)),
    "model": lambda k: k.Sequential([k.layers.Dense(3), k.layers.LSTM(4, stateful=True)]),
}


def wrapped_and_plain(library, make):
    """A layer in Recompute that is not built before, and the same layer alone with the same weights."""
    wrapper, plain = layers_of(library).Recompute(make(library)), make(library)
    wrapper(STEPS)
    plain(STEPS)
    plain.set_weights(wrapper.get_weights())
    reset(wrapper.layer)
    reset(plain)
    return wrapper, plain


def reset(layer):
    if isinstance(layer, keras.Sequential):  # Which has no method for it.
        layer.layers[-1].reset_state()
    else:
        layer.reset_states()


@pytest.mark.parametrize(("name", "mode"), pairs(STATEFUL, MODES))
def test_a_stateful_layer_goes_on_where_the_last_call_ended(name, mode, library):
    wrapper, plain = wrapped_and_plain(library, STATEFUL[name])
    runs = [MODES[mode](lambda layer=layer: value_and_gradients_in(layer)) for layer in (wrapper, plain)]
    first = None
    for _ in range(3):
        found, expected = ([tensor.numpy() for tensor in run()] for run in runs)
        assert_equal(found, expected)
        first = found if first is None else first
    assert np.abs(found[0] - first[0]).max() > 1e-3
    assert_equal([np.asarray(v) for v in wrapper.get_weights()], [np.asarray(v) for v in plain.get_weights()])


def value_and_gradients_in(layer):
    x = tf.constant(STEPS)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
    upstream = tf.stop_gradient(tf.sin(3.0 * y) + 1.5)
    return [y, *map(tf.convert_to_tensor, tape.gradient(y, [x, *variables_of(layer)], output_gradients=upstream))]


@pytest.mark.parametrize(("name", "library"), pairs(STATEFUL, KERASES), indirect=["library"])
def test_the_layer_is_built_in_a_model_and_trained_and_saved(name, library, tmp_path):
    layer = layers_of(library).Recompute(STATEFUL[name](library))
    x = library.Input(batch_shape=STEPS.shape)
    model = library.Model(x, library.layers.Dense(1)(layer(x)))
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(STEPS, np.ones([2, *model.output_shape[1:]]), batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        reset(each.layers[1].layer)
    assert_equal(value_and_gradients(loaded, STEPS), value_and_gradients(model, STEPS))


RESETS = {"keras": ("reset_state", "reset_states"), "tf_keras": ("reset_states",)}


@pytest.mark.parametrize("name", ["lstm", "gru", "simple rnn", "bidirectional"])
def test_the_wrapper_resets_its_layer(name, library):
    wrapper, plain = wrapped_and_plain(library, STATEFUL[name])
    assert wrapper.stateful
    expected = plain(STEPS)
    for method in RESETS[library.__name__]:
        wrapper(STEPS)
        getattr(wrapper, method)()
        np.testing.assert_allclose(wrapper(STEPS), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_model_of_tf_keras_resets_the_layers_inside(name):
    """https://github.com/keras-team/tf-keras: `Model.reset_states` asks each layer for `stateful` and `reset_states`."""
    layer = layers_of(tf_keras).Recompute(STATEFUL[name](tf_keras))
    model = tf_keras.Sequential([tf_keras.layers.InputLayer(batch_input_shape=STEPS.shape), layer])
    model.reset_states()
    first = model(STEPS).numpy()
    assert np.abs(model(STEPS).numpy() - first).max() > 1e-3
    model.reset_states()
    np.testing.assert_allclose(model(STEPS), first, rtol=1e-5, atol=1e-6)


PROTOCOL = {
    "stateful": lambda k: [k.layers.LSTM(2), k.layers.LSTM(2, stateful=True)],
    "reset_state": lambda k: [k.layers.Normalization()] + ([k.layers.LSTM(2, stateful=True)] if k is keras else []),
    "reset_states": lambda k: [k.layers.LSTM(2, stateful=True)],
}


@pytest.mark.parametrize("name", PROTOCOL)
def test_the_wrapper_has_a_method_if_the_layer_has_it(name, library):
    recompute = layers_of(library).Recompute
    for layer in [*PROTOCOL[name](library), library.layers.Dense(2)]:
        assert hasattr(recompute(layer), name) == hasattr(layer, name)
        if hasattr(layer, name):
            assert getattr(recompute(layer), name) == getattr(layer, name)


class Pair(keras.layers.Layer):
    """Keras 3 builds it with the shapes of two arguments, one of them nested."""

    def build(self, first_shape, others_shape=None, last_shape=None):
        self.shapes = first_shape, others_shape, last_shape
        self.kernel = self.add_weight(shape=(first_shape[-1], others_shape["a"][-1]), initializer="ones")

    def call(self, first, others, scale=2.0, last=None):
        return scale * tf.matmul(first, self.kernel) + others["a"]


def test_a_layer_is_built_with_the_shapes_of_its_arguments():
    wrapper, plain = layers_of(keras).Recompute(Pair()), Pair()
    arguments = tf.ones([2, 3]), {"a": tf.ones([2, 4]), "b": [np.ones(5, np.float32)]}
    for layer in (wrapper, plain):
        np.testing.assert_array_equal(layer(*arguments, scale=3.0), np.full([2, 4], 10.0))
    assert wrapper.layer.shapes == plain.shapes == ((2, 3), {"a": (2, 4), "b": [(5,)]}, None)
