"""override: the copy has the same values and other gradients, also in a fresh process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import MODES
from ..support.saved_models import (
    assert_objects_stay,
    bodies_of,
    contents,
    gradient,
    gradient_in_a_fresh_process,
    gradients_in_every_form,
    in_a_loop,
    proto_of,
    with_modes,
)

X, DY = np.array([-1.5, 0.5, 2.0]), np.array([1.0, 10.0, -3.0])
SPEC = [tf.TensorSpec([3], tf.float64)]


def fivefold(op, dy):
    return 5.0 * dy


def split(x):
    first, second, third = tf.split(tf.sin(x), 3)
    return tf.concat([third, first, second], 0)


# A function, and dx for the rule 5 dy for the sine.
FUNCTIONS = {
    "alone": (tf.sin, 5.0 * DY),
    "returned_twice": (lambda x: tf.sin(tf.sin(x)), 25.0 * DY),
    "used_twice": (lambda x: tf.sin(x) * (1.0 + tf.sin(x)), 5.0 * DY * (1.0 + 2.0 * np.sin(X))),
    "function": (tf.function(lambda x: 2.0 * tf.sin(x)), 10.0 * DY),
    "while_loop": (in_a_loop(tf.sin), 125.0 * DY),
    "function_in_a_loop": (in_a_loop(tf.function(tf.sin)), 125.0 * DY),
    "cond": (lambda x: tf.cond(x[0] < 0.0, lambda: tf.sin(x), lambda: x), 5.0 * DY),
    "switch_case": (lambda x: tf.switch_case(tf.size(x) - 2, [lambda: x, lambda: tf.sin(x)]), 5.0 * DY),
    "unknown_shape": (lambda x: tf.sin(tf.boolean_mask(x, x < 100.0)), 5.0 * DY),
    "several_outputs": (split, 5.0 * DY[[1, 2, 0]]),
    "custom_gradient": (cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: 7.0 * dy)), 7.0 * DY),
    "sine_of_custom_gradient": (lambda x: tf.sin(cg.scale_gradient(x, 3.0)), 15.0 * DY),
}


COMPILED = ["used_twice", "function_in_a_loop", "switch_case", "several_outputs"]
# Which rows of the support matrix some of the functions fill.
MODES_OF = {
    "alone": ["eager", "around_traced"],
    "function": ["nested_functions"],
    "while_loop": ["while_loop"],
    "function_in_a_loop": ["while_loop_under_xla"],
    "cond": ["cond"],
    "switch_case": ["switch_case", "jit"],
}


def save(folder, **functions):
    module = tf.Module()
    for name, function in functions.items():
        setattr(module, name, tf.function(function, input_signature=SPEC))
    module.w = tf.Variable(np.array([2.0, 3.0, -1.0]))
    tf.saved_model.save(module, folder / "source", signatures={n: getattr(module, n) for n in functions})
    return folder / "source", folder / "target"


@pytest.fixture(scope="module")
def overridden(tmp_path_factory):
    """A model with all functions: its folder, the files before, and the report."""
    folder = tmp_path_factory.mktemp("override")
    source, target = save(folder, **{f"f_{name}": function for name, (function, _) in FUNCTIONS.items()})
    before = contents(source)
    with pytest.warns(UserWarning, match="has no effect on ops of .* inside functions that have their own gradient"):
        report = cg.saved_model.override(source, target, {"Sin": fivefold})
    return folder, before, report


@pytest.fixture(scope="module")
def gradients(overridden):
    compiled = [f"f_{name}" for name in COMPILED]
    return gradients_in_every_form(overridden[0] / "target", compiled, X, DY)


@pytest.mark.parametrize("name", with_modes(FUNCTIONS, "override", MODES_OF))
def test_gradients_are_those_of_the_rule(name, gradients):
    dx = FUNCTIONS[name][1]
    assert len(gradients[f"f_{name}"]) == (3 if name in COMPILED else 2)
    for found in gradients[f"f_{name}"]:
        np.testing.assert_allclose(found, dx, rtol=1e-12)


def test_gradients_of_a_signature_are_those_of_the_rule(overridden):
    signature = tf.saved_model.load(overridden[0] / "target").signatures["f_cond"]
    np.testing.assert_allclose(gradient(lambda x: signature(x=x)["output_0"], X, DY), 5.0 * DY, rtol=1e-12)


def test_values_signatures_objects_and_names_stay(overridden):
    folder, before, report = overridden
    source, target = folder / "source", folder / "target"
    assert contents(source) == before
    assert {comparison.verdict for comparison in report.comparisons} == {"equal, bit for bit"}
    assert (report.source, report.target, list(report.overridden)) == (str(source), str(target), ["Sin"])
    assert_objects_stay(source, target)
    (new,) = proto_of(target).meta_graphs
    assert "CustomGradientRule" in {op.name for op in new.meta_info_def.stripped_op_list.op}
    old_bodies, new_bodies = bodies_of(source), bodies_of(target)
    for name, nodes in old_bodies.items():
        assert {node.name for node in nodes} <= {node.name for node in new_bodies[name]}
    changed = {name for name, nodes in old_bodies.items() if nodes != new_bodies[name]}
    assert changed
    assert all("Sin" in {node.op for node in old_bodies[name]} for name in changed)


@pytest.mark.mode_table(feature="override", mode="reloaded")
def test_a_fresh_process(overridden):
    found = gradient_in_a_fresh_process(overridden[0] / "target", "f_while_loop", X, DY)
    np.testing.assert_allclose(found, 125.0 * DY)


def test_rules_of_an_earlier_override_and_a_rule_that_reads_its_output(tmp_path):
    source, target = save(tmp_path, f=lambda x: tf.exp(tf.sin(x)))
    cg.saved_model.override(source, target, {"Exp": lambda op, dy: 2.0 * dy * op.outputs[0]})
    cg.saved_model.override(target, tmp_path / "both", {"Sin": fivefold})
    loaded = tf.saved_model.load(tmp_path / "both")
    y = np.exp(np.sin(X))
    orders = MODES["eager"](loaded.f, X, DY)[1:]
    np.testing.assert_allclose(orders, y * [10.0 * DY, 100.0 * DY * DY])
    cg.saved_model.strip(tmp_path / "both", tmp_path / "stripped", check=False)
    np.testing.assert_allclose(gradient(tf.saved_model.load(tmp_path / "stripped").f, X, DY), DY * y * np.cos(X))


@pytest.mark.mode_table(feature="override", mode="keras_export")
def test_an_exported_keras_model(tmp_path):
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Input([8, 8, 1]),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Flatten(),
        keras.layers.Dense(5),
    ]
    model = keras.Sequential(layers)
    model.export(tmp_path / "source", verbose=False)
    report = cg.saved_model.override(tmp_path / "source", tmp_path / "target", {"Relu": cg.rules.guided})
    assert report.overridden == {"Relu": 2}
    loaded = tf.saved_model.load(tmp_path / "target")
    x = np.random.default_rng(5).normal(size=[2, 8, 8, 1]).astype(np.float32)
    dy = np.random.default_rng(6).normal(size=[2, 5]).astype(np.float32)
    expected = gradient(cg.override_gradients(model, {"Relu": cg.rules.guided}), x, dy)
    np.testing.assert_allclose(gradient(loaded.serve, x, dy), expected, rtol=1e-5, atol=1e-6)
    assert np.abs(gradient(model, x, dy) - expected).max() > 0.01


@pytest.mark.mode_table(feature="override", mode="tf1")
def test_a_model_of_tensorflow_1(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float64, [3], name="x")
        y = tf.sin(x, name="y")
        tf.compat.v1.saved_model.simple_save(session, str(source), {"x": x}, {"y": y, "z": 2.0 * y})
    report = cg.saved_model.override(source, target, {"Sin": fivefold})
    assert report.overridden == {"Sin": 1}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(target))
        names = {name: info.name for name, info in loaded.signature_def["serving_default"].outputs.items()}
        x, y, z = (session.graph.get_tensor_by_name(name) for name in ("x:0", names["y"], names["z"]))
        dx = tf.gradients([y, z], x, grad_ys=[tf.constant(DY), tf.constant(DY)])
        values, (dx,) = session.run([[y, z], dx], {x: X})
    np.testing.assert_array_equal(values, [np.sin(X), 2.0 * np.sin(X)])
    np.testing.assert_allclose(dx, 5.0 * 3.0 * DY)


@pytest.fixture(scope="module")
def sine(tmp_path_factory):
    return save(tmp_path_factory.mktemp("sine"), f=lambda x: tf.sin(x) + 1.0)[0]


def test_a_rule_that_closes_over_numbers(sine, tmp_path):
    cg.saved_model.override(sine, tmp_path / "target", {"Sin": lambda op, dy: dy * X}, check=False)
    np.testing.assert_allclose(gradient(tf.saved_model.load(tmp_path / "target").f, X, DY), DY * X)


@pytest.mark.parametrize("around", ["nothing", "loop", "branch"])
@pytest.mark.parametrize("of", ["variable", "input"])
def test_shapes_are_known(of, around, tmp_path):
    """The gradient of a matrix with another diagonal holds the sizes as constants, and TensorFlow compares them."""
    module = tf.Module()
    module.w = tf.Variable([[4.0, 0.5], [0.5, 3.0]])
    specs = [tf.TensorSpec([None, 2], name="x"), tf.TensorSpec([2, 2], name="w")]

    def factor(x, w):
        return tf.sin(x) @ tf.linalg.cholesky(tf.linalg.set_diag(w, tf.linalg.diag_part(w) + 0.1))

    @tf.function(input_signature=specs, autograph=False)
    def function(x, w):
        w = module.w if of == "variable" else w
        if around == "nothing":
            return factor(x, w)
        if around == "loop":
            return in_a_loop(lambda x: factor(x, w))(x)
        return tf.cond(x[0, 0] > 0.0, lambda: factor(x, w), lambda: x)

    @tf.function(input_signature=specs, autograph=False)
    def step(x, w):
        w = module.w if of == "variable" else w
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = function(x, w)
        return {"d_w": tape.gradient(y, w)}

    module.f, module.step = function, step
    tf.saved_model.save(module, tmp_path / "model", signatures=step)
    report = cg.saved_model.override(tmp_path / "model", tmp_path / "new", {"Sin": lambda op, dy: 5.0 * dy})
    assert {each.verdict for each in report.comparisons} == {"equal, bit for bit"}
    loaded, w, dy = tf.saved_model.load(tmp_path / "new"), module.w.numpy(), np.float32([[1.0, 10.0]])
    matrix = np.linalg.cholesky(w + 0.1 * np.eye(2))
    expected = dy @ np.linalg.matrix_power(5.0 * matrix.T, 3 if around == "loop" else 1)
    np.testing.assert_allclose(gradient(lambda x: loaded.f(x, w), [[0.5, 2.0]], dy), expected, rtol=1e-5)
