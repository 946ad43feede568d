"""Every public function on KerasTensors, the symbolic inputs of functional models, of Keras 3 and of tf_keras."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.keras_models import (
    KERASES,
    cube_root_like,
    recomputed,
    register,
    residual,
    rounded,
    softened,
    steep,
    stepped,
    tripled,
    two_values,
    with_tangent,
)
from ..support.mode_table import fills
from ..support.modes import assert_all_close
from ..support.processes import run_python
from ..support.sources import ROOT
from ..support.tensors import pairs

# What the model below holds.
IN_THE_DEEP_MODEL = [
    "embed_gradient",
    "custom_gradient",
    "custom_vjp",
    "custom_jvp",
    "reverse_gradient",
    "straight_through",
]

# Each on an input of [batch, 3], and the shape of the value for one example.
CALLS = {
    "embed_gradient": (lambda x: cg.embed_gradient(x, 5.0, x), [3]),
    "embed_gradient, axis": (lambda x: cg.embed_gradient(sum_of(x), x * x, x, axis=-1), []),
    "embed_gradient, lists": (lambda x: cg.embed_gradient(fx=x, gx=[x, np.float32(7.0)], x=[x * 2.0, x]), [3]),
    "compat.bayesflow": (lambda x: cg.compat.bayesflow.custom_gradient(sum_of(x), sum_of(x), x, axis=[1]), []),
    "compat.tfp_math": (lambda x: cg.compat.tfp_math.custom_gradient(x, [x, x], [x, x * x]), [3]),
    "custom_gradient": (lambda x: tripled(x, options={"factor": 2.0, "bias": x}), [3]),
    "custom_gradient, keywords": (lambda x: tripled(options={"bias": np.ones(3, "f"), "factor": x}, x=x), [3]),
    "custom_gradient, structures": (lambda x: add_up(two_values(x)), [3]),
    "custom_vjp": (residual, [3]),
    "custom_jvp": (with_tangent, [3]),
    "recompute_grad": (recomputed, [3]),
    "grad_pass_through": (rounded, [3]),
    "straight_through": (stepped, [3]),
    "numpy_function": (softened, [3]),
    "implicit_root": (cube_root_like, [3]),
    "reverse_gradient": (lambda x: cg.reverse_gradient(x, 0.5), [3]),
    "reverse_gradient by a schedule": (lambda x: cg.reverse_gradient(x, factor=x), [3]),
    "scale_gradient": (lambda x: cg.scale_gradient(x, 0.5), [3]),
    "watch_gradient": (lambda x: cg.watch_gradient(x, "x", check_numerics=True), [3]),
    "clip_gradient": (lambda x: cg.clip_gradient({"x": [x]}, norm=1.5)["x"][0], [3]),
}


def sum_of(x):
    if isinstance(x, keras.KerasTensor):
        return keras.ops.sum(x, -1)
    return tf.reduce_sum(x, -1)


def add_up(values):
    b = values["b"][0]
    b = keras.ops.expand_dims(b, -1) if isinstance(b, keras.KerasTensor) else tf.expand_dims(b, -1)
    return values["a"] + b


def features(seed=0):
    return np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)


def value_and_gradients(function, x, sources=()):
    """The value, and the gradients by x and the other sources for an upstream that is not uniform."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    upstream = tf.reshape(tf.range(1.0, 1.0 + tf.cast(tf.size(y), tf.float32)), tf.shape(y))
    gradients = tape.gradient(y, [x, *sources], output_gradients=upstream)
    return [tf.convert_to_tensor(t).numpy() for t in (y, *gradients)]


def assert_same(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, e)


def model_of(library, call):
    x = library.Input([3])
    return library.Model(x, call(x))


@pytest.mark.core
@pytest.mark.mode_table(feature="name", mode="functional")
@pytest.mark.mode_table(feature="name", mode="keras_files")
@pytest.mark.parametrize(("name", "library"), pairs(CALLS, KERASES), indirect=["library"])
def test_a_functional_model_has_value_and_gradient_of_the_function(name, library, tmp_path):
    """Also when it is traced, saved and loaded, or cloned."""
    call, shape = CALLS[name]
    model = model_of(library, call)
    assert tuple(model.output.shape) == (None, *shape)
    assert model.output.dtype == "float32"
    expected = value_and_gradients(call, features())
    model.save(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded, library.models.clone_model(model)):
        assert_same(value_and_gradients(each, features()), expected)
    assert_all_close(value_and_gradients(tf.function(loaded), features()), expected, rtol=1e-5, atol=1e-6)


def deep_model(library):
    """Calls between layers, as inputs of layers, with several inputs, and as the activation of a layer."""
    x, y = library.Input([3], name="x"), library.Input([3], name="y")
    y = library.layers.Activation("linear")(y)  # Casts to the compute dtype of the policy.
    h = library.layers.Dense(3, activation=steep)(x)
    h = residual(with_tangent(cg.embed_gradient(h, [h, y], [h, y])))
    h = library.layers.Dense(3)(library.layers.Concatenate()([stepped(h), cg.reverse_gradient(y, 0.5)]))
    return library.Model([x, y], tripled(h, options={"factor": 2.0, "bias": np.ones(3, np.float32)}))


def weight_gradients(model):
    return value_and_gradients(lambda x: model([x, tf.constant(features(1))]), features(), model.trainable_variables)


@pytest.mark.core
def test_models_of_layers_and_calls(library, tmp_path):
    model = deep_model(library)
    expected = weight_gradients(model)
    assert all(np.any(gradient) for gradient in expected)
    model.save(tmp_path / "model.keras")
    assert_same(weight_gradients(library.models.load_model(tmp_path / "model.keras")), expected)
    clone = library.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_same(weight_gradients(clone), expected)


def test_the_older_formats_of_tf_keras(tmp_path):
    model = model_of(tf_keras, lambda x: tf_keras.layers.Dense(2)(CALLS["custom_gradient, structures"][0](x)))
    expected = value_and_gradients(model, features(), model.trainable_variables)
    model.save(tmp_path / "saved_model", save_format="tf")
    with pytest.warns(UserWarning, match="HDF5"):
        model.save(tmp_path / "model.h5")
    for name in ("saved_model", "model.h5"):
        loaded = tf_keras.models.load_model(tmp_path / name)
        assert_same(value_and_gradients(loaded, features(), loaded.trainable_variables), expected)


def test_the_summary_names_the_functions(library):
    lines = []
    deep_model(library).summary(line_length=160, print_fn=lambda line, **_: lines.append(line))
    text = "\n".join(lines)
    for name in ("embed_gradient", "stepped", "reverse_gradient", "tripled"):
        assert re.search(rf"{name}_\d+ \(FunctionCall\)", text)


def test_the_same_function_twice_in_a_model(library, tmp_path):
    model = model_of(library, lambda x: stepped(x) + stepped(2.0 * x))
    model.save(tmp_path / "model.keras")
    expected = value_and_gradients(lambda x: stepped(x) + stepped(2.0 * x), features())
    assert_same(value_and_gradients(library.models.load_model(tmp_path / "model.keras"), features()), expected)


@pytest.mark.core
@fills("keras_jit", *IN_THE_DEEP_MODEL)
def test_fitting_under_xla_is_gradient_descent():
    model, other = deep_model(keras), deep_model(keras)
    other.set_weights(model.get_weights())
    start = model.get_weights()
    model.compile(keras.optimizers.SGD(0.0003), "mse", jit_compile=True)
    inputs, target = [features(), features(1)], np.sign(features(2))
    model.fit(inputs, target, epochs=3, batch_size=4, shuffle=False, verbose=0)
    for _ in range(3):  # The same training in NumPy.
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((other([tf.constant(a) for a in inputs]) - target) ** 2)
        for variable, gradient in zip(
            other.trainable_variables, tape.gradient(loss, other.trainable_variables), strict=True
        ):
            variable.assign_sub(0.0003 * gradient)
    for actual, expected, before in zip(model.get_weights(), other.get_weights(), start, strict=True):
        way = np.max(np.abs(expected - before))  # The weights are rounded in each step.
        tolerance = 0.02 * way + 2 * np.finfo(np.float32).eps * np.max(np.abs(before))
        np.testing.assert_allclose(actual - before, expected - before, rtol=0, atol=tolerance)
        assert tolerance < 0.1 * way


@pytest.mark.core
@fills("mixed_precision", *IN_THE_DEEP_MODEL)
@pytest.mark.parametrize(
    ("policy", "library"), [("mixed_float16", "keras"), ("mixed_bfloat16", "tf_keras")], indirect=["library"]
)
def test_mixed_precision_and_loss_scaling(policy, library):
    mixed_precision = library.mixed_precision
    before = mixed_precision.global_policy() if library is tf_keras else keras.config.dtype_policy()
    mixed_precision.set_global_policy(policy)
    try:
        model = deep_model(library)
        assert model.output.dtype == policy.removeprefix("mixed_")
        # Unlike a layer, a function casts nothing.
        x = library.Input([3])
        assert library.Model(x, cg.reverse_gradient(x))(features()).dtype == tf.float32
        assert all(weight.dtype == "float32" for weight in model.trainable_weights)
        optimizer = library.optimizers.SGD(0.001)
        if policy == "mixed_float16":
            optimizer = mixed_precision.LossScaleOptimizer(optimizer, initial_scale=8.0)
        model.compile(optimizer, "mse")
        start = [w.copy() for w in model.get_weights()]
        model.fit([features(), features(1)], np.sign(features(2)), epochs=2, verbose=0)
        for w, s in zip(model.get_weights(), start, strict=True):
            assert np.isfinite(w).all()
            assert np.any(w != s)
    finally:
        mixed_precision.set_global_policy(before)


FRESH = """
import sys
import numpy as np
import tensorflow as tf
from tests.support import keras_models
from tests.keras.test_functional_models import features, weight_gradients

library = keras_models.KERASES[sys.argv[1]]
keras_models.layers_of(library)
model = library.models.load_model(sys.argv[2])
np.savez(sys.argv[3], *weight_gradients(model))
"""


@pytest.mark.core
@fills("keras_fresh", *IN_THE_DEEP_MODEL)
def test_a_fresh_process_loads_the_model(library, tmp_path):
    model = deep_model(library)
    model.save(tmp_path / "model.keras")
    arguments = (library.__name__, tmp_path / "model.keras", tmp_path / "gradients.npz")
    run_python(FRESH, *arguments, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    with np.load(tmp_path / "gradients.npz") as gradients:
        assert_all_close(gradients.values(), weight_gradients(model), rtol=1e-5, atol=1e-6)


SERVED = """
import sys
import numpy as np
import tensorflow as tf
import tf_cg_ops

loaded = tf.saved_model.load(sys.argv[1])
x, y = (tf.constant(a) for a in np.load(sys.argv[2]).values())
with tf.GradientTape() as tape:
    tape.watch(x)
    value = loaded.serve([x, y])
upstream = tf.reshape(tf.range(1.0, 1.0 + tf.cast(tf.size(value), tf.float32)), tf.shape(value))
np.savez(sys.argv[3], value, tape.gradient(value, x, output_gradients=upstream))
"""


@pytest.mark.core
@fills("keras_export", *IN_THE_DEEP_MODEL)
def test_an_exported_model_has_the_gradients_in_a_fresh_process(tmp_path):
    model = deep_model(keras)
    model.export(tmp_path / "exported", verbose=False)
    np.savez(tmp_path / "inputs.npz", features(), features(1))
    run_python(SERVED, tmp_path / "exported", tmp_path / "inputs.npz", tmp_path / "outputs.npz", cwd=tmp_path)
    with np.load(tmp_path / "outputs.npz") as outputs:
        for actual, expected in zip(outputs.values(), weight_gradients(model), strict=False):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)  # A graph adds up in another order.


@register
@cg.custom_gradient
def doubled_inside(x):
    """Changes the values of a ragged or sparse tensor, with five times their upstream as the gradient."""
    if isinstance(x, tf.RaggedTensor):
        return x.with_values(2.0 * x.values), lambda dy: dy.with_values(5.0 * dy.values)
    value = tf.SparseTensor(x.indices, 2.0 * x.values, x.dense_shape)
    return value, lambda dy: tf.SparseTensor(dy.indices, 5.0 * dy.values, dy.dense_shape)


@pytest.mark.parametrize(
    ("kind", "library"), [("ragged", "keras"), ("ragged", "tf_keras"), ("sparse", "keras")], indirect=["library"]
)
def test_ragged_and_sparse_inputs(kind, library, tmp_path):
    x = library.Input([None if kind == "ragged" else 3], **{kind: True})
    model = library.Model(x, doubled_inside(x))
    assert library is tf_keras or getattr(model.output, kind)
    model.save(tmp_path / "model.keras")
    upstream = [1.0, 10.0, -3.0]
    for each in (model, library.models.load_model(tmp_path / "model.keras")):
        values = tf.constant([1.0, 2.0, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(values)
            if kind == "ragged":
                y = each(tf.RaggedTensor.from_row_lengths(values, [2, 1])).values
            else:
                y = each(tf.SparseTensor([[0, 0], [0, 2], [1, 1]], values, [2, 3])).values
        np.testing.assert_array_equal(y, [2.0, 4.0, 6.0])
        np.testing.assert_array_equal(
            tape.gradient(y, values, output_gradients=tf.constant(upstream)), [5.0, 50.0, -15.0]
        )


def test_errors_are_those_of_the_function(library):
    x = library.Input([3])
    with pytest.raises(ValueError, match=r"^embed_gradient: "):
        cg.embed_gradient(x, np.ones([2], np.float32), x)
    with pytest.raises(TypeError, match=r"^embed_gradient: axis must be None, .* got True"):
        cg.embed_gradient(x, x, x, True)


def test_trainable_variables_in_the_function_are_refused(library):
    weight = tf.Variable(2.0, name="weight")
    fixed = tf.Variable(2.0, name="fixed", trainable=False)

    @cg.custom_gradient
    def closure(x):
        return x * weight * fixed, lambda dy, variables: (dy, [None])

    with pytest.raises(ValueError) as error:  # noqa: PT011 It is compared in full.
        closure(library.Input([3]))
    assert str(error.value) == (
        "custom_gradient: 'closure' must not read trainable variables in a functional model, which would neither train nor "
        "save them, got 'weight:0'. Call it in the call() of a keras.layers.Layer that holds them."
    )


def test_a_result_that_is_no_tensor_is_refused(library):
    def with_name(x):
        return (2.0 * x, "name"), lambda dy, _: dy

    with pytest.raises(TypeError) as error:
        cg.custom_gradient(with_name)(library.Input([3]))
    assert str(error.value) == (
        "custom_gradient: 'with_name' must return only Tensors in a functional model, got a str among them."
    )


def test_a_function_without_a_name_cannot_be_saved(library, tmp_path):
    model = model_of(library, cg.custom_gradient(lambda x: (2.0 * x, lambda dy: dy)))
    with pytest.raises(ValueError) as error:  # noqa: PT011 It is compared in full.
        model.save(tmp_path / "model.keras")
    assert str(error.value) == (
        "tf_cg_ops: Keras saves functions by their names, so they must be made with def, got '<lambda>'. Decorate a named function, and register it with @keras.saving.register_keras_serializable() on top."
    )


def test_a_function_without_a_name_can_be_registered_under_one(library, tmp_path):
    function = cg.custom_gradient(lambda x: (2.0 * x, lambda dy: 3.0 * dy))
    library.saving.register_keras_serializable("0", "tripled")(function)  # Sorts before "<".
    model_of(library, function).save(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras")
    assert_same(value_and_gradients(loaded, features()), value_and_gradients(function, features()))


@cg.custom_gradient
def unregistered(x):
    return 2.0 * x, lambda dy: 3.0 * dy


def test_a_function_that_is_not_registered_is_found_among_the_custom_objects(library, tmp_path):
    model = model_of(library, unregistered)
    model.save(tmp_path / "model.keras")
    with pytest.raises(
        ValueError, match=r"must be registered with Keras before its model is loaded, got 'unregistered'\."
    ):
        library.models.load_model(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras", custom_objects={"unregistered": unregistered})
    assert_same(value_and_gradients(loaded, features()), value_and_gradients(unregistered, features()))


def test_another_backend_of_keras_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError) as error:
        cg.reverse_gradient(keras.Input([3]))
    assert str(error.value) == (
        "reverse_gradient: the backend of Keras must be 'tensorflow', got 'jax'. Set KERAS_BACKEND=tensorflow in the "
        "environment before Keras is imported."
    )
