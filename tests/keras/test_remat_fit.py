"""enable_remat: `fit` in a RematScope of Keras 3 is that without one."""

import contextlib

import keras
import numpy as np
import pytest

import tf_cg_ops as cg
from tf_cg_ops._src.rewrite import traced_call

from ..support.keras_models import assert_equal

X = np.random.default_rng(0).normal(size=[8, 3]).astype(np.float32)
TARGET = np.random.default_rng(1).normal(size=[8, 1]).astype(np.float32)
STEPS = np.random.default_rng(2).normal(size=[8, 5, 3]).astype(np.float32)
STEPS[:, 3:] = 0  # Masked.

FIT = {"eager": {"run_eagerly": True}, "graph": {"jit_compile": False}, "jit": {"jit_compile": True}}
SCOPES = {
    "full": {"mode": "full"},
    "activations": {"mode": "activations"},
    "larger_than": {"mode": "larger_than", "output_size_threshold": 7},
    "list_of_layers": {"mode": "list_of_layers", "layer_names": ["first", "second"]},
    "none": {"mode": None},
}


@pytest.fixture
def remat():
    cg.layers.enable_remat()
    yield
    cg.layers.disable_remat()


@pytest.fixture
def traces(monkeypatch):
    """One entry for each trace."""
    found, make = [], traced_call.TracedCall.__init__

    def count(self, *args):
        found.append(self)
        make(self, *args)

    monkeypatch.setattr(traced_call.TracedCall, "__init__", count)
    return found


def network():
    layers = keras.layers
    x = keras.Input([3])
    h = layers.Dense(8, "gelu", activity_regularizer="l2", kernel_regularizer="l2", name="first")(x)
    h = layers.BatchNormalization()(h)
    h = layers.Dropout(0.3, seed=1)(h)
    h = keras.Sequential([layers.Dense(4, "tanh", activity_regularizer="l1", name="second")])(h)
    return keras.Model(x, layers.Dense(1)(h))


def sequences():
    layers = keras.layers
    x = keras.Input([5, 3])
    h = layers.Masking()(x)
    h = layers.GRU(4, return_sequences=True, dropout=0.2, seed=3, name="first")(h)
    h = layers.MultiHeadAttention(2, 4, dropout=0.2, seed=4, name="second")(h, h)
    return keras.Model(x, layers.Dense(1)(layers.GlobalAveragePooling1D()(h)))


def fitted(make, x, scope, mode):
    keras.utils.set_random_seed(3)
    with keras.RematScope(**scope) if scope else contextlib.nullcontext():
        model = make()
    model.compile("adam", "mse", **FIT[mode])
    history = model.fit(x, TARGET, epochs=2, batch_size=4, shuffle=False, verbose=0)
    return [*model.get_weights(), np.array(history.history["loss"])]


# Compiling takes most of the time.
@pytest.mark.parametrize(
    ("mode", "names"),
    [("eager", list(SCOPES)), ("graph", ["full", "activations", "list_of_layers"]), ("jit", ["full", "larger_than"])],
)
def test_fit_is_that_of_the_plain_model_in_every_scope(mode, names, remat, traces):
    expected = fitted(network, X, None, mode)
    assert not traces
    for name in names:
        assert_equal(fitted(network, X, SCOPES[name], mode), expected)
        assert bool(traces) == (name != "none")
        traces.clear()


@pytest.mark.parametrize(("mode", "name"), [("eager", "list_of_layers"), ("graph", "full")])
def test_fit_with_masks_loops_and_attention(mode, name, remat):
    expected = fitted(sequences, STEPS, None, mode)
    assert_equal(fitted(sequences, STEPS, SCOPES[name], mode), expected, 1e-3, 1e-4)
