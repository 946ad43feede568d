"""add_gradients with lite=True: LiteRT trains, keeps its weights, and needs no ops but its own."""

import keras
import numpy as np
import pytest
import sklearn.datasets
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

import tf_cg_ops as cg
from tf_cg_ops.saved_model import _lite_ops

from ..support.tensors import pairs

RATE, STEPS = 0.1, 150
LAYERS = keras.layers
LITE = {"of": "output_0", "wrt": "variables", "name": "train", "update": RATE, "lite": True}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A network of Keras, the folder of its model with a training step, and the report."""
    keras.utils.set_random_seed(0)
    net = keras.Sequential(
        [
            LAYERS.Input([8, 8, 1], name="images"),
            LAYERS.Conv2D(8, 3, padding="same", activation="relu"),
            LAYERS.MaxPooling2D(),
            LAYERS.BatchNormalization(),
            LAYERS.Conv2D(16, 3, activation="relu"),
            LAYERS.Flatten(),
            LAYERS.Dense(10),
        ]
    )
    folder = tmp_path_factory.mktemp("classifier")
    net.export(folder / "net", verbose=False)
    report = cg.saved_model.add_gradients(folder / "net", folder / "lite", loss="crossentropy", **LITE)
    return net, folder / "lite", report


def step_of(net):
    """A step in the mode of inference, which is what a signature has."""
    loss, weights = keras.losses.CategoricalCrossentropy(from_logits=True), net.trainable_variables

    @tf.function
    def step(images, targets):
        with tf.GradientTape() as tape:
            y = loss(targets, net(images, training=False))
        for weight, gradient in zip(weights, tape.gradient(y, [each.value for each in weights]), strict=True):
            weight.value.assign_sub(RATE * gradient)
        return y

    return step


def convert(folder):
    """The model for LiteRT, with built-in ops alone."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    return converter.convert()


def test_the_report_names_weights_and_a_session_finds_them(classifier):
    net, folder, report = classifier
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        found = session.run({each.name: each.tensor for each in report.weights})
    in_tensorflow = tf.saved_model.load(folder).signatures["weights"]()
    for row, weight in zip(report.weights, net.trainable_weights, strict=True):
        assert row.shape == found[row.name].shape
        for array in (found[row.name], in_tensorflow[row.name]):
            np.testing.assert_array_equal(array, weight)


def test_litert_learns_digits_like_keras_and_its_weights_are_restored(classifier, tmp_path):
    net, folder, report = classifier
    assert len(report.weights) == len(report.updated) == len(net.trainable_weights)
    last = report.comparisons[-1]
    assert (last.name, last.what, last.verdict) == (report.name, "values in LiteRT", "equal up to rounding")
    model = convert(folder)
    interpreters = [Interpreter(model_content=model) for _ in range(2)]
    first, second = (
        {key: each.get_signature_runner(key) for key in each.get_signature_list()} for each in interpreters
    )

    digits = sklearn.datasets.load_digits()
    images, targets = digits.images[..., None].astype(np.float32) / 16, np.eye(10, dtype=np.float32)[digits.target]
    step = step_of(net)
    untrained = second["weights"]()
    for chosen in np.random.default_rng(0).integers(len(images) // 2, size=[STEPS, 32]):
        expected = step(images[chosen], targets[chosen])
        found = first["train"](images=images[chosen], target=targets[chosen])["loss"]
        np.testing.assert_allclose(found, expected, rtol=1e-3)
    test = images[len(images) // 2 :]
    logits = {"keras": net.predict_on_batch(test), "lite": first["serving_default"](images=test)["output_0"]}
    accuracy = {key: np.mean(np.argmax(y, -1) == digits.target[len(images) // 2 :]) for key, y in logits.items()}
    assert accuracy["keras"] > 0.75
    assert abs(accuracy["lite"] - accuracy["keras"]) <= 0.01

    trained = first["weights"]()
    for row, weight in zip(report.weights, net.trainable_weights, strict=True):
        np.testing.assert_allclose(trained[row.name], weight, rtol=1e-3, atol=1e-4)
        assert not np.array_equal(trained[row.name], untrained[row.name])
    np.savez(tmp_path / "weights.npz", **trained)
    with np.load(tmp_path / "weights.npz") as saved:
        returned = second["set_weights"](**saved)
    np.testing.assert_array_equal(second["serving_default"](images=test)["output_0"], logits["lite"])
    for key, value in trained.items():
        np.testing.assert_array_equal(returned[key], value)


def wrong_relu(op, dy, x):
    return tf.where(x > 0, dy, 0.1 * dy)


def mean_of_batch(op, dy):
    return tf.reduce_mean(dy, axis=list(range(dy.shape.rank - 1)))


def plain_sum(op, x, axes):
    return tf.raw_ops.Sum(input=x, axis=axes, keep_dims=op.get_attr("keep_dims"))


RELU = [LAYERS.Dense(4, activation="relu", name="first"), LAYERS.Dense(2, name="second")]
FAULTS = {
    # A wrong composition, the layers of a model, and what the error says for gradients and for steps.
    "a few elements": ("ReluGrad", wrong_relu, RELU, r"output d_\w*first", r"step of \w*first"),
    "a bias": ("BiasAddGrad", mean_of_batch, RELU, r"output d_\w*bias", r"step of \w*bias"),
    "not loaded": ("Sum", plain_sum, [LAYERS.RepeatVector(2)], *["LiteRT must run the new signature, got .*SUM"] * 2),
}


@pytest.mark.parametrize(("fault", "training"), pairs(FAULTS, [False, True]))
def test_a_wrong_lite_model_is_an_error(fault, training, tmp_path, monkeypatch):
    """The error names the output, or the weight of a step."""
    op, composition, layers, *messages = FAULTS[fault]
    keras.utils.set_random_seed(0)
    layers = [each.from_config(each.get_config()) for each in layers]
    net = keras.Sequential([LAYERS.Input([5], name="x"), LAYERS.Dense(3), *layers])
    net.export(tmp_path / "net", verbose=False)
    options = {"loss": "mse", **LITE} if training else {"of": "output_0", "wrt": ["x", "variables"], "lite": True}
    monkeypatch.setitem(_lite_ops.COMPOSITIONS, op, composition)
    with pytest.raises(RuntimeError, match=messages[training]):
        cg.saved_model.add_gradients(tmp_path / "net", tmp_path / "wrong", **options)
    assert not (tmp_path / "wrong").exists()
    if fault == "a bias":
        report = cg.saved_model.add_gradients(tmp_path / "net", tmp_path / "unchecked", check=False, **options)
        assert (report.comparisons, (tmp_path / "unchecked").is_dir()) == (None, True)


def test_a_gradient_that_is_zero_but_for_rounding_is_no_error(tmp_path):
    """A softmax does not change if the same is added to all of its inputs."""
    module = tf.Module()
    module.w, module.b = tf.Variable(np.random.default_rng(0).normal(size=[5, 64]).astype(np.float32)), tf.Variable(3.0)
    spec = tf.TensorSpec([None, 5], name="x")
    module.f = tf.function(lambda x: {"y": tf.nn.softmax(x @ module.w + module.b)}, input_signature=[spec])
    tf.saved_model.save(module, tmp_path / "module", signatures=module.f)
    report = cg.saved_model.add_gradients(tmp_path / "module", tmp_path / "new", of="y", wrt="variables", lite=True)
    assert (report.weights, report.comparisons[-1].verdict) == ([], "equal up to rounding")


def test_ops_that_this_litert_lacks_are_not_compared(tmp_path):
    module = tf.Module()
    module.f = tf.function(lambda x: {"y": tf.math.erf(x)}, input_signature=[tf.TensorSpec([None, 5], name="x")])
    tf.saved_model.save(module, tmp_path / "module", signatures=module.f)
    paths = tmp_path / "module", tmp_path / "new"
    report = cg.saved_model.add_gradients(*paths, of="y", wrt="x", lite=True, flex=True)
    assert str(report.comparisons[-1]).endswith("not compared (this LiteRT does not include TensorFlow's ops)")
