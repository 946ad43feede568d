"""adopt makes gradients of tf.custom_gradient work after loading a SavedModel, in loops, too."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.modes import MODES
from ..support.saved_models import (
    assert_objects_stay,
    contents,
    gradient,
    gradient_in_a_fresh_process,
    gradients_in_every_form,
    in_a_loop,
    ops_of,
    proto_of,
    with_modes,
)

X, DY = np.array([-1.5, 0.5, 2.0]), np.array([1.0, 10.0, -3.0])
SPEC = [tf.TensorSpec([3], tf.float64)]


@tf.custom_gradient
def steep(x):
    """7 dy instead of cos(x) dy."""
    return tf.sin(x), lambda dy: 7.0 * dy


@tf.custom_gradient
def with_residual(x):
    e = tf.exp(x)
    return e, lambda dy: 2.0 * dy * e


@tf.custom_gradient
def two(x, y):
    """Two results and two arguments. One argument has no gradient."""
    return (x * y, x + y), lambda dz, dw: (3.0 * dz * y + 5.0 * dw, None)


@tf.custom_gradient
def nested(x):
    """The derivative has a gradient of its own."""
    return tf.identity(x), lambda dy: dy * steep(x)


@tf.custom_gradient
def rows(table, i):
    def grad(dy):
        return tf.IndexedSlices(4.0 * dy, i, tf.shape(table, out_type=tf.int64)), None

    return tf.gather(table, i), grad


def looped(function):
    return in_a_loop(function, times=2)


def scaled_by(c):
    @tf.custom_gradient
    def scaled(y):
        return y * c, lambda dy: 3.0 * dy * c

    return scaled


def outside_of_a_loop(x):
    return looped(scaled_by(tf.cos(x)))(x)


def through_functions(x):
    scaled = scaled_by(tf.cos(x))
    return tf.function(lambda x: looped(tf.function(scaled))(x))(x)


COS = np.cos(X)
# A function, dx for the upstream DY, and for some also dx by automatic differentiation.
FUNCTIONS = {
    "alone": (steep, 7.0 * DY, COS * DY),
    "residual": (with_residual, 2.0 * DY * np.exp(X), np.exp(X) * DY),
    "twice": (lambda x: steep(steep(x)), 49.0 * DY, None),
    "function": (tf.function(lambda x: 2.0 * steep(x)), 14.0 * DY, None),
    "loop": (looped(steep), 49.0 * DY, COS * np.cos(np.sin(X)) * DY),
    "loop_with_a_residual": (looped(with_residual), 4.0 * DY * np.exp(X) * np.exp(np.exp(X)), None),
    "outside_of_a_loop": (outside_of_a_loop, 9.0 * DY * COS**2, None),
    "through_functions": (through_functions, 9.0 * DY * COS**2, None),
    "cond": (lambda x: tf.cond(x[0] < 0.0, lambda: steep(x), lambda: x), 7.0 * DY, None),
    "switch_case": (lambda x: tf.switch_case(tf.size(x) - 2, [lambda: x, lambda: steep(x)]), 7.0 * DY, None),
    "two_results": (lambda x: two(x, 2.0 * x)[0] + two(x, x)[1], DY * (6.0 * X + 5.0), DY * (4.0 * X + 2.0)),
    "second_result": (lambda x: two(x, 2.0 * x)[1], 5.0 * DY, None),
    "nested": (nested, DY * np.sin(X), DY),
    "slices": (lambda x: rows(x, tf.constant([2, 0, 1])), 4.0 * DY[[1, 2, 0]], None),
}


class Module(tf.Module):
    def __init__(self, specs, **functions):
        super().__init__()
        self.w = tf.Variable(np.array([2.0, 3.0, -1.0]))
        for name, function in functions.items():
            setattr(self, name, tf.function(function, input_signature=specs))


def save(folder, function=None, with_gradients=True, specs=SPEC, **functions):
    module = Module(specs, **(functions or {"f": function}))
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=with_gradients)
    tf.saved_model.save(module, folder / "source", options=options)
    return folder / "source", folder / "target"


@pytest.fixture(scope="module")
def adopted(tmp_path_factory):
    """A model with all functions: its folder, the files before, and the report."""
    folder = tmp_path_factory.mktemp("adopt")
    source, target = save(folder, **{f"f_{name}": function for name, (function, *_) in FUNCTIONS.items()})
    before = contents(source)
    return folder, before, cg.saved_model.adopt(source, target)


COMPILED = ["loop_with_a_residual", "through_functions", "switch_case", "two_results", "slices"]
# Which rows of the support matrix some of the functions fill.
MODES_OF = {
    "alone": ["eager", "around_traced"],
    "function": ["nested_functions"],
    "loop": ["while_loop"],
    "loop_with_a_residual": ["while_loop_under_xla"],
    "cond": ["cond"],
    "switch_case": ["switch_case", "jit"],
}


@pytest.fixture(scope="module")
def gradients(adopted):
    return gradients_in_every_form(adopted[0] / "target", [f"f_{name}" for name in COMPILED], X, DY)


@pytest.mark.parametrize("name", with_modes(FUNCTIONS, "adopt", MODES_OF))
def test_gradients_of_the_file_become_rules(name, gradients):
    assert len(gradients[f"f_{name}"]) == (3 if name in COMPILED else 2)
    for found in gradients[f"f_{name}"]:
        np.testing.assert_allclose(found, FUNCTIONS[name][1], rtol=1e-12)


def test_values_objects_and_signatures_stay(adopted):
    folder, before, report = adopted
    assert contents(folder / "source") == before
    values, gradients = (
        {found.name: found.verdict for found in report.comparisons if found.what == what}
        for what in ("values", "gradients")
    )
    assert set(values.values()) == {"equal, bit for bit"}
    # Where TensorFlow can differentiate the source, the gradients are the same.
    assert gradients[".f_loop_with_a_residual"] == "not compared"
    assert gradients[".f_alone"] == "equal, bit for bit"
    assert "different" not in gradients.values()
    assert {found.gradients for found in report.adopted} == {"saved", "missing"}
    assert_objects_stay(folder / "source", folder / "target")


@pytest.mark.mode_table(feature="adopt", mode="reloaded")
def test_a_fresh_process_has_gradients_that_tensorflow_alone_has_not(adopted, tmp_path):
    found = gradient_in_a_fresh_process(adopted[0] / "target", "f_loop", X, DY)
    np.testing.assert_allclose(found, 49.0 * DY)
    with pytest.raises(TypeError, match="out of scope"):
        gradient(tf.saved_model.load(adopted[0] / "source").f_loop_with_a_residual, X, DY)
    without, _ = save(tmp_path, with_gradients=False, f_loop=steep)
    assert re.match("LookupError: .*IdentityN", gradient_in_a_fresh_process(without, "f_loop", X, DY), re.DOTALL)


@pytest.mark.parametrize("with_gradients", [True, False])
def test_automatic_differentiation_needs_no_library(with_gradients, tmp_path):
    functions = {name: function for name, (function, _, dx) in FUNCTIONS.items() if dx is not None}
    source, target = save(tmp_path, with_gradients=with_gradients, **functions)
    report = cg.saved_model.adopt(source, target, "autodiff", check=with_gradients)
    assert {found.gradients for found in report.adopted} == {"autodiff"}
    loaded = tf.saved_model.load(target)
    for name in functions:
        np.testing.assert_allclose(gradient(getattr(loaded, name), X, DY), FUNCTIONS[name][2], rtol=1e-12)
    assert not [op for op in ops_of(target) if op.startswith("CustomGradient")]


def test_rules_by_name(tmp_path):
    source, target = save(tmp_path, lambda x: steep(with_residual(x)), with_gradients=False)
    first, second = cg.saved_model.inspect(source)
    rule = lambda op, dy: 5.0 * dy * op.inputs[0] * op.outputs[0]  # noqa: E731
    gradients = {first.node: "autodiff", f"{second.function}/{second.node}": rule}
    report = cg.saved_model.adopt(source, target, gradients)
    assert [found.gradients for found in report.adopted] == ["autodiff", "<lambda>"]
    e = np.exp(X)
    np.testing.assert_allclose(gradient(tf.saved_model.load(target).f, X, DY), DY * 5.0 * e * np.sin(e) * e)


def test_second_derivatives(adopted):
    orders = MODES["eager"](tf.saved_model.load(adopted[0] / "target").f_residual, X, DY)[1:]
    np.testing.assert_allclose(orders, 2.0 * np.exp(X) * [DY, DY * DY], rtol=1e-12)


def test_a_second_derivative_that_the_file_does_not_hold(tmp_path):
    """TensorFlow saves the gradient functions of functions that compute values, but not of gradient functions."""
    source, target = save(tmp_path, nested)
    outer, inner = cg.saved_model.adopt(source, target, check=False).adopted[::-1]
    assert (outer.gradients, inner.gradients) == ("saved", "missing")
    place = f"{inner.function}/{inner.node}"
    message = (
        f"saved_model.adopt: the adopted file did not contain the gradient function of '{place}', which a derivative of "
        f"higher order needs. Adopt the model with a rule for it: gradients={{'{place}': rule}}."
    )
    with pytest.raises(RuntimeError, match=re.escape(message)):
        MODES["eager"](tf.saved_model.load(target).f, X, DY)
    cg.saved_model.adopt(source, tmp_path / "again", {place: lambda op, dy: 7.0 * dy}, check=False)
    orders = MODES["eager"](tf.saved_model.load(tmp_path / "again").f, X, DY)[1:]
    np.testing.assert_allclose(orders, [DY * np.sin(X), DY * DY * 7.0])


def test_variables_in_gradient_functions(tmp_path):
    module = tf.Module()
    module.w = tf.Variable(np.array([2.0, 3.0, -1.0]))

    @tf.custom_gradient
    def scaled(x):
        def grad(dy, variables):
            return 3.0 * dy * variables[0], [5.0 * dy * x]

        return x * module.w, grad

    module.f = tf.function(looped(scaled), input_signature=SPEC)
    module.g = tf.function(scaled, input_signature=SPEC)
    tf.saved_model.save(module, tmp_path / "source")
    report = cg.saved_model.adopt(tmp_path / "source", tmp_path / "target")
    # The gradients of w are 5 dy x and dy x; the gradients of x are 3 dy w and dy w.
    assert {found.name: found.detail for found in report.autodiff} == {".f": "variable 0", ".g": "variable 0"}
    np.testing.assert_allclose([found.difference for found in report.autodiff][1], 4 / 5)
    loaded = tf.saved_model.load(tmp_path / "target")
    w, x = loaded.w.numpy(), tf.constant(X)

    def gradients_of(function):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, [x, loaded.w], output_gradients=tf.constant(DY))

    (dx, dw), (_, dw_of_g) = gradients_of(loaded.f), gradients_of(loaded.g)
    np.testing.assert_allclose(dx, DY * 9.0 * w**2)
    np.testing.assert_allclose(dw, DY * 5.0 * X * w + 3.0 * DY * w * 5.0 * X)
    np.testing.assert_allclose(dw_of_g, 5.0 * DY * X)
    loaded.w.assign_sub(0.125 * dw)
    np.testing.assert_allclose(loaded.g(x), X * (w - 0.125 * dw), rtol=1e-12)


@pytest.mark.mode_table(feature="adopt", mode="keras_export")
@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_keras_models_train_on(library, tmp_path):
    @tf.custom_gradient
    def rounded(x):
        return tf.round(x), lambda dy: dy

    class Rounded(library.layers.Layer):
        def call(self, x):
            return rounded(x)

    inputs = library.Input([4])
    outputs = library.layers.Dense(1)(Rounded()(library.layers.Dense(8)(inputs)))
    model = library.Model(inputs, outputs)
    save_model = (lambda path: model.export(path, verbose=False)) if library is keras else model.save
    save_model(str(tmp_path / "source"))
    cg.saved_model.adopt(tmp_path / "source", tmp_path / "target")
    loaded = tf.saved_model.load(tmp_path / "target")
    run = loaded.serve if library is keras else loaded.signatures["serving_default"]
    x = tf.constant(np.random.default_rng(1).normal(size=[16, 4]), tf.float32)

    def gradients_of(function, weights):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nest.flatten(function(x))[0] ** 2)
        return tape.gradient(loss, weights)

    found = gradients_of(run, loaded.trainable_variables)
    for dw, expected in zip(found, gradients_of(model, model.trainable_variables), strict=True):
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(dw, expected, rtol=1e-5, atol=1e-5)


@tf.custom_gradient
def right(x):
    return tf.sin(x), lambda dy: dy * tf.cos(x)


@tf.custom_gradient
def doubled(x):
    return 3.0 * x, lambda dy: 6.0 * dy


@tf.custom_gradient
def of_integers(z, n):
    return 3.0 * z * tf.cast(n, z.dtype), lambda dy: (6.0 * dy * tf.cast(n, dy.dtype), None)


COMPLEX = [tf.TensorSpec([2], tf.complex128), tf.TensorSpec([2], tf.int32)]
# A function, its inputs, and how far its gradients are from automatic differentiation, relative to the largest of them.
DIFFERENCES = {
    "right": (right, SPEC, 0.0),
    "right_in_a_loop": (looped(right), SPEC, 0.0),
    "doubled": (doubled, SPEC, 0.5),
    "twice": (lambda x: doubled(doubled(x)), SPEC, 0.75),
    "complex_and_integers": (of_integers, COMPLEX, 0.5),
}


def test_the_difference_between_both_gradients(tmp_path):
    module = tf.Module()
    for name, (function, specs, _) in DIFFERENCES.items():
        setattr(module, name, tf.function(function, input_signature=specs))
    tf.saved_model.save(module, tmp_path / "source")
    report = cg.saved_model.adopt(tmp_path / "source", tmp_path / "target")
    found = {each.name[1:]: each.difference for each in report.autodiff}
    assert found == {name: pytest.approx(difference, abs=1e-12) for name, (*_, difference) in DIFFERENCES.items()}
    assert "autodiff  gradients of .doubled: different by 0.5 of the largest element (input 0)" in str(report)
    audited = cg.testing.audit(tf.saved_model.load(tmp_path / "target").twice, [tf.constant(X)])
    assert [(row.places, row.verdict) for row in audited.rows] == [(1, "differs")] * 2
    automatic = cg.saved_model.adopt(tmp_path / "source", tmp_path / "automatic", "autodiff")
    assert automatic.autodiff == []
    assert not list(tmp_path.glob(".*"))


def test_inspect_lists_them(tmp_path):
    source, target = save(tmp_path, looped(lambda x: two(x, 2.0 * x)[0]))
    (found,) = cg.saved_model.inspect(source)
    assert (found.kind, found.dtypes, found.shapes) == ("tf.custom_gradient", ("float64",) * 2, ((3,), (3,)))
    assert (found.inputs_with_gradients, found.error) == (1, "")
    assert found.function.startswith("while_body")
    assert found.rule_ops > 2
    without, _ = save(tmp_path / "without", steep, with_gradients=False)
    (found,) = cg.saved_model.inspect(without)
    assert found.error == "the file does not contain the gradient function of this tf.custom_gradient"
    cg.saved_model.adopt(source, target, check=False)
    assert [found.kind for found in cg.saved_model.inspect(target)] == ["custom_gradient"]


NOT_THERE = "must read only tensors that the value reads, too, got another one from outside of the function\\. Pass "


def test_gradients_that_read_something_from_outside(tmp_path):
    """Also if the file names a function that it does not contain."""

    def function(x):
        c = tf.cos(x)

        @tf.custom_gradient
        def scaled(y):
            return y + 1.0, lambda dy: dy * c

        return looped(scaled)(x)

    source, target = save(tmp_path, function)
    named, _ = save(tmp_path / "named", outside_of_a_loop)
    proto = proto_of(named)
    nodes = proto.meta_graphs[0].object_graph_def.nodes
    (captured,) = [node.captured_tensor for node in nodes if node.WhichOneof("kind") == "captured_tensor"]
    captured.concrete_function = "missing"
    (named / "saved_model.pb").write_bytes(proto.SerializeToString())
    for model in (source, named):
        with pytest.raises(ValueError, match=NOT_THERE):
            cg.saved_model.adopt(model, target)
        assert not target.exists()
    (place,) = cg.saved_model.inspect(source)
    cg.saved_model.adopt(source, target, {place.node: lambda op, dy: 3.0 * dy}, check=False)
    np.testing.assert_allclose(gradient(tf.saved_model.load(target).f, X, DY), 9.0 * DY)
