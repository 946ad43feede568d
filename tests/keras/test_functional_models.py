"""Every public function on KerasTensors, the symbolic inputs of functional models."""

import collections
import inspect
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg
from tf_cg_ops._src.keras import registration

from ..support.keras_models import (
    DY,
    UNITS,
    X,
    assert_equal,
    cube_root_like,
    deep_model,
    derive_each,
    layers_of,
    policy,
    recomputed,
    register,
    residual,
    rounded,
    saved_and_loaded,
    softened,
    stepped,
    tripled,
    two_values,
    value_and_gradients,
    with_tangent,
)
from ..support.mode_table import fills
from ..support.modes import RUNS

# What the deep model holds.
IN_THE_DEEP_MODEL = [
    "embed_gradient",
    "custom_gradient",
    "custom_vjp",
    "custom_jvp",
    "reverse_gradient",
    "straight_through",
]
FEATURES = [UNITS[:4], UNITS[4:]]


def sum_of(x):
    return keras.ops.sum(x, -1) if isinstance(x, keras.KerasTensor) else tf.reduce_sum(x, -1)


def add_up(values):
    b = values["b"][0]
    return values["a"] + (keras.ops.expand_dims(b, -1) if isinstance(b, keras.KerasTensor) else tf.expand_dims(b, -1))


# For an input of [batch, 3]; the value has its shape, or [batch] with an axis.
CALLS = {
    "embed_gradient": lambda x: cg.embed_gradient(x, 5.0, x),
    "embed_gradient, axis": lambda x: cg.embed_gradient(sum_of(x), x * x, x, axis=-1),
    "embed_gradient, lists": lambda x: cg.embed_gradient(fx=x, gx=[x, np.float32(7.0)], x=[x * 2.0, x]),
    "compat.bayesflow": lambda x: cg.compat.bayesflow.custom_gradient(sum_of(x), sum_of(x), x, axis=[1]),
    "compat.tfp_math": lambda x: cg.compat.tfp_math.custom_gradient(x, [x, x], [x, x * x]),
    "custom_gradient": lambda x: tripled(x, options={"factor": 2.0, "bias": x}),
    "custom_gradient, keywords": lambda x: tripled(options={"bias": np.ones(3, "f"), "factor": x}, x=x),
    "custom_gradient, structures": lambda x: add_up(two_values(x)),
    "custom_vjp": residual,
    "custom_jvp": with_tangent,
    "recompute_grad": recomputed,
    "grad_pass_through": rounded,
    "straight_through": stepped,
    "numpy_function": softened,
    "implicit_root": cube_root_like,
    "reverse_gradient": lambda x: cg.reverse_gradient(x, 0.5),
    "reverse_gradient by a schedule": lambda x: cg.reverse_gradient(x, factor=x),
    "scale_gradient": lambda x: cg.scale_gradient(x, 0.5),
    "watch_gradient": lambda x: cg.watch_gradient(x, "x", check_numerics=True),
    "fake_quant": lambda x: cg.fake_quant(x, tf.constant([0.5, 0.25, 2.0]), bits=4, axis=-1),
    "clip_gradient": lambda x: cg.clip_gradient({"x": [x]}, norm=1.5)["x"][0],
}


def model_of(library, call, size=3, **options):
    x = library.Input([size], **options)
    return library.Model(x, call(x))


@pytest.mark.core
@fills("functional", *CALLS)
@fills("keras_files", *CALLS)
def test_a_functional_model_has_value_and_gradient_of_the_functions(library, tmp_path):
    """Also when it is traced, saved and loaded, or cloned."""
    model = model_of(library, lambda x: [call(x) for call in CALLS.values()])
    expected = derive_each(lambda x: [call(x) for call in CALLS.values()], UNITS)
    loaded = saved_and_loaded(library, model, tmp_path)
    for output, (value, _) in zip(model.outputs, expected, strict=True):
        assert (tuple(output.shape), output.dtype) == ((None, *value.shape[1:]), "float32")
    for each in (model, loaded, library.models.clone_model(model)):
        for name, found, wanted in zip(CALLS, derive_each(each, UNITS), expected, strict=True):
            assert_equal(found, wanted, 0, 0, err_msg=name)
    for name, found, wanted in zip(CALLS, derive_each(tf.function(loaded), UNITS), expected, strict=True):
        assert_equal(found, wanted, 1e-5, 1e-6, err_msg=name)


@pytest.mark.core
@fills("keras_jit", *IN_THE_DEEP_MODEL)
def test_fitting_under_xla_is_gradient_descent_and_says_nothing(caplog, capfd):
    model, target = deep_model(keras), np.sign(UNITS[2:6])
    start, dy = model.get_weights(), 2 * (model(FEATURES) - target) / target.size
    _, _, _, *gradients = value_and_gradients(model, FEATURES, dy=dy)
    with caplog.at_level(logging.INFO, "absl"), caplog.at_level(logging.WARNING, "tensorflow"):
        model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=True)
        model.fit(FEATURES, target, shuffle=False, verbose=0)
    # TensorFlow counts the traces of all models in a process together.
    assert not [record for record in caplog.records if "triggered tf.function retracing" not in record.getMessage()]
    assert "jit" not in capfd.readouterr().err.lower()
    for before, after, gradient in zip(start, model.get_weights(), gradients, strict=True):
        np.testing.assert_allclose(before - after, gradient, rtol=1e-4, atol=1e-6 * np.abs(after).max())


@pytest.mark.core
@fills("mixed_precision", *IN_THE_DEEP_MODEL)
@pytest.mark.parametrize(
    ("library", "name"), [(keras, "mixed_float16"), (keras, "mixed_bfloat16"), (tf_keras, "mixed_float16")]
)
def test_mixed_precision_and_loss_scaling(library, name):
    with policy(library, name):
        model = deep_model(library)
        # Unlike a layer, a function casts nothing.
        assert model_of(library, cg.reverse_gradient)(UNITS).dtype == tf.float32
    assert model.output.dtype == name.removeprefix("mixed_")
    assert all(weight.dtype == "float32" for weight in model.trainable_weights)
    optimizer = library.optimizers.SGD(0.001)
    if name == "mixed_float16":
        optimizer = library.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=8.0)
    model.compile(optimizer, "mse")
    start = [w.copy() for w in model.get_weights()]
    model.fit(FEATURES, np.sign(UNITS[2:6]), verbose=0)
    for w, s in zip(model.get_weights(), start, strict=True):
        assert np.isfinite(w).all()
        assert np.any(w != s)


@register
@cg.custom_gradient
def doubled_inside(x):
    """Changes the values of a ragged or sparse tensor, with five times their upstream as the gradient."""
    if isinstance(x, tf.RaggedTensor):
        return x.with_values(2.0 * x.values), lambda dy: dy.with_values(5.0 * dy.values)
    value = tf.SparseTensor(x.indices, 2.0 * x.values, x.dense_shape)
    return value, lambda dy: tf.SparseTensor(dy.indices, 5.0 * dy.values, dy.dense_shape)


WITH_VALUES = {
    "ragged": lambda values: tf.RaggedTensor.from_row_lengths(values, [2, 1]),
    "sparse": lambda values: tf.SparseTensor([[0, 0], [0, 2], [1, 1]], values, [2, 3]),
}


@pytest.mark.parametrize(("library", "kind"), [(keras, "ragged"), (keras, "sparse"), (tf_keras, "ragged")])
def test_ragged_and_sparse_inputs(library, kind, tmp_path):
    model = model_of(library, doubled_inside, None if kind == "ragged" else 3, **{kind: True})
    assert library is tf_keras or getattr(model.output, kind)
    dy = np.array([1.0, 10.0, -3.0], np.float32)
    for each in (model, saved_and_loaded(library, model, tmp_path)):
        found = value_and_gradients(lambda v, each=each: each(WITH_VALUES[kind](v)).values, X[0], dy=dy)
        assert_equal(found, [2 * X[0], 5 * dy], 0, 0)


def test_a_model_in_a_model_on_another_shape(library):
    x = library.Input([None, 2])
    inner = library.Model(x, cg.reverse_gradient(2.0 * x, 0.5))
    outer = library.Model(y := library.Input([5, 2]), inner(y))
    steps = np.ones([1, 5, 2], np.float32)
    assert tuple(outer.output.shape) == (None, 5, 2)
    np.testing.assert_allclose(outer(steps), 2 * steps)
    around = library.layers.TimeDistributed(model_of(library, lambda z: cg.scale_gradient(2.0 * z, 0.5), 2))
    np.testing.assert_allclose(library.Model(y, around(y))(steps), 2 * steps)


def test_a_function_without_a_name_can_be_registered_under_one(tmp_path):
    function = cg.custom_gradient(lambda x: (2.0 * x, lambda dy: 3.0 * dy))
    keras.saving.register_keras_serializable("0", "tripled")(function)  # Sorts before "<".
    loaded = saved_and_loaded(keras, model_of(keras, function), tmp_path)
    assert_equal(value_and_gradients(loaded), value_and_gradients(function), 0, 0)


@cg.custom_gradient
def unregistered(x):
    return 2.0 * x, lambda dy: 3.0 * dy


def test_a_function_that_is_not_registered_is_found_among_the_custom_objects(library, tmp_path):
    model_of(library, unregistered).save(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras", custom_objects={"unregistered": unregistered})
    assert_equal(value_and_gradients(loaded), value_and_gradients(unregistered), 0, 0)


# Arguments beside KerasTensors

Pair = collections.namedtuple("Pair", ["a", "b"])


@register
@cg.custom_gradient
def weighted(x, options):
    """The sum of x and of two Tensors in `options`, with gradients that are wrong on purpose."""
    a, b = tf.nest.flatten(options)
    return x + a + b, lambda dy: (100.0 * dy, 10.0 * dy, 10.0 * dy)


def test_gradients_of_what_is_in_containers(library):
    class Holder(library.Model):
        def __init__(self, parts):
            super().__init__()
            self.parts = parts

    for contain in (
        lambda x: [x, x],
        lambda x: (x, (x,)),
        lambda x: {"a": x, "b": [x]},
        lambda x: Pair(x, x),
        lambda x: collections.OrderedDict(b=x, a=x),
        lambda x: collections.defaultdict(list, a=x, b=x),
        lambda x: Holder([x, x]).parts,  # Keras turns it into a list of its own.
    ):
        model = model_of(library, lambda x, contain=contain: weighted(x, contain(x)))
        assert_equal(value_and_gradients(model, dy=DY), [3 * X, 120 * DY])


@register
@cg.custom_gradient
def described(x, *others):
    """The kinds and values of its arguments, as a hash."""
    leaves = [(type(other).__name__.replace("ResourceVariable", "EagerTensor"), other) for other in others]
    text = repr([(kind, np.asarray(other).tolist() if tf.is_tensor(other) else other) for kind, other in leaves])
    return x + float(sum(map(ord, text))), lambda dy: [dy] * len(tf.nest.flatten([x, *others]))


OTHERS = [
    *(None, 1, 1.5, "text", (1, 2), [1, (2,)], {"a": None}, tf.float32, 1 + 2j),
    *(np.arange(3), np.array([1.0, 2.0], np.float32), np.zeros([0, 2])),
    *(tf.constant([1.0, 2.0]), tf.constant(2), tf.constant([1.5], tf.bfloat16), tf.constant([1.5], tf.float16)),
]


def test_other_arguments_come_back_as_what_they_were(library, tmp_path):
    model = model_of(library, lambda x: described(x, *OTHERS))
    np.testing.assert_array_equal(saved_and_loaded(library, model, tmp_path)(X), model(X))


def test_a_clone_shares_a_variable_and_a_file_holds_its_value(library, tmp_path):
    factor = tf.Variable(0.5, trainable=False)
    model = model_of(library, lambda x: cg.reverse_gradient(x, factor))
    clone, loaded = library.models.clone_model(model), saved_and_loaded(library, model, tmp_path)
    factor.assign(3.0)
    for each, expected in ((model, 3.0), (clone, 3.0), (loaded, 0.5)):
        assert_equal(value_and_gradients(each, dy=DY), [X, -expected * DY])


@register
@cg.custom_gradient
def log1pexp(x):
    """Written for keras.ops.custom_gradient, whose gradient functions have these arguments."""
    e = keras.ops.exp(x)

    def grad(*args, upstream=None):
        [upstream] = args if upstream is None else [upstream]
        return keras.ops.multiply(upstream, 1.0 - 1.0 / keras.ops.add(1.0, e))

    return keras.ops.log(1.0 + e), grad


def test_a_function_of_keras_ops_has_its_gradient():
    x = np.array([[0.0, 1.0, 80.0]], np.float32)
    for run in (log1pexp, RUNS["jit"](log1pexp), model_of(keras, log1pexp)):
        assert_equal(value_and_gradients(run, x, dy=DY[:1]), [np.logaddexp(0, x), DY[:1] / (1 + np.exp(-x))])


# Functions of TensorFlow and Keras can be loaded again, or saving them is an error.

SAVED = {
    "surrogate": lambda: cg.straight_through(tf.sign, "hard_tanh", slope=0.5),
    "grad_pass_through": lambda: cg.grad_pass_through(tf.floor),
    "nn": lambda: cg.straight_through(tf.nn.relu6),
    "Keras": lambda: cg.straight_through(keras.ops.sign, "sigmoid"),
}


@register
@cg.recompute_grad(memory=1.0)
def within_a_memory(x):
    return tf.sin(tf.tanh(x))


SAVED["a registered function"] = lambda: within_a_memory


def assert_come_back(library, functions, folder):
    """The values and gradients of a model with layers or functions side by side, in a file and in a clone."""
    x = library.Input((3,))
    model = library.Model(x, [function(x) for function in functions])
    expected = derive_each(model, dy=DY)
    for again in (saved_and_loaded(library, model, folder), library.models.clone_model(model)):
        for found, wanted in zip(derive_each(again, dy=DY), expected, strict=True):
            assert_equal(found, wanted, 0, 0)
    return expected


def test_decorated_functions_of_tensorflow_come_back_from_a_file_and_in_a_clone(library, tmp_path):
    functions = [make() for make in SAVED.values()]
    found = assert_come_back(library, [*functions, *map(library.layers.Activation, functions)], tmp_path)
    for each, function in zip(found, 2 * functions, strict=True):
        assert_equal(each, value_and_gradients(function, dy=DY))


def test_a_derivative_without_a_name_is_refused_when_it_is_saved():
    activation = keras.layers.Activation(cg.straight_through(tf.sign, lambda x: tf.ones_like(x)))
    with pytest.raises(
        ValueError, match=r"^straight_through: Keras could not find this decorated tf\.sign again to load"
    ):
        activation.get_config()


def tanh_slope(x):
    return 1 - np.tanh(x) ** 2


# The arguments of the layer, and its derivative. None: the test only asks that the gradient changes.
ARGUMENTS = {
    "tf.math": ([tf.math.rint], {}, np.ones_like),
    "decorated": ([cg.straight_through(tf.floor, "sigmoid")], {}, np.ones_like),
    "tanh": (["sign", keras.activations.tanh], {}, tanh_slope),
    "the gelu of tf_keras": (["sign", tf_keras.activations.gelu], {}, None),
    "tanh of TensorFlow": (["sign"], {"surrogate": tf.tanh}, tanh_slope),
    "a derivative of Keras": ([keras.ops.sign], {"derivative": keras.ops.tanh}, np.tanh),
}


def test_the_layer_finds_its_functions_again(library, tmp_path):
    make = layers_of(library).StraightThrough
    layers = [make(*arguments, **options) for arguments, options, _ in ARGUMENTS.values()]
    for name, (_, gradient) in zip(ARGUMENTS, assert_come_back(library, layers, tmp_path), strict=True):
        derivative = ARGUMENTS[name][2]
        if derivative is None:
            assert np.all(gradient != DY)
        else:
            np.testing.assert_allclose(gradient, DY * derivative(X), rtol=1e-5, err_msg=name)


def test_every_operation_of_keras_has_a_public_name():
    """Otherwise it could be saved but not loaded."""
    for module in (keras.ops, keras.activations, tf_keras.activations):
        for name, function in vars(module).items():
            if inspect.isfunction(function) and not name.startswith("_"):
                config = registration.function_config(function)
                assert registration.function_from_config(config) is function
