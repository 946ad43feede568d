"""Models whose layers are recomputed, by the layer Recompute or in a keras.RematScope, train as the plain models."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from ..support.keras_models import (
    FIT,
    TARGET,
    UNITS,
    assert_equal,
    fitted,
    layers_of,
    network,
    policy,
    saved_and_loaded,
)
from ..support.tensors import pairs

MASKED = np.random.default_rng(2).normal(size=[4, 5, 3]).astype(np.float32)
MASKED[:, 3:] = 0


def alone(make, x):
    """A model of one layer."""

    def model(library, wrap):
        inputs = library.Input(x.shape[1:])
        return library.Model(inputs, wrap(make(library))(inputs))

    return model, x


def block(library):
    layers = library.layers
    dropout = [layers.Dropout(0.3, seed=1)] if library is keras else []
    return library.Sequential([layers.Dense(4, activation="gelu"), layers.BatchNormalization(), *dropout])


def penalized(library):
    class Penalized(library.layers.Dense):
        def call(self, x):
            y = super().call(x)
            self.add_loss(0.1 * tf.reduce_sum(y**2))
            return y

    return Penalized(3)


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
    "gru": alone(lambda k: k.layers.GRU(4, return_sequences=True), MASKED),
    "block": alone(block, UNITS),
    "dense": alone(lambda k: k.layers.Dense(4, "swish", kernel_regularizer="l2", activity_regularizer="l1"), UNITS),
    "loss in call": alone(penalized, UNITS),
    "sequences": (sequences, MASKED),
    "branches": (network, UNITS),
}
SCOPES = {
    "full": {"mode": "full"},
    "activations": {"mode": "activations"},
    "larger_than": {"mode": "larger_than", "output_size_threshold": 7},
    "list_of_layers": {"mode": "list_of_layers", "layer_names": ["first", "second"]},
    "none": {"mode": None},
}
# The warning comes without recomputation, too.
pytestmark = pytest.mark.filterwarnings("ignore:Layer 'sequential.* was passed an input with a mask:UserWarning")


def trained(library, name, mode, wrap=lambda layer: layer, scope=None):
    """The weights and losses after training; the scope is for the layers that are made in it."""
    make, x = MODELS[name]
    library.utils.set_random_seed(3)
    with keras.RematScope(**SCOPES[scope]) if scope else contextlib.nullcontext():
        model = make(library, wrap)
    shape = [len(x), *model.output_shape[1:]]
    return fitted(model, x, np.sin(np.arange(np.prod(shape)) + 1.0).reshape(shape), mode, epochs=3)


@pytest.mark.parametrize(("name", "mode"), pairs(MODELS, FIT))
def test_fit_with_recompute_is_that_of_the_plain_model(name, mode, library):
    found = trained(library, name, mode, layers_of(library).Recompute)
    assert_equal(found, trained(library, name, mode), 1e-3, 1e-4)


@pytest.mark.parametrize("mode", ["jit"])
def test_mixed_precision_with_loss_scaling(mode, library):
    with policy(library, "mixed_float16"):
        found = trained(library, "block", mode, layers_of(library).Recompute)
        assert_equal(found, trained(library, "block", mode), 1e-2, 1e-3)


@pytest.mark.parametrize(
    ("name", "mode", "scopes"),
    [
        ("branches", "graph", ["activations", "list_of_layers"]),
        ("block", "jit", ["larger_than", "none"]),
        ("sequences", "graph", ["full"]),
    ],
)
def test_fit_in_a_scope_is_that_of_the_plain_model(name, mode, scopes, remat, traces):
    expected = trained(keras, name, mode)
    assert not traces
    for scope in scopes:
        assert_equal(trained(keras, name, mode, scope=scope), expected, 1e-3, 1e-4)
        assert bool(traces) == (scope != "none")
        traces.clear()


@pytest.mark.parametrize(("memory", "mode"), [("auto", "jit"), (0.6, "graph")])
def test_fit_with_a_smaller_last_batch_is_that_of_the_plain_model(memory, mode, library, tmp_path):
    """Keras then traces with a batch of unknown size. For a large batch, cuts reach a share of 0.46."""
    found, layers = [], library.layers
    for wrap in (lambda model: model, functools.partial(layers_of(library).Recompute, memory=memory)):
        library.utils.set_random_seed(1)
        inner = library.Sequential([*(layers.Dense(16, "tanh") for _ in range(12)), layers.Dense(1)])
        inputs = [library.Input([3])] if mode == "jit" else []  # It works without, too.
        model = library.Sequential([*inputs, wrap(inner)])
        found.append(fitted(model, UNITS[:7], TARGET[:7], mode, epochs=3))  # In batches of 4 and 3.
    assert_equal(*found)
    loaded = saved_and_loaded(library, model, tmp_path)
    for each in (model, loaded):
        assert any(s.is_recomputed for s in each.layers[-1].plan(tf.TensorSpec([None, 3])).segments)
    assert_equal([loaded(UNITS)], [model(UNITS)])


@pytest.mark.parametrize("metrics", [[], ["mae"]])
def test_a_compiled_model_inside_changes_no_losses_and_metrics(metrics, library):
    inner = library.Sequential([library.layers.Dense(4, "tanh"), library.layers.Dense(1)])
    inner.compile("sgd", "mse", metrics=["mae"])
    model = library.Sequential([layers_of(library).Recompute(inner)])
    model.compile("sgd", "mse", metrics=metrics)
    before = model.predict(UNITS, verbose=0) - TARGET
    history = model.fit(UNITS, TARGET, verbose=0).history
    after = model.predict(UNITS, verbose=0) - TARGET
    evaluated = model.evaluate(UNITS, TARGET, verbose=0, return_dict=True)
    for found, errors in ({name: values[0] for name, values in history.items()}, before), (evaluated, after):
        expected = {"loss": np.mean(errors**2), "mae": np.mean(np.abs(errors))}
        assert list(found) == ["loss", *metrics]
        np.testing.assert_allclose([*found.values()], [expected[name] for name in found], rtol=1e-5)
