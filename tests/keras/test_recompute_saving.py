"""The layer Recompute in models that are saved, loaded, cloned and exported, by either Keras."""

import copy
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.keras_models import assert_equal, layers_of, register, value_and_gradients
from ..support.processes import run_python

X = np.random.default_rng(0).normal(size=[8, 3]).astype(np.float32)


@register
def products(op):
    return op.type == "MatMul"


def network(library, wrap):
    """With losses and state."""
    layers = library.layers
    x = library.Input([3])
    h = wrap(layers.Dense(8, "gelu", activity_regularizer="l2", kernel_regularizer="l2"))(x)
    h = wrap(library.Sequential([layers.Dense(4, "tanh"), layers.BatchNormalization()]))(h)
    return library.Model(x, layers.Dense(1)(layers.Concatenate()([x, h])))


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
@pytest.mark.parametrize("file", ["saved_model", "model.h5"])
def test_the_old_formats_of_tf_keras(file, tmp_path):
    model = network(tf_keras, lambda layer: layers_of(tf_keras).Recompute(layer, keep=products))
    model.save(tmp_path / file)
    loaded = tf_keras.models.load_model(tmp_path / file)
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in model.layers]
    assert_equal(value_and_gradients(loaded, X), value_and_gradients(model, X))


def test_an_h5_file_of_keras(tmp_path):
    model = network(keras, cg.layers.Recompute)
    model.save(tmp_path / "model.h5")
    loaded = keras.models.load_model(tmp_path / "model.h5")
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
    found = np.load(tmp_path / "found.npz")
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
