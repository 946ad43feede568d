"""The layer Recompute in models: `fit`, masks, losses, saving, loading and cloning, in either Keras."""

import copy
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from ..support.keras_models import assert_equal, layers_of, register, value_and_gradients
from ..support.processes import run_python

X = np.random.default_rng(0).normal(size=[8, 3]).astype(np.float32)
TARGET = np.random.default_rng(1).normal(size=[8, 1]).astype(np.float32)
STEPS = np.random.default_rng(2).normal(size=[4, 5, 3]).astype(np.float32)
STEPS[:, 3:] = 0  # Masked.

FIT = {"eager": {"run_eagerly": True}, "graph": {"jit_compile": False}, "jit": {"jit_compile": True}}


@register
def products(op):
    return op.type == "MatMul"


def plain(layer):
    return layer


def network(library, wrap):
    """With losses, state, random numbers and two branches."""
    layers = library.layers
    x = library.Input([3])
    h = wrap(layers.Dense(8, "gelu", activity_regularizer="l2", kernel_regularizer="l2", name="first"))(x)
    h = wrap(layers.BatchNormalization())(h)
    if library is keras:
        h = wrap(layers.Dropout(0.3, seed=1))(h)
    h = wrap(library.Sequential([layers.Dense(4, "tanh", activity_regularizer="l1"), layers.BatchNormalization()]))(h)
    return library.Model(x, layers.Dense(1, kernel_regularizer="l2")(layers.Concatenate()([x, h])))


@pytest.mark.parametrize(
    ("mode", "library"),
    [("eager", "keras"), ("graph", "tf_keras"), ("jit", "keras"), ("jit", "tf_keras")],
    indirect=["library"],
)
def test_fit_is_that_of_the_plain_model(mode, library):
    results = []
    for wrap in (plain, layers_of(library).Recompute):
        library.utils.set_random_seed(3)
        model = network(library, wrap)
        model.compile("sgd", "mse", **FIT[mode])
        history = model.fit(X, TARGET, epochs=3, batch_size=4, shuffle=False, verbose=0)
        results.append([*model.get_weights(), *map(np.array, history.history["loss"])])
    assert_equal(*reversed(results))


def test_mixed_precision_with_loss_scaling(library):
    library.mixed_precision.set_global_policy("mixed_float16")
    try:
        results = []
        for wrap in (plain, layers_of(library).Recompute):
            library.utils.set_random_seed(3)
            layers = [library.layers.Dense(8, activation="tanh"), library.layers.Dense(1, dtype="float32")]
            model = library.Sequential([wrap(layer) for layer in layers])
            model.compile(library.optimizers.SGD(0.1), "mse", jit_compile=True)
            model.fit(X, TARGET, epochs=3, batch_size=4, shuffle=False, verbose=0)
            results.append(model.get_weights())
        assert_equal(*reversed(results), rtol=1e-2, atol=1e-3)
    finally:
        library.mixed_precision.set_global_policy("float32")


def masked(library, wrap):
    layers = library.layers
    x = library.Input([5, 3])
    h = wrap(layers.Masking())(x)
    h = wrap(layers.GRU(4, return_sequences=True))(h)
    h = wrap(library.Sequential([layers.Dense(4), layers.Activation("tanh")]))(h)
    h = wrap(layers.MultiHeadAttention(2, 4))(h, h)
    return library.Model(x, layers.LSTM(2)(h))


@pytest.mark.filterwarnings(
    "ignore:Layer 'sequential.* was passed an input with a mask:UserWarning"
)  # Without Recompute, too.
def test_masks_pass_through(library):
    recomputed, model = masked(library, layers_of(library).Recompute), masked(library, plain)
    model.set_weights(recomputed.get_weights())
    expected = value_and_gradients(model, STEPS)
    assert not np.any(expected[1][:, 3:])
    assert_equal(value_and_gradients(recomputed, STEPS), expected)


def test_a_mask_that_the_layer_makes(library):
    inner = library.Sequential([library.layers.Embedding(5, 3, mask_zero=True)])
    layer = layers_of(library).Recompute(inner)
    ids = tf.constant([[1, 2, 0, 0]])
    with tf.GradientTape() as tape:
        tape.watch(ids)
        y = layer(ids)
    np.testing.assert_array_equal(y._keras_mask, [[True, True, False, False]])


def test_configurations_make_equal_layers(library):
    Recompute = layers_of(library).Recompute
    for keep in ((), ["scores"], products):
        layer = Recompute(library.layers.Dense(2), keep=keep, name="again", trainable=False)
        config = layer.get_config()
        again = Recompute.from_config(config)
        assert again.get_config() == config == layer.get_config()
        assert (again.name, again.trainable, again.layer.units) == ("again", False, 2)


def test_shapes_without_a_call(library):
    layer = layers_of(library).Recompute(library.layers.Dense(7))
    assert tuple(layer.compute_output_shape((None, 3))) == (None, 7)
    y = layer(library.Input([3]))
    assert tuple(y.shape) == (None, 7)
    steps = library.layers.TimeDistributed(layers_of(library).Recompute(library.layers.Dense(7)))
    assert tuple(steps(library.Input([5, 3])).shape) == (None, 5, 7)


def test_autograph_translates_the_layer_as_without_recomputation():
    class Branching(tf_keras.layers.Layer):
        def call(self, x):
            if tf.reduce_sum(x) > 0.0:
                x = 2.0 * x
            return x

    losses = []
    for wrap in (plain, layers_of(tf_keras).Recompute):
        tf_keras.utils.set_random_seed(1)
        model = tf_keras.Sequential([tf_keras.layers.Dense(2), wrap(Branching()), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        losses.append(model.fit(X, TARGET, epochs=2, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_models_are_saved_loaded_and_cloned(library, tmp_path):
    model = network(library, lambda layer: layers_of(library).Recompute(layer, keep=products))
    expected = value_and_gradients(model, X)
    model.save(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras")
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in model.layers]
    configs = [[json.dumps(layer.get_config()) for layer in each.layers] for each in (loaded, model)]
    assert configs[0] == configs[1]
    assert_equal(value_and_gradients(loaded, X), expected)
    clone = library.models.clone_model(model)
    model.save_weights(tmp_path / "model.weights.h5")
    clone.load_weights(tmp_path / "model.weights.h5")
    assert_equal(value_and_gradients(clone, X), expected)
    copied = copy.deepcopy(model)
    copied.set_weights([np.zeros_like(weight) for weight in copied.get_weights()])
    assert_equal(value_and_gradients(model, X), expected)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning")
@pytest.mark.parametrize(
    ("file", "library"),
    [("saved_model", "tf_keras"), ("model.h5", "tf_keras"), ("model.h5", "keras")],
    indirect=["library"],
)
def test_the_old_formats(file, library, tmp_path):
    model = network(library, layers_of(library).Recompute)
    model.save(tmp_path / file)
    loaded = library.models.load_model(tmp_path / file)
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in model.layers]
    assert_equal(value_and_gradients(loaded, X), value_and_gradients(model, X))


IN_A_FRESH_PROCESS = """
import sys
import {library} as library
import tf_cg_ops
import numpy as np
import tensorflow as tf

model = library.models.load_model(sys.argv[1])
assert type(model.layers[1]).__name__ == "Recompute"
x = tf.constant(np.load(sys.argv[2]))
with tf.GradientTape() as tape:
    tape.watch(x)
    y = model(x)
np.savez(sys.argv[3], y=y, dx=tape.gradient(y, x, output_gradients=tf.sin(3.0 * y) + 1.5))
model.compile("sgd", "mse", jit_compile=True)
model.fit(x, y, verbose=0)
"""


def test_a_fresh_process_loads_the_model(library, tmp_path):
    model = network(library, layers_of(library).Recompute)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    code = IN_A_FRESH_PROCESS.format(library=library.__name__)
    run_python(code, tmp_path / "model.keras", tmp_path / "x.npy", tmp_path / "found.npz", cwd=tmp_path)
    with np.load(tmp_path / "found.npz") as found:
        assert_equal([found["y"], found["dx"]], value_and_gradients(model, X)[:2])


def test_exported_models_have_the_gradient(library, tmp_path):
    model = network(library, layers_of(library).Recompute)
    model.export(tmp_path / "exported", **({"verbose": False} if library is keras else {}))
    loaded = tf.saved_model.load(tmp_path / "exported")
    results = []
    for function in (loaded.serve, lambda x: model(x, training=False)):
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        results.append([y.numpy(), tape.gradient(y, x, output_gradients=tf.cos(y)).numpy()])
    assert_equal(*results)
