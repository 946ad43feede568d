"""The layer Recompute has the values, gradients, state, masks and losses of the layer inside, in either Keras."""

import copy
import functools
import gc
import itertools
import json
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.keras_models import (
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
from ..support.observed import num_eager_tensors
from ..support.tensors import pairs

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
    with policy(library, "float32" if dtype == "float64" else dtype):
        layer = library.layers.Dense(2, activation="tanh", **({"dtype": dtype} if dtype == "float64" else {}))
        recomputed = layers_of(library).Recompute(layer)
        x = np.full([1, 3], 1 / 3, np.float64 if dtype == "float64" else np.float32)  # Not a float32.
        found, expected = value_and_gradients(recomputed, x), value_and_gradients(layer, x)
        assert_equal(found, expected, *([1e-15, 0] if dtype == "float64" else [1e-2, 1e-2]))
        symbolic = recomputed(library.Input([3], dtype=x.dtype))
    assert found[0].dtype == tf.as_dtype(symbolic.dtype) == tf.as_dtype(dtype.removeprefix("mixed_"))


def structures(library):
    class Structures(library.layers.Layer):
        """Takes and returns structures."""

        def call(self, inputs, other=None, training=None):
            value = inputs["a"] * tf.sin(inputs["b"][0])
            return {"x": value if other is None else value + other**2, "y": (2.0 * value, None)}

    return Structures()


def with_structures(layer, x):
    value = layer({"a": x, "b": [2.0 * x]}, other=3.0 * x)
    assert (type(value), type(value["y"])) == (dict, tuple)
    return value["x"] + tf.cos(x) * value["y"][0]


# For each name the layer and a call of it.
ARGUMENTS = {
    "by position": (lambda k: k.layers.MultiHeadAttention(2, 4), lambda layer, x: layer(x, x[:, :3])),
    "by name": (lambda k: k.layers.MultiHeadAttention(2, 4), lambda layer, x: layer(x, value=x[:, :3])),
    "a state": (
        lambda k: k.layers.GRU(4, return_state=True, return_sequences=True),
        lambda layer, x: sum(map(tf.reduce_sum, layer(x, initial_state=x[:, 0, :1] * tf.ones([1, 4])))),
    ),
    "structures": (structures, with_structures),
    "layers inside": (nested, lambda layer, x: layer(x)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_and_outputs(name, library):
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
    assert_equal(value_and_gradients(twice, UNITS), expected)
    assert_equal(value_and_gradients(second, UNITS), expected)
    assert len(twice.losses) == 1
    model = library.Sequential([twice, second])
    losses = [float(tf.reduce_sum(dense(h) ** 2)) * 0.01 / len(UNITS) for h in (UNITS, dense(UNITS))]
    model(UNITS)
    assert len(model.weights) == 2
    np.testing.assert_allclose(model.losses, losses, rtol=1e-5)  # Two calls have two losses.


def test_eager_mode_builds_once_for_each_graph(builds, library):
    with policy(library, "mixed_bfloat16"):
        layer = layers_of(library).Recompute(network(library, plain))
        for _ in range(3):
            value_and_gradients(layer, UNITS, training=True)
        assert len(builds) == 1
        value_and_gradients(layer, UNITS, training=False)
        value_and_gradients(layer, UNITS[:4], training=True)
        assert len(builds) == 3
        value_and_gradients(layer, UNITS, training=True)
        layer(UNITS, training=True)  # Without a tape.
        assert len(builds) == 3


def test_a_layer_and_its_traces_are_freed(library):
    layer = layers_of(library).Recompute(library.layers.Dense(2))
    value_and_gradients(layer, UNITS)
    references = weakref.ref(layer), weakref.ref(layer.layer)
    del layer
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_intermediate_values_are_not_kept(library):
    """Between the passes the tape holds only the input, the value and the weights."""

    def kept_by(layer):
        x = tf.ones([1237, 3])
        layer(x)
        before = num_eager_tensors([1237, 3])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        kept = num_eager_tensors([1237, 3]) - before
        tape.gradient(y, x)
        return kept

    layer = library.Sequential([library.layers.Dense(3, activation="sigmoid") for _ in range(8)])
    assert kept_by(layer) >= 8
    assert kept_by(layers_of(library).Recompute(layer)) <= 2


# Layers that keep a state between calls

STATEFUL = {
    "lstm": lambda k: k.layers.LSTM(4, stateful=True),
    "bidirectional": lambda k: k.layers.Bidirectional(k.layers.LSTM(4, stateful=True)),
    "model": lambda k: k.Sequential([k.layers.Dense(3), k.layers.LSTM(4, stateful=True)]),
}
# What resets a layer. A model of Keras 3 has no method for it.
RESETS = {"keras": ("reset_state", "reset_states"), "tf_keras": ("reset_states",)}


def reset(layer):
    (layer.layers[-1] if isinstance(layer, keras.Sequential) else layer).reset_states()


@pytest.mark.parametrize(("name", "mode"), pairs(STATEFUL, RUNS))
def test_a_stateful_layer_goes_on_where_the_last_call_ended(name, mode, library):
    def calls(wrap):
        layer = wrap(STATEFUL[name](library))
        layer(STEPS)  # Builds it.
        reset(layer if wrap is plain else layer.layer)
        run = RUNS[mode](lambda: derive(layer, STEPS))
        found = [[tensor.numpy() for tensor in run()] for _ in range(3)]
        assert np.abs(found[2][0] - found[0][0]).max() > 1e-3
        for method in RESETS[library.__name__] if name != "model" else ():
            assert layer.stateful
            getattr(layer, method)()
            assert_equal(value_and_gradients(layer, STEPS), found[0])
        return [*itertools.chain(*found), *layer.get_weights()]

    assert_equal(*with_and_without(library, calls))


@pytest.mark.parametrize("name", STATEFUL)
def test_a_stateful_layer_is_built_in_a_model_trained_saved_and_reset(name, library, tmp_path):
    """https://github.com/keras-team/tf-keras: `Model.reset_states` asks each layer for `stateful` and `reset_states`."""
    layer = layers_of(library).Recompute(STATEFUL[name](library))
    x = library.Input(batch_shape=STEPS.shape)
    model = library.Model(x, library.layers.Dense(1)(layer(x)))
    fitted(model, STEPS, np.ones([2, *model.output_shape[1:]]), "graph")
    found = []
    # tf_keras cannot load a Sequential with a stateful layer in any wrapper: it misses the batch size.
    loaded = [] if library is tf_keras and name == "model" else [saved_and_loaded(library, model, tmp_path)]
    for each in (model, *loaded):
        for _ in range(2):
            each.reset_states() if library is tf_keras else reset(each.layers[1].layer)
            found.append(value_and_gradients(each, STEPS))
        assert np.abs(value_and_gradients(each, STEPS)[0] - found[-1][0]).max() > 1e-3
    for each in found[1:]:
        assert_equal(each, found[0])


def test_the_wrapper_has_what_resets_a_layer_if_the_layer_has_it(library):
    layers = library.layers
    for layer in (layers.Dense(2), layers.Normalization(), layers.LSTM(2), layers.LSTM(2, stateful=True)):
        wrapper = layers_of(library).Recompute(layer)
        for name in ("stateful", "reset_state", "reset_states"):
            assert getattr(wrapper, name, "none") == getattr(layer, name, "none")


# Models


def test_the_plan_is_the_one_for_training(library):
    layers = library.layers
    model = library.Sequential([layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dense(2)])
    layer, spec = layers_of(library).Recompute(model, memory="auto"), tf.TensorSpec([4096, 3])
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


def test_models_are_saved_loaded_cloned_copied_and_exported(library, tmp_path):
    model = network(library, lambda layer: layers_of(library).Recompute(layer, keep=products))
    expected = value_and_gradients(model, UNITS)
    loaded = saved_and_loaded(library, model, tmp_path)
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in model.layers]
    configs = [[json.dumps(layer.get_config()) for layer in each.layers] for each in (loaded, model)]
    assert configs[0] == configs[1]
    assert_equal(value_and_gradients(loaded, UNITS), expected)
    clone = library.models.clone_model(model)
    model.save_weights(tmp_path / "model.weights.h5")
    clone.load_weights(tmp_path / "model.weights.h5")
    assert_equal(value_and_gradients(clone, UNITS), expected)
    copied = copy.deepcopy(model)
    copied.set_weights([np.zeros_like(weight) for weight in copied.get_weights()])
    assert_equal(value_and_gradients(model, UNITS), expected)


# Only Keras 3 has these.


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method:UserWarning")
@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_quantized_layers(mode):
    x = np.ones([4, 4], np.float32)

    def found(wrap):
        model = keras.Sequential([keras.Input([4]), wrap(keras.layers.Dense(4)), keras.layers.Dense(1)])
        value_and_gradients(model, x)  # Traced before.
        model.quantize(mode)
        trained = fitted(model, x, np.zeros([4, 1]), "graph", epochs=3) if mode == "float8" else []
        return [model(x).numpy(), *trained]

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
    layer = cg.layers.Recompute(
        keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1)])
    )
    x = tf.constant(UNITS)
    layer(x)
    before = layer.get_weights()
    state = [tf.constant(variable.value) for variable in layer.non_trainable_variables]
    _, updated = layer.stateless_call(variables_of(layer), state, x, training=True)
    assert_equal(layer.get_weights(), before)
    assert all(np.any(np.not_equal(new, old)) for new, old in zip(updated, state, strict=True))


def enable_lora(layer):
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))


# For each change of a layer, the layer and what changes it after a call.
CHANGES = {
    "enable_lora": (
        lambda: keras.layers.Dense(2, "tanh", kernel_initializer=keras.initializers.Constant(0.3)),
        enable_lora,
    ),
    "the rate of a Dropout": (
        lambda: keras.layers.Dropout(0.5, seed=1),
        lambda layer: setattr(layer, "rate", 0.25),
    ),
}


@pytest.mark.parametrize("wrap", [cg.layers.Recompute, keras.remat], ids=["Recompute", "remat"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_layer_has_its_effect_from_the_next_call_on(change, wrap, remat):
    make, apply = CHANGES[change]
    training = {"training": True} if "Dropout" in change else {}

    def found(call, layer):
        def run(x):
            return call(x, **training)

        run.trainable_variables = layer.trainable_variables
        return value_and_gradients(run, UNITS)

    results = []
    for wrapped in (plain, wrap):
        layer = make()
        call = wrapped(layer)
        before = found(call, layer)
        keras.utils.set_random_seed(1)
        apply(layer)
        results.append([*before, *found(call, layer)])
        assert not np.allclose(before[0], found(call, layer)[0])
    assert_equal(*results)
