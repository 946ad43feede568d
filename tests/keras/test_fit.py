"""Models whose layers are recomputed, by the layer Recompute or in a keras.RematScope, train as the plain models."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from ..support.keras_models import (
    TARGET,
    UNITS,
    assert_equal,
    fitted,
    layers_of,
    network,
    policy,
    saved_and_loaded,
)

MASKED = np.random.default_rng(2).normal(size=[4, 5, 3]).astype(np.float32)
MASKED[:, 3:] = 0


def block(library, wrap):
    layers, x = library.layers, library.Input([3])
    dropout = [layers.Dropout(0.3, seed=1)] if library is keras else []
    inner = library.Sequential([layers.Dense(4, activation="gelu"), layers.BatchNormalization(), *dropout])
    return library.Model(x, wrap(inner)(x))


def sequences(library, wrap):
    """With masks, loops and attention."""
    layers = library.layers
    random = [{"dropout": 0.2, "seed": seed} if library is keras else {} for seed in (3, 4)]
    x = library.Input([5, 3])
    h = wrap(layers.Masking())(x)
    h = wrap(layers.GRU(4, return_sequences=True, name="first", **random[0]))(h)
    h = wrap(library.Sequential([layers.Dense(4), layers.Activation("tanh")]))(h)
    h = wrap(layers.MultiHeadAttention(2, 4, name="second", **random[1]))(h, h)
    return library.Model(x, layers.GlobalAveragePooling1D()(h))


# For each name what makes the model, given what wraps its layers, and the inputs.
MODELS = {
    "block": (block, UNITS),
    "sequences": (sequences, MASKED),
    "branches": (network, UNITS),
}
# The warning comes without recomputation, too.
pytestmark = pytest.mark.filterwarnings("ignore:Layer 'sequential.* was passed an input with a mask:UserWarning")


def trained(library, name, mode, wrap=lambda layer: layer, scope=None):
    """The weights and the loss after two steps; the scope is for the layers that are made in it."""
    make, x = MODELS[name]
    library.utils.set_random_seed(3)
    with keras.RematScope(scope) if scope else contextlib.nullcontext():
        model = make(library, wrap)
    shape = [len(x), *model.output_shape[1:]]
    return fitted(model, x, np.sin(np.arange(np.prod(shape)) + 1.0).reshape(shape), mode, epochs=8 // len(x))


trained_without = functools.cache(trained)


@pytest.mark.parametrize(
    ("library", "name", "mode"),
    [
        (keras, "block", "jit"),
        (keras, "sequences", "graph"),
        (keras, "branches", "graph"),
        (tf_keras, "sequences", "graph"),
        (tf_keras, "branches", "eager"),
    ],
)
def test_fit_with_recompute_is_that_of_the_plain_model(library, name, mode):
    found = trained(library, name, mode, layers_of(library).Recompute)
    assert_equal(found, trained_without(library, name, mode), 1e-3, 1e-4)


def test_mixed_precision_with_loss_scaling(library):
    with policy(library, "mixed_float16"):
        found = trained(library, "block", "graph", layers_of(library).Recompute)
        assert_equal(found, trained(library, "block", "graph"), 1e-2, 1e-3)


@pytest.mark.parametrize(("name", "scope"), [("sequences", "full"), ("branches", "full"), ("branches", "activations")])
def test_fit_in_a_scope_is_that_of_the_plain_model(name, scope, remat, traces):
    expected = trained_without(keras, name, "graph")
    assert not traces
    assert_equal(trained(keras, name, "graph", scope=scope), expected, 1e-3, 1e-4)
    assert traces


@pytest.mark.parametrize(
    ("library", "memory", "mode"), [(keras, "auto", "jit"), (keras, 0.6, "graph"), (tf_keras, "auto", "graph")]
)
def test_fit_with_a_smaller_last_batch_is_that_of_the_plain_model(library, memory, mode, tmp_path):
    """Keras then traces with a batch of unknown size. For a large batch, cuts reach a share of 0.46."""
    found, layers = [], library.layers
    for wrap in (lambda model: model, functools.partial(layers_of(library).Recompute, memory=memory)):
        library.utils.set_random_seed(1)
        inner = library.Sequential([*(layers.Dense(16, "tanh") for _ in range(12)), layers.Dense(1)])
        inputs = [library.Input([3])] if mode == "jit" else []  # It works without, too.
        model = library.Sequential([*inputs, wrap(inner)])
        found.append(fitted(model, UNITS[:7], TARGET[:7], mode))  # In batches of 4 and 3.
    assert_equal(*found)
    loaded = saved_and_loaded(library, model, tmp_path)
    for each in (model, loaded):
        assert any(s.is_recomputed for s in each.layers[-1].plan(tf.TensorSpec([None, 3])).segments)
    assert_equal([loaded(UNITS)], [model(UNITS)])


@pytest.mark.parametrize(("library", "metrics"), [(keras, []), (keras, ["mae"]), (tf_keras, [])])
def test_a_compiled_model_inside_changes_no_losses_and_metrics(library, metrics):
    inner = library.Sequential([library.layers.Dense(4, "tanh"), library.layers.Dense(1)])
    inner.compile("sgd", "mse", metrics=["mae"])
    model = library.Sequential([layers_of(library).Recompute(inner)])
    model.compile("sgd", "mse", metrics=metrics)
    before = model(UNITS) - TARGET
    history = model.fit(UNITS, TARGET, verbose=0).history
    after = model(UNITS) - TARGET
    evaluated = model.evaluate(UNITS, TARGET, verbose=0, return_dict=True)
    for found, errors in ({name: values[0] for name, values in history.items()}, before), (evaluated, after):
        expected = {"loss": np.mean(errors**2), "mae": np.mean(np.abs(errors))}
        assert list(found) == ["loss", *metrics]
        np.testing.assert_allclose([*found.values()], [expected[name] for name in found], rtol=1e-5)


def test_autograph_of_tf_keras_translates_the_layer_as_without_recomputation():
    class Branching(tf_keras.layers.Layer):
        def call(self, x):
            if tf.reduce_sum(x) > 0.0:
                x = 2.0 * x
            return x

    found = []
    for wrap in (layers_of(tf_keras).Recompute, lambda layer: layer):
        tf_keras.utils.set_random_seed(1)
        model = tf_keras.Sequential([tf_keras.layers.Dense(2), wrap(Branching()), tf_keras.layers.Dense(1)])
        found.append(fitted(model, UNITS, UNITS[:, :1], "graph"))
    assert_equal(*found)
