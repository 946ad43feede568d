"""Layers that clip, check and record a gradient of a scaled loss: the numbers belong to the loss itself."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from ..support.keras_models import FIT, assert_equal, layers_of, register, saved_and_loaded, value_and_gradients

FEATURES = np.array([[1.0, 2.0, -0.5], [0.25, 0.5, 1.0]], np.float32)
TARGETS = np.array([[3.0], [-1.0]], np.float32)
KERNEL, HEAD = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, 1.0]]), np.array([[1.0], [-3.0]])


def model_with(library, layer, arguments, initial_scale, mode="graph", **options):
    """A model with two dense layers and a layer of this name between, which knows the optimizer."""
    sgd, mixed = library.optimizers.SGD(1.0), {"dtype": "mixed_float16"}
    optimizer = library.mixed_precision.LossScaleOptimizer(sgd, initial_scale=initial_scale, **options)

    def dense(weights):
        start = library.initializers.Constant(weights)
        return library.layers.Dense(weights.shape[1], use_bias=False, kernel_initializer=start, **mixed)

    x = library.Input([3])
    between = getattr(layers_of(library), layer)(**arguments, **mixed, loss_scale=optimizer)
    model = library.Model(x, dense(HEAD)(between(dense(KERNEL)(x))))
    model.compile(optimizer, "mse", **FIT[mode])
    return model


def fit(model, steps=1, features=FEATURES):
    model.fit(features, TARGETS, batch_size=2, epochs=steps, verbose=0, shuffle=False)


def upstream():
    """The gradient of the loss at the layer, before the first step."""
    return 2 * (FEATURES @ KERNEL @ HEAD - TARGETS) / len(TARGETS) @ HEAD.T


CLIPS = {
    "value": ({"value": 0.5}, lambda dy: np.clip(dy, -0.5, 0.5)),
    "norm of rows": (
        {"norm": 5.0, "axis": -1},
        lambda dy: dy * np.minimum(1, 5 / np.linalg.norm(dy, axis=-1)[:, None]),
    ),
    "global norm": ({"global_norm": 0.5}, lambda dy: dy * 0.5 / np.linalg.norm(dy)),
}
NOT_FINITE = r"layers\.WatchGradient: the gradient of "


@pytest.mark.parametrize(
    ("library", "name", "mode"),
    [
        (keras, "value", "jit"),
        (keras, "norm of rows", "eager"),
        (keras, "global norm", "graph"),
        (tf_keras, "value", "graph"),
    ],
)
def test_a_step_of_fit_clips_the_gradient_of_the_loss_itself(library, name, mode):
    limit, clipped = CLIPS[name]
    model = model_with(library, "ClipGradient", limit, 256.0, mode)
    fit(model)
    step = KERNEL - np.array(model.get_weights()[0])
    np.testing.assert_allclose(step, FEATURES.T @ clipped(upstream()), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("library", "limit"), [(keras, "value"), (keras, "norm"), (tf_keras, "value")])
def test_training_skips_the_steps_whose_scaled_gradient_overflows(library, limit):
    """By value, infinity would become a finite number, and the optimizer would take a wrong step."""
    model = model_with(library, "ClipGradient", {limit: 0.01}, 2.0**20)
    fit(model)
    np.testing.assert_array_equal(model.get_weights()[0], KERNEL)
    fit(model, steps=11)
    np.testing.assert_array_less(0.0, np.abs(model.get_weights()[0] - KERNEL).max())
    np.testing.assert_array_less(np.abs(model.get_weights()[0] - KERNEL).max(), 0.5)


def test_check_numerics_lets_training_recover_from_overflows_and_records_the_unscaled_gradient(library, capfd):
    seen = []
    options = {"log": True, "check_numerics": True, "callback": seen.append, "name": "hidden"}
    model = model_with(library, "WatchGradient", options, 2.0**20)
    while not (seen and np.isfinite(seen[-1]).all()):
        assert len(seen) < 10
        fit(model)
    assert len(seen) > 1
    assert seen[-1].dtype == np.float32
    np.testing.assert_allclose(seen[-1], upstream(), rtol=1e-3)
    assert " smallest -8.5 largest 25.5 elements " in capfd.readouterr().err


@pytest.mark.parametrize(("library", "mode"), [(keras, "graph"), (keras, "eager"), (tf_keras, "graph")])
def test_check_numerics_ends_training_when_a_smaller_scale_did_not_help(library, mode):
    model = model_with(library, "WatchGradient", {"check_numerics": True}, 4.0, mode)
    fit(model, 2, FEATURES * np.nan)
    with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_FINITE):
        fit(model, 1, FEATURES * np.nan)


def test_a_fixed_loss_scale_of_tf_keras_cannot_shrink_so_the_check_stays():
    model = model_with(tf_keras, "WatchGradient", {"check_numerics": True}, 2.0**20, dynamic=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_FINITE):
        fit(model)


OPTIMIZERS = {}


@register
def scale_of_the_optimizer():
    return OPTIMIZERS["now"]


# For each layer its arguments, and the gradient for an upstream of [1000, -100] and a loss scale of 256.
KINDS = {
    "ClipGradient": ({"value": 0.5}, [128.0, -100.0]),
    "WatchGradient": ({"check_numerics": True}, [1000.0, -100.0]),
}


@pytest.mark.parametrize(
    ("name", "loss_scale"), [("ClipGradient", np.float32(256)), ("WatchGradient", scale_of_the_optimizer)]
)
def test_a_number_and_a_registered_function_are_saved(name, loss_scale, library, tmp_path):
    options, expected = KINDS[name]
    OPTIMIZERS["now"] = library.mixed_precision.LossScaleOptimizer(library.optimizers.SGD(), initial_scale=256.0)
    x, v = library.Input([2]), np.ones([1, 2], np.float32)
    model = library.Model(x, getattr(layers_of(library), name)(**options, loss_scale=loss_scale)(x))
    for each in (model, saved_and_loaded(library, model, tmp_path)):
        found = value_and_gradients(each, v, dy=[[1000.0, -100.0]])
        assert_equal(found, [v, np.array([expected], np.float32)])


@pytest.mark.parametrize(("name", "make"), [("ClipGradient", "optimizer"), ("WatchGradient", "variable")])
def test_an_optimizer_and_a_variable_are_not_tracked(make, name, library):
    optimizer = library.mixed_precision.LossScaleOptimizer(library.optimizers.SGD())
    loss_scale = optimizer if make == "optimizer" else tf.Variable(8.0, trainable=False)
    layer = getattr(layers_of(library), name)(**KINDS[name][0], loss_scale=loss_scale)
    assert len(layer.weights) == (name == "ClipGradient")
