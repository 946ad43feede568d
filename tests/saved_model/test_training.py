"""Training steps of add_gradients: Keras's optimizers, in TensorFlow, in sessions and in both runtimes of LiteRT."""

import fnmatch
import functools
import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.hardware_accelerator import HardwareAccelerator

import tf_cg_ops as cg

from ..support.saved_models import in_a_loop, proto_of

LAYERS, RATE, CLASSES, BATCH = keras.layers, 0.01, 3, 8
OPTIMIZERS = {
    "sgd": keras.optimizers.SGD,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adam": keras.optimizers.Adam,
}


class Interpreter:
    """A LiteRT model in TensorFlow's interpreter, whose signatures are functions of arrays."""

    def __init__(self, content):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It recommends another package with the same interpreter.
            self.interpreter = tf.lite.Interpreter(model_content=content)
        self.run = functools.cache(self.interpreter.get_signature_runner)

    def __call__(self, signature, **inputs):
        return self.run(signature)(**inputs)


class Compiled:
    """A LiteRT model in the newer runtime."""

    def __init__(self, content):
        self.model, self.buffers = CompiledModel.from_buffer(content, HardwareAccelerator.CPU), {}

    def __call__(self, signature, **inputs):
        if signature not in self.buffers:
            names, index = self.model.get_signature_list()[signature], self.model.get_signature_index(signature)
            for key in {"x", "target"} & set(names["inputs"]):  # Their batch can have an unknown size.
                self.model.resize_input_tensor_by_name(signature, key, inputs[key].shape, strict=False)
            made = self.model.create_input_buffers(index), self.model.create_output_buffers(index)
            self.buffers[signature] = [
                dict(zip(names[k], m, strict=True)) for k, m in zip(("inputs", "outputs"), made, strict=True)
            ]
        given, returned = self.buffers[signature]
        for key, buffer in given.items():
            buffer.write(np.ascontiguousarray(inputs[key]))
        self.model.run_by_name(signature, given, returned)
        details = {key: buffer.get_tensor_details() for key, buffer in returned.items()}
        return {
            key: returned[key].read(int(np.prod(each["shape"])), np.dtype(each["dtype"])).reshape(each["shape"])
            for key, each in details.items()
        }


class InTensorFlow:
    """The signatures of a SavedModel as functions of arrays."""

    def __init__(self, folder):
        self.loaded = tf.saved_model.load(folder)

    def __call__(self, signature, **inputs):
        outputs = self.loaded.signatures[signature](**{key: tf.constant(x) for key, x in inputs.items()})
        return {key: x.numpy() for key, x in outputs.items()}


def mlp():
    return [LAYERS.Input([6], name="x"), LAYERS.Dense(16, "relu", name="body"), LAYERS.Dense(CLASSES, name="head")]


def cnn():
    # Smooth: at the kink of a relu, rounding that differs between processors grows to percents in 200 steps.
    return [
        LAYERS.Input([6, 6, 2], name="x"),
        LAYERS.Conv2D(4, 3, strides=2, padding="same", activation="tanh"),
        LAYERS.BatchNormalization(),
        LAYERS.UpSampling2D(2),
        LAYERS.Conv2DTranspose(3, 3, padding="same", activation="tanh"),
        LAYERS.UpSampling2D((2, 3), interpolation="bilinear"),
        LAYERS.Flatten(),
        LAYERS.Dense(CLASSES),
    ]


def gru():
    return [LAYERS.Input([5, 4], name="x"), LAYERS.GRU(6, unroll=True), LAYERS.Dense(CLASSES)]


def transformer():
    x = keras.Input([6, 8], name="x")
    # The gradient of a bias of keys is zero but for rounding, of which Adam makes steps.
    h = LAYERS.LayerNormalization()(x + LAYERS.MultiHeadAttention(2, 4, use_bias=False)(x, x))
    h = LAYERS.LayerNormalization()(h + LAYERS.Dense(8)(LAYERS.Dense(16, "relu")(h)))
    return keras.Model(x, LAYERS.Dense(CLASSES)(LAYERS.GlobalAveragePooling1D()(h)))


def model_of(make):
    keras.utils.set_random_seed(0)
    made = make()
    return keras.Sequential(made) if isinstance(made, list) else made


def batches(model, count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.normal(size=[BATCH, *model.input_shape[1:]]).astype(np.float32)
        first, second = x.reshape(BATCH, -1)[:, :2].T
        yield x, np.eye(CLASSES, dtype=np.float32)[(first > 0).astype(int) + (second > 0.5)]


def trained_by_keras(model, optimizer, count):
    """The losses. Like a signature, the model uses the statistics of inference."""
    optimizer.build(model.trainable_variables)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x, target):
        with tf.GradientTape() as tape:
            y = loss(target, model(x, training=False))
        gradients = tape.gradient(y, [weight.value for weight in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return y

    return [float(step(*batch)) for batch in batches(model, count)]


def add(folder, make, batch=None, **options):
    """A model with a training step, its folder, and the report."""
    model = model_of(make)
    signature = [tf.TensorSpec([batch, *model.input_shape[1:]], name="x")]
    model.export(folder / "model", input_signature=signature, verbose=False)
    options = {"update": RATE, "optimizer": "adam", "lite": True, "wrt": "variables"} | options
    report = cg.saved_model.add_gradients(
        folder / "model", folder / "train", of="output_0", name="train", loss="crossentropy", **options
    )
    return model, folder / "train", report


def weights_of(rows, model):
    """The weights of a model by their names in signatures."""
    by_path = {f"value of {weight.path}": weight for weight in model.trainable_variables}
    return {each.name: np.asarray(by_path[each.meaning]) for each in rows if each.meaning in by_path}


def train(run, model, report, count, state):
    """The losses, and the trained state of arguments."""
    losses = []
    rate = {"learning_rate": np.float32(RATE)} if "learning_rate" in [each.name for each in report.inputs] else {}
    for x, target in batches(model, count):
        found = run("train", x=x, target=target, **{key: np.array(value) for key, value in rate.items()}, **state)
        losses.append(float(found["loss"]))
        state = {key: found[key] for key in state}
    return losses, state


def check(losses, state, rows, model, expected, tolerance):
    """Compares losses with the expected ones, and weights with the trained ones of the model."""
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    weights = weights_of(rows, model)
    assert len(weights) == len(model.trainable_variables)
    for key, weight in weights.items():
        np.testing.assert_allclose(state[key], weight, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("state", ["variables", "arguments"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.core
def test_steps_are_those_of_keras(optimizer, state, tmp_path):
    """Also after the model was loaded and saved again between two steps, and in a session."""
    as_arguments = state == "arguments"
    rate = "learning_rate" if as_arguments else RATE
    model, folder, report = add(tmp_path, mlp, optimizer=optimizer, state=state, update=rate, lite=False)
    run = InTensorFlow(folder)
    start = report.start
    found, new = train(run, model, report, 6, start)
    feeds = {each.name: each.tensor for each in report.inputs}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        fetched = {each.name: each.tensor for each in report.outputs}
        in_session = lambda _, **inputs: session.run(fetched, {feeds[key]: x for key, x in inputs.items()})  # noqa: E731
        saver = tf.compat.v1.train.Saver(saver_def=loaded.saver_def) if not as_arguments else None
        before = saver and saver.save(session, str(tmp_path / "state"))
        np.testing.assert_allclose(train(in_session, model, report, 6, start)[0], found, rtol=1e-6)
        if saver:  # The state before, and then the one after six steps.
            after = saver.save(session, str(tmp_path / "later"))
            saver.restore(session, before)
            np.testing.assert_allclose(train(in_session, model, report, 3, start)[0], found[:3], rtol=1e-6)
            saver.restore(session, after)
    if not as_arguments:
        again = InTensorFlow(folder)
        ((x, target),) = batches(model, 1)
        again("train", x=x, target=target)
        tf.saved_model.save(again.loaded, tmp_path / "again", signatures=again.loaded.signatures)
        cg.saved_model.strip(tmp_path / "again", tmp_path / "stripped")
        later = InTensorFlow(tmp_path / "stripped")
        rest = [float(later("train", x=x, target=t)["loss"]) for x, t in itertools.islice(batches(model, 6), 1, None)]
        np.testing.assert_allclose(rest, found[1:], rtol=1e-6)
    expected = trained_by_keras(model, OPTIMIZERS[optimizer](RATE), 6)
    if as_arguments:
        check(found, new, report.inputs, model, expected, 1e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("make", [mlp, cnn, gru, transformer])
def test_litert_trains_with_adam_like_keras(make, tmp_path):
    """In both runtimes, for 200 steps; weights, slots and the number of steps go from one to the other.

    The MLP takes batches of any size. For the other models, CompiledModel then makes output buffers that are too small.
    """
    model, folder, report = add(tmp_path, make, batch=None if make is mlp else BATCH)
    assert report.comparisons[-1].verdict == "equal up to rounding"
    content = tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()
    losses, runs = {}, {kind: kind(content) for kind in (Interpreter, Compiled)}
    for kind, run in runs.items():
        losses[kind] = train(run, model, report, 199, {})[0]
    for kind, other in itertools.permutations(runs):
        state, fresh = runs[kind]("weights"), other(content)
        fresh("set_weights", **state)
        *_, (x, target) = batches(model, 200)
        losses[kind].append(float(fresh("train", x=x, target=target)["loss"]))
        state = fresh("weights")
        assert state["iterations"] == [200]
        losses[kind, "state"] = {each.name: state[each.name] for each in report.weights}
    expected = trained_by_keras(model, keras.optimizers.Adam(RATE), 200)
    for kind in runs:
        check(losses[kind], losses[kind, "state"], report.weights, model, expected, 2e-4)


@pytest.mark.parametrize("update", [RATE, None])
def test_litert_trains_weights_that_are_arguments(update, tmp_path):
    """Without an update, it returns their gradients, of which the test makes steps."""
    options = {"optimizer": "adam"} if update else {"optimizer": "sgd"}
    model, folder, report = add(tmp_path, mlp, state="arguments", update=update, **options)
    assert report.weights == []
    content = tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()
    for kind in (Interpreter, Compiled):
        run = kind(content)

        def step(signature, run=run, **inputs):
            found = run(signature, **inputs)
            return found | {k: x - RATE * found[f"d_{k}"] for k, x in inputs.items() if f"d_{k}" in found}

        found, state = train(run if update else step, model, report, 20, report.start)
        untrained = model_of(mlp)
        expected = trained_by_keras(untrained, OPTIMIZERS[options["optimizer"]](RATE), 20)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        for value, weight in zip(weights_of(report.inputs, model), untrained.trainable_variables, strict=True):
            np.testing.assert_allclose(state[value], weight, rtol=1e-5, atol=1e-5)


def embedding_in_a_loop():
    """A gathered row and a variable that a loop reads, beside one that stays as it is."""
    module = tf.Module()
    module.table = tf.Variable(np.linspace(-1.0, 1.0, 8).reshape(4, 2), name="table")
    module.w = tf.Variable([0.5, -0.8], name="w", dtype=tf.float64)
    module.fixed = tf.Variable([2.0, 3.0], trainable=False, dtype=tf.float64)
    spec = tf.TensorSpec([None], tf.int32, name="ids")

    @tf.function(input_signature=[spec])
    def f(ids):
        rows = in_a_loop(lambda x: tf.sin(x * module.w))(tf.gather(module.table, ids))
        return {"y": rows * module.fixed * tf.gather_nd(module.table, ids[:, tf.newaxis])}

    module.f = f
    return module


def test_loops_and_gathered_rows_read_arguments(tmp_path):
    module = embedding_in_a_loop()
    tf.saved_model.save(module, tmp_path / "model", signatures=module.f)
    options = {"of": "y", "wrt": "variables", "loss": "mse", "update": 0.1, "state": "arguments"}
    cg.saved_model.add_gradients(tmp_path / "model", tmp_path / "train", **options)
    ids, target, state = np.int32([1, 3, 1]), np.ones([3, 2]), {"table": module.table.numpy(), "w": module.w.numpy()}
    run = InTensorFlow(tmp_path / "train")
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(module.f(tf.constant(ids))["y"] - target))
        found = run("gradients", ids=ids, target=target, **state)
        state = {key: found[key] for key in state}
        for variable, gradient in zip(
            [module.table, module.w], tape.gradient(loss, [module.table, module.w]), strict=True
        ):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        for value, expected in ((found["loss"], loss), (state["table"], module.table), (state["w"], module.w)):
            np.testing.assert_allclose(value, expected, rtol=1e-6)  # The rate is a float32 number.


NAMES = ("Head/W", "head/w", "1st-layer.a", "self", "x", "target", "loss", "iterations", "tf_cg_ops", "rate_momentum")


@pytest.mark.parametrize("state", ["variables", "arguments"])
def test_names_that_are_taken_or_odd(state, tmp_path):
    """Each variable gets the step of its own gradient, in LiteRT."""
    module = tf.Module()
    module.all = [tf.Variable([1.0 + i, -2.0], name=name) for i, name in enumerate(NAMES)]
    spec = tf.TensorSpec([3, 2], name="x")
    product = lambda x: {"y": tf.add_n([x**i * w for i, w in enumerate(module.all)])}  # noqa: E731
    module.f = tf.function(product, input_signature=[spec])
    tf.saved_model.save(module, tmp_path / "model", signatures=module.f)
    options = {"of": "y", "wrt": "variables", "loss": "mse", "update": "Rate", "optimizer": "momentum"}
    report = cg.saved_model.add_gradients(tmp_path / "model", tmp_path / "train", lite=True, state=state, **options)
    run = Interpreter(tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "train")).convert())
    x, target = np.float32([[0.5, 1.0], [0.1, -1.0], [0.3, 0.2]]), np.ones([3, 2], np.float32)
    start = {key: tf.constant(value) for key, value in report.start.items()}
    inputs = {key: np.asarray(value) for key, value in start.items()}
    found = run("gradients", x=x, target=target, Rate=np.float32(0.1), **inputs)
    found = run("weights") if state == "variables" else found
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(module.f(x)["y"] - target))
    rows = report.weights or report.outputs
    names = {each.meaning.removeprefix("value of "): each.name for each in rows if each.meaning.startswith("value of")}
    for variable, gradient in zip(module.all, tape.gradient(loss, module.all), strict=True):
        expected = variable - 0.1 * gradient
        np.testing.assert_allclose(found[names[variable.name.removesuffix(":0")]], expected, rtol=1e-5)


@pytest.mark.parametrize("loss", ["mse", "crossentropy"])
def test_the_loss_of_16_bit_numbers_is_computed_in_32(loss, tmp_path):
    """Its sum would be infinite. Keras computes losses in float32, too."""
    module = tf.Module()
    module.w = tf.Variable(np.float16([3.0]))
    spec = tf.TensorSpec([300, 300], tf.float16, name="x")
    module.f = tf.function(lambda x: {"y": x * module.w}, input_signature=[spec])
    tf.saved_model.save(module, tmp_path / "model", signatures=module.f)
    options = {"of": "y", "wrt": "variables", "loss": loss, "update": 0.5}
    cg.saved_model.add_gradients(tmp_path / "model", tmp_path / "train", **options)
    x = np.random.default_rng(0).normal(size=[300, 300]).astype(np.float16)
    target = np.full([300, 300], 1 / 300, np.float16)
    found = InTensorFlow(tmp_path / "train")("gradients", x=x, target=target)["loss"]
    wide, wanted = 3.0 * x.astype(np.float64), target.astype(np.float64)
    log_softmax = wide - np.log(np.sum(np.exp(wide), axis=-1, keepdims=True))
    expected = {"mse": np.mean((wide - wanted) ** 2), "crossentropy": -np.mean(np.sum(wanted * log_softmax, axis=-1))}
    np.testing.assert_allclose(found, expected[loss], rtol=1e-3)


def test_variables_that_are_not_in_wrt_have_no_gradient_ops(tmp_path):
    _, _, whole = add(tmp_path, mlp)
    _, folder, report = add(tmp_path / "head", mlp, wrt=["*/head/*"])
    assert [name.split("/")[1] for name in report.updated] == ["head", "head"]
    assert len(whole.updated) == 4
    ops = [
        [node.op for function in proto_of(each).meta_graphs[0].graph_def.library.function for node in function.node_def]
        for each in (tmp_path / "train", folder)
    ]
    kinds = ("*Grad", "MatMul")
    whole_count, head_count = (sum(any(fnmatch.fnmatch(op, k) for k in kinds) for op in each) for each in ops)
    assert head_count < whole_count
    run = InTensorFlow(folder)
    before = run("weights")
    ((x, target),) = batches(model_of(mlp), 1)
    run("train", x=x, target=target)
    assert all(np.any(x != before[key]) for key, x in run("weights").items())
