"""Layers that clip, check and record a gradient of a scaled loss: the numbers belong to the loss itself."""

import numpy as np
import pytest
import tensorflow as tf

from ..support.keras_models import layers_of, register

FEATURES = np.array([[1.0, 2.0, -0.5], [0.25, 0.5, 1.0]], np.float32)
TARGETS = np.array([[3.0], [-1.0]], np.float32)
KERNEL, HEAD = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, 1.0]]), np.array([[1.0], [-3.0]])


def model_with(library, make_layer, initial_scale, bits=16, jit_compile=False, run_eagerly=False, dynamic=True):
    """A model with two dense layers and a layer between, which knows the optimizer."""
    options = {} if dynamic else {"dynamic": False}
    optimizer = library.mixed_precision.LossScaleOptimizer(
        library.optimizers.SGD(1.0), initial_scale=initial_scale, **options
    )

    def dense(weights):
        start = library.initializers.Constant(weights)
        return library.layers.Dense(weights.shape[1], use_bias=False, kernel_initializer=start, dtype=policy)

    policy = "mixed_float16" if bits == 16 else "float32"
    x = library.Input([3])
    hidden = dense(KERNEL)(x)
    y = dense(HEAD)(make_layer(layers_of(library), dtype=policy, loss_scale=optimizer)(hidden))
    model = library.Model(x, y)
    model.compile(optimizer, "mse", jit_compile=jit_compile, run_eagerly=run_eagerly)
    return model


def fit(model, steps=1, features=FEATURES):
    model.fit(features, TARGETS, batch_size=2, epochs=steps, verbose=0, shuffle=False)


def upstream():
    """The gradient of the loss at the layer, before the first step."""
    return 2 * (FEATURES @ KERNEL @ HEAD - TARGETS) / len(TARGETS) @ HEAD.T


CLIPS = {
    "value": ({"value": 0.5}, lambda dy: np.clip(dy, -0.5, 0.5)),
    "norm": ({"norm": 0.5}, lambda dy: dy * 0.5 / np.linalg.norm(dy)),
    "norm of rows": (
        {"norm": 5.0, "axis": -1},
        lambda dy: dy * np.minimum(1, 5 / np.linalg.norm(dy, axis=-1)[:, None]),
    ),
    "global norm": ({"global_norm": 0.5}, lambda dy: dy * 0.5 / np.linalg.norm(dy)),
    "a limit above": ({"value": 100.0}, lambda dy: dy),
}
RUNS = {"graph": {}, "xla": {"jit_compile": True}, "eager": {"run_eagerly": True}}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", CLIPS)
def test_a_step_of_fit_clips_the_gradient_of_the_loss_itself(name, run, library):
    limit, clipped = CLIPS[name]
    model = model_with(library, lambda m, **options: m.GradientClip(**limit, **options), 256.0, **RUNS[run])
    fit(model)
    step = KERNEL - np.array(model.get_weights()[0])
    np.testing.assert_allclose(step, FEATURES.T @ clipped(upstream()), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("limit", [{"value": 0.01}, {"norm": 0.01}, {"global_norm": 0.01}], ids=str)
def test_training_skips_the_steps_whose_scaled_gradient_overflows(limit, library):
    """By value, infinity would become a finite number, and the optimizer would take a wrong step."""
    model = model_with(library, lambda m, **options: m.GradientClip(**limit, **options), 2.0**20)
    fit(model)
    np.testing.assert_array_equal(model.get_weights()[0], KERNEL)
    fit(model, steps=11)
    np.testing.assert_array_less(0.0, np.abs(model.get_weights()[0] - KERNEL).max())
    np.testing.assert_array_less(np.abs(model.get_weights()[0] - KERNEL).max(), 0.5)


def test_check_numerics_lets_training_recover_from_overflows_and_records_the_unscaled_gradient(library, capfd):
    seen = []

    def watch(m, **options):
        return m.WatchGradient(check_numerics=True, print=True, call=seen.append, name="hidden", **options)

    model = model_with(library, watch, 2.0**20)
    while not (seen and np.isfinite(seen[-1]).all()):
        assert len(seen) < 10
        fit(model)
    assert len(seen) > 1
    assert seen[-1].dtype == np.float32
    np.testing.assert_allclose(seen[-1], upstream(), rtol=1e-3)
    assert " smallest -8.5 largest 25.5 elements " in capfd.readouterr().err


@pytest.mark.parametrize("run", ["graph", "eager"])
def test_check_numerics_ends_training_when_a_smaller_scale_did_not_help(run, library):
    model = model_with(library, lambda m, **options: m.WatchGradient(check_numerics=True, **options), 4.0, **RUNS[run])
    fit(model, 2, FEATURES * np.nan)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"layers\.WatchGradient: the gradient of "):
        fit(model, 1, FEATURES * np.nan)


def test_a_fixed_scale_of_tf_keras_cannot_shrink_so_the_check_stays():
    import tf_keras

    model = model_with(
        tf_keras, lambda m, **options: m.WatchGradient(check_numerics=True, **options), 2.0**20, dynamic=False
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"layers\.WatchGradient: the gradient of "):
        fit(model)


OPTIMIZERS = {}


@register
def scale_of_the_optimizer():
    return OPTIMIZERS["now"]


@pytest.mark.parametrize(
    "loss_scale", [256.0, np.float32(256), scale_of_the_optimizer], ids=["number", "numpy", "function"]
)
@pytest.mark.parametrize(
    "kind", [{"GradientClip": {"value": 0.5}}, {"WatchGradient": {"check_numerics": True}}], ids=str
)
def test_a_number_and_a_registered_function_are_saved(kind, loss_scale, library, tmp_path):
    [(name, options)] = kind.items()
    OPTIMIZERS["now"] = library.mixed_precision.LossScaleOptimizer(library.optimizers.SGD(), initial_scale=256.0)
    x = library.Input([2])
    model = library.Model(x, getattr(layers_of(library), name)(**options, loss_scale=loss_scale)(x))
    model.save(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras")
    v = tf.constant([[1.0, 2.0]])
    for each in (model, loaded):
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = each(v)
        expected = [[128.0, -100.0]] if name == "GradientClip" else [[1000.0, -100.0]]
        np.testing.assert_allclose(tape.gradient(y, v, tf.constant([[1000.0, -100.0]])), expected)


@pytest.mark.parametrize("kind", ["GradientClip", "WatchGradient"])
@pytest.mark.parametrize("make", ["optimizer", "variable"])
def test_an_optimizer_and_a_variable_are_neither_saved_nor_tracked(make, kind, library, tmp_path):
    if make == "optimizer":
        loss_scale = library.mixed_precision.LossScaleOptimizer(library.optimizers.SGD())
    else:
        loss_scale = tf.Variable(8.0, trainable=False)
    options = {"value": 1.0} if kind == "GradientClip" else {"check_numerics": True}
    x = library.Input([2])
    layer = getattr(layers_of(library), kind)(**options, loss_scale=loss_scale)
    model = library.Model(x, layer(x))
    assert len(model.weights) == (kind == "GradientClip")
    with pytest.raises(
        ValueError, match=rf"^layers\.{kind}: loss_scale must be a number or a function to be saved, got "
    ) as e:
        model.save(tmp_path / "model.keras")
    assert str(e.value).endswith(
        ". Pass a function that returns it, registered with @keras.saving.register_keras_serializable()."
    )


def test_an_optimizer_that_keras_will_wrap_is_refused(library):
    """Its own loss scale is 1, whatever the optimizer around it does."""
    with pytest.raises(
        TypeError,
        match=r"^layers\.GradientClip: loss_scale must be a number, a Variable or Tensor, a LossScaleOptimizer of Keras, or "
        r"a function without arguments that returns one of them, got .*SGD.*\. Keras wraps the optimizer of a "
        r"mixed_float16 model: pass keras\.mixed_precision\.LossScaleOptimizer\(optimizer\) to both\.$",
    ):
        layers_of(library).GradientClip(value=1.0, loss_scale=library.optimizers.SGD())
