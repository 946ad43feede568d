"""Factors and limits of layers change without a new trace, for Keras 3 and tf_keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ..support.keras_models import DY, KERASES, X, layers_of, value_and_gradient
from ..support.modes import vjp
from ..support.tensors import pairs

CHANGES = {
    "reversal": ("GradientReversal", {"factor": 1.0}, "factor", lambda f: -f * DY),
    "scale": ("GradientScale", {"factor": 1.0}, "factor", lambda f: f * DY),
    "clip": ("GradientClip", {"value": 1.0}, "limit", lambda f: np.clip(DY, -f, f)),
}


@pytest.mark.parametrize(("name", "library"), pairs(CHANGES, KERASES), indirect=["library"])
def test_numbers_change_without_a_new_trace(name, library, tmp_path):
    kind, arguments, attribute, expected = CHANGES[name]
    layer = getattr(layers_of(library), kind)(**arguments)
    traces = []

    @tf.function
    def run(x):
        traces.append(1)
        return vjp(lambda: layer(x), x, tf.constant(DY))[1]

    for number in (1.0, 0.5, 3.0):
        setattr(layer, attribute, number)
        np.testing.assert_allclose(run(tf.constant(X)), expected(number), rtol=1e-6)
        assert float(getattr(layer, attribute)) == number
    assert len(traces) == 1
    assert not layer.trainable_weights
    assert len(layer.non_trainable_weights) == 1


NUMBERS = {
    "a number": lambda: 2.0,
    "an array": lambda: np.array([2.0, 3.0, 4.0], np.float32),
    "a variable": lambda: tf.Variable(2.0, trainable=False),
    "a variable of Keras": lambda: keras.Variable(2.0, trainable=False),
}


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize(("name", "library"), pairs(CHANGES, KERASES), indirect=["library"])
def test_a_changed_number_is_saved_with_the_weights(name, kind, library, tmp_path):
    if (kind == "a variable of Keras" and library is not keras) or (kind == "an array" and name == "clip"):
        pytest.skip("tf_keras has TensorFlow's variables, and a limit is one number")
    layer, arguments, attribute, expected = CHANGES[name]
    [argument] = arguments
    number = NUMBERS[kind]()
    x = library.Input([3])
    model = library.Model(x, getattr(layers_of(library), layer)(**{argument: number})(x))
    half = np.array([0.5, 1.0, -0.25], np.float32) if kind == "an array" else 0.5
    setattr(model.layers[-1], attribute, half)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = library.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(value_and_gradient(loaded)[1], expected(half), rtol=1e-6)
    for each in (model, loaded):
        setattr(each.layers[-1], attribute, 14 * half)
        np.testing.assert_allclose(value_and_gradient(each)[1], expected(14 * half), rtol=1e-6)
        each.load_weights(tmp_path / "model.weights.h5")
        np.testing.assert_allclose(value_and_gradient(each)[1], expected(half), rtol=1e-6)
    start = getattr(number, "tolist", lambda: number)()
    assert "variable" in kind or model.layers[-1].get_config()[argument] == start


def test_a_factor_may_come_with_each_call(library, tmp_path):
    layers = layers_of(library)
    x, factor = library.Input([3]), library.Input([1])
    model = library.Model([x, factor], layers.GradientReversal()(x, factor=factor))
    model.save(tmp_path / "model.keras")
    factors = np.array([[0.5], [2.0]], np.float32)
    for each in (model, library.models.load_model(tmp_path / "model.keras")):
        _, gradient = value_and_gradient(lambda x, each=each: each([x, tf.constant(factors)]))
        np.testing.assert_allclose(gradient, -factors * DY, rtol=1e-6)
    scale = layers.GradientScale(1.0)
    np.testing.assert_allclose(value_and_gradient(lambda x: scale(x, factor=tf.constant(3.0)))[1], 3 * DY)


def test_only_a_number_that_can_be_assigned_is_saved_and_loaded(library):
    """A Tensor is not saved, and a file without a number leaves the number of the layer that loads it."""
    layers = layers_of(library)
    assigned = layers.GradientScale(tf.Variable(3.0, trainable=False))
    weight, store, empty = layers.GradientScale(2.0), {}, {}
    assigned.save_own_variables(store)
    with tf.Graph().as_default():
        fed = layers.GradientScale(tf.compat.v1.placeholder(tf.float32, []))
        fed.load_own_variables(store)
        fed.save_own_variables(empty)
    assert not empty
    weight.load_own_variables(empty)
    assert float(weight.factor) == 2.0
    weight.load_own_variables(store)
    assert float(weight.factor) == 3.0


def test_a_schedule_in_training(library):
    """A callback sets the factor, checked against NumPy with one step of gradient descent per epoch."""
    layers = layers_of(library)
    reversal = layers.GradientReversal(0.0)
    dense = library.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    x = library.Input([3])
    model = library.Model(x, library.layers.Dense(1, use_bias=False, kernel_initializer="ones")(reversal(dense(x))))
    model.compile(library.optimizers.SGD(0.05), "mse", jit_compile=True)
    factors = [0.0, 0.5, 1.0]
    schedule = library.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(reversal, "factor", factors[epoch])
    )
    target = np.array([[1.0], [-2.0]], np.float32)
    model.fit(X, target, epochs=3, batch_size=2, shuffle=False, verbose=0, callbacks=[schedule])
    first, last = np.ones([3, 1]), np.ones([1, 1])
    for factor in factors:
        hidden = X @ first
        error = 2 * (hidden @ last - target) / 2
        first, last = first + 0.05 * factor * X.T @ (error @ last.T), last - 0.05 * hidden.T @ error
    np.testing.assert_allclose(dense.get_weights()[0], first, rtol=1e-5)
    np.testing.assert_allclose(model.layers[-1].get_weights()[0], last, rtol=1e-5, atol=1e-6)


def test_limits_are_not_rounded_to_16_bits(library):
    """With a scaled loss they can exceed the range of float16."""
    layers = layers_of(library)
    x, dy = tf.zeros([2], tf.float16), tf.constant([6e4, 6e4], tf.float16)
    variables = [tf.Variable(5e4 * 2**0.5, trainable=False)]
    if library is keras:
        variables.append(keras.Variable(5e4 * 2**0.5, trainable=False))
    for limit in (5e4 * 2**0.5, *variables):
        layer = layers.GradientClip(norm=limit, dtype="mixed_float16")
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        np.testing.assert_allclose(tape.gradient(y, x, output_gradients=dy).numpy().astype(float), 5e4, rtol=2e-3)


def test_numbers_are_kept_in_the_precision_of_the_layer(library):
    layer = layers_of(library).GradientScale(0.1, dtype="float64")
    _, gradient = value_and_gradient(layer, X.astype(np.float64), DY.astype(np.float64))
    np.testing.assert_array_equal(gradient, 0.1 * DY.astype(np.float64))


def test_assigned_numbers_are_checked(library):
    layers = layers_of(library)
    with pytest.raises(TypeError, match=r"^layers\.GradientReversal: factor must be a real number, .* got True\."):
        layers.GradientReversal().factor = True
    with pytest.raises(
        ValueError, match=r"^layers\.GradientClip: norm must be a number that is at least 0, got -1\.0\."
    ):
        layers.GradientClip(norm=1.0).limit = -1.0


def test_trainable_variables_are_refused(library):
    with pytest.raises(ValueError) as error:  # noqa: PT011 It is compared in full.
        layers_of(library).GradientReversal(tf.Variable(1.0))
    assert str(error.value) == (
        "layers.GradientReversal: factor must be a number or a Variable that is not trainable, got a trainable one, which "
        "would have no gradient. Make it with trainable=False."
    )
