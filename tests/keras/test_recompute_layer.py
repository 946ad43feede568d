"""The layer Recompute has the values, gradients, state and losses of the layer inside, in either Keras."""

import functools
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.keras_models import MODES, assert_equal, layers_of, train, value_and_gradients, variables_of
from ..support.observed import num_eager_tensors
from ..support.tensors import pairs

X = np.random.default_rng(0).normal(size=[8, 3]).astype(np.float32)
STEPS = np.random.default_rng(1).normal(size=[2, 5, 3]).astype(np.float32)


def functional(library):
    x = library.Input([3])
    h = library.layers.Dense(4, activation="tanh", activity_regularizer="l2")(x)
    return library.Model(x, library.layers.Dense(2)(library.layers.Concatenate()([x, h])))


def block(library):
    layers = library.layers
    dropout = [layers.Dropout(0.3, seed=1)] if library is keras else []
    return library.Sequential([layers.Dense(4, activation="gelu"), layers.BatchNormalization(), *dropout])


def self_attention(library):
    class SelfAttention(library.layers.Layer):
        def __init__(self):
            super().__init__()
            random = {"dropout": 0.3, "seed": 3} if library is keras else {}
            self.attention = library.layers.MultiHeadAttention(2, 4, **random)

        def call(self, x, training=None):
            return self.attention(x, x, training=training)

    return SelfAttention()


def noisy(library):
    noise = [library.layers.GaussianNoise(0.5, seed=1)] if library is keras else []
    return library.Sequential([*noise, library.layers.LayerNormalization()])


def convolution(library):
    """In float64, because a normalization over so few numbers amplifies rounding."""
    layers = [library.layers.Conv1D(4, 3, dtype="float64"), library.layers.BatchNormalization(dtype="float64")]
    return library.Sequential(layers)


def penalized(library):
    class Penalized(library.layers.Dense):
        def call(self, x):
            y = super().call(x)
            self.add_loss(0.1 * tf.reduce_sum(y**2))
            return y

    return Penalized(3)


# For each name the layer and its input.
LAYERS = {
    "dense": (lambda k: k.layers.Dense(4, "swish", kernel_regularizer="l2", activity_regularizer="l1"), X),
    "normalization": (lambda k: k.layers.BatchNormalization(), X),
    "block": (block, X),
    "functional": (functional, X),
    "gru": (lambda k: k.layers.GRU(4, return_sequences=True), STEPS),
    "attention": (self_attention, STEPS),
    "convolution": (convolution, STEPS.astype(np.float64)),
    "lstm": (lambda k: k.layers.LSTM(4), STEPS),
    "noise": (noisy, X),
    "loss in call": (penalized, X),
}


@pytest.mark.parametrize(("name", "mode"), pairs(LAYERS, MODES))
def test_training_is_that_of_the_layer(name, mode, library):
    make, x = LAYERS[name]
    results = []
    for wrap in (lambda layer: layer, layers_of(library).Recompute):
        library.utils.set_random_seed(1)
        results.append(train(wrap(make(library)), x, mode))
    assert_equal(*results)


def test_mixed_precision_is_that_of_the_layer(library):
    library.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        layer = library.layers.Dense(4, activation="tanh")
        recomputed = layers_of(library).Recompute(layer)
        found, expected = value_and_gradients(recomputed, X), value_and_gradients(layer, X)
        assert_equal(found, expected, 1e-2, 1e-2)
        assert found[0].dtype == tf.bfloat16.as_numpy_dtype
        assert tf.as_dtype(recomputed(library.Input([3])).dtype) == tf.as_dtype(found[0].dtype)
    finally:
        library.mixed_precision.set_global_policy("float32")


def test_the_dtype_is_that_of_the_layer(library):
    layer = layers_of(library).Recompute(library.layers.Dense(2, dtype="float64"))
    third = np.array([[1 / 3, 2 / 3]])  # Not a float32.
    layer.layer.build((None, 2))
    layer.set_weights([np.eye(2), np.zeros(2)])
    np.testing.assert_array_equal(layer(third), third)
    assert tf.as_dtype(layer(library.Input([2], dtype="float64")).dtype) == tf.float64


def test_several_arguments_by_position_and_by_name(library):
    attention = library.layers.MultiHeadAttention(2, 4)
    layer = layers_of(library).Recompute(attention)
    memory = tf.constant(STEPS[:, :3])
    found = value_and_gradients(layer, STEPS, memory)
    assert len(layer.weights) == 8
    assert_equal(found, value_and_gradients(attention, STEPS, memory))
    assert_equal(value_and_gradients(layer, STEPS, value=memory), found)
    with tf.GradientTape() as tape:
        tape.watch(memory)
        y = layer(tf.constant(STEPS), value=memory)
    assert np.abs(tape.gradient(y, memory)).min() > 0


def test_a_state_that_is_given_and_returned(library):
    gru = library.layers.GRU(4, return_state=True, return_sequences=True)
    layer = layers_of(library).Recompute(gru)
    state, results = tf.constant(STEPS[:, 0, :1]) * tf.ones([1, 4]), []
    for each in (gru, layer):
        with tf.GradientTape() as tape:
            tape.watch(state)
            outputs = each(tf.constant(STEPS), initial_state=state)
        results.append([*outputs, tape.gradient(outputs[1], state, output_gradients=tf.sin(outputs[1]))])
    assert len(results[1]) == 3
    assert_equal(*([tensor.numpy() for tensor in tensors] for tensors in reversed(results)))
    x, initial = library.Input([5, 3]), library.Input([4])
    model = library.Model([x, initial], layer(x, initial_state=initial))
    np.testing.assert_allclose(model([tf.constant(STEPS), state])[0], results[0][0], rtol=1e-5, atol=1e-6)


def both(library):
    class Both(library.layers.Layer):
        """Takes and returns structures."""

        def call(self, inputs, other=None, training=None):
            value = inputs["a"] * tf.sin(inputs["b"][0])
            return {"x": value if other is None else value + other**2, "y": (2.0 * value, None)}

    return Both()


def test_structures_of_inputs_and_outputs(library):
    layer = both(library)
    recomputed = layers_of(library).Recompute(layer)
    x = tf.constant(X)

    def gradients(layer):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = layer({"a": x, "b": [2.0 * x]}, other=3.0 * x)
            y = value["x"] + tf.cos(x) * value["y"][0]
        return [y.numpy(), tape.gradient(y, x, output_gradients=tf.sin(x)).numpy(), *map(type, (value, value["y"]))]

    found, expected = gradients(recomputed), gradients(layer)
    assert found[2:] == expected[2:]
    assert_equal(found[:2], expected[:2])


def test_layers_build_themselves(library):
    class Block(library.layers.Layer):
        def __init__(self):
            super().__init__()
            self.first, self.second = library.layers.Dense(3), library.layers.Dense(2)

        def call(self, x):
            return self.second(self.first(x))

    for run in (lambda f: f, tf.function):
        layer = layers_of(library).Recompute(Block())
        run(lambda x, layer=layer: layer(x))(tf.constant(X))
        assert [tuple(w.shape) for w in layer.weights] == [(3, 3), (3,), (3, 2), (2,)]
        assert_equal(value_and_gradients(layer, X), value_and_gradients(layer.layer, X))
    layer = layers_of(library).Recompute(library.layers.Dense(2))
    layer.build((None, 3))
    assert len(layer.weights) == 2


def test_weights_and_losses_of_shared_and_nested_wrappers_are_listed_once(library):
    dense = library.layers.Dense(3, activity_regularizer="l2")
    Recompute = layers_of(library).Recompute
    nested, second = Recompute(Recompute(dense)), Recompute(dense)
    expected = value_and_gradients(dense, X)
    assert_equal(value_and_gradients(nested, X), expected)
    assert_equal(value_and_gradients(second, X), expected)
    assert len(nested.losses) == 1
    model = library.Sequential([nested, second])
    model(X)
    assert (len(model.weights), len(model.losses)) == (2, 2)  # Two calls have two losses.
    with tf.GradientTape() as tape:
        model(X)
        loss = sum(model.losses)
    with tf.GradientTape() as plain:
        h = dense(tf.constant(X))
        expected = (tf.reduce_sum(h**2) + tf.reduce_sum(dense(h) ** 2)) * 0.01 / len(X)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    kernel = variables_of(dense)[0]
    np.testing.assert_allclose(tape.gradient(loss, kernel), plain.gradient(expected, kernel), rtol=1e-4)


def test_a_layer_that_is_not_trained_does_not_change(library):
    layer = layers_of(library).Recompute(library.layers.BatchNormalization())
    value_and_gradients(layer, X, training=True)
    mean = np.array(layer.layer.moving_mean)
    assert np.any(mean)
    layer.trainable = False
    value_and_gradients(layer, X, training=True)
    np.testing.assert_array_equal(layer.layer.moving_mean, mean)
    assert (len(layer.trainable_weights), len(layer.non_trainable_weights)) == (0, 4)


@pytest.mark.parametrize(
    ("policy", "library"), [("float32", "tf_keras"), ("mixed_bfloat16", "keras")], indirect=["library"]
)
def test_eager_mode_builds_once_for_each_graph(builds, policy, library):
    library.mixed_precision.set_global_policy(policy)
    try:
        layer = layers_of(library).Recompute(block(library))
        for _ in range(3):
            value_and_gradients(layer, X, training=True)
        assert len(builds) == 1
        value_and_gradients(layer, X, training=False)
        value_and_gradients(layer, X[:4], training=True)
        assert len(builds) == 3
        value_and_gradients(layer, X, training=True)
        layer(X, training=True)  # Without a tape.
        assert len(builds) == 3
    finally:
        library.mixed_precision.set_global_policy("float32")


def test_a_layer_and_its_traces_are_freed(library):
    layer = layers_of(library).Recompute(library.layers.Dense(2))
    value_and_gradients(layer, X)
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


def test_a_value_that_is_no_layer(library):
    package, other = library.__name__, tf_keras if library is keras else keras
    for value, got in [
        (lambda x: x, "the function '<lambda>'"),
        (3, "an int"),
        (other.layers.Dense(1), f"a Dense of {other.__name__}"),
    ]:
        with pytest.raises(TypeError) as error:
            layers_of(library).Recompute(value)
        assert str(error.value) == (
            f"layers.Recompute: layer must be a {package}.layers.Layer or a model of {package}, got {got}. Use "
            "tf_cg_ops.recompute_grad for a function, and the Recompute of the same Keras for a layer."
        )


def test_keep_refuses_other_values_and_missing_names(library):
    Recompute = layers_of(library).Recompute
    with pytest.raises(TypeError, match=r"layers\.Recompute: keep must be a list of names .*, got 5"):
        Recompute(library.layers.Dense(1), keep=5)
    layer = Recompute(library.layers.Dense(1, name="scored"), keep=["scores"])
    with pytest.raises(
        ValueError, match=r"layers\.Recompute: the names in keep must be given .* in 'scored', .* got 'scores'"
    ):
        value_and_gradients(layer, X)


def residual_network(library):
    """Convolutions with batch normalization; Keras 3 has dropout with seeds, too."""
    layers = library.layers
    x = library.Input([8, 8, 3])
    h = layers.Conv2D(4, 3, padding="same")(x)
    for seed in range(3):
        branch = layers.Conv2D(4, 1)(layers.ReLU()(layers.BatchNormalization()(h)))
        h = layers.Add()([h, layers.Dropout(0.3, seed=seed)(branch) if library is keras else branch])
    return library.Model(x, layers.Dense(1)(layers.GlobalAveragePooling2D()(h)))


def test_a_model_within_a_memory_is_trained_as_without(library, tmp_path):
    images = np.random.default_rng(2).normal(size=[40, 8, 8, 3]).astype(np.float32)
    results = []
    for wrap in (lambda model: model, functools.partial(layers_of(library).Recompute, memory=0.9)):
        library.utils.set_random_seed(1)
        x = library.Input([8, 8, 3])
        model = library.Model(x, wrap(residual_network(library))(x))
        model.compile("sgd", "mse", jit_compile=library is keras)
        library.utils.set_random_seed(2)
        history = model.fit(images, images[:, 0, 0, :1], batch_size=8, epochs=2, verbose=0, shuffle=False)
        results.append([*map(np.array, history.history["loss"]), *(w.numpy() for w in model.trainable_weights)])
    assert_equal(*results, rtol=1e-3, atol=1e-4)  # TensorFlow fuses other convolutions.
    model.save(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[-1].get_config()["memory"] == 0.9
    np.testing.assert_array_equal(loaded(images), model(images))


# Only Keras 3 has these.


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method:UserWarning")
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_quantized_layers(mode):
    results = []
    for wrap in (lambda layer: layer, cg.layers.Recompute):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input([4]), wrap(keras.layers.Dense(4)), keras.layers.Dense(1)])
        x = np.ones([4, 4], np.float32)
        with tf.GradientTape() as tape:  # Traced before.
            tape.watch(tf.constant(x))
            model(x)
        model.quantize(mode)
        results.append([model(x).numpy()])
        if mode == "float8":
            model.compile("sgd", "mse")
            history = model.fit(x, np.zeros([4, 1]), epochs=3, verbose=0)
            results[-1] += [*map(np.array, history.history["loss"]), *model.get_weights()]
    assert_equal(*results)


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

        def call(self, x):
            return self.scaled(x)

    outer, x = Outer(), tf.constant(X)
    outer._register_call_context_args("scale")
    layer = cg.layers.Recompute(outer)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        values = [layer(x, scale=2.0), layer(x, scale=3.0), layer(x), layer(x, scale=tf.constant(5.0))]
    assert [float(tape.gradient(y, x)[0, 0]) for y in values] == [2.0, 3.0, 1.0, 5.0]


def test_a_stateless_call_changes_no_variables():
    layer = cg.layers.Recompute(
        keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1)])
    )
    x = tf.constant(X)
    layer(x)
    before = layer.get_weights()
    trainable = [variable.value for variable in layer.trainable_variables]
    state = [tf.constant(variable.value) for variable in layer.non_trainable_variables]
    _, updated = layer.stateless_call(trainable, state, x, training=True)
    assert_equal(layer.get_weights(), before)
    assert all(np.any(np.not_equal(new, old)) for new, old in zip(updated, state, strict=True))


def enable_lora(layer, path):
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))


def load_weights(layer, path):
    other = keras.layers.Normalization()
    other.adapt(7.0 * X + 1.0)
    keras.Sequential([keras.Input([3]), other]).save_weights(path / "other.weights.h5")
    keras.Sequential([keras.Input([3]), layer]).load_weights(path / "other.weights.h5")


# For each change of a layer, the layer and what changes it after a call.
CHANGES = {
    "enable_lora": (
        lambda: keras.layers.Dense(2, "tanh", kernel_initializer=keras.initializers.Constant(0.3)),
        enable_lora,
    ),
    "adapt": (keras.layers.Normalization, lambda layer, path: layer.adapt(5.0 * X + 3.0)),
    "load_weights": (keras.layers.Normalization, load_weights),
    "the rate of a Dropout": (
        lambda: keras.layers.Dropout(0.5, seed=1),
        lambda layer, path: setattr(layer, "rate", 0.25),
    ),
    "the activation": (
        lambda: keras.layers.Dense(2, kernel_initializer="ones"),
        lambda layer, path: setattr(layer, "activation", tf.exp),
    ),
}


@pytest.mark.parametrize("wrap", [cg.layers.Recompute, keras.remat], ids=["Recompute", "remat"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_layer_has_its_effect_from_the_next_call_on(change, wrap, tmp_path, remat):
    make, apply = CHANGES[change]
    results = []
    for wrapped in (lambda layer: layer, wrap):
        layer = make()
        if isinstance(layer, keras.layers.Normalization):
            layer.adapt(X)
        call, x = wrapped(layer), tf.constant(X)
        for changes in (False, True):
            if changes:
                keras.utils.set_random_seed(1)
                apply(layer, tmp_path)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = call(x, training=True) if isinstance(layer, keras.layers.Dropout) else call(x)
            dy = tf.reshape(tf.range(1.0, 1.0 + y.numpy().size), y.shape)
            found = tape.gradient(y, [x, *layer.trainable_variables], output_gradients=dy)
            results.append([tensor.numpy() for tensor in (y, *found)])
    assert not np.allclose(results[0][0], results[1][0])
    assert_equal(results[2] + results[3], results[0] + results[1])
