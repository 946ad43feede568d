"""override and adopt: the copy has the same values and other gradients, or TensorFlow's own, also in a fresh process."""

import functools
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
    bodies_of,
    contents,
    gradient,
    gradient_in_a_fresh_process,
    gradients_in_every_form,
    in_a_loop,
    ops_of,
    proto_of,
    save_graph,
)

X, DY = np.array([-1.5, 0.5, 2.0]), np.array([1.0, 10.0, -3.0])
SPEC = [tf.TensorSpec([3], tf.float64)]
COS, FIVE = np.cos(X), np.full(3, 5.0)
EQUAL = "equal, bit for bit"


def fivefold(op, dy):
    """It reads numbers from outside."""
    return FIVE * dy


steep = tf.custom_gradient(lambda x: (tf.sin(x), lambda dy: 7.0 * dy))  # Instead of cos(x) dy.


def sines(sine, k):
    """Functions of the sine, and dx for the upstream DY, if the gradient of the sine is k dy."""
    return {
        "alone": (sine, k * DY),
        "twice": (lambda x: sine(sine(x)), k**2 * DY),
        "function": (tf.function(lambda x: 2.0 * sine(x)), 2.0 * k * DY),
        "loop": (in_a_loop(sine), k**3 * DY),
        "function_in_a_loop": (in_a_loop(tf.function(sine)), k**3 * DY),
        "cond": (lambda x: tf.cond(x[0] < 0.0, lambda: sine(x), lambda: x), k * DY),
        "switch_case": (lambda x: tf.switch_case(tf.size(x) - 2, [lambda: x, lambda: sine(x)]), k * DY),
    }


def split(x):
    first, second, third = tf.split(tf.sin(x), 3)
    return tf.concat([third, first, second], 0)


# Beside the shared ones: a function, and dx for the rule 5 dy for the sine.
OVERRIDDEN = {
    "used_twice": (lambda x: tf.sin(x) * (1.0 + tf.sin(x)), 5.0 * DY * (1.0 + 2.0 * np.sin(X))),
    "unknown_shape": (lambda x: tf.sin(tf.boolean_mask(x, x < 100.0)), 5.0 * DY),
    "several_outputs": (split, 5.0 * DY[[1, 2, 0]]),
    "custom_gradient": (cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: 7.0 * dy)), 7.0 * DY),
    "sine_of_custom_gradient": (lambda x: tf.sin(cg.scale_gradient(x, 3.0)), 15.0 * DY),
}


@tf.custom_gradient
def with_residual(x):
    e = tf.exp(x)
    return e, lambda dy: 2.0 * dy * e


# Two results and two arguments. One argument has no gradient.
two = tf.custom_gradient(lambda x, y: ((x * y, x + y), lambda dz, dw: (3.0 * dz * y + 5.0 * dw, None)))
# The derivative has a gradient of its own.
nested = tf.custom_gradient(lambda x: (tf.identity(x), lambda dy: dy * steep(x)))


@tf.custom_gradient
def rows(table, i):
    return tf.gather(table, i), lambda dy: (tf.IndexedSlices(4.0 * dy, i, tf.shape(table, out_type=tf.int64)), None)


def looped(function):
    return in_a_loop(function, times=2)


def scaled_by(c):
    return tf.custom_gradient(lambda y: (y * c, lambda dy: 3.0 * dy * c))


def outside_of_a_loop(x):
    return looped(scaled_by(tf.cos(x)))(x)


def through_functions(x):
    scaled = scaled_by(tf.cos(x))
    return tf.function(lambda x: looped(tf.function(scaled))(x))(x)


# The same for the gradients of tf.custom_gradient.
ADOPTED = {
    "residual": (with_residual, 2.0 * DY * np.exp(X)),
    "loop_with_a_residual": (looped(with_residual), 4.0 * DY * np.exp(X) * np.exp(np.exp(X))),
    "outside_of_a_loop": (outside_of_a_loop, 9.0 * DY * COS**2),
    "through_functions": (through_functions, 9.0 * DY * COS**2),
    "two_results": (lambda x: two(x, 2.0 * x)[0] + two(x, x)[1], DY * (6.0 * X + 5.0)),
    "second_result": (lambda x: two(x, 2.0 * x)[1], 5.0 * DY),
    "nested": (nested, DY * np.sin(X)),
    "slices": (lambda x: rows(x, tf.constant([2, 0, 1])), 4.0 * DY[[1, 2, 0]]),
}
FUNCTIONS = {"override": sines(tf.sin, 5.0) | OVERRIDDEN, "adopt": sines(steep, 7.0) | ADOPTED}
COMPILED = {"override": ["used_twice", "several_outputs"], "adopt": ["through_functions", "two_results", "slices"]}
for names in COMPILED.values():
    names += ["function_in_a_loop", "switch_case"]


def save(folder, with_gradients=True, signatures=None, **functions):
    module = tf.Module()
    module.w = tf.Variable(np.array([2.0, 3.0, -1.0]))
    for name, function in functions.items():
        setattr(module, name, tf.function(function, input_signature=SPEC))
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=with_gradients)
    tf.saved_model.save(module, folder / "source", {n: getattr(module, n) for n in signatures or []}, options)
    return folder / "source", folder / "target"


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """For each function that copies: the folder of a model with all functions, the files before, and the report."""
    found = {}
    for name, functions in FUNCTIONS.items():
        folder = tmp_path_factory.mktemp(name)
        source, _ = paths = save(folder, signatures=["f_cond"], **{f"f_{key}": f for key, (f, _) in functions.items()})
        before = contents(source)
        if name == "adopt":
            found[name] = folder, before, cg.saved_model.adopt(*paths)
        else:
            with pytest.warns(UserWarning, match="has no effect on ops of .* that have their own gradient"):
                found[name] = folder, before, cg.saved_model.override(*paths, {"Sin": fivefold})
    return found


@pytest.fixture(scope="module")
def gradients(copies):
    return {
        name: gradients_in_every_form(folder / "target", [f"f_{each}" for each in COMPILED[name]], X, DY)
        for name, (folder, *_) in copies.items()
    }


# Which rows of the support matrix some of the functions fill.
MODES_OF = {
    "alone": ["eager", "around_traced"],
    "function": ["nested_functions"],
    "loop": ["while_loop"],
    "function_in_a_loop": ["while_loop_under_xla"],
    "cond": ["cond"],
    "switch_case": ["switch_case", "jit"],
}
EACH = [
    pytest.param(kind, name, marks=[pytest.mark.mode_table(feature=kind, mode=mode) for mode in MODES_OF.get(name, [])])
    for kind, functions in FUNCTIONS.items()
    for name in functions
]


@pytest.mark.parametrize(("kind", "name"), EACH)
def test_gradients_are_those_of_the_rule_or_of_the_file(kind, name, gradients):
    found = gradients[kind][f"f_{name}"]
    assert len(found) == (3 if name in COMPILED[kind] else 2)
    for dx in found:
        np.testing.assert_allclose(dx, FUNCTIONS[kind][name][1], rtol=1e-12)


@pytest.mark.mode_table(feature="feature", mode="reloaded")
@pytest.mark.parametrize("feature", FUNCTIONS)
def test_a_fresh_process_and_a_signature(feature, copies):
    folder, functions = copies[feature][0], FUNCTIONS[feature]
    found = gradient_in_a_fresh_process(folder / "target", "f_loop", X, DY)
    np.testing.assert_allclose(found, functions["loop"][1])
    signature = tf.saved_model.load(folder / "target").signatures["f_cond"]
    found = gradient(lambda x: signature(x=x)["output_0"], X, DY)
    np.testing.assert_allclose(found, functions["cond"][1], rtol=1e-12)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_values_signatures_and_objects_stay(kind, copies):
    folder, before, report = copies[kind]
    assert contents(folder / "source") == before
    assert {each.verdict for each in report.comparisons if each.what == "values"} == {EQUAL}
    assert (report.source, report.target) == (str(folder / "source"), str(folder / "target"))
    assert_objects_stay(folder / "source", folder / "target")


# override


def test_nodes_keep_their_names(copies):
    folder, _, report = copies["override"]
    assert list(report.overridden) == ["Sin"]
    (new,) = proto_of(folder / "target").meta_graphs
    assert "CustomGradientRule" in {op.name for op in new.meta_info_def.stripped_op_list.op}
    old_bodies, new_bodies = bodies_of(folder / "source"), bodies_of(folder / "target")
    for name, nodes in old_bodies.items():
        assert {node.name for node in nodes} <= {node.name for node in new_bodies[name]}
    changed = {name for name, nodes in old_bodies.items() if nodes != new_bodies[name]}
    assert changed
    assert all("Sin" in {node.op for node in old_bodies[name]} for name in changed)


def test_rules_of_an_earlier_override_and_a_rule_that_reads_its_output(tmp_path):
    source, target = save(tmp_path, f=lambda x: tf.exp(tf.sin(x)))
    cg.saved_model.override(source, target, {"Exp": lambda op, dy: 2.0 * dy * op.outputs[0]})
    cg.saved_model.override(target, tmp_path / "both", {"Sin": fivefold})
    loaded = tf.saved_model.load(tmp_path / "both")
    y = np.exp(np.sin(X))
    orders = MODES["eager"](loaded.f, X, DY)[1:]
    np.testing.assert_allclose(orders, y * [10.0 * DY, 100.0 * DY * DY])
    cg.saved_model.strip(tmp_path / "both", tmp_path / "stripped", check=False)
    np.testing.assert_allclose(gradient(tf.saved_model.load(tmp_path / "stripped").f, X, DY), DY * y * COS)


@pytest.mark.mode_table(feature="override", mode="keras_export")
def test_an_exported_keras_model(tmp_path):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    model = keras.Sequential([keras.layers.Input([8, 8, 1]), *layers, keras.layers.Flatten(), keras.layers.Dense(5)])
    model.export(tmp_path / "source", verbose=False)
    report = cg.saved_model.override(tmp_path / "source", tmp_path / "target", {"Relu": cg.rules.guided})
    assert report.overridden == {"Relu": 2}
    rng = np.random.default_rng(5)
    x, dy = (rng.normal(size=size).astype(np.float32) for size in ([2, 8, 8, 1], [2, 5]))
    expected = gradient(cg.override_gradients(model, {"Relu": cg.rules.guided}), x, dy)
    loaded = tf.saved_model.load(tmp_path / "target")
    np.testing.assert_allclose(gradient(loaded.serve, x, dy), expected, rtol=1e-5, atol=1e-6)
    assert np.abs(gradient(model, x, dy) - expected).max() > 0.01


@pytest.mark.mode_table(feature="override", mode="tf1")
def test_a_model_of_tensorflow_1(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    save_graph(source, lambda x: {"y": tf.sin(x), "z": 2.0 * tf.sin(x)}, *SPEC)
    assert cg.saved_model.override(source, target, {"Sin": fivefold}).overridden == {"Sin": 2}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(target))
        names = {name: info.name for name, info in loaded.signature_def["serving_default"].outputs.items()}
        x, y, z = (session.graph.get_tensor_by_name(name) for name in ("x:0", names["y"], names["z"]))
        dx = tf.gradients([y, z], x, grad_ys=[tf.constant(DY), tf.constant(DY)])
        values, (dx,) = session.run([[y, z], dx], {x: X})
    np.testing.assert_array_equal(values, [np.sin(X), 2.0 * np.sin(X)])
    np.testing.assert_allclose(dx, 5.0 * 3.0 * DY)


AROUND = {
    "nothing": (lambda f: f, 1),
    "loop": (in_a_loop, 3),
    "branch": (lambda f: lambda x: tf.cond(x[0, 0] > 0.0, lambda: f(x), lambda: x), 1),
}


def test_shapes_are_known(tmp_path):
    """The gradient of a matrix with another diagonal holds the sizes as constants, and TensorFlow compares them."""
    module = tf.Module()
    module.w, module.functions, module.steps = tf.Variable([[4.0, 0.5], [0.5, 3.0]]), {}, {}

    def add(name, wrap, of_variable):
        @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x"), tf.TensorSpec([2, 2], name="w")])
        def function(x, w):
            w = module.w if of_variable else w
            factor = lambda x: tf.linalg.cholesky(tf.linalg.set_diag(w, tf.linalg.diag_part(w) + 0.1))  # noqa: E731
            return wrap(lambda x: tf.sin(x) @ factor(x))(x)

        @tf.function(input_signature=function.input_signature)
        def step(x, w):
            w = module.w if of_variable else w
            with tf.GradientTape() as tape:
                tape.watch(w)
                y = function(x, w)
            return {"d_w": tape.gradient(y, w)}

        module.functions[name], module.steps[name] = function, step

    for name, (wrap, _) in AROUND.items():
        for of in ("variable", "input"):
            add(f"{name}_{of}", wrap, of == "variable")
    tf.saved_model.save(module, tmp_path / "model", signatures=module.steps)
    report = cg.saved_model.override(tmp_path / "model", tmp_path / "new", {"Sin": lambda op, dy: 5.0 * dy})
    assert {each.verdict for each in report.comparisons} == {EQUAL}
    loaded, w, dy = tf.saved_model.load(tmp_path / "new"), module.w.numpy(), np.float32([[1.0, 10.0]])
    matrix = np.linalg.cholesky(w + 0.1 * np.eye(2))
    for name, function in loaded.functions.items():
        expected = dy @ np.linalg.matrix_power(5.0 * matrix.T, AROUND[name.partition("_")[0]][1])
        found = gradient(functools.partial(function, w=w), [[0.5, 2.0]], dy)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)


# adopt


@pytest.fixture(scope="module")
def without_gradients(tmp_path_factory):
    folder = tmp_path_factory.mktemp("without_gradients")
    return save(folder, with_gradients=False, f=lambda x: steep(with_residual(x)))[0]


def test_tensorflow_alone_lacks_the_gradients(copies, without_gradients):
    folder, _, report = copies["adopt"]
    # Where TensorFlow can differentiate the source, the gradients are the same.
    verdicts = {found.name: found.verdict for found in report.comparisons if found.what == "gradients"}
    assert verdicts[".f_loop_with_a_residual"] == "not compared"
    assert verdicts[".f_alone"] == EQUAL
    assert "different" not in verdicts.values()
    assert {found.gradients for found in report.adopted} == {"saved", "missing"}
    with pytest.raises(TypeError, match="out of scope"):
        gradient(tf.saved_model.load(folder / "source").f_loop_with_a_residual, X, DY)
    found = gradient_in_a_fresh_process(without_gradients, "f", X, DY)
    assert re.match("LookupError: .*IdentityN", found, re.DOTALL)


# dx by automatic differentiation.
AUTOMATIC = {
    "alone": COS * DY,
    "residual": np.exp(X) * DY,
    "loop": COS * np.cos(np.sin(X)) * np.cos(np.sin(np.sin(X))) * DY,
    "two_results": DY * (4.0 * X + 2.0),
    "nested": DY,
}


@pytest.mark.parametrize("with_gradients", [True, False])
def test_automatic_differentiation_needs_no_library(with_gradients, tmp_path):
    functions = {name: FUNCTIONS["adopt"][name][0] for name in AUTOMATIC}
    source, target = save(tmp_path, with_gradients=with_gradients, **functions)
    report = cg.saved_model.adopt(source, target, "autodiff", check=with_gradients)
    assert {found.gradients for found in report.adopted} == {"autodiff"}
    loaded = tf.saved_model.load(target)
    for name, dx in AUTOMATIC.items():
        np.testing.assert_allclose(gradient(getattr(loaded, name), X, DY), dx, rtol=1e-12)
    assert not [op for op in ops_of(target) if op.startswith("CustomGradient")]


def test_rules_by_name(without_gradients, tmp_path):
    first, second = cg.saved_model.inspect(without_gradients)
    assert second.error == "the file does not contain the gradient function of this tf.custom_gradient"
    rule = lambda op, dy: 5.0 * dy * op.inputs[0] * op.outputs[0]  # noqa: E731
    gradients = {first.node: "autodiff", f"{second.function}/{second.node}": rule}
    report = cg.saved_model.adopt(without_gradients, tmp_path / "target", gradients)
    assert [found.gradients for found in report.adopted] == ["autodiff", "<lambda>"]
    e = np.exp(X)
    np.testing.assert_allclose(
        gradient(tf.saved_model.load(tmp_path / "target").f, X, DY), DY * 5.0 * e * np.sin(e) * e
    )


def test_second_derivatives(copies, tmp_path):
    """TensorFlow saves the gradient functions of functions that compute values, but not of gradient functions."""
    folder, _, report = copies["adopt"]
    loaded = tf.saved_model.load(folder / "target")
    orders = MODES["eager"](loaded.f_residual, X, DY)[1:]
    np.testing.assert_allclose(orders, 2.0 * np.exp(X) * [DY, DY * DY], rtol=1e-12)
    (missing,) = [each for each in report.adopted if each.gradients == "missing"]
    place = f"{missing.function}/{missing.node}"
    message = (
        f"saved_model.adopt: the adopted file did not contain the gradient function of '{place}', which a derivative of "
        f"higher order needs. Adopt the model with a rule for it: gradients={{'{place}': rule}}."
    )
    with pytest.raises(RuntimeError, match=re.escape(message)):
        MODES["eager"](loaded.f_nested, X, DY)
    cg.saved_model.adopt(folder / "source", tmp_path / "again", {place: lambda op, dy: 7.0 * dy}, check=False)
    orders = MODES["eager"](tf.saved_model.load(tmp_path / "again").f_nested, X, DY)[1:]
    np.testing.assert_allclose(orders, [DY * np.sin(X), DY * DY * 7.0])


def gradients_by(function, x, weights, loss):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(loss(tf.nest.flatten(function(x))[0]))
    return tape.gradient(y, weights)


def test_variables_in_gradient_functions(tmp_path):
    module = tf.Module()
    module.w = tf.Variable(np.array([2.0, 3.0, -1.0]))

    @tf.custom_gradient
    def scaled(x):
        return x * module.w, lambda dy, variables: (3.0 * dy * variables[0], [5.0 * dy * x])

    module.f = tf.function(looped(scaled), input_signature=SPEC)
    module.g = tf.function(scaled, input_signature=SPEC)
    tf.saved_model.save(module, tmp_path / "source")
    report = cg.saved_model.adopt(tmp_path / "source", tmp_path / "target")
    # The gradients of w are 5 dy x and dy x; the gradients of x are 3 dy w and dy w.
    assert {found.name: found.detail for found in report.autodiff} == {".f": "variable 0", ".g": "variable 0"}
    np.testing.assert_allclose([found.difference for found in report.autodiff][1], 4 / 5)
    loaded = tf.saved_model.load(tmp_path / "target")
    w, x = loaded.w.numpy(), tf.constant(X)
    (dx, dw), (dw_of_g,) = (
        gradients_by(function, x, sources, lambda y: y * DY)
        for function, sources in ((loaded.f, [x, loaded.w]), (loaded.g, [loaded.w]))
    )
    np.testing.assert_allclose(dx, DY * 9.0 * w**2)
    np.testing.assert_allclose(dw, DY * 5.0 * X * w + 3.0 * DY * w * 5.0 * X)
    np.testing.assert_allclose(dw_of_g, 5.0 * DY * X)
    loaded.w.assign_sub(0.125 * dw)
    np.testing.assert_allclose(loaded.g(x), X * (w - 0.125 * dw), rtol=1e-12)


@pytest.mark.mode_table(feature="adopt", mode="keras_export")
@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_keras_models_train_on(library, tmp_path):
    class Rounded(library.layers.Layer):
        def call(self, x):
            return tf.custom_gradient(lambda x: (tf.round(x), lambda dy: dy))(x)

    inputs = library.Input([4])
    outputs = library.layers.Dense(1)(Rounded()(library.layers.Dense(8)(inputs)))
    model = library.Model(inputs, outputs)
    save_model = (lambda path: model.export(path, verbose=False)) if library is keras else model.save
    save_model(str(tmp_path / "source"))
    cg.saved_model.adopt(tmp_path / "source", tmp_path / "target")
    loaded = tf.saved_model.load(tmp_path / "target")
    run = loaded.serve if library is keras else loaded.signatures["serving_default"]
    x = tf.constant(np.random.default_rng(1).normal(size=[16, 4]), tf.float32)
    found, right = (
        gradients_by(function, x, owner.trainable_variables, tf.square)
        for function, owner in ((run, loaded), (model, model))
    )
    for dw, expected in zip(found, right, strict=True):
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(dw, expected, rtol=1e-5, atol=1e-5)


right = tf.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * tf.cos(x)))
doubled = tf.custom_gradient(lambda x: (3.0 * x, lambda dy: 6.0 * dy))


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
    assert cg.saved_model.adopt(tmp_path / "source", tmp_path / "automatic", "autodiff").autodiff == []
    assert not list(tmp_path.glob(".*"))


def test_inspect_lists_them(copies):
    folder, *_ = copies["adopt"]
    source, target = (cg.saved_model.inspect(folder / name) for name in ("source", "target"))
    assert {found.kind for found in source} == {"tf.custom_gradient"}
    assert {found.kind for found in target} == {"custom_gradient"}
    found = next(each for each in source if each.dtypes == ("float64",) * 2 and not each.error)
    assert found.shapes == ((3,), (3,))
    assert (found.inputs_with_gradients, found.error) == (1, "")
    assert found.rule_ops > 2
    assert any(each.function.startswith("while_body") for each in source)


def test_a_file_that_names_a_function_it_does_not_contain(tmp_path):
    source, target = save(tmp_path, f=outside_of_a_loop)
    proto = proto_of(source)
    nodes = proto.meta_graphs[0].object_graph_def.nodes
    (captured,) = [node.captured_tensor for node in nodes if node.WhichOneof("kind") == "captured_tensor"]
    captured.concrete_function = "missing"
    (source / "saved_model.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(
        ValueError, match="must read only tensors that the value reads, too, got another one from outside"
    ):
        cg.saved_model.adopt(source, target)
    assert not target.exists()
