"""add_gradients: a signature of the copy computes the tape's gradients, and all that was there before stays."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_python
from ..support.saved_models import contents, proto_of
from ..support.sources import ROOT

SPEC = tf.TensorSpec([None, 3], tf.float64, name="x")
RNG = np.random.default_rng(5)
X = RNG.normal(size=[4, 3])


class Case:
    """A model: how to save it, its function, its variables, inputs, and what to differentiate with respect to."""

    def __init__(self, save, function, variables, inputs, wrt):
        self.save, self.function, self.variables, self.inputs, self.wrt = save, function, variables, inputs, wrt


def keras_case(x, *layers, wrt=("x", "variables")):
    keras.utils.set_random_seed(1)
    inputs = keras.Input([*(None if n == 6 else n for n in x.shape[1:])], dtype=x.dtype.name, name="x")
    y = inputs
    for layer in layers:
        y = layer(y)
    model = keras.Model(inputs, y)
    save = lambda folder: model.export(folder, verbose=False)  # noqa: E731
    variables = [variable.value for variable in model.trainable_variables]
    return Case(save, lambda x: {"output_0": model(x)}, variables, {"x": x}, list(wrt))


def attend(x):
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 4)(x, x))
    return x + keras.layers.Dense(8)(keras.layers.Dense(16, activation="gelu")(x))


def module_case(function, spec=SPEC, x=X, wrt=("x", "variables"), variables=True):
    """A module with a function of x and a variable."""
    module = tf.Module()
    module.w = tf.Variable(np.array([2.0, 3.0, -1.0]), name="w")
    f = (lambda x: function(x, module.w)) if variables else function
    module.f = tf.function(lambda x: {"y": f(x)}, input_signature=[spec])
    save = lambda folder: tf.saved_model.save(module, folder, signatures=module.f)  # noqa: E731
    return Case(save, module.f, [module.w] if "variables" in wrt else [], {"x": x}, list(wrt))


@tf.custom_gradient
def steep(x):
    return tf.sin(x), lambda dy: 7.0 * dy


@cg.custom_gradient
def steeper(x):
    return tf.sin(x), lambda dy: 5.0 * dy * x


def spiral(x, w):
    return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.sin(x * w)), (0, x), maximum_iterations=3)[1]


def unbounded(x, w):
    return tf.while_loop(lambda x: tf.reduce_sum(x**2) > 0.1, lambda x: (0.1 * x * w,), (x,))[0]


def scanned(x, w):
    return cg.scan(lambda carry, x: (carry * w + x, tf.sin(carry)), tf.zeros_like(x[0]), x)[1]


def root(x, w):
    return cg.implicit_root(lambda x: tf.sin(x) / w, lambda y, x: y * w - tf.sin(x))(x)


MODELS = {
    "cnn": lambda: keras_case(
        RNG.normal(size=[4, 8, 8, 1]).astype(np.float32),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(5),
    ),
}


class Added:
    """A model with the added signature, and what its call in a fresh process must return."""

    def __init__(self, case, folder):
        self.case, self.source, self.target = case, folder.parent / "sources" / folder.name, folder
        case.save(self.source)
        self.before = contents(self.source)
        inputs = {name: tf.constant(x) for name, x in case.inputs.items()}
        sources = [inputs[name] for name in case.wrt if name != "variables"] + case.variables
        with tf.GradientTape() as tape:
            tape.watch(sources)
            values = case.function(**inputs)
        ((self.of, y),) = values.items()
        dy = RNG.normal(size=y.shape).astype(y.dtype.as_numpy_dtype)
        self.gradients = [tf.convert_to_tensor(dx) for dx in tape.gradient(y, sources, tf.constant(dy))]
        self.value = y
        self.report = cg.saved_model.add_gradients(self.source, folder, of=self.of, wrt=case.wrt)
        np.savez(folder.with_suffix(".npz"), **case.inputs, **{f"d_{self.of}": dy})


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    """All models by name."""
    folder = tmp_path_factory.mktemp("add_gradients")
    (folder / "sources").mkdir()
    models = {name: Added(make(), folder / name) for name, make in MODELS.items()}
    code = (ROOT / "tests" / "saved_model" / "programs" / "signatures.py").read_text()
    run_python(code, folder, "gradients", cwd=folder)
    return models


@pytest.mark.parametrize("name", MODELS)
def test_in_a_fresh_process_the_signature_has_the_value_and_the_gradients_of_the_tape(name, added):
    model = added[name]
    with np.load(f"{model.target}_out.npz") as outputs:
        outputs = dict(outputs)
    assert sorted(outputs) == sorted(each.name for each in model.report.outputs)
    tolerance = 1e-5 if model.value.dtype == tf.float32 else 1e-12
    np.testing.assert_allclose(outputs[model.of], model.value, rtol=tolerance, atol=tolerance)
    names = [each.name for each in model.report.outputs if each.meaning.startswith("gradient")]
    assert len(names) == len(model.gradients) > 0
    for each, dx in zip(names, model.gradients, strict=True):
        np.testing.assert_allclose(outputs[each], dx, rtol=tolerance, atol=tolerance, err_msg=each)


@pytest.mark.parametrize("name", MODELS)
def test_all_that_was_there_stays_and_the_file_grows_by_less_than_twice_the_graph(name, added):
    model = added[name]
    assert contents(model.source) == model.before
    assert {each.verdict for each in model.report.comparisons} == {"equal, bit for bit"}
    before, after = contents(model.source), contents(model.target)
    assert before.keys() == after.keys()
    for file in before.keys() - {"saved_model.pb", "fingerprint.pb"}:
        assert before[file] == after[file]
    assert len(after["saved_model.pb"]) < 3 * len(before["saved_model.pb"])
    (old,), (new,) = proto_of(model.source).meta_graphs, proto_of(model.target).meta_graphs
    del new.signature_def["gradients"]
    assert new.signature_def == old.signature_def
    size = len(old.graph_def.library.function)
    assert new.graph_def.library.function[:size] == old.graph_def.library.function[:]
    assert new.graph_def.node[: len(old.graph_def.node)] == old.graph_def.node[:]


def test_a_session_finds_the_tensors_that_the_report_names(added):
    model = added["cnn"]
    rows = {each.name: each.tensor for each in [*model.report.inputs, *model.report.outputs]}
    with np.load(f"{model.target}.npz") as inputs, np.load(f"{model.target}_out.npz") as outputs:
        inputs, outputs = dict(inputs), dict(outputs)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], str(model.target))
        found = session.run({name: rows[name] for name in outputs}, {rows[name]: x for name, x in inputs.items()})
    for name, array in outputs.items():
        np.testing.assert_array_equal(found[name], array)
