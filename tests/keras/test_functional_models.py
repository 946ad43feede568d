"""Every public function on KerasTensors, the symbolic inputs of functional models."""

import collections
import logging
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.keras_models import (
    DY,
    UNITS,
    X,
    assert_equal,
    cube_root_like,
    deep_model,
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
    "clip_gradient": lambda x: cg.clip_gradient({"x": [x]}, norm=1.5)["x"][0],
}


def model_of(library, call, size=3, **options):
    x = library.Input([size], **options)
    return library.Model(x, call(x))


def assert_same(found, expected):
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.core
@pytest.mark.mode_table(feature="name", mode="functional")
@pytest.mark.mode_table(feature="name", mode="keras_files")
@pytest.mark.parametrize("name", CALLS)
def test_a_functional_model_has_value_and_gradient_of_the_function(name, library, tmp_path):
    """Also when it is traced, saved and loaded, or cloned."""
    model = model_of(library, CALLS[name])
    expected = value_and_gradients(CALLS[name], UNITS)
    assert (tuple(model.output.shape), model.output.dtype) == ((None, *expected[0].shape[1:]), "float32")
    loaded = saved_and_loaded(library, model, tmp_path)
    for each in (model, loaded, library.models.clone_model(model)):
        assert_same(value_and_gradients(each, UNITS), expected)
    assert_equal(value_and_gradients(tf.function(loaded), UNITS), expected, rtol=1e-5, atol=1e-6)


def test_the_summary_names_the_functions(library):
    lines = []
    deep_model(library).summary(line_length=160, print_fn=lambda line, **_: lines.append(line))
    for name in ("embed_gradient", "stepped", "reverse_gradient", "tripled"):
        assert re.search(rf"{name}_\d+ \(FunctionCall\)", "\n".join(lines))


@pytest.mark.core
@fills("keras_jit", *IN_THE_DEEP_MODEL)
@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_fitting_under_xla_is_gradient_descent_and_says_nothing(jit_compile, caplog, capfd):
    model, other = deep_model(keras), deep_model(keras)
    start = model.get_weights()
    other.set_weights(start)
    target = np.sign(UNITS[2:6])
    with caplog.at_level(logging.INFO, "absl"), caplog.at_level(logging.WARNING, "tensorflow"):
        model.compile(keras.optimizers.SGD(0.0003), "mse", jit_compile=jit_compile)
        model.fit(FEATURES, target, epochs=3, batch_size=4, shuffle=False, verbose=0)
    # TensorFlow counts the traces of all models in a process together.
    assert not [record for record in caplog.records if "triggered tf.function retracing" not in record.getMessage()]
    assert "jit" not in capfd.readouterr().err.lower()
    for _ in range(3):  # The same training in NumPy.
        value = other(FEATURES).numpy()
        _, _, _, *gradients = value_and_gradients(other, FEATURES, dy=2 * (value - target) / target.size)
        for variable, gradient in zip(other.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.0003 * gradient)
    for actual, expected, before in zip(model.get_weights(), other.get_weights(), start, strict=True):
        way = np.max(np.abs(expected - before))  # The weights are rounded in each step.
        tolerance = 0.02 * way + 2 * np.finfo(np.float32).eps * np.max(np.abs(before))
        np.testing.assert_allclose(actual - before, expected - before, rtol=0, atol=tolerance)
        assert tolerance < 0.1 * way


@pytest.mark.core
@fills("mixed_precision", *IN_THE_DEEP_MODEL)
@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_and_loss_scaling(name, library):
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
    model.fit(FEATURES, np.sign(UNITS[2:6]), epochs=2, verbose=0)
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


@pytest.mark.parametrize("kind", WITH_VALUES)
def test_ragged_and_sparse_inputs(kind, library, tmp_path):
    model = model_of(library, doubled_inside, None if kind == "ragged" else 3, **{kind: True})
    assert library is tf_keras or getattr(model.output, kind)
    dy = np.array([1.0, 10.0, -3.0], np.float32)
    for each in (model, saved_and_loaded(library, model, tmp_path)):
        found = value_and_gradients(lambda v, each=each: each(WITH_VALUES[kind](v)).values, X[0], dy=dy)
        assert_same(found, [2 * X[0], 5 * dy])


def test_a_model_in_a_model_on_another_shape(library):
    x = library.Input([None, 2])
    inner = library.Model(x, cg.reverse_gradient(2.0 * x, 0.5))
    outer = library.Model(y := library.Input([5, 2]), inner(y))
    steps = np.ones([1, 5, 2], np.float32)
    assert tuple(outer.output.shape) == (None, 5, 2)
    np.testing.assert_allclose(outer(steps), 2 * steps)
    around = library.layers.TimeDistributed(model_of(library, lambda z: cg.scale_gradient(2.0 * z, 0.5), 2))
    np.testing.assert_allclose(library.Model(y, around(y))(steps), 2 * steps)


def test_a_function_without_a_name_can_be_registered_under_one(library, tmp_path):
    function = cg.custom_gradient(lambda x: (2.0 * x, lambda dy: 3.0 * dy))
    library.saving.register_keras_serializable("0", "tripled")(function)  # Sorts before "<".
    loaded = saved_and_loaded(library, model_of(library, function), tmp_path)
    assert_same(value_and_gradients(loaded), value_and_gradients(function))


@cg.custom_gradient
def unregistered(x):
    return 2.0 * x, lambda dy: 3.0 * dy


def test_a_function_that_is_not_registered_is_found_among_the_custom_objects(library, tmp_path):
    with pytest.raises(
        ValueError, match="must be registered with Keras before its model is loaded, got 'unregistered'"
    ):
        saved_and_loaded(library, model_of(library, unregistered), tmp_path)
    loaded = library.models.load_model(tmp_path / "model.keras", custom_objects={"unregistered": unregistered})
    assert_same(value_and_gradients(loaded), value_and_gradients(unregistered))


# Arguments beside KerasTensors

Pair = collections.namedtuple("Pair", ["a", "b"])


@register
@cg.custom_gradient
def weighted(x, options=None, scale=1.0):
    """The sum of the values in `options`, with gradients that are wrong on purpose."""
    parts = tf.nest.flatten(options)
    total = tf.add_n([tf.cast(tf.convert_to_tensor(part), tf.float32) + 0.0 * x for part in parts])

    def grad_fn(dy):
        gradients = [10.0 * dy if isinstance(part, tf.Tensor) and part.shape.rank == 2 else None for part in parts]
        return 100.0 * dy, *gradients, *([None] if scale != 1.0 else [])

    return x + total * scale, grad_fn


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


def test_a_function_of_keras_ops_has_its_gradient(tmp_path):
    x = np.array([[0.0, 1.0, 80.0]], np.float32)
    module = tf.Module()
    module.f = tf.function(log1pexp, input_signature=[tf.TensorSpec([1, 3])])
    tf.saved_model.save(module, tmp_path)
    f = tf.saved_model.load(tmp_path).f
    loop = tf.function(lambda x: tf.while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, f(x)), (0, x))[1])
    for run in [*(run(log1pexp) for run in RUNS.values()), f, loop, model_of(keras, log1pexp)]:
        assert_equal(value_and_gradients(run, x, dy=DY[:1]), [np.logaddexp(0, x), DY[:1] / (1 + np.exp(-x))])
