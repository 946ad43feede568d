"""add_gradients: a signature of the copy computes the tape's gradients, and all that was there before stays.

test_strip_gradients has the functions of this library, and runs stripped copies; test_lite has a loss of several classes.
"""

import dataclasses
import functools
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.saved_models import call_signatures, contents, in_a_loop, proto_of, save_graph

SPEC = tf.TensorSpec([None, 3], tf.float64, name="x")
RNG = np.random.default_rng(5)
X = RNG.normal(size=[4, 3])


@dataclasses.dataclass
class Case:
    """A model, its function, its variables, inputs, and what to differentiate with respect to."""

    module: tf.Module
    function: Callable
    variables: list
    inputs: dict
    wrt: list

    def save(self, folder):
        if isinstance(self.module, keras.Model):
            self.module.export(folder, verbose=False)
        else:
            tf.saved_model.save(self.module, folder, signatures=self.function)


def keras_case(x, shape, *layers):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input(shape, name="x"), *layers])
    variables = [variable.value for variable in model.trainable_variables]
    x = x.astype(np.float32)
    return Case(model, lambda x: {"output_0": model(x)}, variables, {"x": x}, ["x", "variables"])


def module_case(function, spec=SPEC, x=X, wrt=("x", "variables")):
    """A module with a function of x and of a variable."""
    module = tf.Module()
    module.w = tf.Variable([2.0, 3.0, -1.0], name="w", dtype=tf.float64)

    @tf.function(input_signature=[spec], autograph=False)
    def f(x):
        return {"y": function(x, module.w)}

    return Case(module, f, [module.w] if "variables" in wrt else [], {"x": x}, list(wrt))


steep = tf.custom_gradient(lambda x: (tf.sin(x), lambda dy: 7.0 * dy))


def spiral(x, w):
    return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.sin(x * w)), (0, x), maximum_iterations=3)[1]


def unbounded(x, w):
    return tf.while_loop(lambda x: tf.reduce_sum(x**2) > 0.1, lambda x: (0.1 * x * w,), (x,))[0]


def process(x, w):
    """A factor of a covariance, as in a Gaussian process. Its gradient holds the sizes of the diagonal as constants."""
    covariance = tf.exp(-((w[:, None] - w) ** 2))
    factor = tf.linalg.cholesky(tf.linalg.set_diag(covariance, tf.linalg.diag_part(covariance) + 0.1))
    return tf.sin(x @ factor)


def processes(x, w):
    x = in_a_loop(lambda x: process(x, w))(process(x, w))
    return tf.function(process, jit_compile=True)(tf.cond(x[0, 0] > 5.0, lambda: x, lambda: process(x, w)), w)


def lookup():
    """A table and a constant that is too large for the graph, besides a variable."""
    keys = tf.constant(["a", "b"])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant([0, 2])), 1)
    large = tf.constant(RNG.normal(size=[3, 100]))
    case = module_case(
        lambda x, w: tf.gather(w, table.lookup(x))[:, None] * tf.gather(large, table.lookup(x)),
        tf.TensorSpec([None], tf.string, name="x"),
        np.array(["b", "a", "?", "b"]),
        ["variables"],
    )
    case.module.table, case.module.large = table, large
    return case


def shared():
    """A variable with two names, a frozen one, and one that y does not depend on; sizes are unknown."""
    module = tf.Module()
    module.w = module.again = tf.Variable(X[0], name="a/w")
    module.frozen = tf.Variable(X[1], trainable=False)
    module.unused = tf.Variable(1.0)

    @tf.function(input_signature=[SPEC, tf.TensorSpec(None, tf.float64, name="z")])
    def f(x, z):
        return {
            "y": tf.tanh(x * module.w) * module.again * module.frozen * z,
            "other": x + tf.cast(module.unused, x.dtype),
        }

    return Case(module, f, [module.w], {"x": X, "z": X[:, :1]}, ["x", "z", "variables"])


MODELS = {
    "cnn": lambda: keras_case(
        RNG.normal(size=[4, 8, 8, 1]),
        [8, 8, 1],
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(5),
    ),
    "lstm": lambda: keras_case(RNG.normal(size=[4, 6, 3]), [None, 3], keras.layers.LSTM(4), keras.layers.Dense(2)),
    "loop": lambda: module_case(spiral),
    "unbounded_loop": lambda: module_case(unbounded),
    "compiled": lambda: module_case(tf.function(lambda x, w: tf.sin(x) * w, jit_compile=True)),
    "tf_custom_gradient_in_a_loop": lambda: module_case(lambda x, w: in_a_loop(steep)(x) * w),
    "shared": shared,
    "complex": lambda: module_case(
        lambda x, _: x**2 * tf.math.conj(x), tf.TensorSpec([None, 3], tf.complex128, name="x"), X + 1j * X[::-1], ["x"]
    ),
    "any_rank": lambda: module_case(lambda x, _: x**2, tf.TensorSpec(None, tf.float64, name="x"), X, ["x"]),
    "table": lookup,
    "cholesky": lambda: module_case(processes),
}
# The others are written without the check, which runs the file before and after.
CHECKED = ("lstm", "tf_custom_gradient_in_a_loop", "shared", "table")


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
        self.of, y = max(values.items())
        dy = RNG.normal(size=y.shape).astype(y.dtype.as_numpy_dtype) * (1.0 - 0.5j if y.dtype.is_complex else 1.0)
        self.gradients = [tf.convert_to_tensor(dx) for dx in tape.gradient(y, sources, tf.constant(dy))]
        self.value = y
        check = folder.name in CHECKED
        self.report = cg.saved_model.add_gradients(self.source, folder, of=self.of, wrt=case.wrt, check=check)
        self.inputs = case.inputs | {f"d_{self.of}": dy}


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    folder = tmp_path_factory.mktemp("add_gradients")
    (folder / "sources").mkdir()
    return functools.cache(lambda name: Added(MODELS[name](), folder / name))


@pytest.fixture(scope="module")
def outputs(added, tmp_path_factory):
    """The outputs of every model's signature in a fresh process."""
    calls = {name: (added(name).target, "gradients", added(name).inputs) for name in MODELS}
    return call_signatures(calls, tmp_path_factory.mktemp("outputs"))


@pytest.mark.parametrize("name", MODELS)
def test_in_a_fresh_process_the_signature_has_the_value_and_the_gradients_of_the_tape(name, added, outputs):
    model, found = added(name), outputs[name]
    tolerance = 1e-5 if model.value.dtype == tf.float32 else 1e-12
    assert sorted(found) == sorted(each.name for each in model.report.outputs)
    names = [each.name for each in model.report.outputs if each.meaning.startswith("gradient")]
    assert len(names) == len(model.gradients) > 0
    for key, expected in zip([model.of, *names], [model.value, *model.gradients], strict=True):
        np.testing.assert_allclose(found[key], expected, rtol=tolerance, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_all_that_was_there_stays_and_the_file_grows_by_less_than_twice_the_graph(name, added):
    """Where the check was run, it found the same values."""
    model = added(name)
    if name in CHECKED:
        assert {each.verdict for each in model.report.comparisons} == {"equal, bit for bit"}
    assert contents(model.source) == model.before
    before, after = contents(model.source), contents(model.target)
    assert before.keys() == after.keys()
    for file in before.keys() - {"saved_model.pb", "fingerprint.pb"}:
        assert before[file] == after[file]
    if name != "cholesky":  # The gradient of a Cholesky factor is large.
        assert len(after["saved_model.pb"]) < 3 * len(before["saved_model.pb"])
    (old,), (new,) = proto_of(model.source).meta_graphs, proto_of(model.target).meta_graphs
    del new.signature_def["gradients"]
    assert new.signature_def == old.signature_def
    size = len(old.graph_def.library.function)
    assert new.graph_def.library.function[:size] == old.graph_def.library.function[:]
    assert new.graph_def.node[: len(old.graph_def.node)] == old.graph_def.node[:]


def test_a_session_finds_the_tensors_that_the_report_names(added, outputs):
    model = added("cnn")
    rows = {each.name: each.tensor for each in [*model.report.inputs, *model.report.outputs]}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.saved_model.load(session, ["serve"], str(model.target))
        fetched = {each.name: each.tensor for each in model.report.outputs}
        found = session.run(fetched, {rows[name]: x for name, x in model.inputs.items()})
    for name, array in outputs["cnn"].items():
        np.testing.assert_array_equal(found[name], array)


def call(path, name, inputs):
    """The outputs of a signature, as arrays."""
    model = tf.saved_model.load(path)
    outputs = model.signatures[name](**{key: tf.constant(x) for key, x in inputs.items()})
    return {key: tensor.numpy() for key, tensor in outputs.items()}


def test_the_report_is_a_table(added):
    report = added("shared").report
    assert str(report).splitlines()[:-1] == [
        "signature  gradients",
        "input      x      float64 [?, 3]  gradients_x:0    input",
        "input      z      float64 [...]   gradients_z:0    input",
        "input      d_y    float64 [...]   gradients_d_y:0  upstream gradient of y",
        "output     other  float64 [?, 3]  gradients:3      output",
        "output     y      float64 [...]   gradients:4      output",
        "output     d_x    float64 [?, 3]  gradients:1      gradient of x",
        "output     d_z    float64 [...]   gradients:2      gradient of z",
        "output     d_a_w  float64 [3]     gradients:0      gradient of a/w",
        "compared   values of serving_default: equal, bit for bit",
        "attention  Variable has no gradient",
    ]
    assert report.unconnected == ["Variable"]
    adopted = added("tf_custom_gradient_in_a_loop").report.adopted
    assert [each.gradients for each in adopted] == ["saved"]
    assert added("loop").report.adopted == []


def test_a_compiled_function_stays_compiled(added):
    def is_compiled(node):
        return node.op.endswith("PartitionedCall") and node.attr["_XlaMustCompile"].b

    (meta_graph,) = proto_of(added("compiled").target).meta_graphs
    functions = {each.signature.name: each.node_def for each in meta_graph.graph_def.library.function}
    assert any(map(is_compiled, functions["__inference_gradients_0"]))


# Instead of [4, 3].
SHAPES = [[1, 3], [4, 4, 3], [3, 4], [4, 1], [4, 3, 1], [3], [1], []]
REFUSED = {
    "loop": "d_y must have the shape of y|Incompatible|values, but|wrong shape",
    "shared": "d_y must have the shape of y|Incompatible|values, but|wrong shape",
    "any_rank": "add_gradients: d_y must have the shape of y",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_upstream_gradient_of_another_shape_is_an_error(name, added):
    model = added(name)
    run = tf.saved_model.load(model.target).signatures["gradients"]
    inputs = {key: tf.constant(x) for key, x in model.inputs.items()}
    for shape in SHAPES:
        with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED[name]):
            run(**inputs | {"d_y": tf.ones(shape, tf.float64)})


def test_gradients_of_gradients_and_names_that_are_taken(added, tmp_path):
    model = added("loop")
    options = {"signature": "gradients", "of": "d_x", "name": "second"}
    report = cg.saved_model.add_gradients(model.target, tmp_path / "second", wrt=["x", "d_y", "variables"], **options)
    assert [each.name for each in report.inputs] == ["d_y", "x", "d_d_x"]
    assert [each.name for each in report.outputs] == ["d_w", "d_x", "y", "d_x_1", "d_d_y", "d_w_1"]
    assert {each.verdict for each in report.comparisons} == {"equal, bit for bit"}
    x, dy, ddx = (tf.constant(array) for array in (X, model.inputs["d_y"], X[::-1]))
    sources = [x, dy, *model.case.variables]
    with tf.GradientTape() as outer:
        outer.watch([x, dy])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model.case.function(x)["y"]
        dx = tape.gradient(y, x, output_gradients=dy)
    found = call(tmp_path / "second", "second", model.inputs | {"d_d_x": ddx.numpy()})
    for key, expected in zip(["d_x_1", "d_d_y", "d_w_1"], outer.gradient(dx, sources, ddx), strict=True):
        np.testing.assert_allclose(found[key], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", [None, "mse"])
def test_an_update_is_a_step_of_gradient_descent(loss, tmp_path):
    case, rate, target = shared(), 0.25, X[::-1].copy()
    case.save(tmp_path / "source")
    options = {"of": "y", "wrt": ["variables", "x"], "loss": loss, "update": rate, "name": "train"}
    report = cg.saved_model.add_gradients(tmp_path / "source", tmp_path / "train", **options)
    assert (report.updated, report.unconnected) == (["a/w"], ["Variable"])
    assert [each.name for each in report.outputs] == ["other", "y", *(["loss"] if loss else []), "d_x"]
    loaded, (w,) = tf.saved_model.load(tmp_path / "train"), case.variables
    inputs = {key: tf.constant(x) for key, x in case.inputs.items()}
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(inputs["x"])
            y = case.function(**inputs)["y"]
            value = tf.reduce_mean((y - target) ** 2) if loss else tf.reduce_sum(y * target)
        dx, dw = tape.gradient(value, [inputs["x"], w])
        expected = {"y": y, "d_x": dx} | ({"loss": value} if loss else {})
        found = loaded.signatures["train"](**inputs, **{"target" if loss else "d_y": tf.constant(target)})
        for key, tensor in expected.items():
            np.testing.assert_allclose(found[key], tensor, rtol=1e-12, atol=1e-15)
        w.assign_sub(rate * dw)
        np.testing.assert_allclose(loaded.w, w, rtol=1e-12)
    y = loaded.signatures["serving_default"](**inputs)["y"]
    np.testing.assert_allclose(y, case.function(**inputs)["y"])
    np.testing.assert_array_equal(loaded.frozen, case.module.frozen)


def test_rules_change_the_new_signature_alone(added, outputs, tmp_path):
    model, dy = added("cnn"), added("cnn").inputs["d_output_0"]
    x = tf.constant(model.inputs["x"])
    options = {"of": "output_0", "wrt": "x", "rules": {"Relu": cg.rules.guided}, "name": "guided"}
    cg.saved_model.add_gradients(model.target, tmp_path / "guided", **options)
    guided = cg.override_gradients(model.case.module, {"Relu": cg.rules.guided})
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = guided(x)
    expected = tape.gradient(y, x, output_gradients=tf.constant(dy))
    dx, plain = (call(tmp_path / "guided", name, model.inputs)["d_x"] for name in ("guided", "gradients"))
    np.testing.assert_allclose(dx, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(plain, outputs["cnn"]["d_x"])
    assert np.abs(dx - plain).max() > 0.01


def test_a_model_of_tensorflow_1_that_was_saved_again(tmp_path):
    def sine(x):
        return {"y": tf.sin(x * tf.compat.v1.get_variable("w", initializer=tf.constant(X[0]), use_resource=True))}

    save_graph(tmp_path / "old", sine, SPEC)
    loaded = tf.saved_model.load(tmp_path / "old")
    tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
    cg.saved_model.add_gradients(tmp_path / "again", tmp_path / "new", of="y", wrt=["x", "variables"])
    found = call(tmp_path / "new", "gradients", {"x": X, "d_y": X[::-1].copy()})
    np.testing.assert_allclose(found["d_x"], X[::-1] * np.cos(X * X[0]) * X[0], rtol=1e-12)
    np.testing.assert_allclose(found["d_w"], np.sum(X[::-1] * np.cos(X * X[0]) * X, axis=0), rtol=1e-12)
