"""layers.FakeQuant: how its scale starts, moves and is saved. test_layers.py has the other layers."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.keras_models import layers_of, policy, saved_and_loaded
from ..support.processes import run_python

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=[50, 6]).astype(np.float32)
Y = np.float32(X[:, :1] * X[:, 1:2] > 0)


def of_range(x, axis=None):
    """The scale for 8 bits that just holds the numbers."""
    return np.maximum(x.max(axis) / 127, -x.min(axis) / 128)


# The options, the first scale for a batch x, and the second after a batch of 2 x.
STARTS = {
    "learned": ({}, lambda x: (2 * np.abs(x).mean() / np.sqrt(128),) * 2),
    "learned, per channel": ({"axis": -1}, lambda x: (2 * np.abs(x).mean(0) / np.sqrt(128),) * 2),
    "learned, never negative": ({"zero_point": -128}, lambda x: (2 * np.abs(x).mean() / np.sqrt(255),) * 2),
    "calibrated": ({"scale": "calibrated"}, lambda x: (of_range(x), 1.01 * of_range(x))),
    "calibrated, rows": (
        {"scale": "calibrated", "axis": 0, "momentum": 0.5},
        lambda x: (of_range(x, 1), 1.5 * of_range(x, 1)),
    ),
    "never positive": (
        {"scale": "calibrated", "zero_point": 127, "momentum": 0},
        lambda x: np.r_[1, 2] * -x.min() / 255,
    ),
    "not trained": ({"trainable": False}, lambda x: (0, 0)),
}


@pytest.mark.parametrize("name", STARTS)
def test_the_first_batch_sets_the_scale(library, name):
    options, expected = STARTS[name]
    layer = layers_of(library).FakeQuant(**options)
    assert np.isnan(layer(X)).all()  # Rather than numbers that nothing has set.
    for bad in (np.zeros_like(X), np.full_like(X, np.inf)):
        y = layer(bad, training=True)
        assert np.isnan(y).all() == (name == "not trained" or np.isinf(bad).all())
    for factor, scale in zip((1, 2), expected(X), strict=True):
        y = tf.function(layer)(factor * X, training=True)
        np.testing.assert_allclose(layer.scale, np.broadcast_to(scale, layer.scale.shape), rtol=1e-5)
        if np.all(layer.scale):
            np.testing.assert_array_equal(y, layer(factor * X))
            options = {key: value for key, value in options.items() if key in ("axis", "zero_point")}
            np.testing.assert_array_equal(y, cg.fake_quant(factor * X, tf.convert_to_tensor(layer.scale), **options))


def test_channels_of_zeros_start_when_they_are_not(library):
    layer = layers_of(library).FakeQuant(axis=-1, scale="calibrated")
    x = np.float32([[1.27, 0.0, -2.56]])
    np.testing.assert_allclose(layer(x, training=True), x, rtol=1e-6)
    np.testing.assert_allclose(layer(np.float32([[1.27, 9.0, 0.0]])), [[1.27, 2.54, 0.0]], rtol=1e-6)
    layer(np.float32([[1.27, 12.7, 0.0]]), training=True)
    np.testing.assert_allclose(layer.scale, [0.01, 0.1, 0.02], rtol=1e-5)


def model_of(library, **options):
    """A net whose input, kernel and output are quantized."""
    quantizer = layers_of(library).FakeQuant

    class Quantized(library.layers.Dense):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.of_kernel = quantizer(narrow_range=True, **options)

        def call(self, x):
            return self.activation(tf.matmul(x, self.of_kernel(self.kernel)) + tf.cast(self.bias, x.dtype))

    x = library.Input([6])
    h = Quantized(16, activation="relu")(quantizer(**options)(x))
    return library.Model(x, Quantized(1)(quantizer(zero_point=-128, **options)(h)))


@pytest.mark.parametrize("place", ["eager", "traced", "jit", "mixed_float16", "recomputed"])
@pytest.mark.parametrize("scale", ["learned", "calibrated"])
def test_training(library, scale, place):
    library.utils.set_random_seed(0)
    with policy(library, place if "mixed" in place else "float32"):
        model = net = model_of(library, scale=scale)
        if place == "recomputed":
            x = library.Input([6])
            model = library.Model(x, layers_of(library).Recompute(net)(x))
        model.compile(library.optimizers.Adam(0.01), "mse", run_eagerly=place == "eager", jit_compile=place == "jit")
        losses = model.fit(X, Y, batch_size=20, epochs=6, verbose=0).history["loss"]
        y = model.predict(X, verbose=0)
    assert losses[-1] < 0.6 * losses[0]
    assert np.isfinite(y).all()
    quantizers = [layer for layer in net._flatten_layers() if hasattr(layer, "scale")]
    assert len(quantizers) == 4
    assert all(0 < each.scale.numpy() < 0.5 and each.scale.dtype == tf.float32 for each in quantizers)


def test_an_update_that_is_too_large_leaves_the_scale_positive(library):
    model = library.Sequential([library.Input([6]), layers_of(library).FakeQuant()])
    model.compile(library.optimizers.SGD(100.0), "mse")
    model.fit(X, 10 * X, verbose=0)
    assert np.isfinite(model.predict(X, verbose=0)).all()


def test_saved_loaded_and_cloned(library, tmp_path):
    x = library.Input([6])
    options = {
        "bits": 4,
        "axis": -1,
        "rounding": "even",
        "scale": "calibrated",
        "momentum": 0.5,
        "gradient_factor": 2.0,
    }
    model = library.Model(x, layers_of(library).FakeQuant(**options)(x))
    y = model(X, training=True)
    model.save_weights(tmp_path / "model.weights.h5")
    clone = library.models.clone_model(model)
    assert np.isnan(clone(X)).all()
    clone.load_weights(tmp_path / "model.weights.h5")
    for each in (clone, saved_and_loaded(library, model, tmp_path)):
        np.testing.assert_array_equal(each(X), y)
        assert options.items() <= each.layers[-1].get_config().items()


MIRRORED = """
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_cg_ops as cg
x = np.float32([[1.27], [-0.5], [2.54], [0.1]])
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    layers = [cg.layers.FakeQuant(scale="calibrated"), cg.layers.FakeQuant(scale="learned")]
    for layer in layers:
        layer.build([None, 1])
halves = strategy.experimental_distribute_values_from_function(lambda c: x[2 * c.replica_id_in_sync_group :][:2])
tf.function(lambda: strategy.run(lambda x: [layer(x, training=True) for layer in layers], [halves]))()
np.testing.assert_allclose(layers[0].scale.numpy(), 0.015, rtol=1e-6)
np.testing.assert_allclose(layers[1].scale.numpy(), 2 * np.abs(x).mean() / np.sqrt(128), rtol=1e-6)
print("done")
"""


def test_replicas_share_the_mean(tmp_path):
    assert "done" in run_python(MIRRORED, cwd=tmp_path).stdout
