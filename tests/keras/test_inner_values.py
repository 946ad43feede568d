"""capture must agree with a model that is cut into two, for applications of Keras and for SavedModels of several makers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..saved_model.test_jax import JAX, MODEL

# A layer through which all paths of the model go.
APPLICATIONS = {
    "MobileNetV2": "block_12_add",
    "ResNet50": "conv4_block6_out",
    "ResNet50V2": "conv4_block6_out",
    "VGG16": "block4_pool",
    "MobileNet": "conv_pw_11_relu",
    "EfficientNetB0": "block5c_add",
    "EfficientNetV2B0": "block5e_add",
    "DenseNet121": "pool3_pool",
    "InceptionV3": "mixed7",
    "Xception": "block14_sepconv1_act",
}


@pytest.fixture
def no_optimizer():
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if i else ()) for i, name in enumerate(APPLICATIONS)]
)
def test_an_application_of_keras(name, no_optimizer):
    """To the last bit, without TensorFlow's optimizer of graphs, which changes the order of sums."""
    keras.utils.set_random_seed(0)
    layer = APPLICATIONS[name]
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(75, 75, 3), classes=5, classifier_activation=None
    )
    output = model.get_layer(layer).output
    first, second = keras.Model(model.inputs, output), keras.Model(output, model.outputs[0])
    captured = cg.capture(model, {"value": layer})
    x = tf.random.stateless_uniform([2, 75, 75, 3], [1, 2])
    dy = tf.reshape(tf.cos(tf.range(10.0)), [2, 5])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y, values = captured(x)
        return y, values["value"], tape.gradient(y, values["value"], output_gradients=dy)

    @tf.function
    def by_halves(x):
        value = first(x)
        with tf.GradientTape() as tape:
            tape.watch(value)
            y = second(value)
        return y, value, tape.gradient(y, value, output_gradients=dy)

    for found, expected in zip(step(x), by_halves(x), strict=True):
        np.testing.assert_array_equal(found, expected)


def of_tensorflow_1(folder):
    tf1 = tf.compat.v1
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float64, [None, 3], name="x")
        w = tf1.get_variable("w", initializer=W, use_resource=False)
        with tf1.name_scope("block"):
            hidden = tf.tanh(x @ w)
        y = tf.sin(hidden)
        session.run(tf1.global_variables_initializer())
        builder = tf1.saved_model.builder.SavedModelBuilder(str(folder))
        signature = tf1.saved_model.signature_def_utils.predict_signature_def({"x": x}, {"y": y})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()
    return tf.saved_model.load(folder).signatures["serving_default"], "block"


def of_a_module(folder):
    module = tf.Module()
    module.w = tf.Variable(W)
    module.block = tf.function(lambda x: tf.tanh(x @ module.w))

    def f(x):
        with tf.name_scope("block"):
            hidden = module.block(x)
        return {"y": tf.sin(hidden)}

    module.f = tf.function(f, input_signature=[tf.TensorSpec([None, 3], tf.float64, "x")])
    tf.saved_model.save(module, folder)
    loaded = tf.saved_model.load(folder)
    return lambda x: loaded.f(x), "Tanh"


def of_keras(library, export):
    def save(folder):
        layers = library.layers
        model = library.Sequential(
            [
                layers.Input([3], dtype="float64"),
                layers.Dense(2, activation="tanh", use_bias=False, name="block", dtype="float64"),
                layers.Activation(tf.sin, dtype="float64"),
            ]
        )
        model.set_weights([W])
        export(model, folder)
        loaded = tf.saved_model.load(folder)
        return lambda x: {"y": next(iter(loaded.signatures["serving_default"](x).values()))}, "Tanh"

    return save


W = np.array([[1.0, 2.0], [-0.5, 0.3], [0.2, -1.0]])
X = np.array([[0.1, 0.2, 0.3], [1.0, -1.0, 0.2]])
SAVED = {
    "TensorFlow 1": of_tensorflow_1,
    "a module": of_a_module,
    "Keras": of_keras(keras, lambda model, folder: model.export(folder, verbose=False)),
    "tf_keras": of_keras(tf_keras, lambda model, folder: model.save(folder)),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_model(name, tmp_path):
    f, place = SAVED[name](tmp_path / "model")
    captured = cg.capture(f, {"value": place})
    dy = np.array([[1.0, -2.0], [0.5, 3.0]])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs, values = captured(x)
        return values["value"], *tape.gradient(outputs["y"], [values["value"], x], output_gradients=dy)

    hidden = np.tanh(X @ W)
    expected = hidden, dy * np.cos(hidden), (dy * np.cos(hidden) * (1 - hidden**2)) @ W.T
    for found, number in zip(step(tf.constant(X)), expected, strict=True):
        np.testing.assert_allclose(found, number, rtol=1e-10)


def test_a_model_of_jax():
    """The value that leaves the loop has the gradient of the identity that follows it."""
    model = tf.saved_model.load(MODEL)
    captured = cg.capture(model.f, ["jax2tf_arg_0"])
    x, dy = tf.constant(JAX["x"]), tf.constant(JAX["dy"])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, values = captured(x)
    for gradient in tape.gradient(y["y"], [values["jax2tf_arg_0"], x], output_gradients=dy):
        np.testing.assert_allclose(gradient, JAX["dx"], rtol=1e-12)
