"""Recompute has the values, gradients, state, masks and losses of the layer inside; RematScope and keras.remat, too."""

import contextlib
import copy
import functools
import gc
import json
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg
from tf_cg_ops._src.keras import keras_internal
from tf_cg_ops._src.memory import recompute_grad

from ..support.keras_models import (
    TARGET,
    UNITS,
    assert_equal,
    derive,
    fitted,
    layers_of,
    network,
    policy,
    register,
    saved_and_loaded,
    value_and_gradients,
    variables_of,
)
from ..support.modes import RUNS
from ..support.observed import new_objects_alone, num_eager_tensors

STEPS = np.random.default_rng(1).normal(size=[2, 5, 3]).astype(np.float32)


def plain(layer):
    return layer


def with_and_without(library, result):
    """What `result` finds with Recompute as the wrapper of layers, and without; from the same seed."""
    found = []
    for wrap in (layers_of(library).Recompute, plain):
        library.utils.set_random_seed(3)
        found.append(result(wrap))
    return found


# Layers


def nested(library):
    class Block(library.layers.Layer):
        """Builds its layers in the first call."""

        def __init__(self):
            super().__init__()
            self.first, self.second = library.layers.Dense(3), library.layers.Dense(2)

        def call(self, x):
            return self.second(self.first(x))

    return Block()


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float64"])
def test_the_dtype_is_that_of_the_layer(dtype, library):
    with policy(library, dtype):
        layer = library.layers.Dense(2, activation="tanh")
        recomputed = layers_of(library).Recompute(layer)
        x = np.full([1, 3], 1 / 3, np.float64 if dtype == "float64" else np.float32)  # Not a float32.
        found, expected = value_and_gradients(recomputed, x), value_and_gradients(layer, x)
        assert_equal(found, expected, *([1e-15, 0] if dtype == "float64" else [1e-2, 1e-2]))
        symbolic = recomputed(library.Input([3], dtype=x.dtype))
    assert found[0].dtype == tf.as_dtype(symbolic.dtype) == tf.as_dtype(dtype.removeprefix("mixed_"))


# For each name the layer and a call of it.
ARGUMENTS = {
    "by name": (lambda k: k.layers.MultiHeadAttention(1, 2), lambda layer, x: layer(x, value=x[:, :3])),
    "a state": (
        lambda k: k.layers.GRU(4, return_state=True, return_sequences=True),
        lambda layer, x: sum(map(tf.reduce_sum, layer(x, initial_state=x[:, 0, :1] * tf.ones([1, 4])))),
    ),
    "layers inside": (nested, lambda layer, x: layer(x)),
}


@pytest.mark.parametrize(
    ("library", "name"), [*((keras, name) for name in ARGUMENTS), (tf_keras, "by name"), (tf_keras, "layers inside")]
)
def test_arguments_and_outputs(library, name):
    make, call = ARGUMENTS[name]

    def found(wrap):
        layer = wrap(make(library))
        return value_and_gradients(functools.partial(call, layer), STEPS)

    assert_equal(*with_and_without(library, found))


def test_a_state_as_an_input_of_a_model(library):
    layer = layers_of(library).Recompute(gru := library.layers.GRU(4, return_state=True))
    x, initial = library.Input([5, 3]), library.Input([4])
    model = library.Model([x, initial], layer(x, initial_state=initial))
    steps, state = tf.constant(STEPS), tf.ones([2, 4])
    np.testing.assert_allclose(model([steps, state])[0], gru(steps, initial_state=state)[0], rtol=1e-5, atol=1e-6)


def test_a_layer_in_a_function_and_without_a_call_is_built(library):
    layer = layers_of(library).Recompute(nested(library))
    tf.function(layer)(tf.constant(UNITS))
    assert [tuple(w.shape) for w in layer.weights] == [(3, 3), (3,), (3, 2), (2,)]
    layer = layers_of(library).Recompute(library.layers.Dense(2))
    assert tuple(layer.compute_output_shape((None, 3))) == (None, 2)
    layer.build((None, 3))
    assert len(layer.weights) == 2
    steps = library.layers.TimeDistributed(layers_of(library).Recompute(library.layers.Dense(7)))
    assert tuple(steps(library.Input([5, 3])).shape) == (None, 5, 7)


class Pair(keras.layers.Layer):
    """Keras 3 builds it with the shapes of two arguments, one of them nested."""

    def build(self, first_shape, others_shape=None, last_shape=None):
        self.shapes = first_shape, others_shape, last_shape
        self.kernel = self.add_weight(shape=(first_shape[-1], others_shape["a"][-1]), initializer="ones")

    def call(self, first, others, scale=2.0, last=None):
        return scale * tf.matmul(first, self.kernel) + others["a"]


def test_a_layer_is_built_with_the_shapes_of_its_arguments():
    wrapper, alone = cg.layers.Recompute(Pair()), Pair()
    arguments = tf.ones([2, 3]), {"a": tf.ones([2, 4]), "b": [np.ones(5, np.float32)]}
    for layer in (wrapper, alone):
        np.testing.assert_array_equal(layer(*arguments, scale=3.0), np.full([2, 4], 10.0))
    assert wrapper.layer.shapes == alone.shapes == ((2, 3), {"a": (2, 4), "b": [(5,)]}, None)


def test_weights_and_losses_of_shared_and_nested_wrappers_are_listed_once(library):
    dense = library.layers.Dense(3, activity_regularizer="l2")
    Recompute = layers_of(library).Recompute
    twice, second = Recompute(Recompute(dense)), Recompute(dense)
    expected = value_and_gradients(dense, UNITS)
    for each in (twice, second):
        assert_equal(value_and_gradients(each, UNITS), expected)
    assert len(twice.losses) == 1
    model = library.Sequential([twice, second])
    losses = [float(tf.reduce_sum(dense(h) ** 2)) * 0.01 / len(UNITS) for h in (UNITS, dense(UNITS))]
    model(UNITS)
    assert len(model.weights) == 2
    np.testing.assert_allclose(model.losses, losses, rtol=1e-5)  # Two calls have two losses.


def test_eager_mode_builds_once_for_each_graph(builds):
    with policy(keras, "mixed_bfloat16"):
        dropout, normalization = keras.layers.Dropout(0.3, seed=1), keras.layers.BatchNormalization()
        layer = cg.layers.Recompute(keras.Sequential([keras.layers.Dense(2), dropout, normalization]))
        counts = []
        for x, training in ((UNITS, True), (UNITS, True), (UNITS, False), (UNITS[:4], True), (UNITS, True)):
            value_and_gradients(layer, x, training=training)
            counts.append(len(builds))
        layer(UNITS, training=True)  # Without a tape.
    assert counts == [1, 1, 2, 3, 3]
    assert len(builds) == 3


@new_objects_alone()
def test_a_layer_and_its_traces_are_freed(library):
    layer = layers_of(library).Recompute(library.layers.Dense(2))
    value_and_gradients(layer, UNITS)
    references = weakref.ref(layer), weakref.ref(layer.layer)
    del layer
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_intermediate_values_are_not_kept():
    """Between the passes the tape holds only the input, the value and the weights."""
    layer = cg.layers.Recompute(keras.Sequential([keras.layers.Dense(3, "sigmoid") for _ in range(8)]))
    x = tf.ones([1237, 3])
    layer(x)
    with new_objects_alone(), tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        assert num_eager_tensors([1237, 3]) <= 2
    assert tape.gradient(y, x) is not None


# Layers that keep a state between calls

STATEFUL = {
    "lstm": lambda k: k.layers.LSTM(4, stateful=True),
    "bidirectional": lambda k: k.layers.Bidirectional(k.layers.LSTM(4, stateful=True)),
    "model": lambda k: k.Sequential([k.layers.Dense(3), k.layers.LSTM(4, stateful=True)]),
}


def reset(layer):
    (layer.layers[-1] if isinstance(layer, keras.Sequential) else layer).reset_states()


@pytest.mark.parametrize(
    ("library", "name", "mode"), [(keras, "lstm", "traced"), (keras, "model", "eager"), (tf_keras, "model", "traced")]
)
def test_a_stateful_layer_goes_on_where_the_last_call_ended(library, name, mode):
    def calls(wrap):
        layer = wrap(STATEFUL[name](library))
        layer(STEPS)  # Builds it.
        run = RUNS[mode](lambda: derive(layer, STEPS))
        first, second = run(), run()
        assert np.abs(second[0] - first[0]).max() > 1e-3
        return [*first, *second, *layer.get_weights()]

    assert_equal(*with_and_without(library, calls))


@pytest.mark.parametrize(("library", "name"), [(keras, "model"), (keras, "bidirectional"), (tf_keras, "lstm")])
def test_a_stateful_layer_is_built_in_a_model_saved_and_reset(library, name, tmp_path):
    """https://github.com/keras-team/tf-keras: `Model.reset_states` asks each layer for `stateful` and `reset_states`.

    tf_keras cannot load a Sequential with a stateful layer in any wrapper: it misses the batch size.
    """
    layer = layers_of(library).Recompute(STATEFUL[name](library))
    x = library.Input(batch_shape=STEPS.shape)
    model = library.Model(x, layer(x))
    found = []
    for each in (model, saved_and_loaded(library, model, tmp_path)):
        for _ in range(2):
            each.reset_states() if library is tf_keras else reset(each.layers[1].layer)
            found.append(each(STEPS))
        assert np.abs(each(STEPS) - found[-1]).max() > 1e-3
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], rtol=1e-5, atol=1e-6)


def test_the_wrapper_has_what_resets_a_layer_if_the_layer_has_it(library):
    layers = library.layers
    for layer in (layers.Dense(2), layers.Normalization(), layers.LSTM(2), layers.LSTM(2, stateful=True)):
        wrapper = layers_of(library).Recompute(layer)
        for name in ("stateful", "reset_state", "reset_states"):
            assert getattr(wrapper, name, "none") == getattr(layer, name, "none")


# Models


def test_the_plan_is_the_one_for_training():
    layers = keras.layers
    model = keras.Sequential([layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dense(2)])
    layer, spec = cg.layers.Recompute(model, memory="auto"), tf.TensorSpec([4096, 3])
    plan = layer.plan(spec)
    assert plan == cg.recompute_grad(model, memory="auto").plan(spec, training=True)
    assert plan.plain_bytes > layer.plan(spec, training=False).plain_bytes > 0


def test_a_plan_leaves_no_losses_and_changes_no_state(library):
    def symbolic_losses():  # A functional model of tf_keras has some.
        return [id(loss) for loss in layer.losses if not hasattr(loss, "numpy")]

    layer = layers_of(library).Recompute(network(library, plain), memory="auto")
    expected = symbolic_losses(), layer.get_weights()
    layer(UNITS)
    layer.plan(UNITS)
    assert symbolic_losses() == expected[0]
    assert_equal(layer.get_weights(), expected[1])


def test_the_error_of_a_property_stays(library):
    with pytest.raises(AttributeError, match=r"never been called|not connected"):
        layers_of(library).Recompute(library.layers.Dense(2)).input  # noqa: B018


@register
def products(op):
    return op.type == "MatMul"


def test_models_are_loaded_with_the_same_configuration_cloned_and_copied(library, tmp_path):
    model = network(library, lambda layer: layers_of(library).Recompute(layer, keep=products))
    loaded, clone = saved_and_loaded(library, model, tmp_path), library.models.clone_model(model)
    configs = [[(type(layer), json.dumps(layer.get_config())) for layer in each.layers] for each in (loaded, model)]
    assert configs[0] == configs[1]
    expected = value_and_gradients(model, UNITS)
    clone.set_weights(model.get_weights())
    copied = copy.deepcopy(model)
    copied.set_weights([np.zeros_like(weight) for weight in copied.get_weights()])
    for each in (loaded, clone, model):
        assert_equal(value_and_gradients(each, UNITS), expected)


# Only Keras 3 has these.


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method:UserWarning")
@pytest.mark.filterwarnings("ignore:.model.quantize.+ 1 layer.s. were skipped:UserWarning")  # Keras 3.16: the wrapper.
def test_quantized_layers():
    x = np.ones([4, 4], np.float32)

    def found(wrap):
        model = keras.Sequential([keras.Input([4]), wrap(keras.layers.Dense(4)), keras.layers.Dense(1)])
        value_and_gradients(model, x)  # Traced before.
        model.quantize("float8")
        return [model(x).numpy(), *fitted(model, x, np.zeros([4, 1]), "graph", epochs=2)]

    assert_equal(*with_and_without(keras, found))


def test_arguments_that_keras_forwards():
    class Scaled(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self._register_call_context_args("scale")

        def call(self, x, scale=None):
            return x if scale is None else scale * x

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()
            self._register_call_context_args("scale")

        def call(self, x):
            return self.scaled(x)

    layer = cg.layers.Recompute(Outer())
    for options, factor in (({"scale": 2.0}, 2), ({"scale": 3.0}, 3), ({}, 1), ({"scale": tf.constant(5.0)}, 5)):
        assert_equal(value_and_gradients(layer, UNITS, dy=UNITS, **options), [factor * UNITS] * 2)


def test_a_stateless_call_changes_no_variables():
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1)]
    layer = cg.layers.Recompute(keras.Sequential(layers))
    x = tf.constant(UNITS)
    layer(x)
    before = layer.get_weights()
    state = [tf.constant(variable.value) for variable in layer.non_trainable_variables]
    _, updated = layer.stateless_call(variables_of(layer), state, x, training=True)
    assert_equal(layer.get_weights(), before)
    assert all(np.any(np.not_equal(new, old)) for new, old in zip(updated, state, strict=True))


@pytest.mark.parametrize("wrap", [cg.layers.Recompute, keras.remat], ids=["Recompute", "remat"])
def test_enable_lora_has_its_effect_from_the_next_call_on(wrap, remat):
    results = []
    for wrapped in (plain, wrap):
        layer = keras.layers.Dense(2, "tanh", kernel_initializer=keras.initializers.Constant(0.3))
        call = wrapped(layer)
        before = value_and_gradients(lambda x: call(x), UNITS)  # noqa: B023
        keras.utils.set_random_seed(1)
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
        results.append([*before, *value_and_gradients(lambda x: call(x), UNITS)])  # noqa: B023
        assert not np.allclose(before[0], call(UNITS))
    assert_equal(*results)


# RematScope and keras.remat of Keras 3 recompute through this library.

core = keras_internal.core_of_tensorflow_backend()
THEIRS = core.remat


@pytest.mark.filterwarnings("ignore:(?s).* recomputation saves less than a tenth")
def test_layers_inside_of_a_recomputed_layer_are_recomputed_with_it(remat, traces):
    with keras.RematScope("full"):
        block = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(3)])
    block(UNITS)
    value_and_gradients(block, UNITS)
    assert len(traces) == 1


def test_a_whole_model_is_planned(remat, monkeypatch):
    plans = []
    planned = recompute_grad.make_plan

    def noted(*args):
        plans.append(planned(*args)[0])
        return planned(*args)

    monkeypatch.setattr(recompute_grad, "make_plan", noted)
    results = []
    for scope in (contextlib.nullcontext(), keras.RematScope("full")):
        keras.utils.set_random_seed(1)
        with scope:
            model = keras.Sequential([keras.Input([3]), *(keras.layers.Dense(3, activation="tanh") for _ in range(8))])
        model.compile("sgd", "mse")
        results.append(model.fit(UNITS, UNITS, epochs=2, verbose=0).history["loss"])
    assert results[0] == pytest.approx(results[1], rel=1e-6)
    assert plans
    assert all(plan.peak_bytes < plan.plain_bytes for plan in plans)
    assert any(segment.is_recomputed for segment in plans[0].segments)


def test_functions_and_layers_that_keras_remat_decorates(remat):
    doubled = keras.remat(lambda x, scale=1.0: tf.sin(x) * scale)
    dense = keras.layers.Dense(2, activity_regularizer="l2")
    recomputed = keras.remat(dense)
    x = tf.constant(UNITS)
    assert_equal(value_and_gradients(lambda x: doubled(x, scale=2.0), x, dy=x)[1:], [2 * UNITS * np.cos(UNITS)])

    def loss(x, call):
        return tf.reduce_sum(call(x) ** 3) + sum(dense.losses)

    expected = value_and_gradients(loss, x, dense)
    for _ in range(3):
        assert_equal(value_and_gradients(loss, x, recomputed), expected)
        assert len(dense.losses) == 1


def test_a_with_statement_restores_what_was_there_before():
    enable, disable, states = cg.layers.enable_remat, cg.layers.disable_remat, []

    def note():
        states.append(core.remat is not THEIRS)

    with enable():
        note()
        with pytest.raises(KeyError), enable():
            raise KeyError
        note()  # The outer one still holds.
    note()
    for switch in (enable, enable, disable, disable):
        switch()
        note()
    enable()
    with enable():
        disable()
        note()
    note()
    disable()
    again = enable()
    for _ in range(2):
        with again:
            note()
        note()
    assert states == [True, True, False, True, True, False, False, False, True, True, False, True, False]


def test_a_replacement_by_other_code_is_not_dropped(monkeypatch):
    cg.layers.enable_remat()
    with monkeypatch.context() as patch:
        patch.setattr(core, "remat", lambda f: f)
        with pytest.raises(RuntimeError) as error:
            cg.layers.disable_remat()
    assert str(error.value).startswith(
        "layers.disable_remat: the recomputation of Keras must be the one that enable_remat set, got "
        f"'{__name__}.test_a_replacement_by_other_code_is_not_dropped.<locals>.<lambda>'"
    )
    cg.layers.disable_remat()
    assert core.remat is THEIRS


def test_a_keras_without_remat(monkeypatch):
    monkeypatch.delattr(core, "remat")
    with pytest.raises(
        RuntimeError, match=r"^layers.enable_remat: Keras must be 3.9 or later, got .* Use layers.Recomp"
    ):
        cg.layers.enable_remat()


def test_keras_alone_fails(monkeypatch):
    """When Keras can do it, this test fails, and enable_remat can go."""
    # A tf.scan that fails, in any test of this process, leaves its device in TensorFlow's outermost scope of variables,
    # which tf.recompute_grad enters.
    monkeypatch.setattr(tf.compat.v1.get_variable_scope(), "_caching_device", None)
    with keras.RematScope("full"):
        model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="supports keywords arguments only when eager"):
        fitted(model, UNITS, TARGET, "graph")
